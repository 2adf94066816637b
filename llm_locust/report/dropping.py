"""Removal of the oldest records of a run.

A segment of its batches goes once it is closed and old enough, in this order: the destination's copy is read
back and compared, what is left of the segment (batch numbers, totals) is written and synced, the segment is
removed. A crash between two steps leaves either the segment, or what is left of it, or both; and of both the
segment counts.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from msgspec import structs

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest
from llm_locust.report.totals import FrameTotals, batches_of, encode_totals, with_batches
from llm_locust.store import MANIFEST_FILE, REQUESTS_FILE, FrameRef, StoreError, read_manifest
from llm_locust.store.facts import holdings
from llm_locust.store.files import check_folder_name, size_text, sync
from llm_locust.store.frame_log import (
    SEGMENTS_DIR,
    Expired,
    ExpiredBatches,
    Segment,
    index_batches,
    segments_of,
    sole_user,
    write_expired,
)
from llm_locust.store.frames import axis_offsets_ns, index_frames, ranges_text, unique_frames
from llm_locust.store.upload import Destination, Stored, has_segment, open_destination

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
