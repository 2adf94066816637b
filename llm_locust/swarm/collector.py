"""The master's inbox: batches into one file, unread, each once, acknowledged when they are in it."""

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import gevent
from gevent.event import Event

from llm_locust.store import FRAMES_FILE

logger = logging.getLogger(__name__)

Acknowledge = Callable[[str, int], None]


@dataclass(slots=True)
class Inbox:
    """What came from one worker."""

    seqs: set[int] = field(default_factory=set)
    rows: int = 0
    resent: int = 0


class Collector:
    """Appends frames to the run's file.

    Writing is done by gevent's thread pool, so that a slow disk does not hold the hub; an
    acknowledgement follows the write.

    Args:
        acknowledge: called with (worker, seq) when a batch is in the file, also for one that was
            there before.
    """

    def __init__(self, run: Path, acknowledge: Acknowledge) -> None:
        self.inboxes: dict[str, Inbox] = defaultdict(Inbox)
        self._acknowledge = acknowledge
        self._file = (run / FRAMES_FILE).open("ab", buffering=0)
        self._queue: list[tuple[str, int, int, bytes]] = []
        self._work = Event()
        self._idle = Event()
        self._idle.set()
        self._writer = gevent.spawn(self._write_loop)

    def accept(self, worker: str, seq: int, rows: int, frame: bytes) -> None:
        """Take a batch; it is written and acknowledged soon."""
        inbox = self.inboxes[worker]
        if seq in inbox.seqs:
            inbox.resent += 1
            self._acknowledge(worker, seq)
            return
        if any(worker == w and seq == s for w, s, _, _ in self._queue):
            inbox.resent += 1
            return
        self._queue.append((worker, seq, rows, frame))
        self._idle.clear()
        self._work.set()

    def close(self) -> None:
        """Write what is queued and close the file."""
        self._idle.wait()
        self._writer.kill()
        self._file.close()

    def _write_loop(self) -> None:
        pool = gevent.get_hub().threadpool
        while True:
            self._work.wait()
            self._work.clear()
            batch = list(self._queue)
            try:
                pool.apply(self._append, (b"".join(frame for *_, frame in batch),))
            except OSError as e:
                # Without an acknowledgement the workers keep the batches and send them again.
                logger.error("%s cannot be written: %s", self._file.name, e)
                self._queue = self._queue[len(batch) :]
                self._settle()
                continue
            self._queue = self._queue[len(batch) :]
            for worker, seq, rows, _ in batch:
                inbox = self.inboxes[worker]
                inbox.seqs.add(seq)
                inbox.rows += rows
                self._acknowledge(worker, seq)
            self._settle()

    def _settle(self) -> None:
        if self._queue:
            self._work.set()
        else:
            self._idle.set()

    def _append(self, data: bytes) -> None:
        """All of the data, or none: a partial write is cut off again before it is reported."""
        start = self._file.tell()
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError:
            self._file.truncate(start)
            raise
