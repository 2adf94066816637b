"""Batches at the master: each is written once, without being read, then acknowledged."""

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gevent.event import Event

from llm_locust.core.manifest import Manifest
from llm_locust.host import reason_of
from llm_locust.store import (
    MANIFEST_FILE,
    WORKER_FILE,
    FrameLog,
    SegmentLog,
    Seqs,
    Spool,
    StoreError,
    frame_header,
    read_manifest,
)
from llm_locust.store.files import check_folder_name
from llm_locust.swarm.channel.messages import BatchMessage, CountsMessage, worker_facts
from llm_locust.swarm.process.event_loop import RateLimiter, off_the_hub, spawn_loop

logger = logging.getLogger(__name__)

#: Size limit of the queue in bytes. Beyond it batches are refused: their senders have them on disk.
QUEUE_BYTES = 64 << 20

#: Longest wait at the end for a disk that writes nothing. What is queued stays with its senders.
SETTLE_WITHIN_S = 60.0

#: Limits of one write: small, so that acknowledgements follow the disk's pace.
WRITE_BYTES = 8 << 20
WRITE_BATCHES = 64  # that many acknowledgements in a row hold the event loop for some 3 ms


@dataclass(slots=True)
class Inbox:
    """State of one worker: what is in the file, and its newest counts, even from a batch that is not."""

    seqs: Seqs = field(default_factory=Seqs)
    rows: int = 0
    resent: int = 0
    finished: int | None = None
    in_flight: int | None = None

    def note(self, finished: int | None, in_flight: int | None) -> None:
        """Keep counts that came with a batch; those with the most finished requests are the newest."""
        if finished is not None and finished >= (self.finished or 0):
            self.finished, self.in_flight = finished, in_flight


class _Batch(NamedTuple):
    worker: str
    seq: int
    rows: int
    frame: bytes


def batch_fault(worker: str, batch: BatchMessage) -> str:
    """Why a batch cannot be taken from its sender; empty if it can."""
    header = frame_header(batch.frame)
    if header is None:
        return f"batch {batch.seq} is not a whole frame"
    claimed = (batch.run, worker, batch.seq, batch.rows)
    if (header.run, header.worker, header.seq, header.rows) != claimed:
        return f"batch {batch.seq} does not match its own header"
    return ""


class Collector:
    """Appends frames to the run's frame log, which it owns.

    gevent's thread pool does the writing, so that a slow disk does not hold the hub. A batch is acknowledged
    after it was written. A batch that could not be written, or found the queue full, is forgotten: its sender
    keeps it and sends it again.

    Args:
        acknowledge: called with (worker, seq) when a batch is in the file, also if it was there before. It
            must not raise.
    """

    def __init__(
        self,
        log: FrameLog | SegmentLog,
        acknowledge: Callable[[str, int], None],
        queue_bytes: int = QUEUE_BYTES,
        settle_within_s: float = SETTLE_WITHIN_S,
    ) -> None:
        self.inboxes: dict[str, Inbox] = defaultdict(Inbox)
        self._acknowledge = acknowledge
        self._log = log
        self._queue_bytes = queue_bytes
        self._settle_within_s = settle_within_s
        self._queue: deque[_Batch] = deque()
        self._waiting: set[tuple[str, int]] = set()  # in the queue or being written
        self._waiting_bytes = 0
        self._full_limit = RateLimiter()
        self._failed_limit = RateLimiter()
        self._work = Event()
        self._idle = Event()
        self._idle.set()
        self._closed = False
        self._writer = spawn_loop(self._write_loop, "the writer of batches")

    def accept(
        self,
        worker: str,
        seq: int,
        rows: int,
        frame: bytes,
        finished: int | None = None,
        in_flight: int | None = None,
    ) -> None:
        """Queue a batch; it is written and acknowledged soon. After :meth:`close` it is refused.

        Args:
            finished: requests that the worker had finished when it closed the batch.
            in_flight: requests that it had in flight then.
        """
        inbox = self.inboxes[worker]
        inbox.note(finished, in_flight)
        if seq in inbox.seqs:
            inbox.resent += 1
            self._acknowledge(worker, seq)
        elif (worker, seq) in self._waiting:
            inbox.resent += 1
        elif self._closed:
            logger.error(
                "batch %d of worker %s (%d records) arrived too late: it is not in the run", seq, worker, rows
            )
        elif self._waiting and self._waiting_bytes + len(frame) > self._queue_bytes:
            if self._full_limit.ready():
                logger.warning(
                    "%s: the disk is slower than the batches arrive; workers keep theirs and send them again",
                    self._log.path,
                )
        else:
            self._queue.append(_Batch(worker, seq, rows, frame))
            self._waiting.add((worker, seq))
            self._waiting_bytes += len(frame)
            self._idle.clear()
            self._work.set()

    def settle(self) -> bool:
        """Wait until all queued batches are written or have failed; return False on timeout."""
        return bool(self._idle.wait(self._settle_within_s))

    def close(self) -> None:
        """Write what is queued and close the file.

        Raises:
            OSError: the bytes of a failed write could not be cut off, the file could not be closed, or the
                disk writes nothing.
        """
        if self._closed:
            return
        self._closed = True
        if not self.settle():
            raise OSError(f"the disk has written nothing for {self._settle_within_s:g} s")
        self._writer.kill()
        self._log.close()

    def _write_loop(self) -> None:
        while True:
            while self._queue:
                self._write(self._next_batches())
            self._idle.set()
            self._work.wait()
            self._work.clear()

    def _next_batches(self) -> list[_Batch]:
        batches = [self._queue.popleft()]
        size = len(batches[0].frame)
        while self._queue and len(batches) < WRITE_BATCHES:
            size += len(self._queue[0].frame)
            if size > WRITE_BYTES:
                break
            batches.append(self._queue.popleft())
        return batches

    def _write(self, batches: list[_Batch]) -> None:
        try:
            off_the_hub(self._log.append, *(batch.frame for batch in batches))
        except Exception as e:  # from the disk, or invalid bytes, which must not block the rest
            if self._failed_limit.ready():
                logger.error(
                    "%s: a write failed, its batches will be sent again: %s", self._log.path, reason_of(e)
                )
            self._leave_queue(batches)
            return
        for batch in batches:
            inbox = self.inboxes[batch.worker]
            inbox.seqs.add(batch.seq)
            inbox.rows += batch.rows
        self._leave_queue(batches)
        # Only now: an acknowledgement may switch to a greenlet that delivers one of these batches again.
        for batch in batches:
            self._acknowledge(batch.worker, batch.seq)

    def _leave_queue(self, batches: list[_Batch]) -> None:
        self._waiting.difference_update((batch.worker, batch.seq) for batch in batches)
        self._waiting_bytes -= sum(len(batch.frame) for batch in batches)


