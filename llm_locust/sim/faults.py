"""Faults of the simulated deployment: of single requests, and of replicas by a timed plan, with a log."""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from llm_locust.core.files import SmallYamlError, read_small_yaml
from llm_locust.core.texts import parse_time_ns

# --------------------
# Fault plan: the share of requests that fail, and how.
#
# Written as words, ``http_500=1% reset=0.5% refused=2s@10s``, or as a JSON or YAML file that maps the same
# names to the same values. Each request draws at most one fault.
# --------------------


#: Every fault except ``http_<status>``, with its effect on a client.
FAULTS = {
    "close_before": "the connection is closed before any byte of an answer",
    "reset": "after some tokens the connection is reset (RST)",
    "cut": "after some tokens the connection is closed, inside the chunked body",
    "truncated": "after some tokens the answer ends regularly, without finish reason or [DONE]",
    "stall": "after some tokens nothing is sent for the stall's duration",
    "garbage": "after some tokens an event is not JSON",
    "error_object": "after some tokens an error object is sent inside the 200 stream",
    "empty": "the answer is complete and has no token",
    "slow": "the answer is right, but its tokens arrive many times slower",
    "kv_transfer": "the KV transfer to the decode replica fails, which computes the prompt again",
}

#: The fault of a deployment with separate prefill and decode.
TRANSFER_FAULT = "kv_transfer"

_HTTP_STATUS = re.compile(r"http_([45][0-9][0-9])")
_RATE = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(%?)")


