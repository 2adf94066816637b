"""``llm-locust run``, ``sweep`` and ``presets``: a load test by one command, and its simulated server."""

import argparse
import os
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill, wrap
from typing import Any

from llm_locust.cli.main import did_you_mean, help_width
from llm_locust.client.http.target import Target
from llm_locust.core.texts import argument, parse_time, positive
from llm_locust.figures.objective import parse_objective
from llm_locust.options.load import Sweep, parse_sweep
from llm_locust.options.option import UP_TO, Option
from llm_locust.options.table import GRAMMAR, GROUPS, KEYS, OPTION, OPTIONS
from llm_locust.report.output import one_line, printing
from llm_locust.scenario.document import (
    FOLDER,
    PRESETS,
    Scenario,
    load_scenario,
    plan_points,
    protocol_names,
    scenario_path,
)
from llm_locust.swarm.process.early_signals import keep_for_the_next_program
from llm_locust.workload.arrivals import parse_rate

# --- Locust's command line for a run: what was given, and the defaults of ``llm-locust run`` where nothing
# else says it


#: Where the package's locustfiles are.
LOCUSTFILES = Path(__file__).parents[1] / "locustfiles"

DEFAULT_USERS = 10
DEFAULT_TIME_S = 60
DEFAULT_SIM_TIME_S = 20
DEFAULT_WARMUP_S = 5.0
DEFAULT_PRESET = "chat"

#: Users that a sweep spawns a second; all of them join before the warm-up.
SWEEP_SPAWN_RATE = 100

#: The warm-up takes at most this share of the run, where nobody says how long it is.
MOST_WARMUP = 0.25

#: Environment variables of Locust's that a default must not override, by the option's name.
_LOCUST_VARIABLES = {
    "host": "LOCUST_HOST",
    "num_users": "LOCUST_USERS",
    "spawn_rate": "LOCUST_SPAWN_RATE",
    "run_time": "LOCUST_RUN_TIME",
}

#: Options that end a run, or that make it last as long as what it sends.
_ENDS = ("run_time", "num_requests", "sweep", "find")


def settings_elsewhere(environ: Mapping[str, str], scenario: Scenario | None) -> Mapping[str, Any]:
    """Options that the environment and the scenario set, by their names; the environment wins.

    Values of a scenario are as argparse would hold them, those of the environment are texts.
    """
    variables = {row.name: row.variable for row in OPTIONS} | _LOCUST_VARIABLES
    of_environ = {name: environ[variable] for name, variable in variables.items() if variable in environ}
    of_scenario = {} if scenario is None else {KEYS[key]: value for key, value in scenario.options.items()}
    return {**of_scenario, **of_environ}


def locust_arguments(given: argparse.Namespace, elsewhere: Mapping[str, Any]) -> list[str]:
    """Arguments of ``locust`` for what was given to ``llm-locust run``.

    Args:
        given: options that were given, no others; ``users``, ``for_``, ``workers``, ``ui``, ``sim``,
            ``locustfile``, ``preset``, ``url`` and ``rest`` (further arguments of Locust's) always, None
            where not given.
    """
    own = {row.name: getattr(given, row.name) for row in OPTIONS if hasattr(given, row.name)}
    known = {**elsewhere, **own}
    words = [f"--locustfile={given.locustfile or LOCUSTFILES / _file(given.ui, known)}"]
    if not given.ui:
        words.append("--headless")
    if given.workers is not None:
        words.append(f"--processes={given.workers}")
    if given.url is not None:
        words.append(f"--host={given.url}")
    words += _users(given.users, known)
    time_s = given.for_ if given.for_ is not None else _default_time(known, given.sim)
    if time_s is not None:
        words.append(f"--run-time={time_s}s")
    words += _defaults(given.preset, known, time_s)
    for row in OPTIONS:
        if row.name in own:
            words += _words(row.flag, own[row.name])
    return [*words, *given.rest]


def help_arguments(given: argparse.Namespace, elsewhere: Mapping[str, Any]) -> list[str]:
    """Arguments with which ``locust`` answers ``--help`` and the like, for the locustfile of the run."""
    return [f"--locustfile={given.locustfile or LOCUSTFILES / _file(given.ui, elsewhere)}", *given.rest]


def _file(ui: bool, known: Mapping[str, Any]) -> str:
    """Name of the locustfile; the run has it too. The form of the web UI may ask for either loop."""
    if "trajectories" in known:
        return "agents.py"
    if ui or "scenario" in known:
        return "scenario.py"
    return "open_loop.py" if _is_open_loop(known) else "chat.py"


def _words(flag: str, value: Any) -> Iterator[str]:
    if value is True:
        yield flag
    elif isinstance(value, list):
        yield from (f"{flag}={each}" for each in value)
    else:
        yield f"{flag}={value}"


def _users(users: int | None, known: Mapping[str, Any]) -> Iterator[str]:
    """Users and their rate of spawning: all within the first second, which the warm-up leaves out."""
    if users is not None:
        yield f"--users={users}"
    elif "num_users" in known:
        users = _whole(known["num_users"])
    elif not _sets_its_load(known):
        users = DEFAULT_USERS
        yield f"--users={users}"
    if "spawn_rate" not in known and (users is not None or "sweep" in known or "find" in known):
        yield f"--spawn-rate={SWEEP_SPAWN_RATE if users is None else users}"


