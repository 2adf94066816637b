"""Limits: of one request (``ttft=500ms``), and of a whole run (``goodput>=95% p99_ttft<800ms``)."""

import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum

from llm_locust.core.texts import Term, listed, nearest, parse_duration, split_terms
from llm_locust.metrics.catalogue import LATENCIES
from llm_locust.metrics.stats.censoring import PERCENTILES

# --- Limits of a single request, and how they are written: ``ttft=500ms tpot=50ms e2el=10s``


class SloError(ValueError):
    """A text or a value that is no SLO; one line that says what is wrong and what is allowed."""


#: The latencies that may have a limit.
SLO_METRICS = tuple(metric.key for metric in LATENCIES if metric.is_limited)


@dataclass(frozen=True, slots=True, init=False)
class Slo:
    """Limits in seconds; a request holds one when its metric is at or below it.

    ``ttft``, ``ttfo`` and ``e2el`` are measured from scheduled in an open loop and from sent in a closed
    one; all others from where their names say. Without any limit the object is false, and nothing is judged
    by it.

    Attributes:
        limits: metric -> limit in seconds, in the order of :data:`SLO_METRICS`.
    """

    limits: dict[str, float]

    def __init__(self, **limits_s: float | None) -> None:
        """``limits_s`` are named as ``ttft_s``; None is no limit.

        Raises:
            SloError: a limit that is not a number above 0.
            TypeError: no metric of :data:`SLO_METRICS` has this name.
        """
        if unknown := limits_s.keys() - {f"{metric}_s" for metric in SLO_METRICS}:
            raise TypeError(f"no latency that may have a limit: {', '.join(sorted(unknown))}")
        given = {metric: limits_s.get(f"{metric}_s") for metric in SLO_METRICS}
        limits = {metric: limit_s for metric, limit_s in given.items() if limit_s is not None}
        for metric, limit_s in limits.items():
            if not (math.isfinite(limit_s) and limit_s > 0):
                raise SloError(f"the limit of {metric} is {limit_s!r} s; it must be above 0")
        object.__setattr__(self, "limits", limits)

    def __bool__(self) -> bool:
        return bool(self.limits)


def parse_slo(text: str) -> Slo:
    """The SLO of ``ttft=500ms tpot=50ms``; of an empty text the one without limits.

    Raises:
        SloError: one line that points at the wrong word.
    """
    limits: dict[str, float] = {}
    for term in split_terms(text):
        metric = _metric(term)
        if metric in limits:
            raise SloError(f"SLO: {term.name.error_at('is there twice: give each limit once')}")
        limits[metric] = _limit_s(term)
    return Slo(**{f"{metric}_s": limit_s for metric, limit_s in limits.items()})


def _metric(term: Term) -> str:
    name = term.name.text
    allowed = f"limits are for {listed(SLO_METRICS)}"
    if not name:
        raise SloError(f"SLO: {term.op.error_at(f'no metric before it; {allowed}')}")
    if name not in SLO_METRICS:
        raise SloError(f"SLO: {term.name.error_at(f'unknown metric; {nearest(name, SLO_METRICS)}{allowed}')}")
    if term.op.text != "=":
        raise SloError(f"SLO: {term.op.error_at(f'write a limit as {name}=500ms')}")
    return name


def _limit_s(term: Term) -> float:
    if not term.value.text:
        raise SloError(f"SLO: {term.value.error_at(f'no limit; write {term.name.text}=500ms')}")
    try:
        limit_s = parse_duration(term.value.text)
    except ValueError as e:
        raise SloError(f"SLO: {term.value.error_at(str(e))}") from None
    if limit_s <= 0:
        raise SloError(f"SLO: {term.value.error_at('a limit must be above 0')}")
    return limit_s


# --------------------
# Limits of a whole run: ``goodput>=95% p99_ttft<800ms error_rate<1% output_tps>2000``.
#
# ``certified p99_ttft<2s`` limits the upper bound of the percentile, see
# :mod:`~llm_locust.metrics.stats.censoring`, instead of the percentile itself.
# --------------------


OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
}
_NUMBER = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?P<unit>.*)")

#: Digits to which figures are compared: 0.1 * 3 * 1e3 ms does not break a limit of 300 ms.
DIGITS = 9

#: Before a gate on a percentile: its upper bound is meant.
CERTIFIED = "certified"

#: Figures of a latency that gates may name.
STATISTICS = ("mean", "p50", "p75", "p90", "p95", "p99", "p99_9", "max")

#: Latencies of an answer: a request that failed has none.
OF_ANSWERS = frozenset(metric.key for metric in LATENCIES if metric.is_of_answer)
#: Latencies that gates may name.
GATED_LATENCIES = tuple(metric.key for metric in LATENCIES if metric.is_gated)

#: No upper limit on a mean holds where a larger share of the requests failed, beyond chance.
MOST_FAILED = 0.01
#: Nor where a larger share was given up without a sample.
MOST_BOUNDED = 0.1

#: An upper limit on this percentile or a higher one says how many requests may fail, one on a median not.
LEAST_PERCENT_OF_ALL = 90.0


class GateError(ValueError):
    """A text that is no gate; one line that says what is wrong and what is allowed."""


class MetricKind(StrEnum):
    """What a gate's metric is, and so how its limit is written."""

    SHARE = "share"  # 95% or 0.95
    LATENCY = "latency"  # a duration with its unit; compared in ms
    NUMBER = "number"  # a plain number


#: Metric of a gate -> section and key of its figure in a summary.
SHARES = {
    "goodput": ("goodput", "ratio"),
    "error_rate": ("requests", "error_rate"),
    "doubtful_rate": ("requests", "doubtful_rate"),
    "kv_transfer_failures": ("server", "kv_transfer_failures"),
}
NUMBERS = {
    "goodput_rps": ("goodput", "requests_per_s"),
    "output_tps": ("throughput", "output_tokens_per_s"),
    "input_tps": ("throughput", "input_tokens_per_s"),
    "total_tps": ("throughput", "total_tokens_per_s"),
    "rps": ("throughput", "requests_per_s"),
    "inputs_per_s": ("throughput", "inputs_per_s"),
    "images_per_s": ("images", "images_per_s"),
    "requests": ("requests", "population"),
}
#: Metric of a gate on how long the server stood still.
STANDSTILL = "standstill_s"
#: Metric of a gate on the answer of a search: the lower end of its interval.
EDGE = "edge"
_PATHS: dict[str, tuple[str, ...]] = {
    **SHARES,
    **NUMBERS,
    STANDSTILL: ("reliability", "standstill", "seconds"),
    EDGE: ("search", "answer", "low"),
    **{f"{s}_{latency}": ("latency_ms", latency, s) for latency in GATED_LATENCIES for s in STATISTICS},
}
_ALLOWED = (
    f"gates are on {listed([*SHARES, *NUMBERS, STANDSTILL, EDGE])}, "
    f"and STATISTIC_LATENCY of {listed(STATISTICS)} and {listed(GATED_LATENCIES)}"
)
_CERTIFIED_ALLOWED = f"{CERTIFIED} is followed by an upper limit on a percentile, as {CERTIFIED} p99_ttft<2s"


@dataclass(frozen=True, slots=True)
class Gate:
    """``metric op limit``. The limit is in the summary's unit: a share, milliseconds, or a number."""

    text: str
    metric: str
    op: str
    limit: float
    is_certified: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        """The keys of the figure in a summary; of a latency after that of its table."""
        return _PATHS[self.metric]

    @property
    def is_upper(self) -> bool:
        return self.op in ("<", "<=")

    @property
    def kind(self) -> MetricKind:
        return _kind(self.metric)

    @property
    def latency(self) -> str | None:
        """The latency that it is on, as ``ttft``; None where it is on none."""
        return _PATHS[self.metric][1] if self.kind is MetricKind.LATENCY else None

    @property
    def statistic(self) -> str:
        """The key of the figure: of a latency its statistic, as ``p99``."""
        return _PATHS[self.metric][-1]

    @property
    def is_adjusted(self) -> bool:
        """Whether failed requests count as above the limit."""
        return self.latency is not None and counts_failed(self.op, self.latency, self.statistic)

    @property
    def limits_failures(self) -> bool:
        """Whether it cannot hold with many failed requests: it says how many of them are too many."""
        return limits_failures(self.metric, self.is_upper, self.latency, self.statistic)


