"""Batches at the worker: recorded, numbered, kept on disk if possible, sent until they are acknowledged."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import gevent
import msgspec
from gevent.event import Event
from gevent.lock import RLock

from llm_locust.client.http.timers import DECODE_BUDGET
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import WorkerFacts
from llm_locust.core.record import RequestRecord, moved
from llm_locust.host import reason_of
from llm_locust.options.option import OWN_SPOOL
from llm_locust.store import MANIFEST_FILE, WORKER_FILE, FrameHeader, Spool, encode_frame
from llm_locust.store.facts import SPOOL_DIR
from llm_locust.store.files import check_folder_name
from llm_locust.swarm.channel.messages import BatchMessage, RunInfo
from llm_locust.swarm.process.event_loop import RateLimiter, off_the_hub

logger = logging.getLogger(__name__)

# --- Location of a worker's batches that the master does not have yet


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
        self._refusal_logged = False
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

    def queue_final_facts(self, facts: WorkerFacts) -> None:
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
        if self._refusal_logged:
            self._refusal_logged = False
            logger.warning("the spool %s can be written again", spool.folder)
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
        if not self._refusal_logged and self._log_limit.ready():
            self._refusal_logged = True
            logger.warning(
                "the spool %s cannot be written: %s; batches are kept in memory until the master has them, "
                "up to %d MiB, and the disk is tried again with each",
                *(spool.folder, reason_of(error), self._memory_mib),
            )

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
        self._made: tuple[FrameHeader, RecordBatch] | None = None  # closed, and not delivered yet
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
            self.close_batch(in_turns=True)
        self._open.append(record)
        self._open_arrivals += arrivals
        if len(self._open) >= BATCH_ROWS:
            self.close_batch(in_turns=True)

    def close_batch(self, *, in_turns: bool = False) -> None:
        """Deliver all records; do nothing if there are none.

        Args:
            in_turns: leave the second half of the work on this batch to a next turn of the event loop, or to
                whoever closes another one before that.
        """
        self._close()
        if not in_turns:
            self._deliver_made()
        elif self._made is not None:
            gevent.spawn(self._deliver_in_next_turn)

    def _close(self) -> None:
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
        self._deliver_made()
        self._made = header, RecordBatch.from_records(records, self.worker)

    def _deliver_made(self) -> None:
        if self._made is not None:
            (header, batch), self._made = self._made, None
            self._deliver(header, encode_frame(header, batch.to_bytes()))

    def _deliver_in_next_turn(self) -> None:
        DECODE_BUDGET.wait_for_next()
        self._deliver_made()


# --- Delivery of batches to the run's directory: kept until acknowledged, sent again after a timeout


# --------------------
# Window of batches sent and not acknowledged: its size, and when a batch is sent again.
#
# Pure arithmetic on times that the caller passes, in seconds of one clock.
# --------------------


#: Time after which a batch without acknowledgement is sent again. While nothing is acknowledged at all, only
#: the oldest is sent again, with the interval doubling up to the second value. Locust ends a worker after a
#: minute without its master, so that only a handful pile up in zmq's queue.
RESEND_AFTER_S = 5.0
PROBE_AFTER_S = 20.0

#: zmq accepts any amount into memory, here and at the master, where hundreds of workers pile up if its disk
#: is slow. So this limits what is in transit; one batch is always allowed.
WINDOW_BATCHES = 8
WINDOW_BYTES = 4 << 20

Key = tuple[str, int]  # run and number of a batch


class SendWindow:
    """Batches in transit, in the order in which they were first sent."""

    def __init__(self) -> None:
        self._batches: dict[Key, UnackedBatch] = {}
        self._interval_s = RESEND_AFTER_S
        self._probe_at_s = math.inf

    @property
    def silent(self) -> bool:
        """Whether nothing was acknowledged for so long that nothing new is sent."""
        return self._interval_s > RESEND_AFTER_S

    def has_room(self, size: int) -> bool:
        """Whether a batch of this size in bytes may be sent."""
        if not self._batches:
            return True
        under_way = sum(batch.size for batch in self._batches.values())
        return not self.silent and len(self._batches) < WINDOW_BATCHES and under_way + size <= WINDOW_BYTES

    def put(self, batch: UnackedBatch, now_s: float) -> None:
        """Note that a batch is sent now, for the first time or again."""
        if not self._batches:
            self.heard(now_s)  # without a batch in transit no acknowledgement was due: the silence starts now
        self._batches[batch.key] = batch
        batch.sent_at_s = now_s

    def remove(self, key: Key) -> None:
        self._batches.pop(key, None)

    def heard(self, now_s: float) -> None:
        """Note an acknowledgement: the other side is alive."""
        self._interval_s = RESEND_AFTER_S
        self._probe_at_s = now_s + RESEND_AFTER_S

    def recall(self, run: str) -> None:
        """Remove all batches of this run."""
        for key in [key for key in self._batches if key[0] == run]:
            del self._batches[key]

    def overdue(self, now_s: float) -> list[UnackedBatch]:
        """Batches to send again now: all that are overdue, or during a silence only the oldest."""
        if self._batches and now_s >= self._probe_at_s:
            self._interval_s = min(2 * self._interval_s, PROBE_AFTER_S)
            self._probe_at_s = now_s + self._interval_s
            return [next(iter(self._batches.values()))]
        if self.silent:
            return []
        return [b for b in self._batches.values() if now_s >= b.sent_at_s + RESEND_AFTER_S]

    def due_in_s(self, now_s: float) -> float | None:
        """Seconds until a batch will be overdue; None if nothing is in transit."""
        if not self._batches:
            return None
        due_at_s = self._probe_at_s
        if not self.silent:
            due_at_s = min(due_at_s, *(b.sent_at_s + RESEND_AFTER_S for b in self._batches.values()))
        return max(0.0, due_at_s - now_s)

    def __contains__(self, batch: UnackedBatch) -> bool:
        return self._batches.get(batch.key) is batch


#: Bytes of frames in memory, over all runs: those that the disk has not taken. Beyond it batches are dropped.
MEMORY_BYTES = 128 << 20


class Shipper:
    """Outbox of a process that has users.

    One greenlet, :meth:`ship_forever`, writes each batch to the run's spool, then sends it. A window bounds
    what is sent without acknowledgement. All other methods return at once, except :meth:`flush` and
    :meth:`finish`.

    Args:
        send: sends a message; it may raise while the other side cannot be reached.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        send: Callable[[BatchMessage], None],
        *,
        memory_bytes: int = MEMORY_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send_message = send
        self._memory_bytes = memory_bytes
        self._clock = clock
        self._backlogs: dict[str, UnackedBatches] = {}
        self._to_send: deque[UnackedBatch] = deque()  # not sent yet, in order
        self._window = SendWindow()
        self._hears = True
        self._disk = RLock()
        self._wake = Event()
        self._flushed = Event()
        self._dropped_limit = RateLimiter(clock=clock)
        self._unsent_limit = RateLimiter(clock=clock)
        self._disk_limit = RateLimiter(clock=clock)

    def begin(self, run: str, spool: Spool | None, manifest: str = "") -> None:
        """Accept batches of this run from now on. A run that has started already goes on unchanged.

        Args:
            spool: where its batches wait; None keeps them in memory.
            manifest: the run's facts as JSON, written into the spool with the first batch.
        """
        self._hears = True
        if run not in self._backlogs:
            memory_mib = self._memory_bytes >> 20
            self._backlogs[run] = UnackedBatches(run, spool, manifest, self._disk_limit, memory_mib)

    def deliver(self, header: FrameHeader, frame: bytes) -> None:
        """Accept a batch; it is written and sent soon. It is dropped if there is no room."""
        if header.run not in self._backlogs:
            self.begin(header.run, None)
        backlog = self._backlogs[header.run]
        if self.memory_bytes + len(frame) > self._memory_bytes:
            backlog.dropped += header.rows
            backlog.ask_disk()
            self._wake.set()
            if self._dropped_limit.ready():
                logger.error(
                    "%d records of run %s dropped so far: neither the spool's disk takes them "
                    "nor is there room in %d MiB of memory",
                    *(backlog.dropped, header.run, self._memory_bytes >> 20),
                )
            return
        batch = backlog.add(header, frame)
        if not backlog.over:
            self._to_send.append(batch)
        self._wake.set()

    def acknowledged(self, run: str, seq: int) -> None:
        """Forget a batch that is in the run's file. A repeated acknowledgement is harmless."""
        if run not in self._backlogs:
            return
        self._backlogs[run].forget(seq)
        self._window.remove((run, seq))
        self._window.heard(self._clock())
        self._wake.set()
        self._see_flushed()

    def over(self, run: str) -> None:
        """Stop sending a run's batches: the master no longer accepts them, and they stay where they are."""
        if run in self._backlogs:
            self._backlogs[run].over = True
            self._recall(run)

    def flush(self, timeout_s: float, *, hears: bool = True) -> bool:
        """Wait until everything is acknowledged, except for runs that are over; return whether all is.

        Args:
            hears: whether acknowledgements can be received. If not, everything is sent once, as fast as
                possible, and only that is waited for.
        """
        self._hears = hears
        self._window.heard(self._clock())  # the master's request to flush may have ended a silence
        self._flushed.clear()
        self._see_flushed()
        self._wake.set()
        self._flushed.wait(timeout_s)
        return self.unsent == 0

    def queue_final_facts(self, run: str, facts: WorkerFacts) -> None:
        """Write the worker's final facts where a merge finds them, in case :meth:`finish` is never called."""
        if run in self._backlogs:
            with self._disk:
                self._backlogs[run].queue_final_facts(facts)

    def finish(self, run: str, facts: WorkerFacts | None = None) -> int:
        """End a run: remove its spool, or leave what is not acknowledged there for a merge.

        Args:
            facts: the worker's final facts, written next to what stays.

        Returns:
            The number of records that were not acknowledged.
        """
        backlog = self._backlogs.pop(run, None)
        if backlog is None:
            return 0
        self._recall(run)
        with self._disk:  # the shipping greenlet may be working on it
            return backlog.close(facts)

    @property
    def unsent(self) -> int:
        """Batches without acknowledgement."""
        return sum(len(b.batches) for b in self._backlogs.values())

    @property
    def dropped(self) -> int:
        """Records of unfinished runs that fitted neither on disk nor in memory."""
        return sum(b.dropped for b in self._backlogs.values())

    @property
    def spooled_bytes(self) -> int:
        """Bytes on disk that are not acknowledged."""
        return sum(b.spooled_bytes for b in self._backlogs.values())

    @property
    def memory_bytes(self) -> int:
        """Bytes of frames in memory."""
        return sum(b.memory_bytes for b in self._backlogs.values())

    def ship_forever(self) -> NoReturn:
        """Call :meth:`step` whenever something is due, forever."""
        while True:
            self._wake.wait(self.step())

    def step(self) -> float | None:
        """Write, send, send again and remove what is due. Only one greenlet may call it at a time.

        Returns the seconds until something is due without a new event; None if nothing will be.
        """
        self._wake.clear()
        for batch in self._window.overdue(self._clock()):
            if batch in self._window:
                self._send(batch)
        busy = True
        while busy:
            stored = self._store_next()
            busy = self._send_next() or stored is not None
            if stored is not None:  # keeps its bytes in memory until then, so that they need not be read back
                backlog, batch = stored
                backlog.unload(batch)
        for backlog in list(self._backlogs.values()):
            with self._disk:
                if self._is_open(backlog):
                    backlog.remove_acknowledged()
        self._see_flushed()
        return self._window.due_in_s(self._clock())

    def _store_next(self) -> tuple[UnackedBatches, UnackedBatch] | None:
        for backlog in list(self._backlogs.values()):
            with self._disk:
                if self._is_open(backlog) and (batch := backlog.store_next()) is not None:
                    return backlog, batch
        return None

    def _send_next(self) -> bool:
        """Send the next batch if the window has room for it; return whether it was sent."""
        while self._to_send and self._to_send[0].done:
            self._to_send.popleft()
        if not self._to_send:
            return False
        batch = self._to_send[0]
        if not batch.tried or (self._hears and not self._window.has_room(batch.size)):
            return False
        self._send(batch)
        if self._to_send and self._to_send[0] is batch:
            self._to_send.popleft()
        return True

    def _send(self, batch: UnackedBatch) -> None:
        """Send a batch. It counts as sent even if that fails: it is sent again later."""
        self._window.put(batch, self._clock())
        try:
            frame = self._load(batch)
            if frame is not None and batch in self._window:
                header = batch.header
                message = BatchMessage(
                    run=header.run,
                    seq=header.seq,
                    rows=header.rows,
                    finished=header.finished,
                    in_flight=header.in_flight,
                    frame=frame,
                )
                self._send_message(message)
        except Exception as e:  # Locust's channel raises its own and zmq's
            if self._unsent_limit.ready():
                logger.warning("could not send batch %d, will send it again: %s", batch.header.seq, e)
        if batch in self._window:  # Locust retries for up to 9 s before it gives up
            self._window.put(batch, self._clock())

    def _load(self, batch: UnackedBatch) -> bytes | None:
        """Return the batch's bytes; None if it need not be sent, or is lost."""
        with self._disk:
            backlog = self._backlogs.get(batch.header.run)
            frame = None if backlog is None else backlog.load(batch)
        if frame is None:
            self._window.remove(batch.key)
        return frame

    def _is_open(self, backlog: UnackedBatches) -> bool:
        return self._backlogs.get(backlog.run) is backlog

    def _recall(self, run: str) -> None:
        """Stop sending batches of this run."""
        self._to_send = deque(b for b in self._to_send if b.header.run != run)
        self._window.recall(run)
        self._see_flushed()
        self._wake.set()

    def _see_flushed(self) -> None:
        waits = any(b.batches for b in self._backlogs.values() if not b.over)
        if not (waits if self._hears else self._to_send):
            self._flushed.set()
