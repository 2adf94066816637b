"""``llm-locust run``: a load test by one command."""

import argparse
import os
import sys
from collections.abc import Collection, Mapping
from textwrap import fill

from llm_locust.cli.parser import did_you_mean, help_width
from llm_locust.cli.starting import (
    DEFAULT_PRESET,
    DEFAULT_SIM_TIME_S,
    DEFAULT_TIME_S,
    DEFAULT_USERS,
    DEFAULT_WARMUP_S,
    MOST_WARMUP,
    Said,
    help_arguments,
    locust_arguments,
    run_seconds,
    said_elsewhere,
    start_simulator,
)
from llm_locust.client.http.target import Target
from llm_locust.core.texts import argument, positive
from llm_locust.options.option import Option
from llm_locust.options.table import GRAMMAR, GROUPS, OPTION, OPTIONS
from llm_locust.report.output import one_line
from llm_locust.scenario.classes import FOLDER, PRESETS, protocol_names
from llm_locust.scenario.document import Scenario, load_scenario
from llm_locust.swarm.process.early_signals import keep_for_the_next_program

DESCRIPTION = (
    "Send load to the server at URL, print the report, and keep it in a run directory. Without options: "
    f"{DEFAULT_USERS} users for {DEFAULT_TIME_S} s, each sending its next request when the last has ended."
)

#: Options of the table that the help explains, by the heading they are under. It only names the others.
_SHOWN: Mapping[str, tuple[str, ...]] = {
    "the server": ("model", "api_key_env"),
    "the load": (
        "request_rate",
        "warmup",
        "input_tokens",
        "output_tokens",
        "dataset",
        "trajectories",
        "scenario",
    ),
    "what is good enough": ("slo", "gate"),
    "the run": ("out", "note", "progress"),
}

#: Shorter spellings.
_ALIASES = {"request_rate": "--rate"}

#: Help of options whose default is another one here.
_HELP = {
    "request_rate": "open loop: send this many requests per second, however slow the server is; a number, or "
    "a rate over time such as ramp:1..20,60s",
    "warmup": f"excluded from the measured window (default {DEFAULT_WARMUP_S:g}s, of a run below "
    f"{DEFAULT_WARMUP_S / MOST_WARMUP:g}s a quarter, with --num-requests or a trace none; gives way if all "
    "requests begin in it)",
    "slo": f'limits per request, for goodput: "ttft=500ms tpot=50ms" (default {PRESETS[DEFAULT_PRESET].slo}, '
    "without --preset and --scenario)",
    "gate": 'limits for the run, such as "goodput>=95% p99_ttft<800ms"; a broken one gives exit code 1',
    "progress": "panel (rich), a line every 10 s (plain), Locust's table (locust), auto (default)",
    "scenario": "YAML file with options and more, such as classes of requests; the command line wins",
}

#: -P: a file of the working directory that is called as a library is not imported instead of it.
_LOCUST = (sys.executable, "-P", "-m", "llm_locust.swarm.main")

#: What is asked of Locust after ``--``: an answer, for which no load and no server is needed.
_ASKS = frozenset({"-h", "--help", "-V", "--version", "-l", "--list"})

#: Options that say where requests go.
_SERVERS = ("host", "targets", "arm")

_EXAMPLES = """\
examples:
  llm-locust run --sim
  llm-locust run http://HOST:8000 --users 50 --for 5m --gate "p99_ttft<800ms"
  llm-locust run https://HOST/v1 --api-key-env OPENAI_API_KEY --rate 5
  llm-locust run http://HOST:8000 --workers 4 -- --loglevel DEBUG"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options: those of this command, and all of the options' table."""
    parser.argument_default = argparse.SUPPRESS
    parser.usage = "llm-locust run URL [OPTIONS] [-- LOCUST OPTIONS]"
    groups = {title: parser.add_argument_group(title) for title in _SHOWN}
    _add_server(groups["the server"])
    _add_load(groups["the load"])
    _add_run(groups["the run"])
    for title, names in _SHOWN.items():
        for name in names:
            _add_row(groups[title], OPTION[name])
    shown = {name for names in _SHOWN.values() for name in names}
    for row in OPTIONS:
        if row.name not in shown:
            _add_row(parser, row, hidden=True)
    parser.epilog = f"{_further(shown)}\n\n{_EXAMPLES}"


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "url", nargs="?", default=None, metavar="URL", help="its address, such as http://HOST:8000"
    )
    group.add_argument(
        "--sim", action="store_true", default=False, help="start a simulated server for this run instead"
    )


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        *("--users", "-u", "--agents"),
        type=positive,
        default=None,
        metavar="N",
        help=f"users who each wait for their answer (default {DEFAULT_USERS})",
    )
    group.add_argument(
        *("--for", "-t"),
        dest="for_",
        type=argument(run_seconds),
        default=None,
        metavar="TIME",
        help=f"how long, such as 90s or 1h30m (default {DEFAULT_TIME_S}s, with --sim {DEFAULT_SIM_TIME_S}s, "
        "a trace to its end)",
    )
    group.add_argument(
        "--preset",
        type=_preset,
        default=None,
        help=f"lengths and SLO of a usual case ({', '.join(PRESETS)}), or a public protocol; "
        "`llm-locust presets` lists them",
        metavar="NAME",
    )


