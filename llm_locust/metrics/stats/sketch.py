"""Durations counted in few buckets, whose width grows with them: small enough to be sent while they come.

There are 64 :mod:`~llm_locust.metrics.stats.buckets` between each power of two seconds and the next. Only
those that hold something are kept. Counts and the sum are exact integers, so that sketches of parts add up
to that of the whole, whatever the parts and their order. :mod:`llm_locust.metrics.stats.histogram` has bins
16 times as narrow, for what stays in a process.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llm_locust.metrics.columns import Floats
from llm_locust.metrics.stats.buckets import Buckets
from llm_locust.metrics.stats.percentiles import interpolated, percentile

#: From 0.93 ns up to 12 days. Bucket 0 is for what is shorter, and is told as 0.
_BUCKETS: Final = Buckets(6, -30, 20, below=True)

BUCKETS: Final = len(_BUCKETS)

#: Of any percentile against the exact one of the same samples, for samples from 1 ns to 12 days: half a
#: bucket's width against its middle, 1 / 129, and the rounding to a float32.
RELATIVE_ERROR: Final = 0.008

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

    As :class:`~llm_locust.metrics.stats.percentiles.Ascending`, its samples are in seconds.
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
        """numpy's ``linear`` percentile in seconds, to :data:`RELATIVE_ERROR`; NaN without samples."""
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
        """How many samples are at or below each limit; a limit is met to :data:`RELATIVE_ERROR`."""
        places = np.searchsorted(_MIDDLES_S[self.buckets], limits_s, side="right")
        counts: list[int] = np.concatenate([np.zeros(1, np.int64), self.ends])[places].tolist()
        return counts


def buckets_of(durations_s: Floats) -> NDArray[np.int32]:
    """The bucket of each duration, none of which is NaN."""
    return _BUCKETS.of(np.maximum(durations_s, 0))


def total_ns(durations_s: Floats) -> int:
    """The sum of durations, each in whole nanoseconds: it does not depend on their order."""
    return int(np.rint(durations_s * 1e9).astype(np.int64).sum())