def limits_failures(metric: str, is_upper: bool, latency: str | None, statistic: str) -> bool:
    """Whether a limit on a figure, or on its change, cannot hold with many failed requests."""
    if metric in ("goodput", "error_rate"):
        return is_upper == (metric == "error_rate")
    if latency not in OF_ANSWERS or not is_upper:
        return False
    return statistic == "mean" or PERCENTILES.get(statistic, 100.0) >= LEAST_PERCENT_OF_ALL


def parse_gates(text: str) -> tuple[Gate, ...]:
    """The gates of ``text``, in order; none of an empty one.

    Raises:
        GateError: one line that points at the wrong word.
    """
    return tuple(_gates(split_terms(text)))


def _gates(terms: list[Term]) -> Iterator[Gate]:
    words: list[Term] = []  # "certified", until its gate comes
    for term in terms:
        if term.text == CERTIFIED and not words:
            words = [term]
            continue
        gate = _gate(term)
        if words:
            if gate.statistic not in PERCENTILES or not gate.is_upper:
                raise GateError(f"gate: {term.name.error_at(_CERTIFIED_ALLOWED)}")
            gate = replace(gate, text=f"{CERTIFIED} {gate.text}", is_certified=True)
        yield gate
        words = []
    if words:
        raise GateError(f"gate: {words[0].name.error_at(_CERTIFIED_ALLOWED)}")


def counts_failed(op: str, latency: str, statistic: str) -> bool:
    """Whether a limit on a latency is over all requests, failed ones being above any: all but on means."""
    return op in ("<", "<=") and latency in OF_ANSWERS and statistic != "mean"


def _gate(term: Term) -> Gate:
    name, op, value = term.name, term.op, term.value
    metric = name.text
    if not metric:
        raise GateError(f"gate: {op.error_at(f'no metric before it; {_ALLOWED}')}")
    if metric not in _PATHS:
        raise GateError(f"gate: {name.error_at(f'unknown metric; {nearest(metric, _PATHS)}{_ALLOWED}')}")
    if op.text not in OPERATORS:
        raise GateError(f"gate: {op.error_at(f'after {metric} write one of {listed(OPERATORS)}')}")
    if metric == EDGE and op.text not in (">", ">="):
        raise GateError(
            f"gate: {op.error_at('a search shows that its edge is at least a load: write edge>=30')}"
        )
    if not value.text:
        raise GateError(f"gate: {value.error_at(f'no limit after {metric}{op.text}')}")
    try:
        return Gate(term.text, metric, op.text, _limit(metric, value.text))
    except ValueError as e:
        raise GateError(f"gate: {value.error_at(str(e))}") from None


def _kind(metric: str) -> MetricKind:
    if metric in SHARES:
        return MetricKind.SHARE
    return MetricKind.NUMBER if metric in (*NUMBERS, STANDSTILL, EDGE) else MetricKind.LATENCY


def _limit(metric: str, text: str) -> float:
    """The limit in the summary's unit. ValueError says what is wrong, without repeating ``text``."""
    kind = _kind(metric)
    if kind is MetricKind.LATENCY:
        return round(parse_duration(text) * 1e3, DIGITS)
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{metric} needs a number" + (", as 95%" if kind is MetricKind.SHARE else ""))
    number, unit = Decimal(match["number"]), match["unit"]
    if kind is MetricKind.NUMBER:
        if unit:
            raise ValueError(f'{metric} is a plain number: leave out "{unit}"')
        return float(number)
    if unit not in ("", "%"):
        raise ValueError(f"{metric} is a share: write it as 95% or 0.95")
    share = float(number / 100 if unit else number)
    if share > 1:
        raise ValueError(f"{metric} is a share of at most 100%: write it as 95% or 0.95")
    return share
