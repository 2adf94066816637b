"""One gate against the figures of a run, or of one of its arms."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from msgspec import UNSET, UnsetType, structs

from llm_locust.core.texts import quantity
from llm_locust.figures.parts import PartFigures
from llm_locust.figures.text import sentence
from llm_locust.figures.tokens import ODD_COUNTS
from llm_locust.figures.user_time import MOST_HUNG, UserTime
from llm_locust.metrics.catalogue import LATENCY
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.limits import (
    DIGITS,
    EDGE,
    MOST_BOUNDED,
    MOST_FAILED,
    OF_ANSWERS,
    OPERATORS,
    STANDSTILL,
    Gate,
    MetricKind,
)
from llm_locust.metrics.requests.rates import NO_GAP_MS, LawRate
from llm_locust.metrics.stats.censoring import (
    PERCENTILES,
    Durations,
    at_most,
    certified,
    fewest_samples,
    summarise,
)
from llm_locust.metrics.structs import LatencyTable, SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.search import SearchFacts
    from llm_locust.figures.summary import Summary


class GateOutcome(SummaryPart, frozen=True):
    """A gate and whether it held."""

    text: Annotated[str, key("a gate: see [gates](statistics.md#gates)")]
    value: Annotated[
        float | None,
        key(
            "the figure that it is on; of a certified gate the bound of the percentile",
            "as the value; of upper limits on latencies as `latency_ms_adjusted`",
        ),
    ]
    at_least: Annotated[float | None, key("its lower bound where that is undetermined", "as `value`")]
    passed: Annotated[bool, key("whether it held", "as `value`")]
    reason: Annotated[str | None, key("why not, or why it cannot tell", "as `value`")]
    note: Annotated[str | None, key("how many requests failed, where its latency lacks them", "as `value`")]
    undecided: Annotated[
        bool, key("it neither held nor broke: the run does not show which", "as `value`")
    ] = False
    for_good: Annotated[
        bool, key("it broke in a part of a run that the best rest could not have repaired", "as `value`")
    ] = False
    arm: Annotated[
        str | UnsetType, key("the arm that it is judged for; absent in a run without arms", "as `value`")
    ] = UNSET

    @property
    def shown(self) -> str:
        """Its text, after the arm's name if there is one."""
        return self.text if self.arm is UNSET else f"{self.arm}: {self.text}"


#: A window of so many mean times of a request has the rates of its load, wherever it begins.
FEW_ANSWERS = 10.0

#: A rate that is counted in a shorter one, and the same by Little's law, may differ by this share.
RATES_DIFFER = 0.1

#: A load that was on its plateau for this share of the window is no ramp.
MOSTLY_STEADY = 0.9

#: Of the normal distribution: intervals of rates are of 99 %.
_OF_99 = 2.5758293035489004

#: Failures are more than :data:`MOST_FAILED` if so many or more are less likely than 1 − this.
_BEYOND_CHANCE = 0.95

#: Rates that Little's law gives: of a gate's metric.
RATES = ("rps", "goodput_rps", "input_tps", "output_tps", "total_tps", "inputs_per_s", "images_per_s")

#: Answers that take so small a part of their time between their first token and their last came at once.
_AT_ONCE = 0.05


@dataclass(frozen=True, slots=True)
class CutPaces:
    """What requests that were cut after their first token say of a latency without an end (tpot, itl).

    ``values_s`` are the samples that they have, ascending. ``unknown`` is the number of requests that have
    none although their tokens had begun to come.
    """

    values_s: Floats
    unknown: int


@dataclass(frozen=True, slots=True)
class GateEvidence:
    """What gates are judged by beside a summary.

    Attributes:
        durations_of: the durations of the latency that a gate is on.
        cut: of tpot and itl, see :class:`CutPaces`; without it all that were given up are unknown.
        rate: of a gate's metric the same rate by Little's law; None where that cannot be told.
        ramp: see :class:`Ramp`; None without one.
        done: the share of the load that was asked for that the run had; None if that is not known, or all.
        seconds: length of the window.
        not_used: share of the answers whose count by the server is not used.
        times: the time of the users, None where it is not known.
        hung: of a gate's metric, ``goodput`` or ``error_rate``, the requests that hung and are not in it.
    """

    durations_of: Callable[[Gate], Durations]
    cut: Callable[[str], CutPaces] | None = None
    rate: Callable[[str], LawRate | None] = lambda _: None
    ramp: "Ramp | None" = None
    done: float | None = None
    seconds: float = 0.0
    not_used: float | None = None
    times: UserTime | None = None
    hung: Callable[[str], int] = lambda _: 0


