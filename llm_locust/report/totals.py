"""Totals of a run that goes on: counted once from each frame, in a state of bounded size.

The counts are integers that add up in any order, so that many short readings give exactly the figures of one
reading of everything. Percentiles are of the same sketches as in the live view.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import pairwise

import msgspec
import numpy as np

from llm_locust.core.batch import BatchError, RecordBatch
from llm_locust.core.manifest import Manifest
from llm_locust.figures.since_start import LatencySinceStart, SinceStart
from llm_locust.live.counts import CODES, METRICS, SCALARS, Counts, KeyLimit, LiveKey, merged
from llm_locust.live.messages import count
from llm_locust.live.state import LiveRun
from llm_locust.metrics.stats.sketch import SKETCH_ERROR, Sketch, Tally
from llm_locust.metrics.window import iso
from llm_locust.store import (
    FrameRef,
    StoreError,
    format_ranges,
    parse_ranges,
)
from llm_locust.store.frame_log import (
    Expired,
    end_of,
)
from llm_locust.store.frames import axis_offsets_ns, ranges_text
from llm_locust.wire.payload import DECODE_ERRORS

STATE_SCHEMA = 1


class KeyTotals(msgspec.Struct, array_like=True, frozen=True):
    """Counts of one key: sums, and a packed tally of the latencies."""

    key: LiveKey
    scalars: list[int]
    steps: list[int]
    counts: list[int]

    @classmethod
    def of(cls, key: LiveKey, counts: Counts) -> "KeyTotals":
        return cls(key, counts.scalars.tolist(), *counts.tally.packed())

    def unpacked(self) -> Counts:
        """Inverse of :meth:`of` (raises ValueError or OverflowError if these are not valid counts)."""
        if len(self.scalars) != len(SCALARS):
            raise ValueError(f"{len(self.scalars)} sums instead of {len(SCALARS)}")
        return Counts(np.array(self.scalars, np.int64), Tally.unpacked(self.steps, self.counts, CODES))


class FrameTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of the frames before a place among all frames of a run.

    Attributes:
        read_bytes: end of the last frame that is counted.
        seqs: numbers of the counted batches as ranges, by worker.
        first_ns, last_ns: first schedule and last end of the counted requests.
        span_bytes: place from which frames may have requests that reach into the next span.
        span_ns: beginning of the next span; None at the start.
    """

    run: str
    schema: int = STATE_SCHEMA
    read_bytes: int = 0
    seqs: dict[str, str] = {}
    keys: list[KeyTotals] = []
    first_ns: int | None = None
    last_ns: int | None = None
    span_bytes: int = 0
    span_ns: int | None = None

    def since_start(self, *, judged: bool) -> SinceStart | None:
        """Figures of all counted requests; None without one.

        Args:
            judged: whether there is an SLO.
        """
        if self.first_ns is None or self.last_ns is None:
            return None
        total = Counts.merge(each.unpacked() for each in self.keys)
        tried = total["good_or_bad"]
        return SinceStart(
            start=iso(self.first_ns),
            until=iso(self.last_ns),
            requests=total.ended,
            ok=total.ok,
            failed=total.failed,
            cancelled=total.cancelled,
            error_rate=total.failed / total.judged if total.judged else None,
            goodput_ratio=total["good"] / tried if judged and tried else None,
            input_tokens=total["input_tokens"],
            output_tokens=total["output_tokens"],
            latency_ms={metric: _latency(total.sketch(metric)) for metric in METRICS},
            relative_error=SKETCH_ERROR,
        )


def decode_totals(content: bytes, run: str) -> FrameTotals:
    """The totals in a file; new ones if it is not of this run or version, or is damaged."""
    try:
        found = msgspec.msgpack.decode(content, type=FrameTotals)
        for each in found.keys:
            each.unpacked()
    except (*DECODE_ERRORS, ValueError, OverflowError):
        return FrameTotals(run=run)
    return found if (found.run, found.schema) == (run, STATE_SCHEMA) else FrameTotals(run=run)


def encode_totals(totals: FrameTotals) -> bytes:
    return msgspec.msgpack.encode(totals)


def counted(totals: FrameTotals, frames: Sequence[FrameRef], manifest: Manifest) -> FrameTotals:
    """The totals with the frames that they do not have yet; those without a valid batch are left out.

    Args:
        frames: complete ones of the run, in their order, at least from ``totals.read_bytes`` on.
    """
    new, seqs = _new(totals, frames)
    return msgspec.structs.replace(
        with_batches(totals, batches_of(new), manifest),
        read_bytes=max(map(end_of, frames), default=totals.read_bytes),
        seqs={worker: format_ranges(numbers) for worker, numbers in seqs.items()},
    )


