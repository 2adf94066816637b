"""Durations too many to be kept: counted in bins whose width grows with them.

A bin is one of 1024 :mod:`~llm_locust.metrics.stats.buckets` between each power of two nanoseconds and the
next. A percentile is told by its bin's middle, which is
off by :data:`RELATIVE_ERROR` at most. Count, sum, sum of squares, least and greatest are exact
integers, so that histograms of parts add up to that of the whole, whatever the parts.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llm_locust.metrics.stats.buckets import Buckets

#: Bin 0 is for 0 ns alone; 1 ns is at the beginning of the second octave.
_BINS: Final = Buckets(10, -1, 64)

#: Of any sample that is told, against the true one: half a bin's width, 2 ** -11, and the rounding
#: to a float32.
RELATIVE_ERROR: Final = 0.0005

_SLICE = 1 << 20
_LOW_BITS = 20

_Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Histogram:
    """``counts[b]`` durations in bin b; ``total_ns`` is their sum, ``squares`` that of their squares.

    As :class:`~llm_locust.metrics.stats.percentiles.Ascending`, its samples are in seconds.
    """

    counts: _Integers
    ends: _Integers  # the number of samples up to the end of each bin
    total_ns: int = 0
    squares: int = 0
    least_ns: int = 0
    most_ns: int = 0

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, rank: int, /) -> float:
        """The sample that ``rank`` others come before; the least and the greatest are exact."""
        if not 0 <= rank < len(self):
            raise IndexError(f"rank {rank} of {len(self)} samples")
        if rank == 0:
            return self.least_ns * 1e-9
        if rank == len(self) - 1:
            return self.most_ns * 1e-9
        middle = _middle_ns(int(np.searchsorted(self.ends, rank, side="right")))
        return min(max(middle, self.least_ns), self.most_ns) * 1e-9

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation in seconds; NaN without samples."""
        n = len(self)
        if not n:
            return math.nan, math.nan
        return self.total_ns / n * 1e-9, math.sqrt(n * self.squares - self.total_ns**2) / n * 1e-9


def count_durations(durations_ns: _Integers) -> Histogram:
    """The histogram of durations that are not negative, in whole nanoseconds."""
    if not len(durations_ns):
        return _histogram(np.empty(0, np.int64))
    pieces = [durations_ns[i : i + _SLICE] for i in range(0, len(durations_ns), _SLICE)]
    return _histogram(
        _added([np.bincount(_BINS.of(piece)) for piece in pieces]),
        total_ns=sum(int(piece.sum()) for piece in pieces),
        squares=sum(map(_sum_of_squares, pieces)),
        least_ns=int(durations_ns.min()),
        most_ns=int(durations_ns.max()),
    )


def merge(histograms: list[Histogram]) -> Histogram:
    """The histogram of all samples of ``histograms``."""
    full = [h for h in histograms if len(h)]
    return _histogram(
        _added([h.counts for h in full]),
        total_ns=sum(h.total_ns for h in full),
        squares=sum(h.squares for h in full),
        least_ns=min((h.least_ns for h in full), default=0),
        most_ns=max((h.most_ns for h in full), default=0),
    )


def _histogram(counts: _Integers, **figures: int) -> Histogram:
    return Histogram(counts, np.cumsum(counts), **figures)


def _middle_ns(bin_: int) -> float:
    return float(_BINS.edges(bin_, bin_ + 1).mean()) if bin_ else 0.0


def _added(counts: list[_Integers]) -> _Integers:
    total = np.zeros(max(map(len, counts), default=0), np.int64)
    for part in counts:
        total[: len(part)] += part
    return total


def _sum_of_squares(durations_ns: _Integers) -> int:
    """Exact: each square is taken of two halves of 20 bits, whose sums over a slice fit 64 bits."""
    high, low = durations_ns >> _LOW_BITS, durations_ns & ((1 << _LOW_BITS) - 1)
    if int(high.max()) >> _LOW_BITS:  # above 18 minutes
        return sum(d * d for d in durations_ns.tolist())
    return (int(high @ high) << 2 * _LOW_BITS) + (int(high @ low) << _LOW_BITS + 1) + int(low @ low)
