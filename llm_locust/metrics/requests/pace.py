"""Share of tokens that arrived in time for a person who reads along."""

from typing import Any

import numpy as np

from llm_locust.metrics.columns import Floats, Part, Rows
from llm_locust.metrics.ragged import lengths, pieces
from llm_locust.metrics.stats.cells import Order
from llm_locust.metrics.stats.intervals import Observed
from llm_locust.metrics.stats.percentiles import ordered, summarise_ascending

#: A token further behind its deadline than this (24 min) is no later for it: it keeps the
#: arithmetic of one piece inside 64 bits.
_LATEST_NS = 1 << 40

#: What is due later than this (146 years) never comes: the number of tokens in a damaged file may be any.
_NEVER_NS = float(1 << 62)


def on_time_ratio(c: Part, rows: Rows, ttft_limit_s: float, tpot_limit_s: float) -> Floats:
    """Share of each request's tokens that arrived by their deadline, shape (len(rows),).

    Token k is due at sent + TTFT limit + k × TPOT limit. If one is late, later deadlines count from its
    arrival. With more tokens than events, the n tokens are spread evenly over the events, and only the first
    of an event can be late: the others are due later and arrived with it. NaN if no token event is known.
    """
    out = np.full(len(rows), np.nan)
    usable = c.streamed & (c.events > 0) & (c.event_tokens > 0)
    index = np.flatnonzero(usable[rows])
    filled = 0
    for part, lists in pieces(c.arrivals, rows[index]):
        counts = lengths(lists)
        n = c.event_tokens[part]
        # In place from here on: these are as many values as there are tokens.
        event = np.arange(len(lists.values)) - np.repeat(lists.offsets[:-1], counts)
        due_ns = np.repeat(n / counts, counts)
        due_ns *= event
        due_ns *= tpot_limit_s
        due_ns += ttft_limit_s
        due_ns *= 1e9
        np.clip(due_ns, 0, _NEVER_NS, out=due_ns)
        slack = lists.values - np.rint(due_ns, out=due_ns).astype(np.int64)
        np.clip(slack, 0, _LATEST_NS, out=slack)
        # Each request gets a range of its own above the one before, so that one running maximum
        # over the piece is a running maximum within each request.
        floor = np.repeat(np.arange(len(part)) * (_LATEST_NS + 1), counts)
        slack += floor
        np.maximum(floor[1:], np.maximum.accumulate(slack)[:-1], out=floor[1:])
        late = slack > floor
        missed = np.add.reduceat(late, lists.offsets[:-1], dtype=np.int64)
        out[index[filled : filled + len(part)]] = 1 - missed * np.minimum(1.0, n / counts) / n
        filled += len(part)
    return out


#: The jerky end of a distribution of shares is its low one.
_PLACES = {"p1": 1.0, "p5": 5.0, "p50": 50.0}


def summarise_on_time(shares: Floats | None, order: Order | None = None) -> dict[str, Any]:
    """``on_time_ratio``, the mean of the requests' shares, and ``on_time``, their distribution.

    Args:
        shares: of :func:`on_time_ratio`, NaN where not defined; None where the SLO has no such limits.
        order: of the shares.
    """
    shares = np.empty(0) if shares is None else shares
    course = None if order is None else Observed(order, shares)
    figures = summarise_ascending(ordered(shares), places=_PLACES, course=course)
    chosen = {key: figures[key] for key in ("n", "mean", *_PLACES, "ci95", "n_effective")}
    return {"on_time_ratio": figures["mean"], "on_time": chosen}
