"""Requests from before a window that hung in it: scheduled too early to belong to it, and never answered."""

from dataclasses import dataclass, field

import numpy as np

from llm_locust.metrics.catalogue import LATENCY, e2el
from llm_locust.metrics.columns import Columns, Floats, Mask, Rows
from llm_locust.metrics.latency_metric import End
from llm_locust.metrics.requests.cut import begun_s
from llm_locust.metrics.requests.goodput import Limits
from llm_locust.metrics.stats.percentiles import ordered, percentile
from llm_locust.metrics.window import Population, Window

#: Without a limit, a request is stuck that waits for longer than this, and than so many median E2ELs.
LEAST_S, MEDIANS = 1.0, 10.0

_NONE = np.empty(0)


@dataclass(frozen=True, slots=True)
class Stuck:
    """How long each stuck request was in flight after the window's start, until it was given up.

    Arrays of shape (rows,): ``lasted_s`` in seconds, NaN for requests that are not stuck; ``silent`` marks
    requests that are streamed and had no token after the window's start.
    """

    c: Columns = field(repr=False)
    lasted_s: Floats
    silent: Mask

    def among(self, rows: Rows) -> Rows:
        """The stuck ones of ``rows``."""
        return rows[~np.isnan(self.lasted_s[rows])]

    def bounds_s(self, rows: Rows, metric: str) -> Floats:
        """Lower bounds of a latency of the stuck ones of ``rows``, counted from the window's start.

        None of ttft and ttfo if a token arrived after it: the first one may have arrived before.
        """
        end, per = LATENCY[metric].end, LATENCY[metric].per
        if end is None:
            return _NONE
        stuck = self.among(rows)
        if end is not End.LAST_TOKEN:
            stuck = stuck[self.silent[stuck]]
        bounds_s = self.lasted_s if per is None else self.lasted_s * per(self.c)
        return bounds_s[stuck[~np.isnan(bounds_s[stuck])]]


def find_stuck(c: Columns, window: Window, limits: Limits) -> Stuck:
    """Requests that were scheduled before the window, were in flight in it and were given up too late.

    Given up means cancelled or timed out. Too late: a request that was sent at the window's start, or later
    if it started later, and had received nothing before, would have broken a limit of its SLO class. That is
    one on ttft or ttfo without a token after the window's start, or one on e2el. Without any of them it is
    ``MEDIANS`` times the median E2EL of the window's ok requests, at least ``LEAST_S``, without a token.
    """
    start_s = _next_start_s(c, window)
    from_s = np.fmax(start_s, begun_s(c))
    last_s = c.sent_s + c.last_event_s  # NaN: no token
    silent = c.streamed & ~(last_s > start_s)
    first_limit_s = np.where(c.streamed, _least(c, limits, End.FIRST_TOKEN, End.FIRST_ANSWER_TOKEN), np.inf)
    whole_limit_s = _least(c, limits, End.LAST_TOKEN)
    lasted_s = c.ended_s - from_s
    broken = silent & (lasted_s > first_limit_s) | (lasted_s > whole_limit_s)
    may_be = c.given_up & (lasted_s > 0) & ~window.scheduled(c)
    unlimited = np.isinf(first_limit_s) & np.isinf(whole_limit_s)
    if (unlimited & may_be).any():
        broken |= unlimited & (c.ended_s - np.fmax(from_s, last_s) > _long_s(c, window))
    return Stuck(c, np.where(broken & may_be, lasted_s, np.nan), silent)


def _next_start_s(c: Columns, window: Window) -> Floats:
    """Start of the first span of the window after each request was scheduled; +∞ without one."""
    starts = [span.start_s(c) for span in window.spans if span.seconds > 0]
    return np.array([*starts, np.inf])[np.searchsorted(starts, c.scheduled_s, side="right")]


def _least(c: Columns, limits: Limits, *ends: End) -> Floats:
    """Tightest limit of each request on what waits for one of these; infinite without one."""
    metrics = [metric for metric in limits.metrics if LATENCY[metric].end in ends]
    limits_s = [limits.per_request(c.slo_class, metric) for metric in metrics]
    least: Floats = np.min([np.full(len(c), np.inf), *limits_s], axis=0)
    return least


def _long_s(c: Columns, window: Window) -> float:
    ok = Population.of(c, window.scheduled(c), np.arange(len(c))).ok
    return float(np.fmax(MEDIANS * percentile(ordered(e2el(c)[ok]), 50.0), LEAST_S))
