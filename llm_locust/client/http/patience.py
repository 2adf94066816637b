"""User who leaves when the first token takes too long."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import gevent

from llm_locust.client.http.connection import Connection

if TYPE_CHECKING:
    from gevent._types import _TimerWatcher


class Patience:
    """Closes a connection whose answer has no token ``limit_s`` after its request was sent.

    A token that is in the socket by then, unread because this process was busy, counts as in time.

    Args:
        has_token: returns whether a token event, including reasoning, was read.
    """

    __slots__ = ("_connection", "_has_token", "_limit_s", "_timer", "lost")

    def __init__(self, limit_s: float, has_token: Callable[[], bool]) -> None:
        self.lost = False  # whether the user has left
        self._limit_s = limit_s
        self._has_token = has_token
        self._connection: Connection | None = None
        self._timer: _TimerWatcher | None = None

    def watch(self, connection: Connection) -> None:
        """Start, just before the request is sent on ``connection``; a second call replaces the first."""
        self.stop()
        self._connection = connection
        self._arm(self._limit_s)

    def stop(self) -> None:
        """Stop at the end of the call."""
        timer, self._timer, self._connection = self._timer, None, None
        if timer is not None:
            timer.stop()
            timer.close()

    def _arm(self, seconds: float) -> None:
        self._timer = timer = gevent.get_hub().loop.timer(max(seconds, 0.001))
        timer.start(self._on_timer)

    def _on_timer(self) -> None:
        connection = self._connection
        assert connection is not None
        sent = connection.sent
        # The loop's clock may be behind: its timers count from the start of its turn.
        waited_s = 0.0 if sent is None else (time.monotonic_ns() - sent.monotonic_ns) * 1e-9
        self.stop()
        if waited_s < self._limit_s:
            self._connection = connection
            self._arm(self._limit_s - waited_s)
            return
        connection.poll()
        if not self._has_token() and not connection.closed:
            self.lost = True
            connection.close()
