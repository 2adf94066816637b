"""What the stages of a sweep show together: the knee, the law of its throughput, and what overload does."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from llm_locust.metrics.columns import Floats
from llm_locust.metrics.curves.knee import NoKneeError, find_knee, pooled
from llm_locust.metrics.curves.usl import UslFit, fit_usl
from llm_locust.metrics.stages.lengths import pair_of
from llm_locust.metrics.stats.intervals import CONFIDENCE
from llm_locust.metrics.stats.trend import student_t

#: The latency that a knee is looked for in, and its statistic.
METRIC, STATISTIC = "e2el", "p50"

#: Below this share of the highest rate of good requests, overload is called a collapse.
COLLAPSE = 0.8

#: What makes a stage one that shows what overload does.
_SHOW_OVERLOAD = ("is_result", "saturated", "all_failed")

_Z = 1.959963984540054

Stages = Sequence[Mapping[str, Any]]


def curve(stages: Stages, seed: int = 0) -> dict[str, Any] | None:
    """The ``curve`` of a sweep's summary, from its ``stages``; None with fewer than two loads.

    Stages that are not a result are left out, and counted; those that their load saturated, or in which all
    requests failed, show overload.
    """
    if len({stage["asked"] for stage in stages}) < 2:
        return None
    results = [stage for stage in stages if stage["is_result"] and stage["figures"] is not None]
    found: dict[str, Any] = {
        "loads": len({stage["asked"] for stage in results}),
        "left_out": len(stages) - len(results),
    }
    missing: dict[str, str] = {}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "knee": lambda: _knee(results, seed),
        "usl": lambda: _usl(results, seed),
        "overload": lambda: _overload(stages),
    }
    for name, part in parts.items():
        try:
            found[name] = part()
        except ValueError as e:
            found[name], missing[name] = None, str(e)
    return found | {"missing": missing}


def curves(stages: Stages, seed: int = 0) -> list[dict[str, Any]]:
    """The ``curves`` of a sweep over lengths: that of each pair that has one, in the order of their stages.

    Loads at other lengths are loads of another kind: no figure is of several pairs.
    """
    pairs = dict.fromkeys(map(pair_of, stages))
    found = {pair: curve([stage for stage in stages if pair_of(stage) == pair], seed) for pair in pairs}
    return [{"lengths": pair, "curve": each} for pair, each in found.items() if pair and each is not None]


def log_error(ends: Any, fallback: float) -> float:
    """Standard error of the logarithm of a figure, by its 95 % interval."""
    if ends is None or None in ends or not ends[0] > 0:
        return fallback
    return float(math.log(ends[1] / ends[0]) / 2 / _Z)


def _knee(results: Stages, seed: int) -> dict[str, Any]:
    known = [stage for stage in results if (_latency(stage)[STATISTIC] or 0) > 0]
    if not known:
        raise NoKneeError("no stage with a result has a latency")
    loads = [stage["asked"] for stage in known]
    medians = [_latency(stage)[STATISTIC] for stage in known]
    found = find_knee(*pooled(loads, medians, [_latency_error(stage) for stage in known]), seed)
    there = [median for load, median in zip(loads, medians, strict=True) if load == found.load]
    return {
        "load": found.load,
        "ci95": [found.low, found.high],
        "depth": _rounded(found.depth),
        "latency_ms": _rounded(math.exp(math.fsum(map(math.log, there)) / len(there))),
    }


def _latency(stage: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = stage["figures"]["latency_ms"][METRIC]
    return found


def _latency_error(stage: Mapping[str, Any]) -> float:
    table = _latency(stage)
    spread = (table["std"] or 0.0) / (table["mean"] or 1.0)
    return log_error(table["ci95"].get(STATISTIC), 1.2533 * spread / math.sqrt(max(1, table["n"])))


def _usl(results: Stages, seed: int) -> dict[str, Any]:
    fit = usl_of(results, seed)
    found = {
        name: {"value": _finite(getattr(fit.law, name)), "ci95": [_finite(end) for end in fit.ends(name)]}
        for name in ("gamma", "alpha", "beta", "peak", "plateau")
    }
    return found | {"residual": _rounded(fit.residual), "measured_to": _measured_to(results)}


def usl_of(results: Stages, seed: int = 0) -> UslFit:
    """The law of these stages; raises :class:`~llm_locust.metrics.curves.usl.NoFitError`."""
    return fit_usl(*throughputs(results), seed)


def throughputs(results: Stages) -> tuple[Floats, Floats, Floats]:
    """Mean concurrency, requests/s, and the standard error of their logarithm, of each stage."""
    rows = []
    for stage in results:
        part = stage["figures"]["throughput"]
        rate, n = part["requests_per_s"] or 0.0, max(1, stage["figures"]["requests"]["ok"])
        if rate > 0 and part["concurrency_mean"] is not None:
            error = log_error(part["ci95"].get("requests_per_s"), 1 / math.sqrt(n))
            rows.append((part["concurrency_mean"], rate, error))
    n_, x, errors = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    return n_, x, errors


def _measured_to(results: Stages) -> float | None:
    found = [stage["figures"]["throughput"]["concurrency_mean"] for stage in results]
    return max((each for each in found if each is not None), default=None)


def _overload(stages: Stages) -> dict[str, Any]:
    """The rate of good requests at the highest load as a share of the highest rate, repeats by their mean.

    Raises:
        ValueError: there was no SLO, nothing good, or no load beyond the best one.
    """
    shown = [
        s
        for s in stages
        if s["figures"] is not None
        and any(map(s.get, _SHOW_OVERLOAD))
        and not (s.get("lengths") or {}).get("is_other")
    ]
    of_load: dict[float, dict[int, Any]] = {}
    for stage in shown:
        repeats = of_load.setdefault(stage["asked"], {})
        repeats[stage["repeat"]] = stage["figures"]["goodput"]["requests_per_s"]
    if any(None in repeats.values() for repeats in of_load.values()):
        raise ValueError("no SLO was given, so nothing is good")
    rates = {load: math.fsum(found.values()) / len(found) for load, found in of_load.items()}
    best, last = max(rates, key=lambda load: rates[load], default=0.0), max(rates, default=0.0)
    if not rates or not rates[best] > 0:
        raise ValueError("no load had a good request")
    if last == best:
        raise ValueError("the highest load has the most good requests: none was beyond the best one")
    kept = rates[last] / rates[best]
    both = of_load[best].keys() & of_load[last].keys()
    pairs = [(of_load[best][repeat], of_load[last][repeat]) for repeat in sorted(both)]
    return {
        "best_load": best,
        "best_good_per_s": rates[best],
        "load": last,
        "good_per_s": rates[last],
        "kept": _rounded(kept),
        "repeats": len(pairs),
        "ci95": _ratio_ends(kept, pairs),
        "collapses": kept < COLLAPSE,
    }


def _ratio_ends(ratio: float, pairs: Sequence[tuple[float, float]]) -> list[float] | None:
    """The 95 % interval of a ratio of two means, Σ y / Σ x over repeats; None with fewer than two.

    By the residuals y − r x, whose error is that of the ratio (Cochran 1977, 6.4), and Student's t.
    """
    n = len(pairs)
    if n < 2:
        return None
    mean = math.fsum(x for x, _ in pairs) / n
    squares = math.fsum((y - ratio * x) ** 2 for x, y in pairs)
    reach = student_t(n - 1, CONFIDENCE) * math.sqrt(squares / (n - 1) / n) / mean if mean > 0 else math.inf
    return [_rounded(max(0.0, ratio - reach)), _rounded(ratio + reach)] if math.isfinite(reach) else None


def _finite(value: float) -> float | None:
    return _rounded(value) if math.isfinite(value) else None


def _rounded(value: float) -> float:
    return float(f"{value:.10g}")
