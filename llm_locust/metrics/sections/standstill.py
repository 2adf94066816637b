"""Times in which nothing arrived although requests were in flight: a deployment that hung, or paused."""

import numpy as np
from msgspec.structs import replace

from llm_locust.core.record import Outcome
from llm_locust.metrics.catalogue import e2el, ttft
from llm_locust.metrics.columns import OUTCOMES, Columns, Floats, Mask, Rows
from llm_locust.metrics.requests.concurrency import Spans
from llm_locust.metrics.stats.percentiles import ordered, percentile
from llm_locust.metrics.summary_types.course import Standstills, StandstillSpan
from llm_locust.metrics.window import Population, Window

#: A standstill lasts longer than this, and than so many medians.
LEAST_S = 1.0
MEDIANS = 10.0

#: A stream of gaps this many times the median one is no sign that the deployment works.
USUAL_PACE = 3.0

#: Standstills that are listed, the longest ones.
MOST = 20

#: Ends that are the client's doing: no answer of the deployment.
_NO_ANSWER = tuple(map(OUTCOMES.index, (Outcome.TIMEOUT, Outcome.CONNECT_ERROR, Outcome.CANCELLED)))


def standstill(c: Columns, population: Population, window: Window, ttft_limit_s: float | None) -> Standstills:
    """The ``reliability.standstill`` of a summary.

    A standstill is a time in which requests were in flight, no answer ended (with any outcome, except those
    that the client gave up) and none was streamed at a usual pace, for longer than ``limit_s``. That is 10
    times the median E2EL; or, with a TTFT limit and if this is less, that limit or 10 times the median TTFT,
    whichever is longer. It is at least 1 s, and 1 s if no request of the population ended ok.

    ``spans`` are from the window's start to the last end, after the stop too. Of each, ``seconds`` is the
    time in which requests were in flight, ``start_s`` is after the window's start and ``in_flight`` is the
    most of them at one time.

    Args:
        population: source of the medians; every request of ``c`` is considered.
        ttft_limit_s: the widest of the run's classes.
    """
    limit_s = _limit_s(c, population.ok, ttft_limit_s)
    begins_s, ends_s = _under_way(c)
    found: list[StandstillSpan] = []
    for span in window.spans:
        last = span.end_ns == window.end_ns and len(ends_s)
        edges = span.start_s(c), max(span.end_s(c), float(ends_s.max()) if last else -np.inf)
        found += _standstills(_quiet(*_alive(c), edges), begins_s, ends_s, limit_s)
    found.sort(key=lambda each: -each.seconds)
    listed = sorted(found[:MOST], key=lambda each: each.start_s)
    start_s = window.start_s(c)
    return Standstills(
        limit_s=limit_s,
        n=len(found),
        seconds=sum(each.seconds for each in found),
        spans=[replace(each, start_s=each.start_s - start_s) for each in listed],
    )


def _limit_s(c: Columns, ok: Rows, ttft_limit_s: float | None) -> float:
    ended, begun = (percentile(ordered(of(c)[ok]), 50.0) for of in (e2el, ttft))
    limits = [MEDIANS * ended]
    if ttft_limit_s is not None:  # NaN first: without a TTFT the limit on it says nothing
        limits.append(max(MEDIANS * begun, ttft_limit_s))
    known = [limit for limit in limits if not np.isnan(limit)]
    return max(LEAST_S, min(known, default=LEAST_S))


def _under_way(c: Columns) -> tuple[Floats, Floats]:
    """Sorted start times, of connecting if a request was never sent, and sorted end times."""
    begun_s = np.where(np.isnan(c.sent_s), c.started_s, c.sent_s)
    lasts = c.ended_s > begun_s
    return np.sort(begun_s[lasts]), np.sort(c.ended_s[lasts])


def _alive(c: Columns) -> tuple[Floats, Floats]:
    """Ends of answers, and the streams of a usual pace from their first to their last event."""
    answered = c.ended_s[~np.isin(c.outcome, _NO_ANSWER)]
    streamed = _usual(c)
    begins = c.sent_s[streamed] + c.first_event_s[streamed]
    ends = c.sent_s[streamed] + c.last_event_s[streamed]
    return np.concatenate([answered, begins]), np.concatenate([answered, ends])


def _usual(c: Columns) -> Mask:
    gap_s = (c.last_event_s - c.first_event_s) / np.maximum(c.events - 1, 1)
    median = percentile(ordered(gap_s[c.ok & (c.events > 1)]), 50.0)
    slow = gap_s > USUAL_PACE * median  # False where there is no median
    return (c.events > 0) & ~np.isnan(c.sent_s) & ~slow


def _quiet(begins: Floats, ends: Floats, edges: tuple[float, float]) -> tuple[Floats, Floats]:
    """Times between the edges that are in none of the spans [begin, end]."""
    order = np.argsort(begins, kind="stable")
    since = np.concatenate([[edges[0]], np.maximum.accumulate(ends[order])])
    until = np.concatenate([begins[order], [edges[1]]])
    since, until = np.maximum(since, edges[0]), np.minimum(until, edges[1])
    return since[until > since], until[until > since]


def _standstills(
    quiet: tuple[Floats, Floats], begins_s: Floats, ends_s: Floats, limit_s: float
) -> list[StandstillSpan]:
    since, until = quiet
    busy_from, busy_to = _merged(begins_s, ends_s)
    busy = _covered(busy_from, busy_to, until) - _covered(busy_from, busy_to, since)
    found = []
    for i in np.flatnonzero(busy > limit_s).tolist():
        # Where nothing was under way it begins with the next request.
        at = int(np.searchsorted(busy_to, since[i], side="right"))
        found.append(
            StandstillSpan(
                start_s=max(float(since[i]), float(busy_from[at])),
                seconds=float(busy[i]),
                in_flight=Spans(begins_s, ends_s).peak(float(since[i]), float(until[i])),
            )
        )
    return found


def _merged(begins_s: Floats, ends_s: Floats) -> tuple[Floats, Floats]:
    """Spans in which anything is in flight; begins and ends are sorted separately."""
    # One begins where everything that began before has ended.
    if not len(begins_s):
        return begins_s, ends_s
    first = np.flatnonzero(np.concatenate([[True], ends_s[:-1] < begins_s[1:]]))
    return begins_s[first], ends_s[np.append(first[1:], len(ends_s)) - 1]


def _covered(begins_s: Floats, ends_s: Floats, times_s: Floats) -> Floats:
    """How much of the time before each of ``times_s`` lies in the spans, which are disjoint and ascending."""
    if not len(begins_s):
        return np.zeros(len(times_s))
    total = np.concatenate([[0.0], np.cumsum(ends_s - begins_s)])
    begun = np.searchsorted(begins_s, times_s)
    last = np.maximum(begun - 1, 0)
    return np.where(begun > 0, total[last] + np.minimum(times_s, ends_s[last]) - begins_s[last], 0.0)
