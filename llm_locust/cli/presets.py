"""``llm-locust presets``: the loads that ``--preset`` and ``--scenario`` know by name."""

import argparse
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

from llm_locust.cli.main import did_you_mean
from llm_locust.options.table import GRAMMAR
from llm_locust.report.output import one_line, printing
from llm_locust.scenario.classes import PRESETS, protocol_names, scenario_path
from llm_locust.scenario.document import load_scenario, plan_points

DESCRIPTION = (
    "List the loads that --preset takes: usual cases, and public protocols. A run with a protocol rehearses "
    "it; it is not an official result. With NAME, print the protocol's file: its source, its date, and in "
    "what a run with it differs."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this protocol's file")
    parser.add_argument(
        "--points",
        type=_points,
        metavar="C_MIN-C_MAX",
        help="plan the points of MLPerf Endpoints between two numbers of concurrent requests, such as 1-256",
    )


def run(args: argparse.Namespace) -> int:
    """Print what is asked for. Return the exit code: 0, or 2 for an unknown name."""
    if args.name is None:
        lines = _points_lines(*args.points) if args.points else _list(shutil.get_terminal_size().columns - 1)
    elif args.name in protocol_names():
        # The package's own file, also where the working directory has another of this name.
        lines = iter(Path(scenario_path(args.name)).read_text().splitlines())
    else:
        meant = did_you_mean(args.name, protocol_names())
        shown = one_line(ValueError(args.name))
        print(f"llm-locust presets: no protocol {shown!r}; {meant}see llm-locust presets", file=sys.stderr)
        return 2
    with printing():
        for line in lines:
            print(line)
    return 0


def _list(width: int) -> Iterator[str]:
    names = protocol_names()
    wide = max(map(len, (*PRESETS, *names)))
    yield "usual cases, as defaults of a run:"
    for name, preset in PRESETS.items():
        limits = preset.slo or "none"
        text = f"{preset.input_tokens} in, {preset.output_tokens} out, limits: {limits}"
        yield from _row(name, text, wide, width)
    yield ""
    yield "public protocols, to rehearse (no run here is an official result):"
    for name in names:
        about = load_scenario(scenario_path(name), GRAMMAR).about
        yield from _row(name, "" if about is None else about.title, wide, width)
    yield ""
    yield "llm-locust run http://HOST:8000 --preset NAME runs one; llm-locust presets NAME shows its file."


def _row(name: str, text: str, wide: int, width: int) -> Iterator[str]:
    """A name and what it is, wrapped into a column of its own."""
    for line in wrap(text, max(20, width - wide - 4)) or [""]:
        yield f"  {name:<{wide}}  {line}".rstrip()
        name = ""


def _points_lines(c_min: int, c_max: int) -> Iterator[str]:
    points = plan_points(c_min, c_max)
    yield f"Ultra-Low  {c_min}"
    for name, (first, last) in (("Low", points.low), ("Medium", points.medium), ("High", points.high)):
        yield f"{name:<9}  {first} .. {last}"
    yield f"margin     up to {points.highest}"
    yield f"--sweep users={','.join(map(str, points.planned))} --stage-time 1200s"


def _points(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*-\s*([0-9]{1,9})\s*", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not C_MIN-C_MAX, such as 1-256")
    c_min, c_max = int(match[1]), int(match[2])
    try:
        plan_points(c_min, c_max)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from e
    return c_min, c_max
