"""Batches on their way to the run's directory: kept until acknowledged, sent again when that takes long."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import NoReturn

from gevent.event import Event
from gevent.lock import RLock

from llm_locust.core.manifest import WorkerFacts
from llm_locust.store import FrameHeader, Spool
from llm_locust.swarm.channel.messages import BatchMessage
from llm_locust.swarm.delivery.send_window import SendWindow
from llm_locust.swarm.delivery.unacked_batches import UnackedBatch, UnackedBatches
from llm_locust.swarm.process.throttle import Throttle

logger = logging.getLogger(__name__)

#: Frames in memory, of all runs: those that the disk has not taken. What comes beyond it is dropped.
MEMORY_BYTES = 128 << 20


class Shipper:
    """The outbox of a process that has users.

    One greenlet, :meth:`ship_forever`, writes each batch to the run's spool, then sends it; what is sent
    without an acknowledgement is bounded by a window. Everything else returns at once, but for
    :meth:`flush` and :meth:`finish`.

    Args:
        send: hands a message over; it may raise while the other side cannot be reached.
        clock: seconds that only grow.
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
        self._may_say_dropped = Throttle(clock=clock)
        self._may_say_unsent = Throttle(clock=clock)
        self._may_say_disk = Throttle(clock=clock)

    def begin(self, run: str, spool: Spool | None, manifest: str = "") -> None:
        """Take batches of this run from now on. One that has begun goes on as it was.

        Args:
            spool: where its batches wait; None: in memory.
            manifest: the run's facts as JSON, written into the spool with the first batch.
        """
        self._hears = True
        if run not in self._backlogs:
            memory_mib = self._memory_bytes >> 20
            self._backlogs[run] = UnackedBatches(run, spool, manifest, self._may_say_disk, memory_mib)

    def deliver(self, header: FrameHeader, frame: bytes) -> None:
        """Take a batch; it is written and sent soon. Where there is no room for it, it is dropped."""
        if header.run not in self._backlogs:
            self.begin(header.run, None)
        backlog = self._backlogs[header.run]
        if self.memory_bytes + len(frame) > self._memory_bytes:
            backlog.dropped += header.rows
            backlog.ask_disk()
            self._wake.set()
            if self._may_say_dropped():
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
        """The batch is in the run's file: forget it. An acknowledgement that comes twice does no harm."""
        if run not in self._backlogs:
            return
        self._backlogs[run].forget(seq)
        self._window.remove((run, seq))
        self._window.heard(self._clock())
        self._wake.set()
        self._see_flushed()

    def over(self, run: str) -> None:
        """The master takes no more of this run: what it has not acknowledged stays where it is."""
        if run in self._backlogs:
            self._backlogs[run].over = True
            self._recall(run)

    def flush(self, timeout_s: float, *, hears: bool = True) -> bool:
        """Wait until everything is acknowledged, but for runs that are over; gives whether all is.

        Args:
            hears: acknowledgements can be received. If not, everything is sent once, as fast as it
                goes, and the wait is for that alone.
        """
        self._hears = hears
        self._window.heard(self._clock())  # it may be the master's word to flush that has ended a silence
        self._flushed.clear()
        self._see_flushed()
        self._wake.set()
        self._flushed.wait(timeout_s)
        return self.unsent == 0

    def foretell(self, run: str, facts: WorkerFacts) -> None:
        """Leave the worker's last word where a merge finds it, should :meth:`finish` never come."""
        if run in self._backlogs:
            with self._disk:
                self._backlogs[run].foretell(facts)

    def finish(self, run: str, facts: WorkerFacts | None = None) -> int:
        """The run has ended here: its spool goes, or what is not acknowledged stays there for a merge.

        Args:
            facts: the worker's last word, written beside what stays.

        Returns:
            The number of records that were not acknowledged.
        """
        backlog = self._backlogs.pop(run, None)
        if backlog is None:
            return 0
        self._recall(run)
        with self._disk:  # it may be in the hands of the shipping greenlet
            return backlog.close(facts)

    @property
    def unsent(self) -> int:
        """Batches without an acknowledgement."""
        return sum(len(b.batches) for b in self._backlogs.values())

    @property
    def dropped(self) -> int:
        """Records of the runs that are not finished that neither disk nor memory could hold."""
        return sum(b.dropped for b in self._backlogs.values())

    @property
    def spooled_bytes(self) -> int:
        """What is on disk and not acknowledged."""
        return sum(b.spooled_bytes for b in self._backlogs.values())

    @property
    def memory_bytes(self) -> int:
        """Frames in memory."""
        return sum(b.memory_bytes for b in self._backlogs.values())

    def ship_forever(self) -> NoReturn:
        """:meth:`step` whenever something is due: a greenlet's life."""
        while True:
            self._wake.wait(self.step())

    def step(self) -> float | None:
        """Write, send, send again and remove what is due; not for two greenlets at once.

        Gives the seconds after which something is due again by itself; None where nothing will be.
        """
        self._wake.clear()
        for batch in self._window.overdue(self._clock()):
            if batch in self._window:
                self._send(batch)
        busy = True
        while busy:
            stored = self._store_next()
            busy = self._send_next() or stored is not None
            if stored is not None:  # its bytes are in memory that long, so that they need not be read back
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
        """Send the next batch where the window has room for it; gives whether it did."""
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
        """Send a batch, which counts as sent where that fails: it is sent again in its time."""
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
            if self._may_say_unsent():
                logger.warning("batch %d could not be sent, will be sent again: %s", batch.header.seq, e)
        if batch in self._window:  # Locust tries for up to 9 s before it gives up
            self._window.put(batch, self._clock())

    def _load(self, batch: UnackedBatch) -> bytes | None:
        """The batch's bytes; None where it need not be sent, or cannot be any more."""
        with self._disk:
            backlog = self._backlogs.get(batch.header.run)
            frame = None if backlog is None else backlog.load(batch)
        if frame is None:
            self._window.remove(batch.key)
        return frame

    def _is_open(self, backlog: UnackedBatches) -> bool:
        return self._backlogs.get(backlog.run) is backlog

    def _recall(self, run: str) -> None:
        """Send no more of this run."""
        self._to_send = deque(b for b in self._to_send if b.header.run != run)
        self._window.recall(run)
        self._see_flushed()
        self._wake.set()

    def _see_flushed(self) -> None:
        waits = any(b.batches for b in self._backlogs.values() if not b.over)
        if not (waits if self._hears else self._to_send):
            self._flushed.set()
