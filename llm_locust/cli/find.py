"""``llm-locust find``: the highest load under which limits hold, from runs at several loads."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from llm_locust.core.durations import parse_time
from llm_locust.metrics.curves.objective import UNITS, Objective, parse_objective
from llm_locust.metrics.curves.probe import Probe
from llm_locust.metrics.curves.readings import probes
from llm_locust.metrics.curves.search import Bounds, Found, NextStage, next_step
from llm_locust.metrics.question import Question
from llm_locust.report.inputs.sources import open_source
from llm_locust.report.output import one_line, printing, shown_json
from llm_locust.report.render.console import print_sections
from llm_locust.report.section import Column, Line, Row, Section, Table, Tone
from llm_locust.report.text import clean, number, percent

DESCRIPTION = (
    "Find the highest load under which limits hold, from runs at several loads and from the stages of runs. "
    "Prints the load to run next, or the answer with its 95 %% interval: see docs/capacity.md."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust find``."""
    parser.add_argument(
        "objective",
        metavar="OBJECTIVE",
        help='"max rate under goodput>=95%%", "max concurrency under p99_ttft<500ms p99_tpot<50ms"',
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories, each at one load")
    parser.add_argument("--slo", metavar="TEXT", help="what goodput is judged by (each run's own)")
    parser.add_argument("--warmup", type=_time, metavar="TIME", help="left out at each start, such as 30s")
    parser.add_argument(
        "--precision",
        type=_share,
        default=0.05,
        metavar="SHARE",
        help="of the answer: half its interval, as a share of it (5%%)",
    )
    parser.add_argument(
        "--max-stages", type=int, default=12, metavar="N", help="stages after which it ends (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the next load or the answer. Return the exit code: 0, or 2 for what cannot be searched."""
    try:
        objective = parse_objective(args.objective)
        found = _probes(args.runs, Question(slo=args.slo, warmup_s=args.warmup), objective)
        if not found:
            raise ValueError("the runs have no load: nothing was sent in them")
        bounds = Bounds(found[0].load, precision=args.precision, most_stages=args.max_stages)
        step = next_step(objective, bounds, found)
    except (ValueError, OSError) as e:
        print(f"llm-locust find: {one_line(e)}", file=sys.stderr)
        return 2
    with printing():
        if args.json:
            print(shown_json(_data(objective, found, step), indent=2))
        else:
            print_sections([_stages(objective, found), _outcome(objective, step)], sys.stdout)
    return 0


def _probes(runs: Sequence[Path], question: Question, objective: Objective) -> list[Probe]:
    """Of all stages in the order in which they ran."""
    by_time: list[tuple[int, list[Probe]]] = []
    for path in runs:
        with open_source([path], question) as source:
            found = probes(source.requests, source.manifest, question, objective)
            by_time.append((source.manifest.started_ns, found))
    return [probe for _, found in sorted(by_time, key=lambda each: each[0]) for probe in found]


def _stages(objective: Objective, found: Sequence[Probe]) -> Section:
    columns = (
        Column(UNITS[objective.axis]),
        *(Column(f"{limit.text}: share", over="") for limit in objective.limits),
        Column("requests"),
        Column("independent"),
        Column("shows", left=True, wraps=True, verbatim=True),
    )
    return Section(
        objective.text, table=Table(columns, tuple(_row(objective, p) for p in found)), stacked=True
    )


def _row(objective: Objective, probe: Probe) -> Row:
    required = tuple(limit.required for limit in objective.limits)
    if not probe.readings:
        empty = ("",) * (len(required) + 2)
        return Row((number(probe.load), *empty, f"no result: {clean(probe.no_result)}"), Tone.WARN)
    shares = (f"{percent(r.share)} ({percent(r.ends[0])} to {percent(r.ends[1])})" for r in probe.readings)
    shown = f"client: {clean(probe.client)}" if probe.client else str(probe.shows(required))
    requests = max(r.n for r in probe.readings)
    worth = min(r.n_eff for r in probe.readings)
    tone = Tone.WARN if probe.client else Tone.PLAIN
    return Row((number(probe.load), *shares, f"{requests:,}", number(worth), shown), tone)


def _outcome(objective: Objective, step: NextStage | Found) -> Section:
    if isinstance(step, NextStage):
        line = f"{number(step.load)} {UNITS[objective.axis]}: {clean(step.why)}"
        return Section("Run next", (Line(line, Tone.WARN),))
    tone = Tone.GOOD if step.is_resolved else Tone.WARN
    return Section("Answer", tuple(Line(text, tone) for text in _answer(UNITS[objective.axis], step)))


def _answer(unit: str, step: Found) -> Iterator[str]:
    if step.load is not None and step.low is not None and step.high is not None:
        yield f"{number(step.load)} {unit} ({number(step.low)} to {number(step.high)}, 95 % interval)"
    elif step.load is not None:
        open_end = "" if step.low is None else f", at least {number(step.low)}"
        yield f"about {number(step.load)} {unit}{open_end}, without an interval"
    elif step.at_least is not None:
        yield f"at least {number(step.at_least)} {unit}: a lower bound, no load tried breaks a limit"
    elif step.at_most is not None:
        yield f"less than {number(step.at_most)} {unit}: an upper bound, every load tried breaks a limit"
    else:
        yield "none: the stages do not show at which load the limits hold"
    if step.limit is not None:
        yield f"{step.limit} breaks first"
    yield f"the search ended: {clean(step.why)}"


def _data(objective: Objective, found: Sequence[Probe], step: NextStage | Found) -> dict[str, Any]:
    required = tuple(limit.required for limit in objective.limits)
    stages = [
        {
            "load": probe.load,
            "shows": str(probe.shows(required)) if probe.counts else None,
            "no_result": probe.no_result or None,
            "client": probe.client or None,
            "limits": [
                {
                    "gate": limit.text,
                    "required": limit.required,
                    "share": r.share,
                    "ci95": list(r.ends),
                    "n": r.n,
                }
                | {"n_effective": r.n_eff}
                for limit, r in zip(objective.limits, probe.readings, strict=False)
            ],
        }
        for probe in found
    ]
    told = {"objective": objective.text, "unit": UNITS[objective.axis], "stages": stages}
    if isinstance(step, NextStage):
        return told | {"next": {"load": step.load, "why": step.why}, "answer": None}
    keys = ("load", "low", "high", "at_least", "at_most", "limit", "is_resolved", "why")
    return told | {"next": None, "answer": {key: getattr(step, key) for key in keys}}


def _share(text: str) -> float:
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f'"{text}" is not a share: write it as 5% or 0.05')
    return value


def _time(text: str) -> float:
    try:
        return parse_time(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from e