def with_batches(totals: FrameTotals, batches: Iterable[RecordBatch], manifest: Manifest) -> FrameTotals:
    """The totals with more requests, those of the warm-up left out."""
    by_key = {each.key: each.unpacked() for each in totals.keys}
    limit, run = KeyLimit.of(by_key), LiveRun.of(manifest)
    from_ns = manifest.started_ns + round(manifest.warmup_s * 1e9)
    first_ns, last_ns = totals.first_ns, totals.last_ns
    for each in batches:
        batch = since(each, from_ns)
        if not len(batch):
            continue
        by_key = merged(by_key, count(batch, limit, run))
        begun_ns, ended_ns = int(batch.ints("scheduled_ns").min()), int(batch.ints("ended_ns").max())
        first_ns = begun_ns if first_ns is None else min(first_ns, begun_ns)
        last_ns = ended_ns if last_ns is None else max(last_ns, ended_ns)
    return msgspec.structs.replace(
        totals,
        keys=[KeyTotals.of(key, each) for key, each in by_key.items()],
        first_ns=first_ns,
        last_ns=last_ns,
    )


def span_after(totals: FrameTotals, frames: Sequence[FrameRef], until_ns: int) -> FrameTotals:
    """The totals with the place and the beginning of the span that begins at ``until_ns``.

    Args:
        frames: those from ``totals.span_bytes`` on, in their order.
    """
    edges = [totals.span_bytes, *map(end_of, frames)]
    for frame, (begin, _) in zip(frames, pairwise(edges), strict=True):
        try:
            ended_ns = frame.batch().ints("ended_ns")
        except BatchError:
            continue
        # A clock's offset is small beside the margin of a second.
        last_ns = int(ended_ns.max(initial=0)) + (frame.header.clock_offset_ns or 0)
        if last_ns >= until_ns - 1_000_000_000:
            return msgspec.structs.replace(totals, span_bytes=begin, span_ns=until_ns)
    return msgspec.structs.replace(totals, span_bytes=edges[-1], span_ns=until_ns)


def dropped_totals(run: str, expired: Sequence[Expired]) -> FrameTotals:
    """The totals of what a run has dropped; the next span begins where it ends.

    Raises:
        StoreError: they are not of this version.
    """
    total = FrameTotals(run=run)
    for each in expired:
        found = decode_totals(each.totals, run)
        if found.read_bytes != each.end:
            raise StoreError(f"the totals of what was dropped, from byte {each.base} on, cannot be read")
        total = _sum(total, found)
    until_ns = max((each.until_ns + 1 for each in expired), default=None)
    return msgspec.structs.replace(total, span_bytes=total.read_bytes, span_ns=until_ns)


def sum_of(some: Iterable[FrameTotals]) -> FrameTotals:
    """The totals of several runs together."""
    return reduce(_sum, some)


def _sum(one: FrameTotals, other: FrameTotals) -> FrameTotals:
    """The totals of two without a common batch; ``other`` is the later one."""
    by_key = merged(*({each.key: each.unpacked() for each in some.keys} for some in (one, other)))
    firsts, lasts = (
        [ns for ns in edges if ns is not None]
        for edges in ((one.first_ns, other.first_ns), (one.last_ns, other.last_ns))
    )
    return msgspec.structs.replace(
        one,
        read_bytes=other.read_bytes,
        seqs={
            worker: ranges_text(parse_ranges(f"{one.seqs.get(worker, '')} {other.seqs.get(worker, '')}"))
            for worker in one.seqs | other.seqs
        },
        keys=[KeyTotals.of(key, each) for key, each in by_key.items()],
        first_ns=min(firsts, default=None),
        last_ns=max(lasts, default=None),
    )


def since(batch: RecordBatch, from_ns: int | None) -> RecordBatch:
    """Requests of a batch that were scheduled at ``from_ns`` or later."""
    return batch if from_ns is None else batch.filter(batch.ints("scheduled_ns") >= from_ns)


def _new(totals: FrameTotals, frames: Iterable[FrameRef]) -> tuple[list[FrameRef], dict[str, set[int]]]:
    """Frames that are not counted yet, each batch once; and the numbers of all counted ones."""
    known = {worker: {n for each in parse_ranges(text) for n in each} for worker, text in totals.seqs.items()}
    new = []
    for frame in frames:
        numbers = known.setdefault(frame.header.worker, set())
        if end_of(frame) > totals.read_bytes and frame.header.seq not in numbers:
            numbers.add(frame.header.seq)
            new.append(frame)
    return new, known


def batches_of(frames: Sequence[FrameRef]) -> Iterator[RecordBatch]:
    """The batch of each frame on the run's axis, in the order given; one that is not valid is left out."""
    ordered = sorted(frames, key=lambda frame: (frame.header.worker, frame.header.seq))
    offsets_ns = axis_offsets_ns([frame.header for frame in ordered])
    of = {id(frame): offset_ns for frame, offset_ns in zip(ordered, offsets_ns, strict=True)}
    for frame in frames:
        try:
            yield frame.batch().shifted(of[id(frame)])
        except BatchError:  # the run's end lists it
            continue


def _latency(sketch: Sketch) -> LatencySinceStart:
    n = len(sketch)
    p50, p90, p99 = (sketch.percentile(p) * 1e3 if n else None for p in (50.0, 90.0, 99.0))
    return LatencySinceStart(samples=n, mean=sketch.sum_s * 1e3 / n if n else None, p50=p50, p90=p90, p99=p99)
