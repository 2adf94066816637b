"""Percentiles, rates and failures in each span of a :class:`~.axis.TimeAxis`."""

import numpy as np

from llm_locust.core.record import Outcome
from llm_locust.metrics.charts.axis import TimeAxis
from llm_locust.metrics.columns import OUTCOMES, Columns, Floats
from llm_locust.metrics.requests.concurrency import Spans
from llm_locust.metrics.stats.percentiles import ordered, percentile

PLACES = {"p50": 50.0, "p95": 95.0, "p99": 99.0}

_NO_FAILURES = (Outcome.OK, Outcome.CANCELLED)


def percentiles_over_time(axis: TimeAxis, c: Columns, values_s: Floats) -> dict[str, Floats]:
    """``n`` and :data:`PLACES` (seconds) of the requests that ended ok in each bin; NaN without any."""
    bins = np.where(c.ok & ~np.isnan(values_s), axis.index(c.ended_s), -1)
    order = np.argsort(bins, kind="stable")
    bounds = np.searchsorted(bins[order], np.arange(axis.bins + 1))
    figures = {key: np.full(axis.bins, np.nan) for key in PLACES}
    for i in np.flatnonzero(np.diff(bounds)).tolist():
        ascending = ordered(values_s[order[bounds[i] : bounds[i + 1]]])
        for key, percent in PLACES.items():
            figures[key][i] = percentile(ascending, percent)
    return {"n": np.diff(bounds).astype(np.float64), **figures}


def rates_over_time(axis: TimeAxis, c: Columns, output_tokens: Floats) -> dict[str, Floats]:
    """Per second of each bin: requests ``sent``, ended ``ok`` and ``failed``, tokens in and out.

    Input tokens are credited at the first token event (at the end of an answer without events).
    ``concurrency`` is the time-weighted mean of requests between sent and ended.

    Args:
        output_tokens: what arrived in each bin.
    """
    begun_s = np.where(c.events > 0, c.sent_s + c.first_event_s, np.where(c.ok, c.ended_s, np.nan))
    failed = ~c.ok & ~c.cancelled
    sums = {
        "sent": axis.sums(c.sent_s),
        "ok": axis.sums(c.ended_s[c.ok]),
        "failed": axis.sums(c.ended_s[failed]),
        "output_tokens": output_tokens,
        "input_tokens": axis.sums(begun_s, c.input_tokens),
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
