"""Totals of a run that goes on: counted once from each frame, in a state of bounded size.

The counts are integers that add up in any order, so that many short readings give exactly the figures of one
reading of everything. Percentiles are of the same sketches as in the live view.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from llm_locust.core.batch import BatchError, RecordBatch
from llm_locust.core.manifest import Manifest, StageFacts, WorkerFacts
from llm_locust.core.stages import staged
from llm_locust.core.texts import quantity
from llm_locust.figures.since_start import LatencySinceStart, SinceStart
from llm_locust.figures.text import moment
from llm_locust.live.counts import CODES, METRICS, SCALARS, Counts, KeyLimit, LiveKey
from llm_locust.live.messages import count
from llm_locust.live.state import LiveRun
from llm_locust.metrics.stats.censoring import ordered, percentile
from llm_locust.metrics.stats.sketch import SKETCH_ERROR, Sketch, Tally
from llm_locust.metrics.window import iso
from llm_locust.report.inputs import Run, Source, open_source
from llm_locust.store import (
    FRAMES_FILE,
    REQUESTS_FILE,
    FrameRef,
    StoredRequests,
    StoreError,
    format_ranges,
    open_requests,
    parse_ranges,
    read_manifest,
    unique_frames,
    write_requests,
)
from llm_locust.store.facts import Holding, added, bad_text, holdings
from llm_locust.store.frame_log import (
    Expired,
    dropped_facts,
    dropped_meanwhile,
    end_of,
    holdings_of,
    index_batches,
    read_expired,
    segments_of,
)
from llm_locust.store.frames import BadFrame, axis_offsets_ns, placed_batches, ranges_text, without
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
        for key, more in count(batch, limit, run).items():
            by_key[key] = Counts.merge([by_key[key], more]) if key in by_key else more
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
    by_key = {each.key: each.unpacked() for each in one.keys}
    for each in other.keys:
        more = each.unpacked()
        by_key[each.key] = Counts.merge([by_key[each.key], more]) if each.key in by_key else more
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


# --------------------
# ``llm-locust report RUN --so-far``: a report of a run that still goes on.
#
# Files of frames are only ever appended to, so they can be read while they grow. What is judged ends early
# enough that the requests before it have ended, all but the slowest thousandth: the ones still under way
# have no record, and a window up to now would have too few of the slow ones.
# --------------------


#: Where the rolling summaries of a run are, in its directory.
SO_FAR_DIR = "so-far"

#: Such a share of the requests (in per cent) takes no longer than the time that is left out at the end.
_ENDED_PERCENT = 99.9

#: A worker that was heard so much longer ago than another one is lost, as far as is known now.
_SILENT_NS = 20_000_000_000


@contextmanager
def open_so_far(run: Path) -> Iterator[Source]:
    """The requests of a run directory as far as they have come, while the context lasts.

    A run that has ended is itself. Nothing is written into the directory.

    Raises:
        StoreError: no run, or one of which no request has ended long enough ago.
        BatchError, OSError: what is there cannot be read.
    """
    if (run / REQUESTS_FILE).exists():
        with open_source([run]) as source:
            yield source
        return
    manifest = read_manifest(run)
    expired = read_expired(run)
    manifest = replace(manifest, dropped=dropped_facts(expired))
    with _received(run, manifest) as (requests, held, bad):
        held = added(held, holdings_of(expired))
        until_ns = until_ns_of(requests, manifest)
        torn = [bad_text(each, each.frame.path.relative_to(run).as_posix()) for each in bad]
        of_now = replace(as_of_now(manifest, held, until_ns), torn=torn)
        unreadable = tuple(each.why for each in bad)
        of_run = Run(of_now, requests, run, tuple(expired))
        yield Source((of_run,), of_now, requests, merged=True, unreadable=unreadable)


@contextmanager
def open_stages(run: Path, stages: list[StageFacts]) -> Iterator[tuple[Manifest, StoredRequests]]:
    """Manifest and requests of a run that goes on, or of its earlier part, while the context lasts.

    Args:
        stages: those of the run until now; its manifest may have older facts of them.

    Raises:
        StoreError: no run, or one of which no request has been recorded.
        BatchError, OSError: what is there cannot be read.
    """
    manifest = replace(read_manifest(run), stages=stages)
    if (run / REQUESTS_FILE).exists():  # an earlier part of a search, which was ended in order
        yield manifest, open_requests(run)
        return
    with _received(run, manifest) as (requests, held, _):
        until_ns = max(stage.drained_ns or stage.ended_ns or stage.begun_ns for stage in stages)
        yield as_of_now(manifest, held, until_ns), requests


@contextmanager
def _received(
    run: Path, manifest: Manifest
) -> Iterator[tuple[StoredRequests, Mapping[str, Holding], list[BadFrame]]]:
    """The requests of a run as far as they have come, what each worker sent, and the frames that cannot be
    read."""
    check_goes_on(run)
    with TemporaryDirectory(prefix=".so-far-", dir=_room(run)) as place:
        frames = unique_frames(index_batches(run).frames)
        bad: list[BadFrame] = []
        batches = (batch for _, batch in placed_batches(frames, bad))
        try:
            rows = write_requests(Path(place) / REQUESTS_FILE, staged(batches, manifest))
        except FileNotFoundError as e:
            raise dropped_meanwhile(run) from e
        if not rows:
            raise StoreError(f"of {str(run)!r} no request has been recorded yet: ask again in a few seconds")
        held = holdings(frame.header for frame in without(frames, bad))
        yield open_requests(Path(place)), held, bad


def _room(run: Path) -> Path | None:
    """A directory on the volume of the run, where this user may write; None for the system's."""
    return run.parent if os.access(run.parent, os.W_OK) else None


