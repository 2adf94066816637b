"""What a run's figures say of its gates."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from llm_locust.metrics.catalogue import LATENCY
from llm_locust.metrics.gates import (
    DIGITS,
    EDGE,
    MOST_FAILED,
    OF_ANSWERS,
    OPERATORS,
    STANDSTILL,
    Gate,
    MetricKind,
)
from llm_locust.metrics.stats.censoring import Durations
from llm_locust.metrics.stats.certified import certified, fewest_samples
from llm_locust.metrics.stats.percentiles import PERCENTILES

#: The durations that a gate on a latency is judged by.
DurationsOf = Callable[[Gate], Durations]


def evaluate(
    gates: tuple[Gate, ...], summary: Mapping[str, Any], durations_of: DurationsOf
) -> list[dict[str, Any]]:
    """Each gate against a summary: ``{text, value, at_least, passed, reason, note}``.

    ``value`` is what the summary holds, in its unit. An upper limit on a percentile or the maximum of an
    answer's latency is on the adjusted one: a failed request is above any limit. No upper limit on a mean
    holds with more than :data:`MOST_FAILED` failed. ``note`` says how many failed, where that matters.

    Where there is no value, the gate fails and ``reason`` says why: nothing was shown to hold. A latency that
    cut requests leave open has a lower bound, ``at_least``; where that alone decides, it does. No upper limit
    on a percentile passes with fewer than 1 / (1 − p) samples, nor where more requests have no sample of it
    than lie beyond it: they cannot tell. ``reason`` is None where the gate passed.

    A certified gate is on the bound of its percentile, computed from ``durations_of`` the gate. It fails if
    there are too few samples for a bound, or if the bound falls on a request that failed or was given up.
    """
    return [_outcome(gate, summary, durations_of) | {"note": _note(gate, summary)} for gate in gates]


def _outcome(gate: Gate, summary: Mapping[str, Any], durations_of: DurationsOf) -> dict[str, Any]:
    if gate.metric == EDGE:
        return _edge(gate, summary.get("search"))
    if gate.is_certified:
        return _certified(gate, _with_left_out(durations_of(gate), gate, summary))
    return _result(gate, summary)


def _edge(gate: Gate, search: Mapping[str, Any] | None) -> dict[str, Any]:
    """A lower limit on the edge of a search: what is shown of it is the lower end of its interval."""
    found: dict[str, Any] = {"text": gate.text, "value": None, "at_least": None, "passed": False}
    if search is None:
        return found | {"reason": "cannot tell: the run is not a search (--find)"}
    answer = search["answer"]
    is_bound = answer["load"] is None and answer["at_least"] is not None
    value = answer["at_least"] if is_bound else answer["low"]
    if value is None:
        return found | {"reason": f"cannot tell: the search has no lower end: {answer['why']}"}
    passed = bool(OPERATORS[gate.op](round(value, DIGITS), gate.limit))
    why = f"{_shown(gate, value)} is not {gate.op} {_shown(gate, gate.limit)}"
    if is_bound:
        why = f"cannot tell: the edge is only known to be at least {_shown(gate, value)}"
    return found | {"value": value, "passed": passed, "reason": None if passed else why}


def _certified(gate: Gate, durations: Durations) -> dict[str, Any]:
    percent = PERCENTILES[gate.statistic]
    bound_ms = certified(durations, percent) * 1e3
    n = len(durations.observed) + len(durations.censored) + durations.infinite
    found: dict[str, Any] = {"text": gate.text, "value": None, "at_least": None, "passed": False}
    if math.isnan(bound_ms):
        fewest = fewest_samples(percent)
        return found | {
            "reason": f"cannot tell: a certified {gate.statistic} needs {fewest:,} samples, there are {n:,}"
        }
    if math.isinf(bound_ms):
        return found | {"reason": "the certified bound falls on a request that failed or was given up"}
    passed = bool(OPERATORS[gate.op](round(bound_ms, DIGITS), gate.limit))
    why = None if passed else f"{_shown(gate, bound_ms)} is not {gate.op} {_shown(gate, gate.limit)}"
    return found | {"value": bound_ms, "passed": passed, "reason": why}


def _failed(gate: Gate, summary: Mapping[str, Any]) -> str | None:
    """The share of requests that failed, and so have no such latency; None where none did."""
    rate = summary["requests"]["error_rate"]
    return f"{rate * 100:.3g} % failed" if rate and gate.latency in OF_ANSWERS else None


def _note(gate: Gate, summary: Mapping[str, Any]) -> str | None:
    failed = _failed(gate, summary)
    if failed is None:
        return None
    return f"over all requests: {failed}" if gate.is_adjusted else f"of requests with an answer: {failed}"


def _figures_of(gate: Gate, summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """The figures of the latency that a gate is on, of all requests or of those with an answer."""
    table = "latency_ms_adjusted" if gate.is_adjusted else "latency_ms"
    figures: Mapping[str, Any] = summary[table][gate.path[1]]
    return figures


def _result(gate: Gate, summary: Mapping[str, Any]) -> dict[str, Any]:
    value = _value(gate, summary)
    found = {"text": gate.text, "value": value, "at_least": None}
    if value is None:
        return found | _undetermined(gate, summary)
    passed = bool(OPERATORS[gate.op](round(value, DIGITS), gate.limit))
    if passed:
        why = _unshown(gate, summary) or _too_many_failed(gate, summary)
        return found | {"passed": why is None, "reason": why}
    return found | {
        "passed": False,
        "reason": f"{_shown(gate, value)} is not {gate.op} {_shown(gate, gate.limit)}",
    }


def _too_many_failed(gate: Gate, summary: Mapping[str, Any]) -> str | None:
    """Why a mean below its upper limit shows nothing: it is of the others alone, and none is of all."""
    if gate.kind is not MetricKind.LATENCY or not gate.is_upper or gate.statistic != "mean":
        return None
    failed = _failed(gate, summary)
    if failed is not None and summary["requests"]["error_rate"] > MOST_FAILED:
        return f"cannot tell: {failed}, and a mean cannot include them; limit a percentile"
    left_out, share = _left_out(gate, summary)
    if share > MOST_FAILED:
        return f"cannot tell: {_left_out_text(gate, left_out)}, and a mean cannot include them"
    return None


def _left_out(gate: Gate, summary: Mapping[str, Any]) -> tuple[int, float]:
    """Requests of which a latency has no sample, not even a lower bound, although they may have been slow.

    These are the requests that were given up, where the latency waits for no single event (tpot, itl); those
    among them whose input is unknown, where it is per input token; and the failed ones too, where it is no
    latency of an answer. The share is that of all scheduled requests; failed ones, which count as above any
    limit of an answer's latency, are in it.
    """
    requests, metric = summary["requests"], LATENCY[str(gate.latency)]
    if not metric.is_of_answer:
        left_out = beyond = requests["failed"] + requests["cancelled"]
    elif metric.end is None:
        left_out = requests["cancelled"]
        beyond = left_out + requests["failed"]
    elif metric.per is not None:
        adjusted = summary["latency_ms_adjusted"]
        left_out = max(0, adjusted["ttft"]["censored"] - adjusted[metric.key]["censored"])
        beyond = left_out + requests["failed"]
    else:
        return 0, 0.0
    return left_out, beyond / requests["scheduled"] if left_out else 0.0


def _left_out_text(gate: Gate, left_out: int) -> str:
    how = "were given up" if gate.latency in OF_ANSWERS else "failed or were given up"
    return f"{left_out:,} requests {how} and have no {gate.latency}"


def _with_left_out(found: Durations, gate: Gate, summary: Mapping[str, Any]) -> Durations:
    """The same durations with those of :func:`_left_out`: they leave open whatever they could change."""
    left_out, _ = _left_out(gate, summary)
    if not left_out:
        return found
    an_answer = math.ceil(len(found.observed) / max(1, summary["requests"]["ok"]))  # of itl many
    unknown = np.zeros(left_out * max(1, an_answer))
    return replace(found, censored=np.append(unknown, found.censored), trend=True)


def _unshown(gate: Gate, summary: Mapping[str, Any]) -> str | None:
    """Why a percentile or a maximum that is below its upper limit shows nothing; None where it does.

    Of fewer than 1 / (1 − p) samples none is expected beyond a percentile: twenty say nothing of the slowest
    hundredth. The longest of all requests may be any that was given up, however early that was. So may any
    beyond a percentile where more requests have no sample than lie beyond it.
    """
    if gate.kind is not MetricKind.LATENCY or not gate.is_upper:
        return None
    stats = _figures_of(gate, summary)
    left_out, share = _left_out(gate, summary)
    if gate.statistic == "max" and stats["censored"]:
        given_up = f"{stats['censored']} requests were given up before they ended"
        return f"cannot tell: {given_up}, and the longest may be one of them; limit a percentile"
    if gate.statistic == "max" and left_out:
        return f"cannot tell: {_left_out_text(gate, left_out)}, and the longest may be one of them"
    if gate.statistic not in PERCENTILES:
        return None
    n, fewest = stats["n"] + stats["censored"], fewest_for(gate.statistic)
    if n < fewest:
        return f"cannot tell: {gate.statistic} needs {fewest:,} samples, there are {n:,}"
    if share > 1 - PERCENTILES[gate.statistic] / 100:
        text = _left_out_text(gate, left_out)
        return f"cannot tell: {text}, more than lie beyond the {gate.statistic}"
    return None


def fewest_for(statistic: str) -> int:
    """Samples that an upper limit on a percentile needs, 1 / (1 − p): one is expected beyond it."""
    return math.ceil(round(100 / (100 - PERCENTILES[statistic]), 6))


def fewest_for_certified(statistic: str) -> int:
    """Samples that a certified limit on a percentile needs."""
    return fewest_samples(PERCENTILES[statistic])


def _undetermined(gate: Gate, summary: Mapping[str, Any]) -> dict[str, Any]:
    """A gate on a figure that the run has not."""
    if gate.kind is MetricKind.LATENCY:
        return _latency_undetermined(gate, summary)
    if not summary["requests"]["population"]:
        return {"passed": False, "reason": f"no samples: the run has no value for {gate.metric}"}
    if gate.metric in ("goodput", "goodput_rps") and summary["goodput"]["judged"] is None:
        return {"passed": False, "reason": "no SLO was given: nothing is good or bad"}
    if not summary["window"]["seconds"] > 0:
        return {"passed": False, "reason": "the window is empty"}
    whys = {
        "inputs_per_s": "no request has inputs",
        "images_per_s": "no request has images",
        STANDSTILL: "its window is too short, or it is one arm of several",
        "kv_transfer_failures": "no server counted KV transfers, or one did not tell those that failed",
    }
    why = whys.get(gate.metric, "tokens are unknown")
    return {"passed": False, "reason": f"the run has no value for {gate.metric}: {why}"}


def _latency_undetermined(gate: Gate, summary: Mapping[str, Any]) -> dict[str, Any]:
    _, latency, statistic = gate.path
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
    holds = OPERATORS[gate.op](round(bound, DIGITS), gate.limit)
    if gate.op in (">", ">="):
        reason = None if holds else f"undetermined: {cut}, so it is {least}: that may not be {limit}"
        return {"at_least": bound, "passed": holds, "reason": reason}
    why = f"undetermined: {cut}, so it is only known to be {least}"
    return {"at_least": bound, "passed": False, "reason": why if holds else f"{least} is not {limit}: {cut}"}


def _on_a_failure(gate: Gate, summary: Mapping[str, Any]) -> str:
    """What a percentile of all requests that falls on a failed one says."""
    _, latency, statistic = gate.path
    of_others = summary["latency_ms"][latency][statistic]
    beside = "" if of_others is None else f"; of the others it is {_shown(gate, of_others)}"
    return f"{_failed(gate, summary)}: the {statistic} of all requests falls on a failed one{beside}"


def _value(gate: Gate, summary: Mapping[str, Any]) -> float | None:
    """The summary's figure, None where it has none. A rate of no requests at all shows nothing."""
    asked = summary["goodput"]["judged"] if gate.metric == "goodput" else summary["requests"]["population"]
    if gate.metric != "requests" and not asked:
        return None
    if gate.kind is MetricKind.LATENCY:
        found = _figures_of(gate, summary)[gate.statistic]
    else:
        found = summary
        for key in gate.path:  # a run without images has no such part
            found = found.get(key) if isinstance(found, Mapping) else getattr(found, key, None)
    return None if found is None else float(found)


def _shown(gate: Gate, value: float) -> str:
    if gate.kind is MetricKind.SHARE:
        return f"{value * 100:.6g}%"
    return f"{value:.6g} ms" if gate.kind is MetricKind.LATENCY else f"{value:.6g}"