@dataclass(frozen=True, slots=True)
class Ramp:
    """A load that was on its plateau for the ``share`` of the window: ``mean`` of ``plateau`` ``unit``."""

    share: float
    mean: float
    plateau: float
    unit: str


def evaluate(
    gates: Sequence[Gate], part: "Summary | PartFigures", evidence: GateEvidence
) -> list[GateOutcome]:
    """Each gate against the figures of a run, or of one of its arms.

    ``value`` is what the summary holds, in its unit. An upper limit on a percentile or the maximum of an
    answer's latency is on the adjusted one: a failed request is above any limit. With more than
    :data:`MOST_FAILED` failed an upper limit on a mean holds only if it would with each of them as slow as
    the slowest that ended, and never if that many are beyond chance. ``note`` says how many failed,
    where that matters, or what the figure is made of.

    Where there is no value, the gate fails and ``reason`` says why: nothing was shown to hold. A latency that
    cut requests leave open has a lower bound, ``at_least``; where that alone decides, it does. No upper limit
    on a percentile passes with fewer than 1 / (1 − p) samples, nor where more requests have no sample of it
    than lie beyond it: they cannot tell. No more does a limit on a share, as ``error_rate<1%``, with fewer
    requests than have one beyond it. ``reason`` is None where the gate passed.

    A rate that the edges of a short window make is judged by Little's law instead, see :func:`_of_rate`.

    ``undecided`` marks gates that are not broken: the run is too short, or cut requests leave it open.
    ``for_good`` marks broken ones of a part of a run that the best rest of it could not have repaired.

    A certified gate is on the bound of its percentile, computed from the durations of the gate. It fails if
    there are too few samples for a bound, or if the bound falls on a request that failed or was given up.
    """
    return [_evaluated(_Case(gate, part, evidence)) for gate in gates]


def _evaluated(case: "_Case") -> GateOutcome:
    found = _outcome(case)
    broken = not (found.passed or found.undecided)
    if broken and case.evidence.done is not None and _is_for_good(case):
        return structs.replace(found, for_good=True)
    return found


def _outcome(case: "_Case") -> GateOutcome:
    if case.gate.metric == EDGE:
        return _edge(case, getattr(case.part, "search", None))
    if case.gate.is_certified:
        return _certified(case)
    if case.gate.metric in RATES:
        return _of_ramp(case, _of_rate(case) or _result(case))
    return _result(case)


def _edge(case: "_Case", search: "SearchFacts | None") -> GateOutcome:
    """A lower limit on the edge of a search: what is shown of it is the lower end of its interval."""
    if search is None:
        return case.broken("cannot tell: the run is not a search (--find)")
    answer = search.answer
    is_bound = answer.load is None and answer.at_least is not None
    value = answer.at_least if is_bound else answer.low
    if value is None:
        return case.broken(f"cannot tell: the search has no lower end: {answer.why}")
    if is_bound and not case.holds(value):
        bound = _text(case.gate, value)
        return case.broken(f"cannot tell: the edge is only known to be at least {bound}", value)
    return case.compared(value)


def _certified(case: "_Case") -> GateOutcome:
    gate, durations = case.gate, _with_left_out(case)
    percent = PERCENTILES[gate.statistic]
    bound_ms = certified(durations, percent) * 1e3
    n = len(durations.observed) + len(durations.censored) + durations.infinite
    if math.isnan(bound_ms):
        fewest = fewest_samples(percent)
        return case.unknown(case.too_few(f"a certified {gate.statistic}", "samples", n, fewest))
    if math.isinf(bound_ms):
        return case.broken("the certified bound falls on a request that failed or was given up")
    return case.compared(bound_ms)


