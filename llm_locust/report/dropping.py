"""Records that go before their run ends: what has been counted of them, and the removal of the oldest."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import structs

from llm_locust.core.batch import BatchError, RecordBatch
from llm_locust.core.manifest import Manifest
from llm_locust.figures.run_facts import LatencySinceStart, SinceStart
from llm_locust.live.counting import count
from llm_locust.live.counts import CODES, METRICS, SCALARS, Counts, KeyLimit, LiveKey, merged
from llm_locust.live.state import LiveRun
from llm_locust.metrics.stats.sketch import SKETCH_ERROR, Sketch, Tally
from llm_locust.metrics.window import iso
from llm_locust.store import (
    MANIFEST_FILE,
    REQUESTS_FILE,
    FrameRef,
    StoreError,
    format_ranges,
    parse_ranges,
    read_manifest,
)
from llm_locust.store.facts import holdings
from llm_locust.store.files import check_folder_name, size_text, sync
from llm_locust.store.frame_log import (
    SEGMENTS_DIR,
    Expired,
    ExpiredBatches,
    Segment,
    end_of,
    index_batches,
    segments_of,
    sole_user,
    write_expired,
)
from llm_locust.store.frames import axis_offsets_ns, index_frames, ranges_text, unique_frames
from llm_locust.store.upload import Destination, Stored, has_segment, open_destination
from llm_locust.wire.payload import DECODE_ERRORS

# --- Totals of a run that goes on: counted once from each frame, in a state of bounded size
#
# The counts are integers that add up in any order, so that many short readings give exactly the figures of
# one reading of everything. Percentiles are of the same sketches as in the live view.


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
    seqs_of = {
        worker: {n for each in parse_ranges(text) for n in each} for worker, text in totals.seqs.items()
    }
    new = []
    for frame in frames:
        numbers = seqs_of.setdefault(frame.header.worker, set())
        if end_of(frame) > totals.read_bytes and frame.header.seq not in numbers:
            numbers.add(frame.header.seq)
            new.append(frame)
    return new, seqs_of


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


# --- Removal of the oldest records of a run
#
# A segment of its batches goes once it is closed and old enough, in this order: the copy at the destination
# is read back and compared, what is left of the segment (batch numbers, totals) is written and synced, the
# segment is removed. A crash between two steps leaves either the segment, or what is left of it, or both;
# and of both the segment counts.


#: Later than every valid time.
_LAST_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class DroppedRecords:
    """What was removed, and why no more was; that is empty where nothing else was due."""

    records: int = 0
    size_bytes: int = 0
    failure: str = ""

    def __str__(self) -> str:
        return f"{self.records} records ({size_text(self.size_bytes)}) dropped, which were uploaded"


def drop(
    run: Path, to: str, older_than_s: float, *, ended: bool, now_s: float | None = None
) -> DroppedRecords:
    """Drop the segments of a run directory that were last written to ``older_than_s`` ago or before.

    The first one that cannot be dropped keeps all later ones: what was dropped is the beginning of the run.

    Args:
        to: destination of the run's uploads.
        ended: its master is gone, so that the last segment is closed too. One whose manifest was written
            since then is not: its master may be alive.

    Raises:
        StoreError: it is not a run directory.
        UploadError: ``to`` is not a valid destination.
    """
    manifest = read_manifest(run)
    place = open_destination(to).folder(check_folder_name(manifest.id, "the run's id"))
    if (run / REQUESTS_FILE).exists():
        return DroppedRecords()
    before_s = (time.time() if now_s is None else now_s) - older_than_s
    segments = segments_of(run)
    is_closed = ended and (run / MANIFEST_FILE).stat().st_mtime <= before_s
    # A frame that was being written when the machine died is not uploaded: its segment stays.
    if segments and (not is_closed or index_frames(segments[-1].path).tears):
        segments = segments[:-1]
    done = DroppedRecords()
    for segment in segments:
        is_segment = segment.path.parent.name == SEGMENTS_DIR and segment.size
        if not is_segment or segment.path.stat().st_mtime > before_s:
            break
        try:
            records = _drop(run, segment, manifest, place)
        except (StoreError, OSError, pa.ArrowException) as e:
            return DroppedRecords(done.records, done.size_bytes, place.reason(e))
        if records is None:
            break
        done = DroppedRecords(done.records + records[0], done.size_bytes + records[1])
    return done


def _drop(run: Path, segment: Segment, manifest: Manifest, to: Destination) -> tuple[int, int] | None:
    """Drop one; return its records and bytes, or None if the run has ended meanwhile.

    Raises:
        StoreError: it is damaged, its copy is not like it, or the file system has no locks.
        OSError: something cannot be read or written.
    """
    stored = has_segment(run, segment, to)
    if stored is None:
        raise StoreError(f"{to.text!r} has no copy, or another one, of {segment.path.name}: it stays here")
    expired = rest_of(segment, manifest, stored, to.text)
    with sole_user(run) as is_sole:
        if not segment.path.exists() or (run / REQUESTS_FILE).exists():
            return None
        if not is_sole:
            raise StoreError(f"the file system of {str(run)!r} has no locks: nothing can be dropped there")
        write_expired(run, expired)
        segment.path.unlink()
        sync(segment.path.parent)
    return expired.rows, expired.size


def rest_of(segment: Segment, manifest: Manifest, stored: Stored, to: str) -> Expired:
    """What is left of a segment when it is dropped (raises StoreError or OSError if it is damaged)."""
    index = index_frames(segment.path)
    frames = unique_frames(index.frames)
    spans: list[tuple[int, int]] = []
    totals = with_batches(FrameTotals(run=manifest.id), _watched(batches_of(frames), spans), manifest)
    foreign = any(frame.header.run != manifest.id for frame in frames)
    if index.tears or not frames or len(spans) != len(frames) or foreign:
        raise StoreError(f"{str(segment.path)!r} is damaged: it stays")
    _check_clocks(segment, frames)
    held = {worker: each for worker, each in holdings(f.header for f in frames).items() if each.newest}
    seqs = {worker: ranges_text(each.seqs) for worker, each in held.items()}
    return Expired(
        run=manifest.id,
        base=segment.base,
        size=stored.size,
        sha256=stored.sha256,
        to=to,
        workers={
            worker: ExpiredBatches(each.rows, seqs[worker], each.newest)
            for worker, each in held.items()
            if each.newest is not None
        },
        first_ns=min(first_ns for first_ns, _ in spans),
        until_ns=max(until_ns for _, until_ns in spans),
        totals=encode_totals(structs.replace(totals, read_bytes=segment.base + stored.size, seqs=seqs)),
    )


def _watched(batches: Iterable[RecordBatch], spans: list[tuple[int, int]]) -> Iterator[RecordBatch]:
    """The batches; ``spans`` gets the first schedule and the last end of each."""
    for batch in batches:
        scheduled_ns, ended_ns = batch.ints("scheduled_ns"), batch.ints("ended_ns")
        spans.append((int(scheduled_ns.min(initial=_LAST_NS)), int(ended_ns.max(initial=0))))
        yield batch


def _check_clocks(segment: Segment, frames: Sequence[FrameRef]) -> None:
    """Check that no worker's times are moved by what is only in later segments (raises StoreError)."""
    measured = {f.header.worker for f in frames if f.header.clock_offset_ns is not None}
    if unknown := {f.header.worker for f in frames} - measured:
        run = segment.path.parent.parent
        later = index_batches(run, segment.base + segment.size).frames
        for worker in unknown:
            headers = sorted((f.header for f in later if f.header.worker == worker), key=lambda h: h.seq)
            if any(axis_offsets_ns(headers[:1] + [h for h in headers if h.clock_offset_ns is not None][:1])):
                raise StoreError(f"the clock of worker {worker} was measured after {segment.path.name}")
