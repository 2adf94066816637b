"""A run summed up in consecutive cells: what the bootstrap draws from, a few kilobytes a figure.

Requests are put into cells in the order in which they were scheduled, as many into each; what comes out
per second into cells of the window, equally long.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_locust.batch import Requests
from llm_locust.metrics.bootstrap import CELLS
from llm_locust.metrics.columns import PART_COLUMNS, Columns, Floats, Part, Rows, Times
from llm_locust.metrics.gaps import known_gaps
from llm_locust.metrics.ragged import pieces
from llm_locust.metrics.window import Window


@dataclass(frozen=True, slots=True)
class Cells:
    """``of[i]`` is the cell of item i, -1 for one that is in none; there are ``count`` cells."""

    of: NDArray[np.int64]
    count: int

    def sums(self, amounts: Floats | None = None) -> Floats:
        """The sum of the known ``amounts`` (the number of items, without them) of each cell."""
        weights = None if amounts is None else np.nan_to_num(amounts)
        return np.bincount(self.of + 1, weights, self.count + 1)[1:].astype(np.float64)


def order_cells(c: Times, rows: Rows) -> Cells:
    """The cells of ``rows`` in the order of their schedule: a burst at one instant has an order too."""
    count = min(CELLS, len(rows))
    of = np.empty(len(rows), dtype=np.int64)
    of[np.argsort(c.scheduled_s[rows], kind="stable")] = np.arange(len(rows)) * count // max(1, len(rows))
    return Cells(of, count)


def time_cells(window: Window, c: Times, times_s: Floats) -> Cells:
    """The cells of times on the axis of ``c``; -1 for those that are not known or not inside."""
    start_s, end_s = window.start_s(c), window.end_s(c)
    inside = (times_s >= start_s) & (times_s < end_s)
    of = np.full(len(times_s), -1, dtype=np.int64)
    of[inside] = (times_s[inside] - start_s) / (end_s - start_s) * CELLS
    return Cells(np.minimum(of, CELLS - 1), CELLS)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What the token events of a run sum up to.

    In cells of the ok requests' order: ``gaps``, ``gaps_s`` their sum, and ``at_most[key]`` the number of
    those at or below a limit. In cells of the window: ``output_tokens`` and ``output_chars``, spread evenly
    over a request's events; an answer without events counts at its end.
    """

    gaps: Floats
    gaps_s: Floats
    at_most: dict[str, Floats]
    output_tokens: Floats
    output_chars: Floats


def sum_arrivals(
    requests: Requests, c: Columns, window: Window, ok: Rows, limits_s: Mapping[str, float]
) -> Arrivals:
    """Read the arrivals once more, part by part.

    Args:
        ok: the population whose gaps are counted, rows of ``c``.
        limits_s: the limits of ``at_most``, ascending; of a run without gaps they may be NaN.
    """
    ordered = order_cells(c, ok)
    cell_of_row = np.full(len(c), -1, dtype=np.int64)
    cell_of_row[ok] = ordered.of
    counts = _GapCounts(ordered.count, np.array(list(limits_s.values())))
    totals = np.zeros((2, CELLS))
    begun = 0
    for batch in requests.parts(PART_COLUMNS):
        part = Part.from_batch(batch, c.origin_ns)
        counts.add(part, cell_of_row[begun : begun + len(part)])
        totals += _output(part, window)
        begun += len(part)
    below = np.cumsum(counts.by_limit, axis=1)
    at_most = {key: below[:, i].astype(np.float64) for i, key in enumerate(limits_s)}
    return Arrivals(below[:, -1].astype(np.float64), counts.sums_s, at_most, totals[0], totals[1])


class _GapCounts:
    """``by_limit[cell, i]``: gaps that are above limit i - 1 and not above limit i."""

    def __init__(self, cells: int, limits_s: Floats) -> None:
        self._limits_s = limits_s
        self.by_limit = np.zeros((cells, len(limits_s) + 1), dtype=np.int64)
        self.sums_s = np.zeros(cells)

    def add(self, c: Part, cell_of_row: Rows) -> None:
        cells, width = self.by_limit.shape
        having = np.flatnonzero((cell_of_row >= 0) & c.streamed & (c.events > 1))
        for rows, gaps_ns, counts in known_gaps(c, having):
            gaps_s = gaps_ns * 1e-9
            cell = np.repeat(cell_of_row[rows], counts)
            place = cell * width + np.searchsorted(self._limits_s, gaps_s)
            self.by_limit += np.bincount(place, minlength=cells * width).reshape(cells, width)
            self.sums_s += np.bincount(cell, gaps_s, cells)


def _output(c: Part, window: Window) -> Floats:
    """Tokens and characters of each cell of the window, shape (2, CELLS)."""
    total = np.zeros((2, CELLS))
    silent = c.events == 0
    ended = time_cells(window, c, c.ended_s)
    for i, amounts in enumerate((c.output_tokens, c.output_chars)):
        total[i] += ended.sums(np.where(silent, amounts, 0.0))
    for rows, lists in pieces(c.arrivals, np.flatnonzero(~silent & ~np.isnan(c.sent_s))):
        counts = np.diff(lists.offsets)
        arrived = time_cells(window, c, np.repeat(c.sent_s[rows], counts) + lists.values * 1e-9)
        for i, amounts in enumerate((c.output_tokens, c.output_chars)):
            total[i] += arrived.sums(np.repeat(amounts[rows] / counts, counts))
    return total