@dataclass(frozen=True)
class _Case:
    """A gate, and what it is judged by."""

    gate: Gate
    part: "Summary | PartFigures"
    evidence: GateEvidence

    @cached_property
    def cut(self) -> CutPaces | None:
        """Of a latency without an end what the requests say that were cut; None where all are unknown."""
        latency = self.gate.latency
        if latency is None or self.evidence.cut is None:
            return None
        metric = LATENCY[latency]
        return self.evidence.cut(latency) if metric.is_of_answer and metric.end is None else None

    @cached_property
    def durations(self) -> Durations:
        """The durations of the gate's latency, with those of requests that were cut."""
        found = self.evidence.durations_of(self.gate)
        if self.cut is None or not len(self.cut.values_s) or not isinstance(found.observed, np.ndarray):
            return found  # among so many that they are counted, those that were cut are none
        return replace(found, observed=np.sort(np.append(found.observed, self.cut.values_s)), course=None)

    @cached_property
    def figures(self) -> LatencyTable:
        """The figures of the gate's latency, of all requests or of those with an answer."""
        if self.cut is not None and len(self.cut.values_s):
            return LatencyTable(summarise(self.durations, 1e3))
        tables = self.part.latency_ms_adjusted if self.gate.is_adjusted else self.part.latency_ms
        return tables[self.gate.path[1]]

    @cached_property
    def value(self) -> float | None:
        """The figure, None where there is none. A rate of no requests at all shows nothing."""
        gate, part = self.gate, self.part
        asked = part.goodput.judged if gate.metric == "goodput" else part.requests.population
        if gate.metric != "requests" and not asked:
            return None
        if gate.kind is MetricKind.LATENCY:
            return self.figures.figure(gate.statistic)
        found: Any = part
        for name in gate.path:  # a run without images has no such part
            found = getattr(found, name, None)
        return None if found is None else float(found)

    @property
    def counted(self) -> int | None:
        """Number of requests that a share is of; None of other figures."""
        if self.gate.metric == "goodput":
            return self.part.goodput.judged
        return self.part.requests.population if self.gate.metric == "error_rate" else None

    def holds(self, value: float) -> bool:
        return bool(OPERATORS[self.gate.op](round(value, DIGITS), self.gate.limit))

    def is_not(self, value: float) -> str:
        return f"{_text(self.gate, value)} is not {self.gate.op} {_text(self.gate, self.gate.limit)}"

    def too_few(self, what: str, unit: str, n: int, fewest: int) -> str:
        """That there are fewer samples than are needed, and how long those would take."""
        seconds = self.evidence.seconds
        long = f": run for about {_rounded(seconds * fewest / n)}" if n and seconds > 0 else ""
        return f"cannot tell: {what} needs {fewest:,} {unit}, there are {n:,}{long}"

    def held(self, value: float | None, *, at_least: float | None = None, note: str = "") -> GateOutcome:
        return self._made(value, at_least, passed=True, note=note)

    def broken(
        self, reason: str, value: float | None = None, *, at_least: float | None = None, note: str = ""
    ) -> GateOutcome:
        return self._made(value, at_least, reason=reason, note=note)

    def unknown(
        self, reason: str, value: float | None = None, *, at_least: float | None = None
    ) -> GateOutcome:
        """An outcome of a gate that neither holds nor is broken."""
        return self._made(value, at_least, reason=reason, undecided=True)

    def compared(self, value: float) -> GateOutcome:
        return self.held(value) if self.holds(value) else self.broken(self.is_not(value), value)

    def _made(
        self,
        value: float | None,
        at_least: float | None,
        *,
        passed: bool = False,
        reason: str | None = None,
        note: str = "",
        undecided: bool = False,
    ) -> GateOutcome:
        return GateOutcome(
            text=self.gate.text,
            value=value,
            at_least=at_least,
            passed=passed,
            reason=reason,
            note=note or _note(self),
            undecided=undecided,
        )


def _rounded(seconds: float) -> str:
    """A duration rounded up to two digits, as ``50 s``, ``13 min``, ``2.3 h``."""
    for unit, of_unit in (("s", 1.0), ("min", 60.0), ("h", 3600.0)):
        amount = seconds / of_unit
        if amount < 100 or unit == "h":
            break
    step = 10.0 ** (math.floor(math.log10(max(amount, 1.0))) - 1)
    return f"{math.ceil(amount / step - 1e-9) * step:.6g} {unit}"


def _failed(case: _Case) -> str | None:
    """The share of requests that failed, and so have no such latency; None where none did."""
    rate = case.part.requests.error_rate
    return f"{rate * 100:.3g} % failed" if rate and case.gate.latency in OF_ANSWERS else None


def _note(case: _Case) -> str | None:
    found = [counted] if (counted := _counted_otherwise(case)) is not None else []
    if (failed := _failed(case)) is not None:
        of_all = case.gate.is_adjusted
        found.append(f"over all requests: {failed}" if of_all else f"of requests with an answer: {failed}")
    if case.cut is not None and len(case.cut.values_s):
        found.append("with what came of answers that were cut")
    return "; ".join(found) or None


