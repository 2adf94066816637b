"""A worker's batches without acknowledgement: recorded, numbered, kept on disk if possible."""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import WorkerFacts
from llm_locust.core.record import RequestRecord, moved
from llm_locust.host import reason_of
from llm_locust.options.option import OWN_SPOOL
from llm_locust.store import MANIFEST_FILE, WORKER_FILE, FrameHeader, Spool, encode_frame
from llm_locust.store.facts import SPOOL_DIR
from llm_locust.store.files import check_folder_name
from llm_locust.swarm.channel.messages import RunInfo
from llm_locust.swarm.process.event_loop import RateLimiter, off_the_hub

# --- Location of a worker's batches that the master does not have yet


logger = logging.getLogger(__name__)


def own_spool(options: Any, worker: str, run: RunInfo) -> Spool | None:
    """Return the spool of one worker in one run; None if batches are kept in memory."""
    # The master's options replace this process's options, but not its disk.
    chosen = getattr(options, OWN_SPOOL, None) or getattr(options, "spool", None)
    if chosen == "off":
        return None
    root = Path(chosen) if chosen else Path(run["path"]).parent
    try:
        name = check_folder_name(worker, "this worker's id")
        of_run = check_folder_name(run["id"], "the run's id")
        folder = root / of_run if chosen else Path(run["path"]) / SPOOL_DIR
        return Spool(folder / name, root)
    except ValueError as e:
        logger.error("batches are kept in memory, not in a spool: %s", e)
        return None


# --- One run's batches without acknowledgement: on disk if possible, else in memory


@dataclass(slots=True, eq=False)
class UnackedBatch:
    """A batch without acknowledgement. ``frame`` is None while its bytes are only on disk."""

    header: FrameHeader
    size: int
    frame: bytes | None
    tried: bool = False  # a write to disk was attempted
    stored: bool = False  # the write succeeded
    done: bool = False  # acknowledged or lost: nothing waits for it any more
    sent_at_s: float = 0.0  # time of the last send

    @property
    def key(self) -> tuple[str, int]:
        return self.header.run, self.header.seq


