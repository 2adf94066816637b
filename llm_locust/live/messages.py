"""A worker's report as bytes: small numbers, which MessagePack makes single bytes."""

from collections.abc import Mapping

import msgspec
import numpy as np

from llm_locust.live.counts import CODES, SCALARS, Counts
from llm_locust.live.keys import Key
from llm_locust.metrics.sketch import Tally


class ReportError(ValueError):
    """Bytes that are no report of this version; the text says why."""


class PackedCounts(msgspec.Struct, array_like=True, frozen=True):
    """One key's :class:`~llm_locust.live.counts.Counts`; ``steps`` and ``counts`` are a packed tally."""

    key: Key
    scalars: list[int]
    steps: list[int]
    counts: list[int]

    @classmethod
    def of(cls, key: Key, counts: Counts) -> "PackedCounts":
        return cls(key, counts.scalars.tolist(), *counts.tally.packed())

    def unpacked(self) -> Counts:
        """The inverse of :meth:`of` (raises ValueError or OverflowError where these are no counts)."""
        if len(self.scalars) != len(SCALARS):
            raise ValueError(f"{len(self.scalars)} sums instead of {len(SCALARS)}")
        scalars = np.array(self.scalars, dtype=np.int64)
        return Counts(scalars, Tally.unpacked(self.steps, self.counts, CODES))


class Slice(msgspec.Struct, array_like=True, frozen=True):
    """Requests that ended within one second, whose middle was ``age_s`` before the report."""

    age_s: float
    counts: list[PackedCounts]

    @classmethod
    def of(cls, age_s: float, counts: Mapping[Key, Counts]) -> "Slice":
        return cls(age_s, [PackedCounts.of(key, c) for key, c in counts.items()])


class LiveReport(msgspec.Struct, array_like=True, frozen=True):
    """What one worker counted since its last report.

    ``epoch`` is the number of resets in this run, ``seq`` that of the report in its epoch, from 0.
    ``finished`` counts all requests of the epoch, so that a report that was lost is noticed.
    """

    run: str
    epoch: int
    seq: int
    finished: int
    slices: list[Slice]


def encode_report(report: LiveReport) -> bytes:
    return msgspec.msgpack.encode(report)


def decode_report(data: bytes) -> LiveReport:
    """The inverse of :func:`encode_report`.

    Raises:
        ReportError: the bytes are none.
    """
    try:
        return msgspec.msgpack.decode(data, type=LiveReport)
    except (msgspec.MsgspecError, ValueError) as e:
        raise ReportError(f"not a report of live counts: {e}") from e
