"""Limits of a run against another one: ``p99_ttft<=+5% goodput>=-1% error_rate<=+0.5pp``.

A gate limits the change from base to new: in per cent of base, or for shares in percentage points
(``pp``). Its interval is that of new − (1 + limit) · base (of new − base − limit for points), which has the
errors of both runs in it; each end is a one-sided 95 % bound. The gate

- **breaks** where the whole interval is over the limit: the change is over it by more than noise;
- **holds** where twice the limit is excluded (the limit and :func:`resolution` more: its interval does not
  reach that far), and the change is not over the limit, or so little that the limit is in the middle half
  of the interval. A true change of twice the limit so holds in at most one of twenty comparisons;
- is **unknown** otherwise: noise could hide what the gate is there to find.

Where every sample of new is over the limit times every sample of base, or within it, that decides by itself
(:func:`apart_p`).

One broken gate of several fails the comparison, so that each is broken at a level of 5 % / gates
(Bonferroni): together they break wrongly in at most one of twenty. The comparison passes only if all hold,
so that nothing is corrected for their number there (an intersection–union test, Berger 1982). A further
gate therefore can make a broken one unknown, and never held.

Failed requests count as above any upper limit on a percentile of an answer's latency, in both runs; see
:class:`State`. A percentile whose samples cannot bound it is judged by ranks
(:func:`tail_p`): the gate then breaks or is unknown.
"""

import math
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import numpy as np

from llm_locust.core.texts import Term, listed, nearest, split_terms
from llm_locust.figures.comparison import Row, compare_figures, explained, joint_confidence
from llm_locust.figures.sides import METRICS, NOT_COMPARED, Compared, Metric
from llm_locust.metrics.limits import (
    DIGITS,
    MOST_FAILED,
    OF_ANSWERS,
    OPERATORS,
    GateError,
    MetricKind,
    counts_failed,
    limits_failures,
)
from llm_locust.metrics.stats.estimates import (
    Average,
    Difference,
    Estimate,
    Percentile,
    alike,
    change,
    difference,
)
from llm_locust.metrics.stats.proportions import hypergeometric_at_most

_CHANGE = re.compile(r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?P<unit>%|pp)?")

Finding = Literal["held", "broken", "unknown"]

#: What becomes of an unknown gate.
Unknown = Literal["fail", "pass"]

#: How many gates on a change of the limit break at most, and how many on one of twice the limit hold.
_BREAKS, _HOLDS_WRONGLY = 0.05, 0.10

#: Part of an interval that is its middle.
_MIDDLE = 0.5

