"""When a replica served, and when it did not while others did."""

from collections.abc import Callable, Sequence

import numpy as np

from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.requests.concurrency import Spans
from llm_locust.metrics.summary_types.deployment.replicas import OutageSpan
from llm_locust.metrics.window import Window

#: A time without an answer is told from here on, where answers came so often that chance does not make it:
#: in a Poisson process one gap of 160,000 is over twelve mean ones.
LEAST_S = 5.0
MEAN_GAPS = 12.0

#: Fewest answers of a replica for which its own rate is known, and fewest of others in a gap.
LEAST_ANSWERS = 10


def signs(c: Columns, rows: Rows) -> Floats:
    """When answers to ``rows`` began and ended, ascending."""
    return np.sort(np.concatenate(_served(c, rows)))


def outages(c: Columns, rows: Rows, every: Callable[[], Floats], window: Window) -> list[OutageSpan]:
    """The outages of the replica that served ``rows``, ascending; ``every`` gives all replicas'
    :func:`signs`, and is asked only where this one was silent for long.

    A request is served from its first token to its last, and one that is not streamed from sent to its end.
    A gap between served times, or between one and an edge of the window, is an outage where it is longer than
    :data:`LEAST_S` and than :data:`MEAN_GAPS` times the mean time between two requests of this replica
    outside of it, and where the other replicas served at least a fifth of what they do elsewhere.
    """
    start_s, found = window.start_s(c), []
    begun, own = _served(c, rows)[0], None
    for span in window.spans:
        edges = (span.start_s(c), span.end_s(c))
        begins, ends = _merged(*_served(c, rows), edges)
        for gap in _gaps(begins, ends, edges):
            answers = int(((begun >= edges[0]) & (begun < edges[1])).sum())
            if not _is_notable(gap, answers, edges):
                continue
            own = signs(c, rows) if own is None else own
            others = [_within(every(), part) - _within(own, part) for part in (gap, edges)]
            if _others_serve(gap, others[0], others[1], edges):
                left, came = gap[0] > edges[0], gap[1] < edges[1]
                found.append(
                    OutageSpan(
                        from_s=gap[0] - start_s if left else None,
                        to_s=gap[1] - start_s if came else None,
                        seconds=gap[1] - gap[0],
                        others=others[0],
                    )
                )
    return found


def in_flight(c: Columns, rows: Rows, window: Window, parts: int) -> Floats:
    """Time-weighted mean number of ``rows`` between sent and ended in equal parts of the window, (parts,)."""
    edges = np.linspace(window.start_s(c), window.end_s(c), parts + 1)
    # Differences of large sums: below 0 by a rounding where nothing was under way.
    return np.maximum(0.0, Spans.of(c, rows).means(edges))


def _served(c: Columns, rows: Rows) -> tuple[Floats, Floats]:
    """When each request began and ended to be served; those that were not are left out."""
    streamed = c.events[rows] > 0
    whole = ~streamed & c.ok[rows]
    begins = np.where(streamed, c.sent_s[rows] + c.first_event_s[rows], c.sent_s[rows])
    ends = np.where(streamed, c.sent_s[rows] + c.last_event_s[rows], c.ended_s[rows])
    known = (streamed | whole) & ~np.isnan(begins) & ~c.stepped[rows]
    return begins[known], ends[known]


def _merged(begins: Floats, ends: Floats, edges: tuple[float, float]) -> tuple[Floats, Floats]:
    """The union of the spans that touch the window, as spans apart."""
    touch = (ends >= edges[0]) & (begins < edges[1])
    order = np.argsort(begins[touch])
    begins, ends = begins[touch][order], np.maximum.accumulate(ends[touch][order])
    apart = np.flatnonzero(begins[1:] > ends[:-1])
    firsts = np.concatenate([[0], apart + 1]) if len(begins) else np.empty(0, np.int64)
    lasts = np.concatenate([apart, [len(ends) - 1]]) if len(ends) else np.empty(0, np.int64)
    return begins[firsts.astype(np.int64)], ends[lasts.astype(np.int64)]


def _gaps(begins: Floats, ends: Floats, edges: tuple[float, float]) -> Sequence[tuple[float, float]]:
    starts = np.concatenate([[edges[0]], np.minimum(ends, edges[1])])
    stops = np.concatenate([np.maximum(begins, edges[0]), [edges[1]]])
    longer = stops - starts > LEAST_S
    return list(zip(starts[longer].tolist(), stops[longer].tolist(), strict=True))


def _is_notable(gap: tuple[float, float], answers: int, edges: tuple[float, float]) -> bool:
    seconds = gap[1] - gap[0]
    mean_s = (edges[1] - edges[0] - seconds) / max(1, answers)
    return answers >= LEAST_ANSWERS and seconds > max(LEAST_S, MEAN_GAPS * mean_s)


def _within(signs: Floats, edges: tuple[float, float]) -> int:
    first, last = np.searchsorted(signs, edges)
    return int(last - first)


def _others_serve(gap: tuple[float, float], meanwhile: int, all_: int, edges: tuple[float, float]) -> bool:
    elsewhere_s = edges[1] - edges[0] - (gap[1] - gap[0])
    usual = (all_ - meanwhile) / elsewhere_s * (gap[1] - gap[0]) if elsewhere_s > 0 else 0.0
    return meanwhile >= LEAST_ANSWERS and meanwhile >= usual / 5
