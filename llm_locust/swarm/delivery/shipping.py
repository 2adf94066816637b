"""Delivery of batches to the run's directory: kept until acknowledged, sent again after a timeout."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import NoReturn

from gevent.event import Event
from gevent.lock import RLock

from llm_locust.core.manifest import WorkerFacts
from llm_locust.store import FrameHeader, Spool
from llm_locust.swarm.channel.messages import BatchMessage
from llm_locust.swarm.delivery.unacked import UnackedBatch, UnackedBatches
from llm_locust.swarm.process.event_loop import RateLimiter

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


logger = logging.getLogger(__name__)

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

    def foretell(self, run: str, facts: WorkerFacts) -> None:
        """Write the worker's final facts where a merge finds them, in case :meth:`finish` is never called."""
        if run in self._backlogs:
            with self._disk:
                self._backlogs[run].foretell(facts)

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