def _whole(value: Any) -> int | None:
    """The number, or None for a text that is not one, which Locust refuses."""
    return int(value) if str(value).isdecimal() and int(value) else None


def _sets_its_load(known: Mapping[str, Any]) -> bool:
    """Whether something else than a number of users says how much load there is."""
    if (sweep := _sweep(known)) is not None and not sweep.values:  # over lengths alone
        return "request_rate" in known
    return any(name in known for name in ("request_rate", "arrival", "sweep", "find"))


def _sweep(known: Mapping[str, Any]) -> Sweep | None:
    try:
        return parse_sweep(str(known["sweep"])) if "sweep" in known else None
    except ValueError:
        return None  # which the run itself reports


def _is_open_loop(known: Mapping[str, Any]) -> bool:
    if any(name in known for name in ("request_rate", "arrival")):
        return True
    sweep = _sweep(known)
    return (sweep is not None and sweep.kind == "rate") or _searches_rate(known)


def _searches_rate(known: Mapping[str, Any]) -> bool:
    try:
        return "find" in known and parse_objective(str(known["find"])).axis == "rate"
    except ValueError:
        return False  # which the run itself reports


def _is_trace(known: Mapping[str, Any]) -> bool:
    return str(known.get("arrival", "")).startswith("trace")


def _default_time(known: Mapping[str, Any], sim: bool) -> int | None:
    """Seconds of the load where nothing else ends it; a rate over time is sent to its end."""
    if any(name in known for name in _ENDS) or _is_trace(known):
        return None
    usual = DEFAULT_SIM_TIME_S if sim else DEFAULT_TIME_S
    try:
        profile = parse_rate(str(known.get("request_rate") or "1"))
    except ValueError:
        return usual
    return max(usual, round(profile.segments[-1].start_s))


def _defaults(preset: str | None, known: Mapping[str, Any], time_s: int | None) -> Iterator[str]:
    # A number of requests, or a trace, may be over before a warm-up is.
    if not ("warmup" in known or "num_requests" in known or _is_trace(known)):
        yield f"--warmup={UP_TO}{_warmup_s(known, time_s):g}s"
    usual = PRESETS[preset or DEFAULT_PRESET]
    if "slo" not in known and "scenario" not in known and usual.slo:
        yield f"--slo={usual.slo}"
    if preset is not None and "dataset" not in known:
        for name, lengths in (("input_tokens", usual.input_tokens), ("output_tokens", usual.output_tokens)):
            if name not in known:
                yield f"--{name.replace('_', '-')}={lengths}"


def _warmup_s(known: Mapping[str, Any], time_s: int | None) -> float:
    if time_s is None and "run_time" in known:
        text = str(known["run_time"])
        try:
            time_s = int(parse_time(f"{text}s" if text.isdecimal() else text))
        except ValueError:
            time_s = None  # Locust refuses it
    return DEFAULT_WARMUP_S if time_s is None else min(DEFAULT_WARMUP_S, MOST_WARMUP * time_s)


def run_seconds(text: str) -> int:
    """Parse the duration of a run, in whole seconds as Locust counts it.

    Raises:
        ValueError: not a duration, or not of whole seconds from 1.
    """
    seconds = parse_time(text)
    if seconds < 1 or not seconds.is_integer():
        raise ValueError(f"{text!r}: a run lasts whole seconds from 1s, such as 90s or 1h30m")
    return int(seconds)


# --- Simulated deployment for one run: it ends when the processes of the run have ended, however they end


#: Longest wait until it serves; a start takes about a second.
READY_S = 60.0


class SimulatorError(ValueError):
    """The simulator did not start; what was wrong is on standard error, or in the text."""


