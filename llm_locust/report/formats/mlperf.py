"""``result_summary.json`` of MLPerf Endpoints: its keys, filled from our records. Not an official result.

Times are in nanoseconds and of the completed requests of the window. ``early_stopping_percentiles`` are the
upper bounds of :mod:`llm_locust.metrics.stats.certified`; too few samples for a bound give null.
"""

import math
from typing import Any

import numpy as np

from llm_locust.metrics.stats.censoring import Durations
from llm_locust.metrics.stats.certified import certified
from llm_locust.report.formats.asked import asked_options
from llm_locust.report.formats.completed import Completed, figures
from llm_locust.report.output import shown_json
from llm_locust.report.run.analysis import Analysis

_PLACES = {str(percent): percent for percent in (50.0, 75.0, 80.0, 90.0, 95.0, 97.0, 99.0, 99.9)}
_LATENCIES = {"ttft": "ttft", "tpot": "tpot", "latency": "e2el"}
_LENGTHS = {"input_sequence_lengths": "input", "output_sequence_lengths": "output"}

#: Bins of a histogram, equal in width from the least to the largest value.
_BINS = 20


def mlperf(analysis: Analysis) -> str:
    """The text of the file, one JSON object."""
    completed, counts = Completed(analysis.measured), analysis.summary.requests
    manifest, whole = analysis.manifest, analysis.summary.completeness
    options = asked_options(analysis)
    result = {
        "version": manifest.versions.get("llm-locust"),
        "git_sha": None,
        "test_started_at": manifest.started_ns,
        "n_samples_issued": counts.scheduled + (counts.lost or 0),
        "n_samples_completed": len(completed.ok),
        "n_samples_failed": counts.failed + counts.cancelled + (counts.lost or 0),
        "duration_ns": None if completed.seconds is None else round(completed.seconds * 1e9),
        "state": "complete" if whole.complete else "incomplete",
        "complete": whole.complete,
        **{key: _metric(completed.latency_s(metric), 1e9) for key, metric in _LATENCIES.items()},
        **{key: _metric(completed.tokens(side), 1.0) for key, side in _LENGTHS.items()},
        "qps": completed.rates["requests"],
        "tps": completed.rates["output"],
        "run_config": {key: str(value) for key, value in options.items() if value is not None},
    }
    return shown_json(result, indent=2) + "\n"


def _metric(ascending: Any, scale: float) -> dict[str, Any] | None:
    """The block of one figure; None without samples."""
    found = figures(ascending, _PLACES, scale)
    if found is None:
        return None
    return {
        "total": found["mean"] * found["n"],
        "min": found["min"],
        "max": found["max"],
        "median": found["50.0"],
        "avg": found["mean"],
        "std_dev": found["std"],
        "percentiles": {key: found[key] for key in _PLACES},
        "early_stopping_percentiles": {
            key: _bound(ascending, percent, scale) for key, percent in _PLACES.items()
        },
        "histogram": _histogram(ascending, scale),
    }


def _bound(ascending: Any, percent: float, scale: float) -> float | None:
    bound = certified(Durations(ascending), percent)
    return bound * scale if math.isfinite(bound) else None


def _histogram(ascending: Any, scale: float) -> dict[str, Any] | None:
    """Counts between edges; None where not every value was kept."""
    if not isinstance(ascending, np.ndarray):
        return None
    counts, edges = np.histogram(ascending, bins=_BINS)
    low, high = edges[:-1] * scale, edges[1:] * scale
    return {
        "buckets": [list(pair) for pair in zip(low.tolist(), high.tolist(), strict=True)],
        "counts": counts.tolist(),
    }
