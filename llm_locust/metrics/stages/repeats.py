"""Figures of a load over its repeats: what intervals within one stage cannot show.

Between two stages of one load lies all that changes with time: caches, other tenants, temperatures. The
interval of a mean over n repeats is x̄ ± t s / √n, with Student's t of n − 1 degrees of freedom.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from llm_locust.metrics.catalogue import shown_in
from llm_locust.metrics.latency_metric import View
from llm_locust.metrics.stages.lengths import pair_of
from llm_locust.metrics.stages.prefix import share_of
from llm_locust.metrics.stats.intervals import CONFIDENCE, rounded
from llm_locust.metrics.stats.trend import student_t

PLACES = ("p50", "p99")

#: Figure over repeats -> section and key of a stage's figures.
_RATES = {
    "requests_per_s": ("throughput", "requests_per_s"),
    "output_tokens_per_s": ("throughput", "output_tokens_per_s"),
    "inputs_per_s": ("throughput", "inputs_per_s"),
    "error_rate": ("requests", "error_rate"),
    "goodput": ("goodput", "ratio"),
}


def repeats(stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each load that was measured more than once at its lengths, in the order of first appearance.

    Stages that are not a result are counted and left out, but for those in which all requests failed: they
    have no latencies, and rates that are known.
    """
    loads: dict[tuple[str, float, str, float | None], list[Mapping[str, Any]]] = {}
    for stage in stages:
        load = stage["kind"], stage["asked"], pair_of(stage), share_of(stage)
        loads.setdefault(load, []).append(stage)
    return [_of_load(*load, theirs) for load, theirs in loads.items() if len(theirs) > 1]


def _of_load(
    kind: str, asked: float, lengths: str, prefix: float | None, stages: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    results = [stage for stage in stages if stage["is_result"] and stage["figures"]]
    known = [stage["figures"] for stage in stages if stage in results or stage["all_failed"]]
    return {
        "kind": kind,
        "asked": asked,
        "lengths": lengths or None,
        **({} if prefix is None else {"prefix": prefix}),
        "stages": [stage["number"] for stage in stages],
        "results": len(results),
        "figures": {name: over(values) for name, values in _values(known).items()},
    }


def _values(results: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Every figure of each stage."""
    found: dict[str, list[float | None]] = {
        f"{metric.key}_{place}_ms": [figures["latency_ms"][metric.key][place] for figures in results]
        for metric in shown_in(View.GROUPS)
        for place in PLACES
    }
    return found | {
        name: [figures[section][key] for figures in results] for name, (section, key) in _RATES.items()
    }


def over(values: Sequence[float | None]) -> dict[str, Any]:
    """Number, mean, extremes and the 95 % interval of the mean of the values that are known."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    n = len(known)
    if not n:
        return {"n": 0, "mean": None, "min": None, "max": None, "ci95": None}
    mean = math.fsum(known) / n
    found: dict[str, Any] = {"n": n, "mean": mean, "min": min(known), "max": max(known), "ci95": None}
    if n > 1:
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (n - 1))
        reach = student_t(n - 1, CONFIDENCE) * deviation / math.sqrt(n)
        found["ci95"] = [rounded(mean - reach), rounded(mean + reach)]
    return found
