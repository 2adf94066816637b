"""A worker's report of live counts as bytes: small numbers, which MessagePack encodes as single bytes."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from llm_locust.live.counts import CODES, MOST_KEYS, MOST_OF_REPORT, MOST_PAIRS, SCALARS, Counts, LiveKey
from llm_locust.metrics.stats.sketch import Tally

#: Most seconds in one report. A worker reports every 3 s, and folds what is older into one.
MOST_SLICES = 4096

#: Longer than any run, larger than any clock error.
_MOST_AGE_S = 10 * 366 * 86_400.0

#: A sum or a count.
Total = Annotated[int, Meta(ge=0, le=MOST_OF_REPORT)]


class ReportError(ValueError):
    """Bytes that are not a report of this version; the text says why."""


class PackedCounts(msgspec.Struct, array_like=True, frozen=True):
    """One key's :class:`~llm_locust.live.counts.Counts`; ``steps`` and ``counts`` are a packed tally."""

    key: LiveKey
    scalars: Annotated[list[Total], Meta(max_length=len(SCALARS))]
    steps: Annotated[list[Total], Meta(max_length=CODES)]
    counts: Annotated[list[Total], Meta(max_length=CODES)]

    @classmethod
    def of(cls, key: LiveKey, counts: Counts) -> "PackedCounts":
        return cls(key, np.minimum(counts.scalars, MOST_OF_REPORT).tolist(), *counts.tally.packed())

    def unpacked(self) -> Counts:
        """Inverse of :meth:`of` (raises ValueError or OverflowError if these are not valid counts)."""
        if len(self.scalars) != len(SCALARS):
            raise ValueError(f"{len(self.scalars)} sums instead of {len(SCALARS)}")
        scalars = np.array(self.scalars, dtype=np.int64)
        return Counts(scalars, Tally.unpacked(self.steps, self.counts, CODES))


class LiveSlice(msgspec.Struct, array_like=True, frozen=True):
    """Requests that ended within one second, whose middle was ``age_s`` before the report."""

    age_s: Annotated[float, Meta(ge=-_MOST_AGE_S, le=_MOST_AGE_S)]
    counts: Annotated[list[PackedCounts], Meta(max_length=MOST_KEYS + MOST_PAIRS + 1)]

    @classmethod
    def of(cls, age_s: float, counts: Mapping[LiveKey, Counts]) -> "LiveSlice":
        return cls(age_s, [PackedCounts.of(key, c) for key, c in counts.items()])


class LiveReport(msgspec.Struct, array_like=True, frozen=True):
    """Counts of one worker since its last report; a report that exceeds these bounds is invalid.

    ``epoch`` is the number of resets in this run, ``seq`` that of the report in its epoch, from 0.
    ``finished`` counts all requests of the epoch, so that a lost report is detected.
    """

    run: str
    epoch: Total
    seq: Total
    finished: Total
    slices: Annotated[list[LiveSlice], Meta(max_length=MOST_SLICES)]


def encode_report(report: LiveReport) -> bytes:
    return msgspec.msgpack.encode(report)


def decode_report(data: bytes) -> LiveReport:
    """Decode the result of :func:`encode_report`.

    Raises:
        ReportError: the bytes are not a report.
    """
    try:
        return msgspec.msgpack.decode(data, type=LiveReport)
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:
        raise ReportError(f"not a report of live counts: {e}") from e