class FaultPlanError(ValueError):
    """A plan that cannot be parsed; the text points to the word."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A span in which the gateway does not listen: connections are refused."""

    after_ns: int  # since the start
    duration_ns: int


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Share of requests, 0 to 1, for each fault; the sum of the shares is at most 1."""

    rates: tuple[tuple[str, float], ...] = ()
    refusal: Refusal | None = None

    def pick(self, draw: float) -> str | None:
        """Fault of a request whose uniform draw from [0, 1) is ``draw``."""
        edge = 0.0
        for name, rate in self.rates:
            edge += rate
            if draw < edge:
                return name
        return None


def http_status(fault: str) -> int | None:
    """Status in ``http_<status>``; None for another fault."""
    match = _HTTP_STATUS.fullmatch(fault)
    return int(match[1]) if match else None


def parse_fault_plan(text: str) -> FaultPlan:
    """Parse a plan from words, or from a file if the text is the path of a .json, .yaml or .yml one.

    Raises:
        FaultPlanError: an unknown fault, a value that is not a share, a sum over 100 %, a file that cannot be
            read.
    """
    if re.fullmatch(r"\S+\.(json|ya?ml)", text.strip()):
        return _plan(_words_of_file(Path(text.strip())))
    words = []
    for number, word in enumerate(re.split(r"[\s,]+", text.strip(" \t\n,")), start=1):
        if not word:
            continue
        where = f"word {number} of the fault plan, {word!r}"
        name, equals, value = word.partition("=")
        if not equals:
            raise FaultPlanError(f"{where}: has no '='; write a fault and its share, such as reset=1%")
        words.append((where, name, value))
    return _plan(words)


def _words_of_file(path: Path) -> list[tuple[str, str, str]]:
    try:
        content = read_small_yaml(path)
    except SmallYamlError as e:
        raise FaultPlanError(f"fault plan {path}: {e}") from e
    if not isinstance(content, dict):
        raise FaultPlanError(f"fault plan {path}: must map faults to shares, such as reset: 1%")
    return [(f"fault plan {path}, key {str(name)!r}", str(name), str(v)) for name, v in content.items()]


def _plan(words: list[tuple[str, str, str]]) -> FaultPlan:
    rates: dict[str, float] = {}
    refusal = None
    for where, name, value in words:
        if name in rates or (name == "refused" and refusal):
            raise FaultPlanError(f"{where}: {name!r} appears twice in the plan")
        if name == "refused":
            refusal = _refusal(where, value)
            continue
        if name not in FAULTS and http_status(name) is None:
            raise FaultPlanError(f"{where}: {_unknown(name)}")
        rates[name] = _rate(where, value)
        total = math.fsum(rates.values())
        if total > 1 + 1e-9:
            raise FaultPlanError(f"{where}: the shares up to here are {total:.4g}, which is over 100%")
    return FaultPlan(tuple(rates.items()), refusal)


def _unknown(name: str) -> str:
    known = [*FAULTS, "refused", "http_400", "http_429", "http_500", "http_503"]
    near = difflib.get_close_matches(name, known, n=1)
    hint = (
        f"did you mean {near[0]!r}?" if near else f"known: {', '.join(FAULTS)}, refused, http_400..http_599"
    )
    return f"there is no fault {name!r}; {hint}"


def _rate(where: str, value: str) -> float:
    match = _RATE.fullmatch(value)
    if match is None:
        raise FaultPlanError(f"{where}: {value!r} is not a share; write 1% or 0.01")
    rate = float(match[1]) / (100 if match[2] else 1)
    if rate > 1:
        raise FaultPlanError(f"{where}: {value!r} is over 100%; write 1% or 0.01 for one in a hundred")
    return rate


def _refusal(where: str, value: str) -> Refusal:
    duration, at, after = value.partition("@")
    try:
        if not at:
            raise ValueError(f"{value!r} must be a duration and a start, such as 2s@10s")
        return Refusal(parse_time_ns(after), parse_time_ns(duration))
    except ValueError as e:
        raise FaultPlanError(
            f"{where}: {e} (refused closes the listening port for an interval; "
            "for a share of requests use close_before)"
        ) from e


# --------------------
# Timed plan: actions on replicas, with their times.
#
# Written as steps, ``10s kill 2; 20s start 2; 30s slow 1 3x; 40s normal 1; 50s drain 0``, or as a YAML
# file: a list of the same with the keys ``at``, ``action``, ``replica`` and ``factor``. Times count from
# when the deployment listens. Nothing here waits or acts.
# --------------------


class Action(StrEnum):
    """Action of a step on its replica."""

    KILL = "kill"  # as by SIGKILL: no port, no connections, nothing in flight
    START = "start"  # serve again: with an empty cache after a kill, unchanged after a drain
    DRAIN = "drain"  # accept nothing new, finish what it has
    SLOW = "slow"  # its steps last ``factor`` times as long
    NORMAL = "normal"  # end of ``slow``


class PlanError(ValueError):
    """An invalid plan; one line that points to the word."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """``at_ns`` since the start; ``factor`` of ``slow``, 1 otherwise; ``where``: its position in the text."""

    at_ns: int
    action: Action
    replica: int
    factor: float = 1.0
    where: str = field(default="", compare=False)


#: Smallest and largest factor on a step's duration.
_FACTORS = (0.001, 1000.0)
_FACTOR = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)x?")
_KEYS = ("at", "action", "replica", "factor")
_EXAMPLE = "write such as '10s kill 2' or '30s slow 1 3x'"


def parse_plan(text: str) -> tuple[PlanStep, ...]:
    """Parse steps, sorted by time, from words, or from a file if the text is the path of a YAML one.

    Raises:
        PlanError: an invalid step, or a file that cannot be read.
    """
    if re.fullmatch(r"\S+\.(json|ya?ml)", text.strip()):
        steps = _steps_of_file(Path(text.strip()))
    else:
        steps, words_before = [], 0
        for part in text.split(";"):
            words = part.split()
            if words:
                steps.append(_step_of_words(words, words_before))
            words_before += len(words)
    return tuple(sorted(steps, key=lambda step: step.at_ns))


def check_plan(steps: Sequence[PlanStep], replicas: int) -> None:
    """Check that every step names an existing replica in a suitable state (raises PlanError).

    Args:
        steps: in order of time.
    """
    away: dict[int, Action] = {}
    for step in steps:
        if step.replica >= replicas:
            known = "0" if replicas == 1 else f"0 to {replicas - 1}"
            raise PlanError(f"{step.where}: there is no replica {step.replica}; there are {known}")
        before = away.get(step.replica)
        problem = None
        match step.action:
            case Action.START if before is None:
                problem = "serves already: kill or drain it before"
            case Action.KILL if before is Action.KILL:
                problem = "is dead already: start it before"
            case Action.DRAIN if before is not None:
                problem = "serves no more: start it before"
        if problem:
            raise PlanError(f"{step.where}: at {step.at_ns * 1e-9:g} s replica {step.replica} {problem}")
        if step.action is Action.START:
            del away[step.replica]
        elif step.action in (Action.KILL, Action.DRAIN):
            away[step.replica] = step.action


def parse_factor(text: str) -> float:
    """Parse ``3x``, ``3`` or ``0.5``.

    Raises:
        ValueError: not a factor, or out of range; the text says what to write.
    """
    match = _FACTOR.fullmatch(text)
    factor = float(match[1]) if match else 0.0
    if not _FACTORS[0] <= factor <= _FACTORS[1]:
        raise ValueError(f"{text!r} is not a factor from 0.001 to 1000; write 3x for three times as long")
    return factor


def _step_of_words(words: list[str], before: int) -> PlanStep:
    """``before`` is the number of the plan's words before these."""

    def where(index: int) -> str:
        return f"word {before + index + 1} of the plan, {words[index]!r}"

    if len(words) < 3:
        raise PlanError(f"{where(len(words) - 1)}: the step ends too early; {_EXAMPLE}")
    at_ns = _at(words[0], where(0))
    action = _action(words[1], where(1))
    replica = _replica(words[2], where(2))
    if action is not Action.SLOW and len(words) > 3:
        raise PlanError(f"{where(3)}: nothing follows '{action} {replica}'; put ';' between two steps")
    if action is Action.SLOW and len(words) == 3:
        raise PlanError(f"{where(2)}: 'slow {replica}' needs a factor, such as 3x")
    if len(words) > 4:
        raise PlanError(f"{where(4)}: nothing follows the factor; put ';' between two steps")
    factor = _factor(words[3], where(3)) if len(words) == 4 else 1.0
    return PlanStep(at_ns, action, replica, factor, where(1))


