"""Percentiles, rates and failures in each span of a :class:`~.axis.TimeAxis`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.record import Outcome
from llm_locust.metrics.charts.axis import TimeAxis
from llm_locust.metrics.columns import OUTCOMES, Columns, Floats
from llm_locust.metrics.requests.concurrency import Spans
from llm_locust.metrics.requests.throughput import prefilled_s
from llm_locust.metrics.stats.percentiles import ordered, percentile

Integers = NDArray[np.integer[Any]]

PLACES = {"p50": 50.0, "p95": 95.0, "p99": 99.0}

_NO_FAILURES = (Outcome.OK, Outcome.CANCELLED)


def percentiles_over_time(axis: TimeAxis, c: Columns, values_s: Floats) -> dict[str, Floats]:
    """``n`` and :data:`PLACES` (seconds) of the requests that ended ok in each bin; NaN without any."""
    return percentiles_in(axis, np.where(c.ok, axis.index(c.ended_s), -1), values_s, PLACES)


def percentiles_in(
    axis: TimeAxis, bins: Integers, values: Floats, places: Mapping[str, float]
) -> dict[str, Floats]:
    """``n`` and ``places`` (key to percent) of the defined values in each bin; NaN without any.

    Args:
        bins: that of each value, -1 for one that is in none.
    """
    bins = np.where(np.isnan(values), -1, bins)
    order = np.argsort(bins, kind="stable")
    bounds = np.searchsorted(bins, np.arange(axis.bins + 1), sorter=order)
    figures = {key: np.full(axis.bins, np.nan) for key in places}
    for i in np.flatnonzero(np.diff(bounds)).tolist():
        ascending = ordered(values[order[bounds[i] : bounds[i + 1]]])
        for key, percent in places.items():
            figures[key][i] = percentile(ascending, percent)
    return {"n": np.diff(bounds).astype(np.float64), **figures}


def rates_over_time(axis: TimeAxis, c: Columns, output_tokens: Floats) -> dict[str, Floats]:
    """Per second of each bin: requests ``sent``, ended ``ok`` and ``failed``, tokens in and out.

    Input tokens, and ``inputs`` and ``images`` of requests that have some, are credited as in
    :func:`~llm_locust.metrics.requests.throughput.prefilled_s`.
    ``concurrency`` is the time-weighted mean of requests between sent and ended.

    Args:
        output_tokens: what arrived in each bin.
    """
    failed = ~c.ok & ~c.cancelled
    sums = {
        "sent": axis.sums(c.sent_s),
        "ok": axis.sums(c.ended_s[c.ok]),
        "failed": axis.sums(c.ended_s[failed]),
        "output_tokens": output_tokens,
        "input_tokens": axis.sums(prefilled_s(c), c.input_tokens),
        "inputs": axis.sums(prefilled_s(c), c.inputs),
        "images": axis.sums(prefilled_s(c), c.images),
    }
    rates = {key: amounts / axis.width_s for key, amounts in sums.items()}
    return rates | {"concurrency": Spans.of(c).means(axis.edges_s)}


def failures_over_time(axis: TimeAxis, c: Columns) -> dict[str, Floats]:
    """The number of requests that failed in each bin, by outcome; only outcomes that there are."""
    found: dict[str, Floats] = {}
    for code, outcome in enumerate(OUTCOMES):
        if outcome not in _NO_FAILURES and (of_it := c.outcome == code).any():
            found[outcome.value] = axis.sums(c.ended_s[of_it])
    return found