def start_simulator(words: Sequence[str] = ()) -> str:
    """Start a simulated deployment on a free port of the loopback interface and wait until it serves.

    It ends when this process has ended, also if this process replaces itself by another program (exec) or is
    killed: the simulator reads from a pipe whose other end only this process and its forks hold. It is in a
    session of its own, so that a Ctrl-C in the terminal does not end it before the run.

    Args:
        words: arguments of ``llm-locust sim``.

    Returns:
        URL of the deployment.

    Raises:
        SimulatorError: it ended, or did not serve within :data:`READY_S`.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "llm_locust.sim", "--port=0", "--end-with-stdin", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], READY_S)
    # "listening on URL (4 replicas, model sim)", written at once.
    found = process.stdout.readline().decode().split() if ready else []
    if len(found) < 3:
        with process:  # closes its pipes, and waits
            process.kill()
        raise SimulatorError(
            "the simulator did not start" if ready else f"the simulator did not start within {READY_S:g} s"
        )
    os.set_inheritable(process.stdin.fileno(), True)
    return found[2]


# --- ``llm-locust run``


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


def add_arguments(parser: argparse.ArgumentParser, explained: Mapping[str, tuple[str, ...]] = _SHOWN) -> None:
    """Add the options: those of this command, and all of the options' table, of which ``explained`` are
    explained under their headings."""
    parser.argument_default = argparse.SUPPRESS
    parser.usage = "llm-locust run URL [OPTIONS] [-- LOCUST OPTIONS]"
    groups = {title: parser.add_argument_group(title) for title in explained}
    _add_server(groups["the server"])
    _add_load(groups["the load"])
    _add_run(groups["the run"])
    for title, names in explained.items():
        for name in names:
            _add_row(groups[title], OPTION[name])
    shown = {name for names in explained.values() for name in names}
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
    elsewhere = settings_elsewhere(environ, scenario)
    if not _ASKS.isdisjoint(args.rest):
        return [*_LOCUST, *help_arguments(args, elsewhere)]
    if args.sim:
        if args.url is not None:
            raise ValueError(f"both {args.url!r} and --sim: give one of the two")
    elif args.url is not None:
        Target.parse(args.url)
    elif args.locustfile is None and not args.ui and not _names_servers(args, elsewhere, scenario):
        raise ValueError("no server: give its address, as in `llm-locust run http://HOST:8000`, or try --sim")
    if args.sim:
        model = getattr(args, "model", None)
        args.url = start_simulator([f"--model={model}"] if model else [])
    return [*_LOCUST, *locust_arguments(args, elsewhere)]


def _names_servers(args: argparse.Namespace, elsewhere: Mapping[str, Any], scenario: Scenario | None) -> bool:
    """Whether something else than the address says where requests go."""
    described = () if scenario is None else scenario.arms
    return any(name in elsewhere or hasattr(args, name) for name in _SERVERS) or (
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


# --- ``llm-locust sweep``: several loads in one run, by one command


DEFAULT_SWEEP = "users=1,2,4,8,16,32"

SWEEP_DESCRIPTION = (
    "Measure several loads one after the other in one run, and print a row for each. Takes the options of "
    f"`llm-locust run`, and without --sweep and --find measures {DEFAULT_SWEEP}."
)


_LOADS = ("sweep", "stage_time", "until", "repeat", "find", "first_load", "precision", "max_stages", "resume")


def add_sweep_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust run``, those of several loads explained before them."""
    add_arguments(parser, {"several loads": _LOADS, **_SHOWN})
    parser.usage = (
        "llm-locust sweep URL [--sweep LOADS | --find OBJECTIVE] [OPTIONS]\n"
        "                        [-- LOCUST OPTIONS]"
    )
    parser.epilog = (
        "examples:\n"
        "  llm-locust sweep --sim --stage-time 10s\n"
        "  llm-locust sweep URL --sweep users=1,4,16,64\n"
        "  llm-locust sweep URL --sweep rate=geometric:1..64,7 --stage-time 2m\n"
        '  llm-locust sweep URL --find "max rate under goodput>=95%" --stage-time 2m'
    )


def run_sweep(args: argparse.Namespace) -> int:
    """As :func:`run`, with the default loads where nothing else says them."""
    if not hasattr(args, "sweep") and not hasattr(args, "find"):
        try:
            elsewhere = settings_elsewhere(os.environ, scenario_given(args, os.environ))
        except (ValueError, OSError):  # which the run itself reports
            return run(args)
        if "sweep" not in elsewhere and "find" not in elsewhere:
            args.sweep = DEFAULT_SWEEP
    return run(args)


# --- ``llm-locust presets``: the loads that ``--preset`` and ``--scenario`` know by name


PRESETS_DESCRIPTION = (
    "List the loads that --preset takes: usual cases, and public protocols. A run with a protocol rehearses "
    "it; it is not an official result. With NAME, print the protocol's file: its source, its date, and in "
    "what a run with it differs."
)


def add_presets_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this protocol's file")
    parser.add_argument(
        "--points",
        type=_points,
        metavar="C_MIN-C_MAX",
        help="plan the points of MLPerf Endpoints between two numbers of concurrent requests, such as 1-256",
    )


def run_presets(args: argparse.Namespace) -> int:
    """Print what is asked for. Return the exit code: 0, or 2 for an unknown name."""
    if args.name is None:
        lines = (
            _points_lines(*args.points)
            if args.points
            else _preset_lines(shutil.get_terminal_size().columns - 1)
        )
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


def _preset_lines(width: int) -> Iterator[str]:
    names = protocol_names()
    wide = max(map(len, (*PRESETS, *names)))
    yield "usual cases, as defaults of a run:"
    for name, preset in PRESETS.items():
        limits = preset.slo or "none"
        text = f"{preset.input_tokens} in, {preset.output_tokens} out, limits: {limits}"
        yield from _preset_row(name, text, wide, width)
    yield ""
    yield "public protocols, to rehearse (no run here is an official result):"
    for name in names:
        about = load_scenario(scenario_path(name), GRAMMAR).about
        yield from _preset_row(name, "" if about is None else about.title, wide, width)
    yield ""
    yield "llm-locust run http://HOST:8000 --preset NAME runs one; llm-locust presets NAME shows its file."


def _preset_row(name: str, text: str, wide: int, width: int) -> Iterator[str]:
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
