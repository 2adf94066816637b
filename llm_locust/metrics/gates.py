"""Limits of a whole run: ``goodput>=95% p99_ttft<800ms error_rate<1% output_tps>2000``."""

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from llm_locust.core.durations import parse_duration
from llm_locust.core.terms import Term, listed, nearest, split_terms
from llm_locust.metrics.catalogue import LATENCIES, LATENCY
from llm_locust.metrics.stats.percentiles import PERCENTILES

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
}
_NUMBER = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?P<unit>.*)")

#: Digits to which figures are compared: 0.1 * 3 * 1e3 ms does not break a limit of 300 ms.
_DIGITS = 9

_STATISTICS = ("mean", "p50", "p75", "p90", "p95", "p99", "p99_9", "max")

#: Latencies of an answer: a request that failed has none.
OF_ANSWERS = frozenset(metric.key for metric in LATENCIES if metric.is_of_answer)
_LATENCIES = tuple(metric.key for metric in LATENCIES if metric.is_gated)

#: No upper limit on a mean holds where a larger share of the requests failed.
MOST_FAILED = 0.01


class GateError(ValueError):
    """A text that is no gate; one line that says what is wrong and what is allowed."""


class Kind(StrEnum):
    """What a gate's metric is, and so how its limit is written."""

    SHARE = "share"  # 95% or 0.95
    LATENCY = "latency"  # a duration with its unit; compared in ms
    NUMBER = "number"  # a plain number


_SHARES = {"goodput": ("goodput", "ratio"), "error_rate": ("requests", "error_rate")}
_NUMBERS = {
    "goodput_rps": ("goodput", "requests_per_s"),
    "output_tps": ("throughput", "output_tokens_per_s"),
    "input_tps": ("throughput", "input_tokens_per_s"),
    "total_tps": ("throughput", "total_tokens_per_s"),
    "rps": ("throughput", "requests_per_s"),
    "requests": ("requests", "population"),
}
_PATHS: dict[str, tuple[str, ...]] = {
    **_SHARES,
    **_NUMBERS,
    **{f"{s}_{latency}": ("latency_ms", latency, s) for latency in _LATENCIES for s in _STATISTICS},
}
_ALLOWED = (
    f"gates are on {listed([*_SHARES, *_NUMBERS])}, "
    f"and STATISTIC_LATENCY of {listed(_STATISTICS)} and {listed(_LATENCIES)}"
)


@dataclass(frozen=True, slots=True)
class Gate:
    """``metric op limit``. The limit is in the summary's unit: a share, milliseconds, or a number."""

    text: str
    metric: str
    op: str
    limit: float

    @property
    def kind(self) -> Kind:
        return _kind(self.metric)

    @property
    def latency(self) -> str | None:
        """The latency that it is on, as ``ttft``; None where it is on none."""
        return _PATHS[self.metric][1] if self.kind is Kind.LATENCY else None

    @property
    def statistic(self) -> str:
        """The key of the figure: of a latency its statistic, as ``p99``."""
        return _PATHS[self.metric][-1]

    @property
    def is_adjusted(self) -> bool:
        """Whether failed requests count as above the limit."""
        return self.latency is not None and counts_failed(self.op, self.latency, self.statistic)


def parse_gates(text: str) -> tuple[Gate, ...]:
    """The gates of ``text``, in order; none of an empty one.

    Raises:
        GateError: one line that points at the wrong word.
    """
    return tuple(_gate(term) for term in split_terms(text))