# --- Records of an earlier part that its workers still hold when the master is there again


#: Folder of an earlier part with what came after its master's death: frames, and workers' final facts.
LATE_DIR = "late"


@dataclass(slots=True)
class _Part:
    path: Path
    manifest: Manifest
    collector: Collector | None = None


class EarlierParts:
    """Takes batches and final counts of parts whose master died, from the workers that those parts list.

    They are written next to the part's own files, where a merge, and the report of all parts, finds them.

    Args:
        acknowledge: called with (run, worker, seq) when a batch is on disk.
    """

    def __init__(self, parts: Sequence[Path], acknowledge: Callable[[str, str, int], None]) -> None:
        self._acknowledge = acknowledge
        self._parts: dict[str, _Part] = {}
        for path in parts:
            try:
                manifest = read_manifest(path)
            except StoreError as e:
                logger.warning("what is still held of an earlier part is not taken: %s", e)
                continue
            if manifest.ended_ns is None:
                self._parts[manifest.id] = _Part(path, manifest)

    @property
    def takes(self) -> list[str]:
        """Ids of the runs of these parts."""
        return list(self._parts)

    def knows(self, worker: str) -> bool:
        """Whether a worker took part in one of them."""
        return any(w.id == worker for part in self._parts.values() for w in part.manifest.workers)

    def accept(self, worker: str, batch: BatchMessage) -> bool:
        """Write a batch of an earlier part, then acknowledge it; return whether it belongs to one."""
        part = self._parts.get(batch.run)
        if part is None or not any(w.id == worker for w in part.manifest.workers):
            return False
        if part.collector is None:
            part.collector = self._collector(part)
        if part.collector is not None:
            part.collector.accept(worker, batch.seq, batch.rows, batch.frame)
        return True

    def done(self, worker: str, counts: CountsMessage) -> None:
        """Write a worker's final facts, so that it does not count as lost."""
        part = self._parts.get(counts.run)
        member = None if part is None else next((w for w in part.manifest.workers if w.id == worker), None)
        if part is None or member is None:
            return
        if part.collector is not None:
            part.collector.settle()
        try:
            place = part.path / LATE_DIR
            spool = Spool(place / check_folder_name(worker, "a worker's id"), place)
            off_the_hub(spool.write_facts, MANIFEST_FILE, part.manifest)
            off_the_hub(spool.write_facts, WORKER_FILE, worker_facts(worker, member.index, counts))
            logger.info("worker %s has delivered what it held of %s", worker, part.path.name)
        except (OSError, ValueError) as e:
            logger.error("the final counts of worker %s in %s are not kept: %s", worker, part.path.name, e)

    def close(self) -> None:
        """Close their files."""
        for part in self._parts.values():
            if part.collector is not None:
                try:
                    part.collector.close()
                except OSError as e:
                    logger.error("late records of %s: %s", part.path.name, e)

    def _collector(self, part: _Part) -> Collector | None:
        folder = part.path / LATE_DIR
        try:
            folder.mkdir(exist_ok=True)
            log = FrameLog(folder / f"{time.time_ns():020d}.frames")
        except OSError as e:  # they stay with the worker
            logger.error("late records of %s cannot be written: %s", part.path.name, e)
            return None
        run = part.manifest.id
        return Collector(log, lambda worker, seq: self._acknowledge(run, worker, seq))
