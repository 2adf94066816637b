"""Limits of a run against another one: ``p99_ttft<=+5% goodput>=-1% error_rate<=+0.5pp``.

A gate limits the change from base to new: in per cent of base, or for shares in percentage points
(``pp``). It breaks when the figure is over the limit **and** the interval of the difference excludes
zero in that direction: a change that noise explains breaks nothing. Gates are named before the runs are
seen, so their intervals are corrected for the number of gates (Bonferroni: together they hold with 95 %)
and not for the whole table; they are narrower than the table's.
"""

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from llm_locust.metrics.comparable import METRICS, NOT_COMPARED, Metric
from llm_locust.metrics.compared import Compared
from llm_locust.metrics.comparison import Row, Verdict, compare_figures, joint_confidence
from llm_locust.metrics.gates import GateError, Kind
from llm_locust.metrics.terms import Term, listed, nearest, split_terms

_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}
_CHANGE = re.compile(r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?P<unit>%|pp)?")

#: Digits to which changes are compared: of 100 to 105 it is 5 %, whatever floats make of it.
_DIGITS = 9

_ALLOWED = (
    f"gates are on {listed(name for name, m in METRICS.items() if m.kind is not Kind.LATENCY)}, "
    "and STATISTIC_LATENCY such as p99_ttft or mean_e2el"
)


@dataclass(frozen=True, slots=True)
class RelativeGate:
    """``metric op limit``; the limit is a share of base's figure, or of 1 where ``in_points``."""

    text: str
    metric: Metric
    op: str
    limit: float
    in_points: bool = False


class State(StrEnum):
    HELD = "held"
    WITHIN_NOISE = "within noise"  # over the limit, by no more than noise explains
    TOO_FEW = "too few samples"  # over the limit, and noise could not be told
    BROKEN = "broken"
    NO_SAMPLES = "no samples"


@dataclass(frozen=True, slots=True)
class GateResult:
    """``change`` is in the limit's unit, +∞ from a base of 0; None without samples."""

    gate: RelativeGate
    row: Row
    change: float | None
    state: State

    @property
    def passed(self) -> bool:
        """Without samples nothing was shown to hold; with too few nothing was shown to break."""
        return self.state not in (State.BROKEN, State.NO_SAMPLES)


def parse_relative_gates(text: str) -> tuple[RelativeGate, ...]:
    """The gates of ``text``, in order; none of an empty one.

    Raises:
        GateError: one line that points at the wrong word.
    """
    return tuple(_gate(term) for term in split_terms(text))


def evaluate_relative(gates: tuple[RelativeGate, ...], base: Compared, new: Compared) -> list[GateResult]:
    """Each gate on the change from ``base`` to ``new``."""
    confidence = joint_confidence(len(gates))
    results = []
    for gate in gates:
        before, after = base.estimate(gate.metric), new.estimate(gate.metric)
        results.append(judge_change(gate, compare_figures(gate.metric, before, after, confidence)))
    return results


def judge_change(gate: RelativeGate, row: Row) -> GateResult:
    """One gate on one compared figure."""
    if row.base is None or row.new is None:
        return GateResult(gate, row, None, State.NO_SAMPLES)
    change = _change(gate, row.base, row.new)
    if _HOLDS[gate.op](round(change, _DIGITS), gate.limit):
        return GateResult(gate, row, change, State.HELD)
    beyond = {Verdict.NO_DIFFERENCE: State.WITHIN_NOISE, Verdict.TOO_FEW: State.TOO_FEW}
    return GateResult(gate, row, change, beyond.get(row.verdict, State.BROKEN))


def _change(gate: RelativeGate, base: float, new: float) -> float:
    if gate.in_points:
        return new - base
    if base == 0:
        return 0.0 if new == 0 else math.copysign(math.inf, new)
    return (new - base) / base


def _gate(term: Term) -> RelativeGate:
    name, op, value = term.name, term.op, term.value
    if not name.text:
        raise GateError(f"gate: {op.pointed(f'no metric before it; {_ALLOWED}')}")
    if name.text in NOT_COMPARED:
        raise GateError(f"gate: {name.pointed(NOT_COMPARED[name.text])}")
    if name.text not in METRICS:
        guess = nearest(name.text, METRICS)
        raise GateError(f"gate: {name.pointed(f'unknown metric; {guess}{_ALLOWED}')}")
    if op.text not in _HOLDS:
        raise GateError(f"gate: {op.pointed(f'after {name.text} write one of {listed(_HOLDS)}')}")
    if not value.text:
        raise GateError(f"gate: {value.pointed(f'no limit after {name.text}{op.text}')}")
    metric = METRICS[name.text]
    try:
        limit, in_points = _limit(metric, op.text, value.text)
    except ValueError as e:
        raise GateError(f"gate: {value.pointed(str(e))}") from None
    return RelativeGate(term.text, metric, op.text, limit, in_points)


def _limit(metric: Metric, op: str, text: str) -> tuple[float, bool]:
    """The limit as a share, and whether it is in points. ValueError does not repeat ``text``."""
    upper = op.startswith("<")
    example = f"{metric.name}<=+5%" if upper else f"{metric.name}>=-1%"
    match = _CHANGE.fullmatch(text)
    if match is None or match["unit"] is None:
        raise ValueError(f"write a change from base to new with its sign and %, as {example}")
    in_points = match["unit"] == "pp"
    if in_points and metric.kind is not Kind.SHARE:
        raise ValueError(f"pp are for shares, {metric.name} is none: write {example}")
    limit = float(match["number"]) / 100
    if (limit < 0) if upper else (limit > 0):
        raise ValueError(f"no change at all would break it: write {example}")
    return limit, in_points
