"""Timed plan: actions on replicas, with their times.

Written as steps, ``10s kill 2; 20s start 2; 30s slow 1 3x; 40s normal 1; 50s drain 0``, or as a YAML file: a
list of the same with the keys ``at``, ``action``, ``replica`` and ``factor``. Times count from when the
deployment listens. Nothing here waits or acts.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from llm_locust.core.durations import parse_time_ns
from llm_locust.core.small_yaml import SmallYamlError, read_small_yaml


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
