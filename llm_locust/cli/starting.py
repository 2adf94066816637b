"""Start of Locust and of a simulated server for ``llm-locust run``."""

import argparse
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_locust.core.texts import parse_time
from llm_locust.figures.objective import parse_objective
from llm_locust.options.option import UP_TO
from llm_locust.options.table import KEYS, OPTIONS
from llm_locust.scenario.classes import PRESETS
from llm_locust.scenario.document import Scenario
from llm_locust.workload.arrival_grammar import Sweep, parse_rate, parse_sweep

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


@dataclass(frozen=True, slots=True)
class Said:
    """What the environment and the scenario say, by the names of options.

    Values of a scenario are as argparse would hold them, those of the environment are texts.
    """

    values: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        return name in self.values


def said_elsewhere(environ: Mapping[str, str], scenario: Scenario | None) -> Said:
    """Collect what is said by other means than the command line; the environment wins."""
    variables = {row.name: row.variable for row in OPTIONS} | _LOCUST_VARIABLES
    of_environ = {name: environ[variable] for name, variable in variables.items() if variable in environ}
    of_scenario = {} if scenario is None else {KEYS[key]: value for key, value in scenario.options.items()}
    return Said({**of_scenario, **of_environ})


def locust_arguments(given: argparse.Namespace, said: Said) -> list[str]:
    """Arguments of ``locust`` for what was given to ``llm-locust run``.

    Args:
        given: options that were given, no others; ``users``, ``for_``, ``workers``, ``ui``, ``sim``,
            ``locustfile``, ``preset``, ``url`` and ``rest`` (further arguments of Locust's) always, None
            where not given.
    """
    own = {row.name: getattr(given, row.name) for row in OPTIONS if hasattr(given, row.name)}
    known = {**said.values, **own}
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


def help_arguments(given: argparse.Namespace, said: Said) -> list[str]:
    """Arguments with which ``locust`` answers ``--help`` and the like, for the locustfile of the run."""
    return [f"--locustfile={given.locustfile or LOCUSTFILES / _file(given.ui, said.values)}", *given.rest]


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
