"""At a run's end: are the live percentiles those of the records, to the stated error?"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from llm_locust.live.counts import Counts
from llm_locust.metrics.sketch import RELATIVE_ERROR

_METRICS = ("ttft", "tpot", "itl", "e2el", "ttft_scheduled", "schedule_delay")
_PERCENTS = {"p50": 50.0, "p95": 95.0, "p99": 99.0}

#: A sketch tells what is shorter than a nanosecond as 0, and times are whole nanoseconds.
_NANOSECOND_MS = 1e-6


class Compared(NamedTuple):
    """A live percentile against the exact one, both in milliseconds; ``p95_ttft`` is a metric.

    ``difference`` is relative to the exact one.
    """

    metric: str
    live: float
    exact: float
    difference: float


def live_check(total: Counts, summary: Mapping[str, Any]) -> list[Compared]:
    """Each percentile of a summary's ``latency_ms`` against the live one of the same requests.

    Args:
        total: :attr:`~llm_locust.live.store.LiveStore.total` once all reports are in.

    Returns:
        The metrics that have as many samples here as there. A warm-up or other window, a lost report,
        requests scheduled after the stop, or a reset make them different populations: those are left out.
    """
    compared = []
    for metric in _METRICS:
        sketch, exact = total.sketch(metric), summary["latency_ms"][metric]
        if not len(sketch) or len(sketch) != exact["n"]:
            continue
        for name, percent in _PERCENTS.items():
            live_ms, exact_ms = sketch.percentile(percent) * 1e3, float(exact[name])
            off_ms = abs(live_ms - exact_ms)
            difference = 0.0 if off_ms <= _NANOSECOND_MS else off_ms / exact_ms if exact_ms else float("inf")
            compared.append(Compared(f"{name}_{metric}", live_ms, exact_ms, difference))
    return compared


def beyond_error(compared: list[Compared]) -> list[Compared]:
    """Those that are further apart than :data:`~llm_locust.metrics.sketch.RELATIVE_ERROR` allows."""
    return [c for c in compared if c.difference > RELATIVE_ERROR]