class UnackedBatches:
    """Keeps batches until they are acknowledged. Disk work is done off the hub.

    Methods whose docstring says "in a thread" must not be called by two greenlets at once; the others may be
    called at any time.

    Args:
        spool: where batches are written; None keeps them in memory.
        manifest: the run's facts as JSON, written next to the first batch; empty for none.
        log_limit: of warnings about the disk.
        memory_mib: the memory limit, for warnings.
    """

    def __init__(
        self, run: str, spool: Spool | None, manifest: str, log_limit: RateLimiter, memory_mib: int
    ) -> None:
        self.run = run
        self.batches: dict[int, UnackedBatch] = {}
        self.over = False  # the master no longer accepts batches of this run
        self.dropped = 0  # records that did not fit
        self.memory_bytes = 0
        self.spooled_bytes = 0
        self._spool = spool
        self._manifest = manifest
        self._log_limit = log_limit
        self._memory_mib = memory_mib
        self._to_store: deque[UnackedBatch] = deque()
        self._refused: dict[int, UnackedBatch] = {}  # batches that the disk did not take
        self._said_refused = False
        self._to_remove: list[int] = []  # acknowledged, still on disk

    def add(self, header: FrameHeader, frame: bytes) -> UnackedBatch:
        """Keep a batch; it is in memory until :meth:`store_next` has written it."""
        batch = UnackedBatch(header, len(frame), frame)
        self.batches[header.seq] = batch
        self.memory_bytes += batch.size
        self._to_store.append(batch)
        return batch

    def ask_disk(self) -> None:
        """Let :meth:`store_next` try the disk again without a new batch."""
        if self._refused and not self._to_store:
            self._to_store.append(self._refused.pop(next(iter(self._refused))))

    def forget(self, seq: int) -> None:
        """Forget a batch that the master has, or that is lost."""
        batch = self.batches.pop(seq, None)
        if batch is None:
            return
        batch.done = True
        self._refused.pop(seq, None)
        self._release(batch)
        if batch.stored:
            self.spooled_bytes -= batch.size
            self._to_remove.append(seq)

    def unload(self, batch: UnackedBatch) -> None:
        """Free the memory of a batch that is on disk."""
        if batch.stored:
            self._release(batch)

    def store_next(self) -> UnackedBatch | None:
        """Write, in a thread, the next batch that was not tried on disk yet, or may be tried again.

        Returns the batch, whether or not it could be written; None if there is none.
        """
        while self._to_store:
            batch = self._to_store.popleft()
            if not batch.done:
                batch.tried = True
                if self._spool is not None:
                    self._store(self._spool, batch)
                return batch
        return None

    def load(self, batch: UnackedBatch) -> bytes | None:
        """Return the batch's bytes, read in a thread if they are not in memory.

        None if they are no longer needed, or are gone because the file was removed or cut. The batch is
        dropped then: the master must not mix it with complete ones.

        Raises:
            OSError: they cannot be read now.
        """
        if batch.done or batch.frame is not None:
            return batch.frame
        assert self._spool is not None
        header = batch.header
        try:
            frame = off_the_hub(self._spool.read, header.seq)
        except FileNotFoundError:
            frame = b""
        if len(frame) == batch.size:
            return frame
        if not batch.done:
            place = self._spool.folder
            logger.error("batch %d (%d records) is gone from %s: it is lost", header.seq, header.rows, place)
            self.dropped += header.rows
            self.forget(header.seq)
        return None

    def remove_acknowledged(self) -> None:
        """Remove from disk, in a thread, what is no longer needed."""
        if self._spool is None or not self._to_remove:
            return
        seqs, self._to_remove = self._to_remove, []
        self._to_remove += off_the_hub(_remove, self._spool, seqs)

    def foretell(self, facts: WorkerFacts) -> None:
        """Write the worker's final facts, in a thread, before the last acknowledgements: a process that is
        killed while it waits for them can write nothing more. A failure of the disk was logged before."""
        if self._spool is not None and self.batches:
            with suppress(OSError):
                off_the_hub(self._spool.write_facts, WORKER_FILE, replace(facts, dropped=self.dropped))

    def close(self, facts: WorkerFacts | None) -> int:
        """End the run: leave on disk, in a thread, only what is not acknowledged.

        Args:
            facts: the worker's final facts, written next to what stays, with the count of what was dropped.

        Returns:
            The number of records that are not acknowledged.
        """
        self._to_store.extend(self._refused.values())
        self._refused.clear()
        while self.store_next() is not None:
            pass
        self.remove_acknowledged()
        self._say_left()
        self.dropped += sum(b.header.rows for b in self.batches.values() if not b.stored)
        if self._spool is not None and (self.spooled_bytes or not off_the_hub(self._spool.close)):
            self._leave(self._spool, facts)
        for batch in self.batches.values():
            self._release(batch)
        return sum(b.header.rows for b in self.batches.values())

    def _store(self, spool: Spool, batch: UnackedBatch) -> None:
        assert batch.frame is not None
        try:
            off_the_hub(self._write, spool, batch.header.seq, batch.frame)
        except OSError as e:
            if not batch.done:
                self._refused[batch.header.seq] = batch
            self._say_refused(spool, e)
            return
        if batch.done:  # acknowledged while it was being written
            self._to_remove.append(batch.header.seq)
            return
        batch.stored = True
        self.spooled_bytes += batch.size
        self._say_taken(spool)
        self._to_store.extendleft(reversed(self._refused.values()))
        self._refused.clear()

    def _write(self, spool: Spool, seq: int, frame: bytes) -> None:
        if self._manifest:
            spool.write_facts(MANIFEST_FILE, msgspec.Raw(self._manifest.encode()))
            self._manifest = ""
        spool.write(seq, frame)

    def _leave(self, spool: Spool, facts: WorkerFacts | None) -> None:
        if facts is None:
            return
        try:
            off_the_hub(spool.write_facts, WORKER_FILE, replace(facts, dropped=self.dropped))
        except OSError as e:
            logger.error("%s could not be written into %s: %s", WORKER_FILE, spool.folder, reason_of(e))

    def _say_refused(self, spool: Spool, error: OSError) -> None:
        if not self._said_refused and self._log_limit.ready():
            self._said_refused = True
            logger.warning(
                "the spool %s cannot be written: %s; batches are kept in memory until the master has them, "
                "up to %d MiB, and the disk is tried again with each",
                *(spool.folder, reason_of(error), self._memory_mib),
            )

    def _say_taken(self, spool: Spool) -> None:
        if self._said_refused:
            self._said_refused = False
            logger.warning("the spool %s can be written again", spool.folder)

    def _say_left(self) -> None:
        stored = [b.header.rows for b in self.batches.values() if b.stored]
        lost = [b.header.rows for b in self.batches.values() if not b.stored]
        if stored and self._spool is not None:
            logger.error(
                "%d batches (%d records) of run %s were not acknowledged: they stay in %s; "
                "`llm-locust merge RUN_DIRECTORY %s --out NEW_DIRECTORY` puts them into the run",
                *(len(stored), sum(stored), self.run, self._spool.folder, self._spool.folder),
            )
        if lost:
            logger.error(
                "%d batches (%d records) of run %s are lost: they were not acknowledged%s",
                *(len(lost), sum(lost), self.run),
                "" if self._spool is None else f", and {self._spool.folder} could not be written",
            )

    def _release(self, batch: UnackedBatch) -> None:
        if batch.frame is not None:
            batch.frame = None
            self.memory_bytes -= batch.size