def evaluate(gates: tuple[Gate, ...], summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each gate against a summary: ``{text, value, at_least, passed, reason, note}``.

    ``value`` is what the summary holds, in its unit. An upper limit on a percentile or the maximum of an
    answer's latency is on the adjusted one: a failed request is above any limit. No upper limit on a mean
    holds with more than :data:`MOST_FAILED` failed. ``note`` says how many failed, where that matters.

    Where there is no value, the gate fails and ``reason`` says why: nothing was shown to hold. A latency that
    cut requests leave open has a lower bound, ``at_least``; where that alone decides, it does. No upper limit
    on a percentile passes with fewer than 1 / (1 − p) samples: they cannot tell. ``reason`` is None where the
    gate passed.
    """
    return [_result(gate, summary) | {"note": _note(gate, summary)} for gate in gates]


def _gate(term: Term) -> Gate:
    name, op, value = term.name, term.op, term.value
    metric = name.text
    if not metric:
        raise GateError(f"gate: {op.pointed(f'no metric before it; {_ALLOWED}')}")
    if metric not in _PATHS:
        raise GateError(f"gate: {name.pointed(f'unknown metric; {nearest(metric, _PATHS)}{_ALLOWED}')}")
    if op.text not in _OPERATORS:
        raise GateError(f"gate: {op.pointed(f'after {metric} write one of {listed(_OPERATORS)}')}")
    if not value.text:
        raise GateError(f"gate: {value.pointed(f'no limit after {metric}{op.text}')}")
    try:
        return Gate(term.text, metric, op.text, _limit(metric, value.text))
    except ValueError as e:
        raise GateError(f"gate: {value.pointed(str(e))}") from None


def _kind(metric: str) -> Kind:
    if metric in _SHARES:
        return Kind.SHARE
    return Kind.NUMBER if metric in _NUMBERS else Kind.LATENCY


def _limit(metric: str, text: str) -> float:
    """The limit in the summary's unit. ValueError says what is wrong, without repeating ``text``."""
    kind = _kind(metric)
    if kind is Kind.LATENCY:
        return round(parse_duration(text) * 1e3, _DIGITS)
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{metric} needs a number" + (", as 95%" if kind is Kind.SHARE else ""))
    number, unit = Decimal(match["number"]), match["unit"]
    if kind is Kind.NUMBER:
        if unit:
            raise ValueError(f'{metric} is a plain number: leave out "{unit}"')
        return float(number)
    if unit not in ("", "%"):
        raise ValueError(f"{metric} is a share: write it as 95% or 0.95")
    share = float(number / 100 if unit else number)
    if share > 1:
        raise ValueError(f"{metric} is a share of at most 100%: write it as 95% or 0.95")
    return share


def _failed(gate: Gate, summary: Mapping[str, Any]) -> str | None:
    """The share of requests that failed, and so have no such latency; None where none did."""
    rate = summary["requests"]["error_rate"]
    return f"{rate * 100:.3g} % failed" if rate and gate.latency in OF_ANSWERS else None


def _note(gate: Gate, summary: Mapping[str, Any]) -> str | None:
    failed = _failed(gate, summary)
    if failed is None:
        return None
    return f"over all requests: {failed}" if gate.is_adjusted else f"of requests with an answer: {failed}"


def counts_failed(op: str, latency: str, statistic: str) -> bool:
    """Whether a limit on a latency is over all requests, failed ones being above any: all but on means."""
    return op in ("<", "<=") and latency in OF_ANSWERS and statistic != "mean"


def _figures_of(gate: Gate, summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """The figures of the latency that a gate is on, of all requests or of those with an answer."""
    table = "latency_ms_adjusted" if gate.is_adjusted else "latency_ms"
    figures: Mapping[str, Any] = summary[table][_PATHS[gate.metric][1]]
    return figures


def _result(gate: Gate, summary: Mapping[str, Any]) -> dict[str, Any]:
    value = _value(gate, summary)
    found = {"text": gate.text, "value": value, "at_least": None}
    if value is None:
        return found | _undetermined(gate, summary)
    passed = bool(_OPERATORS[gate.op](round(value, _DIGITS), gate.limit))
    if passed:
        why = _too_few(gate, summary) or _too_many_failed(gate, summary)
        return found | {"passed": why is None, "reason": why}
    return found | {
        "passed": False,
        "reason": f"{_shown(gate, value)} is not {gate.op} {_shown(gate, gate.limit)}",
    }


def _too_many_failed(gate: Gate, summary: Mapping[str, Any]) -> str | None:
    """Why a mean below its upper limit shows nothing: it is of the others alone, and none is of all."""
    failed = _failed(gate, summary)
    is_limited = gate.op in ("<", "<=") and gate.metric.startswith("mean_")
    if failed is None or not is_limited or summary["requests"]["error_rate"] <= MOST_FAILED:
        return None
    return f"cannot tell: {failed}, and a mean cannot include them; limit a percentile"


def _too_few(gate: Gate, summary: Mapping[str, Any]) -> str | None:
    """Why a percentile that is below its upper limit shows nothing; None where it does.

    Of fewer than 1 / (1 − p) samples none is expected beyond it: twenty say nothing of the slowest hundredth.
    """
    if gate.kind is not Kind.LATENCY or gate.op not in ("<", "<="):
        return None
    if gate.statistic not in PERCENTILES:
        return None
    stats = _figures_of(gate, summary)
    n, fewest = stats["n"] + stats["censored"], math.ceil(round(100 / (100 - PERCENTILES[gate.statistic]), 6))
    if n >= fewest:
        return None
    return f"cannot tell: {gate.statistic} needs {fewest:,} samples, there are {n:,}"


def _undetermined(gate: Gate, summary: Mapping[str, Any]) -> dict[str, Any]:
    """A gate on a figure that the run has not."""
    if gate.kind is Kind.LATENCY:
        return _latency_undetermined(gate, summary)
    if not summary["requests"]["population"]:
        return {"passed": False, "reason": f"no samples: the run has no value for {gate.metric}"}
    if gate.metric in ("goodput", "goodput_rps") and summary["goodput"]["judged"] is None:
        return {"passed": False, "reason": "no SLO was given: nothing is good or bad"}
    if not summary["window"]["seconds"] > 0:
        return {"passed": False, "reason": "the window is empty"}
    return {"passed": False, "reason": f"the run has no value for {gate.metric}: tokens are unknown"}


def _latency_undetermined(gate: Gate, summary: Mapping[str, Any]) -> dict[str, Any]:
    _, latency, statistic = _PATHS[gate.metric]
    stats = _figures_of(gate, summary)
    if statistic in stats["beyond"]:
        return {"passed": False, "reason": _on_a_failure(gate, summary)}
    bound = stats["at_least"].get(statistic)
    if bound is None:
        return {"passed": False, "reason": f"no samples: the run has no value for {gate.metric}"}
    unsent = " or never sent" if LATENCY[latency].is_from_scheduled else ""
    cut = f"{stats['censored']} requests were given up before they ended{unsent}"
    least = f"at least {_shown(gate, bound)}"
    limit = f"{gate.op} {_shown(gate, gate.limit)}"
    # The figure may be the bound itself: only what that breaks, too, is decided.
    holds = _OPERATORS[gate.op](round(bound, _DIGITS), gate.limit)
    if gate.op in (">", ">="):
        reason = None if holds else f"undetermined: {cut}, so it is {least}: that may not be {limit}"
        return {"at_least": bound, "passed": holds, "reason": reason}
    why = f"undetermined: {cut}, so it is only known to be {least}"
    return {"at_least": bound, "passed": False, "reason": why if holds else f"{least} is not {limit}: {cut}"}


def _on_a_failure(gate: Gate, summary: Mapping[str, Any]) -> str:
    """What a percentile of all requests that falls on a failed one says."""
    _, latency, statistic = _PATHS[gate.metric]
    of_others = summary["latency_ms"][latency][statistic]
    beside = "" if of_others is None else f"; of the others it is {_shown(gate, of_others)}"
    return f"{_failed(gate, summary)}: the {statistic} of all requests falls on a failed one{beside}"


def _value(gate: Gate, summary: Mapping[str, Any]) -> float | None:
    """The summary's figure, None where it has none. A rate of no requests at all shows nothing."""
    asked = summary["goodput"]["judged"] if gate.metric == "goodput" else summary["requests"]["population"]
    if gate.metric != "requests" and not asked:
        return None
    if gate.kind is Kind.LATENCY:
        found = _figures_of(gate, summary)[gate.statistic]
    else:
        part, key = _PATHS[gate.metric]
        found = summary[part][key]
    return None if found is None else float(found)


def _shown(gate: Gate, value: float) -> str:
    if gate.kind is Kind.SHARE:
        return f"{value * 100:.6g}%"
    return f"{value:.6g} ms" if gate.kind is Kind.LATENCY else f"{value:.6g}"
