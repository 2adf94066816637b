"""Gaps of a run summed up in cells of its time, for the confidence intervals of ITL.

Requests share the engine's steps, and so do their gaps; gaps of one request are consecutive. A request's gaps
are in the cell in which it was scheduled; the bootstrap's blocks account for steps shared by neighbouring
cells. Each cell counts its gaps in bins whose width grows with the gap, 256 between each power of two
nanoseconds and the next, because the limits are known only when everything has been read.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llm_locust.metrics.columns import Floats, Rows
from llm_locust.metrics.ragged import offsets_of

#: Of a float32's bits, those below the exponent and the first 8 of the mantissa.
_DROPPED_BITS = 15

#: The bin just below 1 ns: gaps of 0 are in it, and no room is made for those in between.
_ZERO = (127 << 8) - 1

_Integers = NDArray[np.int64]


class GapCourse:
    """``table[cell, i]`` gaps in bin ``first`` + i, as a
    :class:`~llm_locust.metrics.stats.intervals.CellSums`.
    """

    def __init__(self, cells: int) -> None:
        self.first = 0
        self.table: _Integers = np.zeros((cells, 0), dtype=np.int64)
        self._sums_ns = np.zeros(cells, dtype=np.int64)

    @property
    def counts(self) -> Floats:
        counts: Floats = self.table.sum(axis=1).astype(np.float64)
        return counts

    @property
    def sums(self) -> Floats:
        """In seconds."""
        return np.asarray(self._sums_ns * 1e-9, dtype=np.float64)

    def at_most(self, limits: Floats) -> Floats:
        """Gaps in each cell up to the edge of the limit's bin that splits them more nearly as the limit does.

        An edge with gaps on both sides is preferred.
        """
        whole = offsets_of(self.table.sum(axis=0))
        found = np.empty((len(limits), len(self.table)))
        for i, limit in enumerate(limits):
            found[i] = self.table[:, : self._edge(limit * 1e9, whole)].sum(axis=1)
        return found

    def _edge(self, limit_ns: float, whole: _Integers) -> int:
        """Number of bins below a limit."""
        bin_ = int(_bins(np.array([limit_ns]))[0])
        lower = min(max(bin_ - self.first, 0), self.table.shape[1])
        upper = min(lower + 1, self.table.shape[1])
        start, end = (_start_ns(bin_ + i) for i in (0, 1))
        wanted = whole[lower] + (whole[upper] - whole[lower]) * (limit_ns - start) / (end - start)
        parting = [edge for edge in (lower, upper) if 0 < whole[edge] < whole[-1]]
        return int(min(parting or [upper], key=lambda edge: abs(float(whole[edge] - wanted))))

    def add(self, gaps_ns: Rows, rows_gaps: Rows, cell_of: Rows) -> None:
        """Add the gaps of some requests.

        Args:
            gaps_ns: of all, request by request.
            rows_gaps: number of gaps of each request.
            cell_of: cell of each request.
        """
        if not len(gaps_ns):
            return
        bins = _bins(gaps_ns)
        self._cover(int(bins.min()), int(bins.max()) + 1)
        # A piece of a run has few of its cells.
        low, high, width = int(cell_of.min()), int(cell_of.max()) + 1, self.table.shape[1]
        bins += np.repeat((cell_of - low) * width - self.first, rows_gaps)
        counts = np.bincount(bins, minlength=(high - low) * width)
        self.table[low:high] += counts.reshape(high - low, width)
        sums = np.diff(np.concatenate([[0], np.cumsum(gaps_ns)])[offsets_of(rows_gaps)])
        np.add.at(self._sums_ns, cell_of, sums)

    def merge(self, other: "GapCourse") -> None:
        """Add the gaps of another course with the same number of cells."""
        width = other.table.shape[1]
        if width:
            self._cover(other.first, other.first + width)
            at = other.first - self.first
            self.table[:, at : at + width] += other.table
            self._sums_ns += other._sums_ns

    def _cover(self, first: int, last: int) -> None:
        """Make room for bins from ``first`` to before ``last``."""
        cells, width = self.table.shape
        if not width:
            self.first, self.table = first, np.zeros((cells, last - first), np.int64)
            return
        before, behind = max(0, self.first - first), max(0, last - self.first - width)
        if before or behind:
            self.first -= before
            self.table = np.pad(self.table, ((0, 0), (before, behind)))


def joined(courses: Sequence[GapCourse]) -> GapCourse | None:
    """Sum of all courses; None for none."""
    if not courses:
        return None
    whole = GapCourse(len(courses[0].counts))
    for course in courses:
        whole.merge(course)
    return whole


def _bins(durations_ns: Rows | Floats) -> _Integers:
    bins: _Integers = (durations_ns.astype(np.float32).view(np.uint32) >> _DROPPED_BITS).astype(np.int64)
    return np.maximum(bins, _ZERO)


def _start_ns(bin_: int) -> float:
    return float(np.array([bin_ << _DROPPED_BITS], np.uint32).view(np.float32)[0])