def _remove(spool: Spool, seqs: list[int]) -> list[int]:
    """Remove these batches; return those that could not be removed."""
    failed = []
    for seq in seqs:
        try:
            spool.drop(seq)
        except OSError:
            failed.append(seq)
    return failed


# --- Numbered batches of finished requests, in the process that made them


#: A batch is closed at this number of rows even before its time: building one then takes about 2 ms.
BATCH_ROWS = 256

#: Limit of token arrivals in a batch. 256 answers of 1,000 tokens in one batch would hold the event loop for
#: 17 ms, and 256 of the longest would exceed the size limit of a message. A longer answer gets a batch of its
#: own.
BATCH_ARRIVALS = 1 << 15

Deliver = Callable[[FrameHeader, bytes], None]

#: Offset to add to this process's clock to get the run's time, and its error, in ns; None if unknown.
Offset = tuple[int, int] | None


class Recorder:
    """Collects one run's records on one worker and delivers each closed batch once.

    Args:
        deliver: called with a batch's header and frame; it is responsible for them from then on.
        in_flight: returns the number of requests in flight.
        clock: reads the clock and returns its offset; if it detects a step, it closes the batch first.
    """

    __slots__ = (
        "_clock",
        "_deliver",
        "_in_flight",
        "_open",
        "_open_arrivals",
        "_seq",
        "finished",
        "run",
        "worker",
    )

    def __init__(
        self,
        run: str,
        worker: str,
        deliver: Deliver,
        in_flight: Callable[[], int] = lambda: 0,
        clock: Callable[[], Offset] = lambda: None,
    ) -> None:
        self.run = run
        self.worker = worker
        self.finished = 0
        self._deliver = deliver
        self._in_flight = in_flight
        self._clock = clock
        self._open: list[RequestRecord] = []
        self._open_arrivals = 0
        self._seq = 0

    def add(self, record: RequestRecord) -> None:
        self.finished += 1
        # A step that nobody has seen yet closes the batch of those before it: the next has another offset.
        self._clock()
        if record.clock_step_ns is not None:
            # Its times are on the clock before the step.
            record = moved(record, record.clock_step_ns)
        arrivals = len(record.arrivals_ns)
        if self._open_arrivals + arrivals > BATCH_ARRIVALS:
            self.close_batch()
        self._open.append(record)
        self._open_arrivals += arrivals
        if len(self._open) >= BATCH_ROWS:
            self.close_batch()

    def close_batch(self) -> None:
        """Deliver the records since the last batch; do nothing if there are none."""
        if not self._open:
            return
        offset_ns, error_ns = self._clock() or (None, None)
        records, self._open, self._open_arrivals = self._open, [], 0
        if not records:  # reading the clock has detected a step and closed the batch
            return
        header = FrameHeader(
            self.run,
            self.worker,
            self._seq,
            len(records),
            finished=self.finished,
            in_flight=self._in_flight(),
            clock_offset_ns=offset_ns,
            clock_error_ns=error_ns,
        )
        self._seq += 1
        self._deliver(header, encode_frame(header, RecordBatch.from_records(records, self.worker).to_bytes()))

    @property
    def batches(self) -> int:
        """Number of batches closed."""
        return self._seq