def _result(case: _Case) -> GateOutcome:
    value = case.value
    if value is None:
        return _undetermined(case)
    if not case.holds(value):
        chance = _by_chance(case, value)
        return case.broken(case.is_not(value), value) if chance is None else case.unknown(chance, value)
    if (lost := _not_by_time(case, value) or _not_with_hung(case, value)) is not None:
        return lost
    is_upper = case.gate.is_upper or case.gate.kind is not MetricKind.LATENCY
    why = _too_few(case) or _left_open(case) or (_came_at_once(case) if is_upper else None)
    return _of_failures(case, value) if why is None else case.unknown(why, value)


def _counted_otherwise(case: _Case) -> str | None:
    """That the tokens which a gate depends on are not those of the server, whose counts contradict them."""
    depends = case.gate.metric in ("output_tps", "total_tps") or _is_of_tpot(case)
    share = case.evidence.not_used if depends else None
    if share is None or share < ODD_COUNTS:
        return None
    return f"tokens of {share * 100:.3g} % of the answers by what came: the server's counts contradict them"


def _came_at_once(case: _Case) -> str | None:
    """Why a limit on a pace that holds shows nothing: whole answers came at once, after a silence."""
    if case.gate.latency != "itl" and not _is_of_tpot(case):
        return None
    gap_ms, first_ms, last_ms = (case.part.latency_ms[key]["p50"] for key in ("itl", "ttft", "e2el"))
    if first_ms is None or last_ms is None or last_ms - first_ms >= _AT_ONCE * last_ms:
        return None
    tokens = None if isinstance(case.part, PartFigures) else case.part.tokens.output.p50
    if (gap_ms is None and (tokens or 0.0) < 2) or (gap_ms is not None and gap_ms >= NO_GAP_MS):
        return None
    return (
        "cannot tell: answers came at once, as from a buffer on the way, and their pace is not the server's"
    )


def _is_of_tpot(case: _Case) -> bool:
    if case.gate.metric in ("goodput", "goodput_rps"):
        part = case.part.goodput
        return any("tpot" in slo for slo in (part.slo, *part.slo_by_class.values()))
    return case.gate.latency == "tpot"


def _not_by_time(case: _Case, value: float) -> GateOutcome | None:
    """Why a limit on a share of the requests that holds is broken by the time of their users; None if not."""
    times, metric = case.evidence.times, case.gate.metric
    if times is None or metric not in _WHAT:
        return None
    of_good = metric == "goodput"
    shares = times.good if of_good else times.served
    if shares is None or not shares.breaks(lambda share: case.holds(share if of_good else 1 - share)):
        return None
    of_time = (shares.share or 0.0) if of_good else 1 - (shares.share or 0.0)
    but = f"but{' only' if of_good else ''} {100 * of_time:.3g} % of the users' time"
    both = f"{100 * value:.3g} % of the requests {_WHAT[metric]}, {but}"
    why = sentence([both, times.hung_text], ": ")
    of_hung = times.hung.seconds / times.seconds
    is_open = not of_good and 0 < of_hung <= MOST_HUNG and case.holds(max(0.0, of_time - of_hung))
    return case.unknown(f"cannot tell: {why}{_OPEN}", value) if is_open else case.broken(why, value)


#: After what requests say that hung until they were given up, if they are few.
_OPEN = "; let them end with a longer --drain"

_WHAT = {"goodput": "were good", "error_rate": "failed"}


def _not_with_hung(case: _Case, value: float) -> GateOutcome | None:
    """Why a limit on a share that holds does not with the requests of an open loop that hung: each is bad."""
    metric, n = case.gate.metric, case.counted
    if metric not in _WHAT or n is None or case.evidence.times is not None:
        return None
    hung = case.evidence.hung(metric)
    bad = value if metric == "error_rate" else 1 - value
    with_hung = (bad * n + hung) / (n + hung) if hung else bad
    share = with_hung if metric == "error_rate" else 1 - with_hung
    if not hung or case.holds(share):
        return None
    found = f"{100 * value:.3g} % of the requests {_WHAT[metric]}, and {hung:,} more hung"
    why = f"{found}: with these {case.is_not(share)}"
    few = hung <= MOST_HUNG * (n + hung)
    return case.unknown(f"cannot tell: {why}{_OPEN}", value) if few else case.broken(why, value)