def _add_run(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--workers", type=positive, default=None, metavar="N", help="send from N processes (default: one)"
    )
    group.add_argument("--ui", action="store_true", default=False, help="start and watch it in the browser")
    group.add_argument(
        *("--locustfile", "-f"), default=None, metavar="FILE", help="users of your own instead"
    )


def _add_row(
    to: argparse.ArgumentParser | argparse._ArgumentGroup, row: Option, hidden: bool = False
) -> None:
    argument = {key: value for key, value in row.argument.items() if key != "env_var"}
    argument["default"] = argparse.SUPPRESS
    shown = _HELP.get(row.name, row.help).replace("%", "%%")
    argument["help"] = argparse.SUPPRESS if hidden else shown
    alias = _ALIASES.get(row.name)
    to.add_argument(*([alias] if alias else []), row.flag, dest=row.name, **argument)


def _further(shown: Collection[str]) -> str:
    """The flags of the other options, by their groups."""
    lines = []
    for title, settings in GROUPS.items():
        flags = " ".join(row.flag for row in settings.rows().values() if row.name not in shown)
        lines.append(f"  {title}:")
        lines.append(
            fill(
                flags,
                help_width(),
                initial_indent="    ",
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
        )
    return "\n".join(("further options, which `llm-locust options` explains:", *lines))


def run(args: argparse.Namespace) -> int:
    """Replace this process by Locust's. Return 2 where it cannot start; else the exit code is the run's."""
    try:
        command = _command(args, os.environ)
        sys.stdout.flush()
        keep_for_the_next_program()
        os.execv(command[0], command)
    except (ValueError, OSError) as e:
        print(f"llm-locust run: {one_line(e)}", file=sys.stderr)
    return 2


def _command(args: argparse.Namespace, environ: Mapping[str, str]) -> list[str]:
    """The program and its arguments; starts the simulator if it is asked for."""
    scenario = scenario_given(args, environ)
    said = said_elsewhere(environ, scenario)
    if not _ASKS.isdisjoint(args.rest):
        return [*_LOCUST, *help_arguments(args, said)]
    if args.sim:
        if args.url is not None:
            raise ValueError(f"both {args.url!r} and --sim: give one of the two")
    elif args.url is not None:
        Target.parse(args.url)
    elif args.locustfile is None and not args.ui and not _names_servers(args, said, scenario):
        raise ValueError("no server: give its address, as in `llm-locust run http://HOST:8000`, or try --sim")
    if args.sim:
        model = getattr(args, "model", None)
        args.url = start_simulator([f"--model={model}"] if model else [])
    return [*_LOCUST, *locust_arguments(args, said)]


def _names_servers(args: argparse.Namespace, said: Said, scenario: Scenario | None) -> bool:
    """Whether something else than the address says where requests go."""
    described = () if scenario is None else scenario.arms
    return any(name in said or hasattr(args, name) for name in _SERVERS) or (
        bool(described) and all(arm.url for arm in described)
    )


def _take_preset(args: argparse.Namespace) -> None:
    """Make a protocol that ``--preset`` names the scenario."""
    if args.preset is None:
        return
    if hasattr(args, "scenario"):
        raise ValueError("both --preset and --scenario: give one, or write `preset:` into the scenario")
    if args.preset not in PRESETS:
        args.scenario, args.preset = str(FOLDER / f"{args.preset}.yaml"), None


def scenario_given(args: argparse.Namespace, environ: Mapping[str, str]) -> Scenario | None:
    """The scenario that is given, which may be a preset's."""
    _take_preset(args)
    row = OPTION["scenario"]
    path = getattr(args, row.name, None) or environ.get(row.variable)
    return load_scenario(path, GRAMMAR) if path else None


def _preset(text: str) -> str:
    known = (*PRESETS, *protocol_names())
    if text not in known:
        raise argparse.ArgumentTypeError(
            f"no preset {text!r}; {did_you_mean(text, known)}`llm-locust presets` lists them"
        )
    return text