_ALLOWED = (
    f"gates are on {listed(name for name, m in METRICS.items() if m.kind is not MetricKind.LATENCY)}, "
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

    @property
    def is_upper(self) -> bool:
        return self.op.startswith("<")

    @property
    def is_adjusted(self) -> bool:
        """Whether it is over all requests, failed ones being above any limit."""
        return counts_failed(self.op, self.metric.latency, self.metric.statistic)

    @property
    def limits_failures(self) -> bool:
        """Whether it says how many requests more than in base may fail."""
        metric = self.metric
        return limits_failures(metric.name, self.is_upper, metric.latency, metric.statistic)

    def holds(self, over: float) -> bool:
        """Whether a change that is so far over the limit is allowed; negative is below it."""
        return OPERATORS[self.op](round(over, DIGITS), 0.0)


class State(StrEnum):
    """What a gate came to.

    A percentile of all requests that falls on a failed one is infinite: the gate breaks where it is finite in
    base, and is unknown where base's is infinite too, as there is no change to limit. A mean has no place for
    failed requests: above :data:`~llm_locust.metrics.limits.MOST_FAILED` of them it counts as infinite.
    """

    HELD = "held"
    HELD_APART = "held apart"  # every sample of new is within twice the limit of every sample of base
    WITHIN_NOISE = "within noise"  # over the limit, by no more than noise explains, and noise is small
    BROKEN = "broken"
    BROKEN_APART = "broken apart"  # every sample of new is over the limit times every sample of base
    BROKEN_BY_RANKS = "broken by ranks"
    BROKEN_BY_FAILURES = "broken by failures"
    BROKEN_BESIDE = "broken beside the gates"  # requests of new failed, or it was not served, as base was
    NO_SAMPLES = "no samples"
    FAILED_IN_BASE = "failed in base"  # base's figure is infinite
    TOO_NOISY = "too noisy"  # noise could hide a change of twice the limit
    OVER = "over the limit"  # but not beyond noise, and the limit is not in the middle of the interval
    AMONG_GATES = "one of several gates"  # it would be broken alone
    TOO_FEW = "too few samples"  # the noise is not known
    OF_A_PART = "part of a run"  # it is not broken, but base or new is not all of a run
    CLIENT_INVALID = "client invalid"  # it is not broken, but by figures of a client that was too slow
    OPEN = "open end"  # how far noise reaches against the gate is not known

    @property
    def finding(self) -> Finding:
        """What the gate came to: a gate without any sample is broken."""
        if self in (State.HELD, State.HELD_APART, State.WITHIN_NOISE):
            return "held"
        return "broken" if self is State.NO_SAMPLES or self.startswith("broken") else "unknown"


#: What a gate came to that says nothing, or another thing, where the runs themselves are in doubt.
_DOUBTED = frozenset(
    {State.HELD, State.HELD_APART, State.WITHIN_NOISE, State.TOO_NOISY, State.TOO_FEW, State.OVER}
)


@dataclass(frozen=True, slots=True)
class GateResult:
    """``change`` is in the limit's unit, +∞ from a base of 0; None without samples, or of an infinite figure.

    ``interval`` is the change with its interval in the same unit, an infinite end being unknown; None
    where there is no change and, of a relative gate, from a base of 0. ``failed`` has the failed shares of
    base and new where the figures' latency lacks them, None where none failed. ``times``: about how many
    times the requests of each run would decide an unknown gate, None where that is not known or not the way.
    ``beside``: why it is broken by what it does not limit.
    """

    gate: RelativeGate
    row: Row
    change: float | None
    state: State
    interval: Difference | None = None
    failed: tuple[float, float] | None = None
    times: float | None = None
    beside: str = ""

    def passed(self, unknown: Unknown = "fail") -> bool:
        """Whether it held; an unknown one does as ``unknown`` says."""
        finding = self.state.finding
        return finding == "held" or (finding == "unknown" and unknown == "pass")


def parse_relative_gates(text: str) -> tuple[RelativeGate, ...]:
    """The gates of ``text``, in order; none of an empty one.

    Raises:
        GateError: one line that points at the wrong word.
    """
    return tuple(_gate(term) for term in split_terms(text))


def evaluate_relative(gates: tuple[RelativeGate, ...], base: Compared, new: Compared) -> list[GateResult]:
    """Each gate on the change from ``base`` to ``new``."""
    found = [_judged(gate, base, new, len(gates)) for gate in gates]
    doubt = doubt_on(base, new) if found else None
    if doubt is not None:
        # More requests of such runs would tell no more.
        return [replace(each, state=doubt, times=None) if each.state in _DOUBTED else each for each in found]
    if beside := beside_gates(gates, base, new):
        return [
            each
            if each.state.finding == "broken"
            else replace(each, state=State.BROKEN_BESIDE, times=None, beside=beside)
            for each in found
        ]
    return found


def beside_gates(gates: tuple[RelativeGate, ...], base: Compared, new: Compared) -> str:
    """Why new fails whatever its gates limit, as a run does; empty if it does not, or base does too.

    Its server stood still, or its users hung. Or requests of it failed, by more than a hundredth and beyond
    chance, and no gate limits that.
    """
    if new.unserved and not base.unserved:
        return f"in new {new.unserved}"
    if any(gate.limits_failures for gate in gates) or new.error_rate - base.error_rate <= MOST_FAILED:
        return ""
    n, m = len(base.population.judged), len(new.population.judged)
    failed = len(base.population.failed), len(new.population.failed)
    if hypergeometric_at_most(failed[0], n, sum(failed), n + m) > _BREAKS:
        return ""
    of = f"{failed[1]:,} of {m:,} requests of new failed, {failed[0]:,} of {n:,} of base"
    return f"{of}, and no gate limits that: add error_rate<=+0.5pp"


def doubt_on(base: Compared, new: Compared) -> State | None:
    """Why no gate holds on these runs, whatever their figures are."""
    if base.is_part or new.is_part:
        return State.OF_A_PART
    # A base that its client made slow lets a slow new one hold, as does a new client that sent too little.
    is_invalid = any(run.client().verdict == "invalid" for run in (base, new))
    return State.CLIENT_INVALID if is_invalid else None


def _judged(gate: RelativeGate, base: Compared, new: Compared, gates: int) -> GateResult:
    before, after = (run.estimate(gate.metric, adjusted=gate.is_adjusted) for run in (base, new))
    found = judge_change(gate, before, after, gates)
    if found.state is State.FAILED_IN_BASE:
        # Base's percentile of all its requests is no less than that of its answers: what holds against the
        # latter holds against both.
        of_answers = judge_change(gate, base.estimate(gate.metric), after, gates)
        found = of_answers if of_answers.state.finding == "held" else found
    found = replace(found, row=explained(found.row, base, new))
    return _with_failed(found, base.error_rate, new.error_rate)


def _with_failed(found: GateResult, base: float, new: float) -> GateResult:
    """The result with both failed shares, and a mean's own judged by them."""
    gate, state = found.gate, found.state
    is_on_time = gate.metric.name == "on_time"
    if not (base or new) or not (is_on_time or gate.metric.latency in OF_ANSWERS):
        return found
    # on_time is a mean too, of the share of an answer's tokens.
    is_mean = gate.is_upper != is_on_time and (is_on_time or gate.metric.statistic == "mean")
    if is_mean and new > MOST_FAILED and state.finding != "broken":
        state = State.FAILED_IN_BASE if base > MOST_FAILED else State.BROKEN_BY_FAILURES
    return replace(found, state=state, failed=(base, new))


def judge_change(
    gate: RelativeGate, base: Estimate | None, new: Estimate | None, gates: int = 1
) -> GateResult:
    """One gate of so many ``gates`` on one figure of two runs."""
    row = compare_figures(gate.metric, base, new, joint_confidence(gates))
    if base is None or new is None:
        return GateResult(gate, row, None, State.NO_SAMPLES)
    if math.isinf(base.value) or math.isinf(new.value):
        state = State.FAILED_IN_BASE if math.isinf(base.value) else State.BROKEN_BY_FAILURES
        return GateResult(gate, row, None, state)
    moved = _change(gate, base.value, new.value)
    test = _Test(gate, *alike(base, new), moved)
    state = test.state(_BREAKS / gates)
    if state.finding == "unknown" and gates > 1 and test.state(_BREAKS).finding == "broken":
        state = State.AMONG_GATES
    times = test.times(_BREAKS / gates) if state.finding == "unknown" else None
    return GateResult(gate, row, moved, state, test.interval(), times=times)


@dataclass(frozen=True, slots=True)
class _Test:
    """A gate on two figures, as they are compared."""

    gate: RelativeGate
    base: Estimate
    new: Estimate
    change: float

    @property
    def unit(self) -> float:
        """What a limit is a share of; 1 where base is 0, of which any share is."""
        return 1.0 if self.gate.in_points else abs(self.base.value) or 1.0

    def over(self, alpha: float, further: float = 0.0) -> Difference:
        """By how much the change is over the limit, and ``further`` over it; each end one-sided.

        Of latencies and rates on the scale of logarithms.
        """
        gate, base, new = self.gate, self.base, self.new
        if gate.metric.kind is not MetricKind.SHARE and base.value > 0 and new.value > 0:
            limit = gate.limit + (further if gate.is_upper else -further)
            found = change(base, new, 1 - 2 * alpha)
            return Difference(found.value - limit, found.low - limit, found.high - limit)
        allowed = _Allowed(self.base, self.gate, further)
        found = difference(allowed, self.new, 1 - 2 * alpha)
        return Difference(found.value / self.unit, found.low / self.unit, found.high / self.unit)

    def interval(self) -> Difference | None:
        """That of the change; None of a relative gate from a base of 0."""
        if not self.base.value and not self.gate.in_points:
            return None
        limit, most = self.gate.limit, 1.0 if self.gate.in_points else math.inf
        best, worst = self.over(_BREAKS), self.over(_HOLDS_WRONGLY)
        low, high = (best.low, worst.high) if self.gate.is_upper else (worst.low, best.high)
        return Difference(self.change, limit + low, limit + high).within(-1.0, most)

    def state(self, alpha: float) -> State:
        gate, upper = self.gate, self.gate.is_upper
        over = self.over(alpha)
        # The end that speaks most for the gate.
        best = over.low if upper else over.high
        if math.isfinite(best) and not gate.holds(best):
            return State.BROKEN
        factor = 1 + gate.limit
        if not gate.in_points and factor > 0 and self._apart_p(factor, worse=True) <= alpha:
            return State.BROKEN_APART
        if upper and tail_p(self.base, self.new, factor) <= alpha:
            return State.BROKEN_BY_RANKS
        return self._held(math.isfinite(best))

    def _held(self, is_known: bool) -> State:
        """How it holds, or why it does not; ``is_known``: how far noise reaches in its favour is."""
        gate, further = self.gate, resolution(self.gate, self.base.value)
        beyond = self.over(_HOLDS_WRONGLY, further)
        # The end that speaks most against the gate: it must not reach as far as twice the limit.
        worst = beyond.high if gate.is_upper else -beyond.low
        if worst < 0:
            middle = self.over((1 - _MIDDLE) / 2)
            if gate.holds(self.change - gate.limit if math.isfinite(self.change) else math.inf):
                return State.HELD
            is_middle = gate.holds(middle.low if gate.is_upper else middle.high)
            return State.WITHIN_NOISE if is_middle else State.OVER
        factor = (
            1
            + gate.limit
            + math.copysign(further, gate.limit if gate.limit else (1 if gate.is_upper else -1))
        )
        if not gate.in_points and factor > 0 and self._apart_p(factor, worse=False) <= _BREAKS:
            return State.HELD_APART
        if not is_known:
            return State.TOO_FEW
        return State.TOO_NOISY if math.isfinite(worst) else State.OPEN

    def _apart_p(self, factor: float, *, worse: bool) -> float:
        """The chance that all of new lie beyond ``factor`` × all of base, to the worse side or the other."""
        if self.gate.is_upper == worse:
            return apart_p(self.base, self.new, factor)
        return apart_p(self.new, self.base, 1 / factor)

    def times(self, alpha: float) -> float | None:
        """How many times the requests would decide it, if the figures stayed what they are.

        The reach of an interval falls with the root of the number of requests, that of none or all of them
        with the number itself. A figure within the limit is to be shown to be away from twice the limit, one
        over it to be over it.
        """
        gate = self.gate
        over, further = self.over(alpha), resolution(gate, self.base.value)
        beyond = self.over(_HOLDS_WRONGLY, further)
        if gate.holds(self.change - gate.limit):
            reach, room = (
                abs((beyond.high if gate.is_upper else beyond.low) - beyond.value),
                abs(beyond.value),
            )
        else:
            reach, room = abs((over.low if gate.is_upper else over.high) - over.value), abs(over.value)
        if not (math.isfinite(reach) and room > 0):
            return None
        is_none_or_all = gate.metric.kind is MetricKind.SHARE and {self.base.value, self.new.value} <= {
            0.0,
            1.0,
        }
        return max(1.0, (reach / room) ** (1 if is_none_or_all else 2))


def resolution(gate: RelativeGate, base: float) -> float:
    """By how much more than its limit a change must be excluded: by the limit again, at least 1 % or 0.5 pp.

    Args:
        base: its figure; of 0 any share is 0, and 0.5 pp count.
    """
    if not base and not gate.in_points:
        return 0.005
    return max(abs(gate.limit), 0.005 if gate.in_points else 0.01)


@dataclass(frozen=True, slots=True)
class _Allowed:
    """What base's figure may become, and ``further``: an estimate with the error of base's."""

    base: Estimate
    gate: RelativeGate
    further: float

    @property
    def value(self) -> float:
        return self._moved(self.base.value)

    def ends(self, confidence: float) -> tuple[float, float]:
        low, high = self.base.ends(confidence)
        return self._moved(low), self._moved(high)

    def _moved(self, value: float) -> float:
        gate = self.gate
        further = self.further if gate.is_upper else -self.further
        if gate.in_points:
            return value + gate.limit + further
        if not self.base.value:
            return value * (1 + gate.limit) + further
        return value * (1 + gate.limit + further)


def _change(gate: RelativeGate, base: float, new: float) -> float:
    if gate.in_points:
        return new - base
    if base == 0:
        return 0.0 if new == 0 else math.copysign(math.inf, new)
    return (new - base) / base


def _gate(term: Term) -> RelativeGate:
    name, op, value = term.name, term.op, term.value
    if not name.text:
        raise GateError(f"gate: {op.error_at(f'no metric before it; {_ALLOWED}')}")
    if name.text in NOT_COMPARED:
        raise GateError(f"gate: {name.error_at(NOT_COMPARED[name.text])}")
    if name.text not in METRICS:
        guess = nearest(name.text, METRICS)
        raise GateError(f"gate: {name.error_at(f'unknown metric; {guess}{_ALLOWED}')}")
    if op.text not in OPERATORS:
        raise GateError(f"gate: {op.error_at(f'after {name.text} write one of {listed(OPERATORS)}')}")
    if not value.text:
        raise GateError(f"gate: {value.error_at(f'no limit after {name.text}{op.text}')}")
    metric = METRICS[name.text]
    try:
        limit, in_points = _limit(metric, op.text, value.text)
    except ValueError as e:
        raise GateError(f"gate: {value.error_at(str(e))}") from None
    return RelativeGate(term.text, metric, op.text, limit, in_points)


def _limit(metric: Metric, op: str, text: str) -> tuple[float, bool]:
    """The limit as a share, and whether it is in points. ValueError does not repeat ``text``."""
    upper = op.startswith("<")
    example = f"{metric.name}<=+5%" if upper else f"{metric.name}>=-1%"
    match = _CHANGE.fullmatch(text)
    if match is None or match["unit"] is None:
        raise ValueError(f"write a change from base to new with its sign and %, as {example}")
    in_points = match["unit"] == "pp"
    if in_points and metric.kind is not MetricKind.SHARE:
        raise ValueError(f"pp are for shares, {metric.name} is none: write {example}")
    limit = float(match["number"]) / 100
    if (limit < 0) if upper else (limit > 0):
        raise ValueError(f"no change at all would break it: write {example}")
    return limit, in_points


# --------------------
# Two runs judged by ranks, where too few samples bound a figure.
#
# **Separation** needs no independence of requests, and no error: if every sample of one run is above every
# sample of the other, then so is each figure made of them. That k and m rounds of one server, in any order
# equally likely, fall apart so has the chance 1 / C(k + m, k): 1 in 20 of three and three, 1 in 70 of four
# and four (the extreme case of Wilcoxon's rank sum test).
#
# **Tails**: Fisher's exact test of the samples above a value, see :func:`tail_p`.
# --------------------


#: More rounds of a run make no chance smaller than matters.
_ENOUGH = 30


def apart_p(low: Estimate, high: Estimate, factor: float) -> float:
    """The chance that all of ``high`` lie above ``factor`` times all of ``low``, if they are one server's.

    1 where they do not.
    """
    if not (isinstance(low, Average | Percentile) and isinstance(high, Average | Percentile)):
        return 1.0
    if low.span is None or high.span is None or not high.span.low > factor * low.span.high:
        return 1.0
    k, m = (min(_ENOUGH, math.floor(each.span.rounds + 1e-9)) for each in (low, high) if each.span)
    return 1 / math.comb(k + m, k) if k and m else 1.0


def tail_p(base: Estimate, new: Estimate, factor: float) -> float:
    """The chance of so many samples of new above ``factor`` × base's percentile, were new slower by no more.

    Fisher's exact test, one-sided, of base's samples above base's percentile and new's above ``factor``
    times it, each run counted as its effective samples. As the value is one of base's own, this is the
    exact precedence test. It needs no interval of the percentile: twenty samples cannot bound a p99,
    but twenty that are all above another run's are not chance. 1 where it is no percentile above 0,
    or effective samples are not known.
    """
    if not (isinstance(base, Percentile) and isinstance(new, Percentile)):
        return 1.0
    if not 0 < base.value < math.inf:
        return 1.0
    of_base, of_new = _above(base, base.value), _above(new, factor * base.value)
    if of_base is None or of_new is None:
        return 1.0
    (share_base, n_base), (share_new, n_new) = of_base, of_new
    share_base = max(share_base, 1 - base.percent / 100)  # fewer are above one that many samples share
    above_base, above_new = math.ceil(share_base * n_base - 1e-9), math.floor(share_new * n_new + 1e-9)
    return hypergeometric_at_most(above_base, n_base, above_base + above_new, n_base + n_new)


def _above(figure: Percentile, value: float) -> tuple[float, int] | None:
    """The share of samples above ``value``, and how many effective samples it is of.

    They are no more than the run is worth for its median: samples in a rare tail seem more independent than
    they are.
    """
    course = figure.samples.course
    if course is None or figure.noise is None:
        return None
    at_most = float(course.at_most(np.array([value])).sum() / course.counts.sum())
    return 1 - at_most, math.floor(figure.noise.level / figure.noise.factor + 1e-9)