def _by_chance(case: _Case, value: float) -> str | None:
    """Why a share over its limit does not break it: of fewer requests than the limit needs, as many beyond it
    come by chance in 5 % of cases or more; None where that is plain, as where all failed."""
    gate = case.gate
    n, fewest = case.counted, fewest_for_share(gate)
    if n is None or n >= fewest:
        return None
    limit, beyond = (gate.limit, value) if gate.is_upper else (1 - gate.limit, 1 - value)
    k = round(beyond * n)
    if not 0 < limit < 1 or k < 1 or at_most(k - 1, n, limit) > _BEYOND_CHANCE:
        return None
    few = case.too_few("the limit", "requests", n, fewest)
    return f"{few}; {k:,} of {n:,} may be chance"


def _too_few(case: _Case) -> str | None:
    """Why a share or a percentile that is within its limit shows nothing: of too few none is expected beyond
    the limit; None where there are enough."""
    gate = case.gate
    if gate.kind is MetricKind.SHARE:
        n, fewest = case.counted, fewest_for_share(gate)
        return case.too_few("the limit", "requests", n, fewest) if n is not None and n < fewest else None
    if not gate.is_upper or gate.statistic not in PERCENTILES:
        return None
    n, fewest = case.figures.known.n + case.figures.known.censored, fewest_for(gate.statistic)
    return case.too_few(gate.statistic, "samples", n, fewest) if n < fewest else None


def _left_open(case: _Case) -> str | None:
    """Why a percentile or a maximum that is below its upper limit shows nothing: it may be of a request
    without a sample; None where it cannot.

    The longest of all requests may be any that was given up, however early that was. So may any beyond a
    percentile where more requests have no sample than lie beyond it.
    """
    gate = case.gate
    if gate.kind is not MetricKind.LATENCY or not gate.is_upper:
        return None
    censored = case.figures.known.censored
    left_out, share = _left_out(case)
    if gate.statistic == "max" and censored:
        given_up = f"{censored} requests were given up before they ended"
        return f"cannot tell: {given_up}, and the longest may be one of them; limit a percentile"
    if gate.statistic == "max" and left_out:
        return f"cannot tell: {_left_out_text(gate, left_out)}, and the longest may be one of them"
    if gate.statistic in PERCENTILES and share > 1 - PERCENTILES[gate.statistic] / 100:
        text = _left_out_text(gate, left_out)
        return f"cannot tell: {text}, more than lie beyond the {gate.statistic}"
    return None


def _of_failures(case: _Case, value: float) -> GateOutcome:
    """Whether a figure within its limit holds although a mean is of the requests that have one alone.

    With more than :data:`MOST_FAILED` without, each of them is taken to be as slow as the slowest that has
    one. No mean says anything of the requests where more failed than that, beyond chance, or where more than
    :data:`MOST_BOUNDED` were given up.
    """
    gate, requests = case.gate, case.part.requests
    if gate.kind is not MetricKind.LATENCY or not gate.is_upper or gate.statistic != "mean":
        return case.held(value)
    failed = _failed(case)
    rate = requests.error_rate or 0.0 if failed else 0.0
    left_out, share = _left_out(case)
    share = max(share, rate)
    if share <= MOST_FAILED:
        return case.held(value)
    if failed and at_most(requests.failed - 1, requests.population, MOST_FAILED) > _BEYOND_CHANCE:
        return case.broken(f"{failed}, and a mean cannot include them; limit a percentile", value)
    text = failed if failed and rate > MOST_FAILED else _left_out_text(gate, left_out)
    longest = case.figures.known.max
    if share <= MOST_BOUNDED and longest is not None:
        bound = (1 - share) * value + share * longest
        if case.holds(bound):
            note = f"{text}: {_text(gate, bound)} if each had been as slow as the slowest"
            return case.held(value, note=note)
    return case.unknown(f"cannot tell: {text}, and a mean cannot include them; limit a percentile", value)


