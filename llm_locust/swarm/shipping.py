"""Batches on their way to the run's directory: kept until acknowledged, sent again when that takes long."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import gevent
from gevent.event import Event

from llm_locust.store import FrameHeader
from llm_locust.swarm.messages import BatchMessage

logger = logging.getLogger(__name__)

#: A batch without an acknowledgement is sent again after this time.
RESEND_AFTER_S = 5.0


@dataclass(slots=True)
class _Pending:
    message: BatchMessage
    sent_at: float


class Shipper:
    """The outbox of a process that has users.

    Args:
        send: hands a message over; it may raise while the other side cannot be reached.
    """

    def __init__(self, send: Callable[[BatchMessage], None], resend_after_s: float = RESEND_AFTER_S) -> None:
        self._send = send
        self._resend_after_s = resend_after_s
        self._pending: dict[tuple[str, int], _Pending] = {}
        self._empty = Event()
        self._empty.set()

    def deliver(self, header: FrameHeader, frame: bytes) -> None:
        """Take a batch and send it."""
        message = BatchMessage(
            run=header.run,
            seq=header.seq,
            rows=header.rows,
            finished=header.finished,
            in_flight=header.in_flight,
            frame=frame,
        )
        pending = _Pending(message, 0.0)
        self._pending[header.run, header.seq] = pending
        self._empty.clear()
        self._try(pending)

    def acknowledged(self, run: str, seq: int) -> None:
        """The batch is in the run's file: forget it. An acknowledgement that comes twice does nothing."""
        self._forget((run, seq))

    def resend_overdue(self) -> None:
        now = time.monotonic()
        for pending in list(self._pending.values()):
            if now - pending.sent_at >= self._resend_after_s:
                self._try(pending)

    def resend_forever(self) -> NoReturn:
        """:meth:`resend_overdue` every second: a greenlet's life."""
        while True:
            gevent.sleep(1.0)
            self.resend_overdue()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged; gives whether it is."""
        deadline = time.monotonic() + timeout_s
        while self._pending and (left_s := deadline - time.monotonic()) > 0:
            self._empty.wait(min(left_s, self._resend_after_s))
            self.resend_overdue()
        return not self._pending

    def abandon(self, run: str) -> int:
        """Forget the run's batches, which nobody takes any more; gives the number of their records."""
        rows = 0
        for key, pending in list(self._pending.items()):
            if key[0] == run:
                rows += pending.message["rows"]
                self._forget(key)
        return rows

    @property
    def unsent(self) -> int:
        """Batches without an acknowledgement."""
        return len(self._pending)

    def _forget(self, key: tuple[str, int]) -> None:
        self._pending.pop(key, None)
        if not self._pending:
            self._empty.set()

    def _try(self, pending: _Pending) -> None:
        pending.sent_at = time.monotonic()
        try:
            self._send(pending.message)
        except Exception as e:  # Locust's channel raises its own and zmq's; the batch stays and is sent again
            logger.warning("batch %d could not be sent, will be sent again: %s", pending.message["seq"], e)
