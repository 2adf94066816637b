"""The master's inbox: batches into one file, unread, each once, acknowledged when they are in it."""

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import gevent
from gevent.event import Event

from llm_locust.store import FrameLog
from llm_locust.swarm.offload import off_the_hub

logger = logging.getLogger(__name__)

Acknowledge = Callable[[str, int], None]


@dataclass(slots=True)
class Inbox:
    """What came from one worker, and is in the file."""

    seqs: set[int] = field(default_factory=set)
    rows: int = 0
    resent: int = 0


class _Batch(NamedTuple):
    worker: str
    seq: int
    rows: int
    frame: bytes


class Collector:
    """Appends frames to the run's log of them, which it owns.

    Writing is done by gevent's thread pool, so that a slow disk does not hold the hub; an
    acknowledgement follows the write. What could not be written is forgotten: its sender keeps it
    and sends it again.

    Args:
        acknowledge: called with (worker, seq) when a batch is in the file, also for one that was
            there before. It must not raise.
    """

    def __init__(self, log: FrameLog, acknowledge: Acknowledge) -> None:
        self.inboxes: dict[str, Inbox] = defaultdict(Inbox)
        self._acknowledge = acknowledge
        self._log = log
        self._queue: list[_Batch] = []
        self._waiting: set[tuple[str, int]] = set()  # in the queue or being written
        self._work = Event()
        self._idle = Event()
        self._idle.set()
        self._closed = False
        self._writer = gevent.spawn(self._write_loop)

    def accept(self, worker: str, seq: int, rows: int, frame: bytes) -> None:
        """Take a batch; it is written and acknowledged soon. After :meth:`close` it is refused."""
        inbox = self.inboxes[worker]
        if seq in inbox.seqs:
            inbox.resent += 1
            self._acknowledge(worker, seq)
        elif (worker, seq) in self._waiting:
            inbox.resent += 1
        elif self._closed:
            logger.error(
                "batch %d of worker %s (%d records) came too late: not in the run", seq, worker, rows
            )
        else:
            self._waiting.add((worker, seq))
            self._queue.append(_Batch(worker, seq, rows, frame))
            self._idle.clear()
            self._work.set()

    def settle(self) -> None:
        """Wait until what was taken is in the file, or could not be written."""
        self._idle.wait()

    def close(self) -> None:
        """Write what is queued and close the file.

        Raises:
            OSError: the bytes of a failed write could not be cut off, or the file not be closed.
        """
        if self._closed:
            return
        self._closed = True
        self.settle()
        self._writer.kill()
        self._log.close()

    def _write_loop(self) -> None:
        while True:
            self._work.wait()
            self._work.clear()
            batches, self._queue = self._queue, []
            try:
                off_the_hub(self._log.append, b"".join(b.frame for b in batches))
            except OSError as e:
                logger.error("%s: a write failed, its batches will be sent again: %s", self._log.path, e)
                self._waiting.difference_update((b.worker, b.seq) for b in batches)
            else:
                self._settle(batches)
            if not self._queue:
                self._idle.set()

    def _settle(self, batches: list[_Batch]) -> None:
        for worker, seq, rows, _ in batches:
            self._waiting.discard((worker, seq))
            self.inboxes[worker].seqs.add(seq)
            self.inboxes[worker].rows += rows
        # Only now: an acknowledgement may switch to a greenlet that brings one of these batches again.
        for batch in batches:
            self._acknowledge(batch.worker, batch.seq)