def _left_out(case: _Case) -> tuple[int, float]:
    """Requests of which a latency has no sample, not even a lower bound, although they may have been slow.

    These are requests that were given up, where the latency waits for no single event (tpot, itl) and their
    tokens had begun to come; those among them whose input is unknown, where it is per input token; and the
    failed ones too, where it is no latency of an answer. The share is that of all scheduled requests; failed
    ones, which count as above any limit of an answer's latency, are in it.
    """
    requests, metric = case.part.requests, LATENCY[str(case.gate.latency)]
    if not metric.is_of_answer:
        left_out = beyond = requests.failed + requests.cancelled
    elif metric.end is None:
        left_out = requests.cancelled if case.cut is None else case.cut.unknown
        beyond = left_out + requests.failed
    elif metric.per is not None:
        adjusted = case.part.latency_ms_adjusted
        left_out = max(0, adjusted["ttft"].known.censored - adjusted[metric.key].known.censored)
        beyond = left_out + requests.failed
    else:
        return 0, 0.0
    return left_out, beyond / requests.scheduled if left_out else 0.0


def _left_out_text(gate: Gate, left_out: int) -> str:
    how = "were given up" if gate.latency in OF_ANSWERS else "failed or were given up"
    return f"{left_out:,} requests {how} and have no {gate.latency}"


def _with_left_out(case: _Case) -> Durations:
    """The same durations with those of :func:`_left_out`: they leave open whatever they could change."""
    left_out, _ = _left_out(case)
    found = case.durations
    if not left_out:
        return found
    an_answer = math.ceil(len(found.observed) / max(1, case.part.requests.ok))  # of itl many
    unknown = np.zeros(left_out * max(1, an_answer))
    return replace(found, censored=np.append(unknown, found.censored), trend=True)


def fewest_for(statistic: str) -> int:
    """Samples that an upper limit on a percentile needs, 1 / (1 − p): one is expected beyond it."""
    return math.ceil(round(100 / (100 - PERCENTILES[statistic]), 6))


def fewest_for_certified(statistic: str) -> int:
    """Samples that a certified limit on a percentile needs."""
    return fewest_samples(PERCENTILES[statistic])


def fewest_for_share(gate: Gate) -> int:
    """Requests that a limit on a share needs, as a percentile does: one is expected beyond the limit.

    ``error_rate<1%`` and ``goodput>=99%`` need 100. A limit of 0 or 100 % allows none beyond: it is no
    estimate of a share, but says that every request is good, which each one shows or breaks.
    """
    beyond = gate.limit if gate.is_upper else 1 - gate.limit
    return math.ceil(round(1 / beyond, 6)) if beyond > 0 else 1


def _of_rate(case: _Case) -> GateOutcome | None:
    """A rate that the edges of a short window make, by Little's law; None where it is as counted.

    Where a window holds fewer than :data:`FEW_ANSWERS` mean times of a request, the count of those that ended
    in it depends on where it begins and ends. The requests in flight and the time that each took do not:
    their quotient is the rate of the load. If it is further from the count than :data:`RATES_DIFFER`, it
    decides, where all of its 99 % interval is on one side of the limit.
    """
    gate, value = case.gate, case.value
    law = None if value is None else case.evidence.rate(gate.metric)
    if value is None or law is None or law.answers >= FEW_ANSWERS:
        return None
    short = f"the window is {law.answers:.2g} answers long, and what ends in it depends on where it begins"
    if math.isnan(law.rate):
        return case.unknown(f"cannot tell: {short}: run for longer", value)
    if abs(law.rate - value) <= RATES_DIFFER * max(law.rate, value):
        return None
    low, high = (law.rate + sign * _OF_99 * law.error for sign in (-1, 1))
    by_law = f"{_text(gate, value)} was counted, {_text(gate, law.rate)} is in flight / time"
    if case.holds(low) != case.holds(high):
        return case.unknown(f"cannot tell: {short} ({by_law}): run for longer", value)
    note = f"by requests in flight / time; {_text(gate, value)} was counted"
    if case.holds(low):
        return case.held(law.rate, note=note)
    return case.broken(f"{case.is_not(law.rate)}: {short} ({by_law})", law.rate, note=note)


def _of_ramp(case: _Case, found: GateOutcome) -> GateOutcome:
    """A rate below its limit in a window that the ramp of the load fills: it may hold at the whole load.

    A server that is no faster with more load gives at most the rate × plateau / mean load.
    """
    ramp, gate, value = case.evidence.ramp, case.gate, case.value
    if found.passed or ramp is None or gate.is_upper or value is None or ramp.mean <= 0:
        return found
    if ramp.share >= MOSTLY_STEADY or not case.holds(value * max(1.0, ramp.plateau / ramp.mean)):
        return found
    on = f"{ramp.plateau:.4g} {ramp.unit} for {100 * ramp.share:.0f} % of the window"
    why = (
        f"cannot tell: the load was {on}, and {ramp.mean:.3g} on average: start it faster, run for longer, "
        "or use --window steady"
    )
    return structs.replace(found, reason=why, undecided=True)


