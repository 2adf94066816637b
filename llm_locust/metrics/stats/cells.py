"""A run summed up in consecutive cells, which the bootstrap draws from: a few kilobytes per figure.

Requests are put into cells in the order of their schedule, an equal number into each; what is counted per
second goes into cells of the window of equal length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from llm_locust.metrics.columns import Columns, Floats, Mask, Rows, Times
from llm_locust.metrics.stats.bootstrap import CELLS
from llm_locust.metrics.window import Window

T = TypeVar("T", bound=np.generic)

#: What comes all at once comes in so many seconds.
_MOMENT_S = 1e-6


@dataclass(frozen=True, slots=True)
class Cells:
    """``of[i]`` is the cell of item i, -1 for none; there are ``count`` cells."""

    of: NDArray[np.int64]
    count: int

    def sums(self, amounts: Floats | None = None) -> Floats:
        """Sum of the known ``amounts`` (by default, the number of items) in each cell."""
        weights = None if amounts is None else np.nan_to_num(amounts)
        return np.bincount(self.of + 1, weights, self.count + 1)[1:].astype(np.float64)


@dataclass(frozen=True, slots=True)
class Order:
    """Items in the order of their run: ``places[bounds[i]:bounds[i + 1]]`` are those of cell i.

    ``places`` is None if the items are in that order already.
    """

    places: Rows | None
    bounds: Rows

    @classmethod
    def even(cls, items: int, places: Rows | None = None) -> "Order":
        """Order with an equal number of items in each of at most :data:`CELLS` cells."""
        count = min(CELLS, items)
        return cls(places, -(-np.arange(count + 1) * items // max(1, count)))

    def sorted(self, values: NDArray[T]) -> NDArray[T]:
        """Values of items, in the order of the run."""
        return values if self.places is None else values[self.places]

    def sums(self, in_order: NDArray[np.float64] | Mask) -> Floats:
        """Sum in each cell of values in the order of the run."""
        found = np.zeros(len(self.bounds) - 1)
        occupied = np.diff(self.bounds) > 0
        if occupied.any():
            dtype = np.int64 if in_order.dtype == np.bool_ else np.float64
            found[occupied] = np.add.reduceat(in_order, self.bounds[:-1][occupied], dtype=dtype)
        return found

    def having(self, which: Mask) -> "Order":
        """Order of the items marked by ``which``; the cells stay the same."""
        marked = self.sorted(which)
        below = np.concatenate([[0], np.cumsum(marked)])
        if self.places is None:
            return Order(None, below[self.bounds])
        number = np.cumsum(which) - 1
        return Order(number[self.places[marked]], below[self.bounds])


def order_cells(c: Columns, rows: Rows) -> Order:
    """Cells of ``rows`` in the order of their schedule, with a defined order for a burst at one time.

    Requests scheduled at one time are ordered by their other times and their outcome, so that the order in
    which workers delivered has no effect.
    """
    times_s = c.scheduled_s[rows]
    if (times_s[1:] > times_s[:-1]).all():
        return Order.even(len(rows))
    places = np.argsort(times_s, kind="stable")
    if (np.diff(times_s[places]) == 0).any():
        places = np.lexsort(
            (
                c.outcome[rows],
                c.output_tokens[rows],
                c.last_event_s[rows],
                c.first_answer_s[rows],
                c.first_event_s[rows],
                c.ended_s[rows],
                c.sent_s[rows],
                times_s,
            )
        )
    return Order.even(len(rows), places)


def time_cells(window: Window, c: Times, times_s: Floats) -> Cells:
    """Cells of times on the axis of ``c``; -1 for unknown ones and those outside."""
    start_s, end_s = window.start_s(c), window.end_s(c)
    inside = (times_s >= start_s) & (times_s < end_s)
    of = np.full(len(times_s), -1, dtype=np.int64)
    of[inside] = (times_s[inside] - start_s) / (end_s - start_s) * CELLS
    return Cells(np.minimum(of, CELLS - 1), CELLS)


def seconds_of_cells(window: Window, c: Times) -> Floats:
    """Seconds of the window in each of its cells: 0 in a gap."""
    edges = _edges(window, c)
    inside = np.zeros(CELLS + 1)
    for span in window.spans:
        inside += np.clip(edges, span.start_s(c), span.end_s(c)) - span.start_s(c)
    return np.diff(inside)


def spread_evenly(
    window: Window, c: Times, begun_s: Floats, over_s: Floats, amounts: Sequence[Floats]
) -> list[Floats]:
    """Part of each amount in each cell of the window, if it is spread evenly from begun to over.

    For tokens that is as accurate as each at its own time, of which only one part of the run is in memory at
    a time. Unknown amounts and times are left out.
    """
    edges = _edges(window, c) - window.start_s(c)
    begun = begun_s - window.start_s(c)
    over = np.maximum(over_s - window.start_s(c), begun + _MOMENT_S)
    places = [_place(edges, times) for times in (begun, over)]
    found = []
    for amount in amounts:
        rate = np.nan_to_num(amount / (over - begun))
        # What has come by an edge: rate × (edge − begun) of all that began before, less rate × (edge − over).
        come = np.zeros(CELLS + 1)
        for times, place, sign in zip((begun, over), places, (1.0, -1.0), strict=True):
            rates = np.cumsum(np.bincount(place, rate, CELLS + 2))[: CELLS + 1]
            moments = np.cumsum(np.bincount(place, rate * np.nan_to_num(times), CELLS + 2))[: CELLS + 1]
            come += sign * (edges * rates - moments)
        found.append(np.diff(come))
    return found


def _place(edges: Floats, times: Floats) -> Rows:
    """First of the equidistant edges that is not before each time; the last one + 1 if there is none."""
    place = np.ceil(times / (edges[1] or 1.0))
    found: Rows = np.clip(np.nan_to_num(place, nan=CELLS + 1), 0, CELLS + 1).astype(np.int64)
    return found


def _edges(window: Window, c: Times) -> Floats:
    return np.linspace(window.start_s(c), window.end_s(c), CELLS + 1)