def _steps_of_file(path: Path) -> list[PlanStep]:
    try:
        content = read_small_yaml(path)
    except SmallYamlError as e:
        raise PlanError(f"plan {path}: {e}") from e
    if not isinstance(content, list):
        raise PlanError(
            f"plan {path}: must be a list of steps, such as {{at: 10s, action: kill, replica: 2}}"
        )
    return [_step_of_item(f"plan {path}, step {n}", item) for n, item in enumerate(content, start=1)]


def _step_of_item(where: str, item: Any) -> PlanStep:
    if not isinstance(item, dict):
        raise PlanError(f"{where}, {item!r}: must map {', '.join(_KEYS)} to values")
    for key in item:
        if key not in _KEYS:
            raise PlanError(f"{where}: there is no key {key!r}; {_hint(str(key), _KEYS)}")
    for key in _KEYS[:3]:
        if key not in item:
            raise PlanError(f"{where}: has no {key!r}; a step needs at, action and replica")
    action = _action(str(item["action"]), f"{where}, action")
    replica = _replica(str(item["replica"]), f"{where}, replica")
    if (action is Action.SLOW) != ("factor" in item):
        problem = "slow needs a factor, such as 3x" if action is Action.SLOW else f"{action} takes no factor"
        raise PlanError(f"{where}: {problem}")
    factor = _factor(str(item.get("factor", 1)), f"{where}, factor")
    return PlanStep(_at(str(item["at"]), f"{where}, at"), action, replica, factor, where)


def _at(text: str, where: str) -> int:
    try:
        return parse_time_ns(text)
    except ValueError as e:
        raise PlanError(f"{where}: a step begins with its time: {e}") from e


def _action(text: str, where: str) -> Action:
    try:
        return Action(text)
    except ValueError:
        raise PlanError(f"{where}: there is no action {text!r}; {_hint(text, tuple(Action))}") from None


def _replica(text: str, where: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 6:
        raise PlanError(f"{where}: {text!r} is not the number of a replica: they count from 0")
    return int(text)


def _factor(text: str, where: str) -> float:
    try:
        return parse_factor(text)
    except ValueError as e:
        raise PlanError(f"{where}: {e}") from e


def _hint(text: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(text, known, n=1)
    return f"did you mean {str(near[0])!r}?" if near else f"known: {', '.join(known)}"