def _is_for_good(case: _Case) -> bool:
    """Whether the best rest of a run that was cut short could not have repaired a broken gate.

    The best rest has twice as many requests a second as before, all of them good and at once.
    """
    gate, value, done = case.gate, case.value, case.evidence.done
    assert done is not None
    part = done / (done + 2 * (1 - done))
    if gate.kind is MetricKind.SHARE:
        return value is not None and not case.holds(value * part if gate.is_upper else 1 - (1 - value) * part)
    if gate.metric == STANDSTILL:
        return gate.is_upper
    if gate.kind is not MetricKind.LATENCY or not gate.is_upper or gate.is_certified:
        return False
    if gate.statistic == "max":
        return True
    if gate.statistic == "mean":
        return value is not None and not case.holds(value * part)
    found = case.durations
    if not isinstance(found.observed, np.ndarray):
        return False
    over = int((found.observed > gate.limit * 1e-3).sum()) + found.infinite
    n = len(found.observed) + len(found.censored) + found.infinite
    return n > 0 and over / n * part > 1 - PERCENTILES[gate.statistic] / 100


def _undetermined(case: _Case) -> GateOutcome:
    """A gate on a figure that the run has not."""
    gate, part = case.gate, case.part
    if gate.kind is MetricKind.LATENCY:
        return _latency_undetermined(case)
    if not part.requests.population:
        return case.broken(f"no samples: the run has no value for {gate.metric}")
    if gate.metric in ("goodput", "goodput_rps") and part.goodput.judged is None:
        return case.broken("no SLO was given: nothing is good or bad")
    if not case.evidence.seconds > 0:
        return case.broken("the window is empty")
    whys = {
        "inputs_per_s": "no request has inputs",
        "images_per_s": "no request has images",
        STANDSTILL: "its window is too short, or it is one arm of several",
        "kv_transfer_failures": "no server counted KV transfers, or one did not tell those that failed",
    }
    return case.broken(
        f"the run has no value for {gate.metric}: {whys.get(gate.metric, 'tokens are unknown')}"
    )


def _latency_undetermined(case: _Case) -> GateOutcome:
    gate, stats = case.gate, case.figures
    _, latency, statistic = gate.path
    if statistic in stats.known.beyond:
        return case.broken(_on_a_failure(case))
    bound = stats.bound(statistic)
    if bound is None and gate.is_upper and (why := _came_at_once(case)) is not None:
        return case.unknown(why)
    if bound is None:
        return case.broken(f"no samples: the run has no value for {gate.metric}")
    unsent = " or never sent" if LATENCY[latency].is_from_scheduled else ""
    cut = f"{stats.known.censored} requests were given up before they ended{unsent}"
    least = f"at least {_text(gate, bound)}"
    limit = f"{gate.op} {_text(gate, gate.limit)}"
    # The figure may be the bound itself: only what that breaks, too, is decided.
    holds = case.holds(bound)
    if gate.op in (">", ">="):
        if holds:
            return case.held(None, at_least=bound)
        return case.unknown(f"undetermined: {cut}, so it is {least}: that may not be {limit}", at_least=bound)
    if holds:
        return case.unknown(f"undetermined: {cut}, so it is only known to be {least}", at_least=bound)
    return case.broken(f"{least} is not {limit}: {cut}", at_least=bound)


def _on_a_failure(case: _Case) -> str:
    """What a percentile of all requests that falls on a failed one says."""
    _, latency, statistic = case.gate.path
    of_others = case.part.latency_ms[latency].figure(statistic)
    beside = "" if of_others is None else f"; of the others it is {_text(case.gate, of_others)}"
    return f"{_failed(case)}: the {statistic} of all requests falls on a failed one{beside}"


def _text(gate: Gate, value: float) -> str:
    if gate.kind is MetricKind.SHARE:
        return f"{_apart(value * 100, gate.limit * 100)}%"
    text = _apart(value, gate.limit)
    return f"{text} ms" if gate.kind is MetricKind.LATENCY else text


def _apart(value: float, limit: float) -> str:
    """A figure as different from the limit as it is; the limit itself as it was written."""
    return f"{value:,.10g}" if value == limit else quantity(value, limit)