def check_goes_on(run: Path) -> None:
    """Check that a run has files of frames (raises StoreError)."""
    if not segments_of(run):
        raise StoreError(
            f"{str(run)!r} holds neither {FRAMES_FILE} nor {REQUESTS_FILE}: is it a run directory?"
        )


def until_ns_of(requests: StoredRequests, manifest: Manifest) -> int:
    """The end of what can be judged, on the run's axis."""
    parts = list(requests.parts(["scheduled_ns", "ended_ns"]))
    scheduled_ns = np.concatenate([part.ints("scheduled_ns") for part in parts])
    ended_ns = np.concatenate([part.ints("ended_ns") for part in parts])
    took_s = percentile(ordered((ended_ns - scheduled_ns) * 1e-9), _ENDED_PERCENT)
    until_ns = int(ended_ns.max()) - round(took_s * 1e9)
    if until_ns <= max(int(scheduled_ns.min()) + round(manifest.warmup_s * 1e9), manifest.kept_from_ns or 0):
        raise StoreError(
            f"{manifest.name!r} has not run long enough: its requests take up to {quantity(took_s)} s, and "
            "only what was asked for that long before the last end, and after the warm-up, can be judged"
        )
    return until_ns


def as_of_now(manifest: Manifest, held: Mapping[str, Holding], until_ns: int) -> Manifest:
    """The manifest of a run that goes on: what has not come yet is not lost, but for silent workers'."""
    newest_ns = max((worker.heard_ns or 0 for worker in manifest.workers), default=0)
    known = {worker.id: worker for worker in manifest.workers}
    for worker in sorted(held.keys() - known.keys()):
        known[worker] = WorkerFacts(
            id=worker, index=len(known), announced=None, received=0, heard_ns=newest_ns
        )
    return replace(
        manifest,
        name=f"{manifest.name}, so far: until {moment(iso(until_ns))}",
        stopped_ns=until_ns,
        ended_ns=None,
        workers=[_worker(w, held.get(w.id, Holding()), newest_ns - _SILENT_NS) for w in known.values()],
    )


def _worker(facts: WorkerFacts, held: Holding, silent_before_ns: int) -> WorkerFacts:
    batches = sum(map(len, held.seqs))
    if not facts.left and (facts.heard_ns or 0) < silent_before_ns:
        return replace(facts, received=held.rows, batches=batches)
    return replace(facts, announced=held.rows, received=held.rows, batches=batches, in_flight=0, lost=False)
