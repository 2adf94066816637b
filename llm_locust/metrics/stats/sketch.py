"""Durations counted in few buckets, whose width grows with them: small enough to be sent while they come.

There are 64 :mod:`~llm_locust.metrics.stats.sketch` between each power of two seconds and the next. Only
those that hold something are kept. Counts and the sum are exact integers, so that sketches of parts add up
to that of the whole, whatever the parts and their order. :mod:`llm_locust.metrics.stats.sketch` has bins
16 times as narrow, for what stays in a process.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llm_locust.metrics.columns import Floats
from llm_locust.metrics.stats.censoring import interpolated, percentile

# --------------------
# Buckets whose width grows with their values, for histograms and sketches.
#
# A bucket is the exponent and the first bits of the mantissa of a value as a float32: ``2 ** kept_bits`` of
# them, of equal width, between each power of two and the next.
# --------------------


_MANTISSA_BITS, _EXPONENT_BIAS = 23, 127


@dataclass(frozen=True, slots=True)
class Buckets:
    """``2 ** kept_bits`` buckets an octave, from ``2 ** first_exponent`` to before ``2 ** end_exponent``.

    Bucket 0 also takes values below its start, and the last one values above its end.

    Attributes:
        below: whether bucket 0 lies before the first octave, and so holds nothing else.
    """

    kept_bits: int
    first_exponent: int
    end_exponent: int
    below: bool = False

    def __len__(self) -> int:
        return ((self.end_exponent - self.first_exponent) << self.kept_bits) + self.below

    @property
    def _zero(self) -> int:
        """Leading bits of the start of bucket 0."""
        return ((_EXPONENT_BIAS + self.first_exponent) << self.kept_bits) - self.below

    def of(self, values: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.int32]:
        """Bucket of each value; values must be neither negative nor NaN."""
        bits: NDArray[np.int32] = values.astype(np.float32).view(np.int32)
        bits >>= np.int32(_MANTISSA_BITS - self.kept_bits)
        bits -= np.int32(self._zero)
        return np.clip(bits, 0, len(self) - 1, out=bits)

    def edges(self, first: int, end: int) -> Floats:
        """Starts of the buckets from ``first`` to before ``end``, and the end of the last of them."""
        bits = np.arange(first + self._zero, end + self._zero + 1, dtype=np.int32)
        return (bits << np.int32(_MANTISSA_BITS - self.kept_bits)).view(np.float32).astype(np.float64)


# --------------------
# Durations too many to be kept: counted in bins whose width grows with them.
#
# A bin is one of 1024 :mod:`~llm_locust.metrics.stats.sketch` between each power of two nanoseconds and
# the next. A percentile is told by its bin's middle, which is off by :data:`RELATIVE_ERROR` at most. Count,
# sum, sum of squares, least and greatest are exact integers, so that histograms of parts add up to that of
# the whole, whatever the parts.
# --------------------


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

    As :class:`~llm_locust.metrics.stats.censoring.Ascending`, its samples are in seconds.
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


#: From 0.93 ns up to 12 days. Bucket 0 is for what is shorter, and is told as 0.
_BUCKETS: Final = Buckets(6, -30, 20, below=True)

BUCKETS: Final = len(_BUCKETS)

#: Of any percentile against the exact one of the same samples, for samples from 1 ns to 12 days: half a
#: bucket's width against its middle, 1 / 129, and the rounding to a float32.
SKETCH_ERROR: Final = 0.008

Codes = NDArray[np.uint16]
Integers = NDArray[np.int64]


def _middles_s() -> Floats:
    edges = _BUCKETS.edges(0, BUCKETS)
    low, high = edges[:-1], edges[1:]
    middles = 2 * low * high / (low + high)
    middles[0] = 0.0
    return middles


#: What stands for each bucket's samples: as far from its begin as from its end, in relative terms.
_MIDDLES_S: Final = _middles_s()


@dataclass(frozen=True, slots=True)
class Tally:
    """How often each code occurs: ``counts[i]`` times ``codes[i]``; codes ascend, counts are above 0."""

    codes: Codes
    counts: Integers

    @classmethod
    def of(cls, codes: NDArray[np.integer]) -> "Tally":
        """The tally of codes from 0 to 65535, in any order."""
        occurring, counts = np.unique(codes, return_counts=True)
        return cls(occurring.astype(np.uint16), counts.astype(np.int64))

    @classmethod
    def merge(cls, tallies: Iterable["Tally"]) -> "Tally":
        """The tally of all that ``tallies`` have counted."""
        some = [t for t in tallies if len(t.codes)]
        if len(some) <= 1:
            return some[0] if some else cls(np.empty(0, np.uint16), np.empty(0, np.int64))
        codes = np.concatenate([t.codes for t in some])
        # Weights are added as float64, which is exact for counts up to 2 ** 53.
        totals = np.bincount(codes, np.concatenate([t.counts for t in some]))
        occurring = np.flatnonzero(totals > 0)
        return cls(occurring.astype(np.uint16), totals[occurring].astype(np.int64))

    def between(self, first: int, end: int) -> "Tally":
        """Codes from ``first`` to before ``end``, counted from 0."""
        low, high = np.searchsorted(self.codes, [first, end])
        return Tally(self.codes[low:high] - np.uint16(first), self.counts[low:high])

    def packed(self) -> tuple[list[int], list[int]]:
        """Plain numbers for a message, most of them small: the codes as steps from one to the next."""
        return np.diff(self.codes.astype(np.int64), prepend=0).tolist(), self.counts.tolist()

    @classmethod
    def unpacked(cls, steps: Sequence[int], counts: Sequence[int], limit: int) -> "Tally":
        """The inverse of :meth:`packed`.

        Raises:
            ValueError: these are no codes below ``limit`` with a count each.
        """
        codes = np.cumsum(np.array(steps, dtype=np.int64))
        amounts = np.array(counts, dtype=np.int64)
        if len(codes) != len(amounts):
            raise ValueError(f"{len(codes)} codes with {len(amounts)} counts")
        if len(codes) and (codes[0] < 0 or codes[-1] >= limit or (np.diff(codes) <= 0).any()):
            raise ValueError(f"codes do not ascend from 0 to below {limit}")
        if (amounts <= 0).any():
            raise ValueError("a count is not above 0")
        return cls(codes.astype(np.uint16), amounts)


@dataclass(frozen=True, slots=True)
class Sketch:
    """Durations in buckets; ``ends[i]`` of them are in ``buckets[:i + 1]``, ``total_ns`` is their sum.

    As :class:`~llm_locust.metrics.stats.censoring.Ascending`, its samples are in seconds.
    """

    buckets: Codes
    ends: Integers
    total_ns: int = 0

    @classmethod
    def of(cls, durations_s: Floats) -> "Sketch":
        """The sketch of durations in seconds. NaN is no sample, a negative duration is one of 0."""
        known = np.maximum(durations_s[~np.isnan(durations_s)], 0)
        return cls.counted(Tally.of(buckets_of(known)), total_ns(known))

    @classmethod
    def counted(cls, tally: Tally, total: int) -> "Sketch":
        """The sketch of a tally of buckets, whose durations add up to ``total`` nanoseconds."""
        return cls(tally.codes, np.cumsum(tally.counts), total)

    @classmethod
    def merge(cls, sketches: Iterable["Sketch"]) -> "Sketch":
        """The sketch of all samples of ``sketches``."""
        some = list(sketches)
        return cls.counted(Tally.merge(s.tally for s in some), sum(s.total_ns for s in some))

    @property
    def tally(self) -> Tally:
        return Tally(self.buckets, np.diff(self.ends, prepend=0))

    @property
    def sum_s(self) -> float:
        """The sum of the durations in seconds, to a nanosecond each."""
        return self.total_ns * 1e-9

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, rank: int, /) -> float:
        """The sample that ``rank`` others come before."""
        if not 0 <= rank < len(self):
            raise IndexError(f"rank {rank} of {len(self)} samples")
        place = int(np.searchsorted(self.ends, rank, side="right"))
        return float(_MIDDLES_S[self.buckets[place]])

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation in seconds, the latter of the buckets' middles; NaN without samples."""
        n = len(self)
        if not n:
            return math.nan, math.nan
        mean_s = self.sum_s / n
        squares = self.tally.counts @ (_MIDDLES_S[self.buckets] - mean_s) ** 2
        return mean_s, math.sqrt(float(squares) / n)

    def percentile(self, percent: float) -> float:
        """numpy's ``linear`` percentile in seconds, to :data:`SKETCH_ERROR`; NaN without samples."""
        return percentile(self, percent)

    def percentiles(self, percents: Sequence[float]) -> list[float]:
        """Several at once, as :meth:`percentile` has each, in a fraction of the time."""
        n = len(self)
        if not n:
            return [math.nan] * len(percents)
        positions = [percent / 100 * (n - 1) for percent in percents]
        below = [math.floor(position) for position in positions]
        ranks = [*below, *(min(rank + 1, n - 1) for rank in below)]
        samples = _MIDDLES_S[self.buckets[np.searchsorted(self.ends, ranks, side="right")]].tolist()
        ends = zip(samples[: len(below)], samples[len(below) :], strict=True)
        return [
            interpolated(low, high, position - rank)
            for (low, high), position, rank in zip(ends, positions, below, strict=True)
        ]

    def at_most(self, limits_s: Sequence[float]) -> list[int]:
        """How many samples are at or below each limit; a limit is met to :data:`SKETCH_ERROR`."""
        places = np.searchsorted(_MIDDLES_S[self.buckets], limits_s, side="right")
        counts: list[int] = np.concatenate([np.zeros(1, np.int64), self.ends])[places].tolist()
        return counts


def buckets_of(durations_s: Floats) -> NDArray[np.int32]:
    """The bucket of each duration, none of which is NaN."""
    return _BUCKETS.of(np.maximum(durations_s, 0))


def total_ns(durations_s: Floats) -> int:
    """The sum of durations, each in whole nanoseconds: it does not depend on their order."""
    return int(np.rint(durations_s * 1e9).astype(np.int64).sum())
