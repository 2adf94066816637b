"""A loop over epoll whose timers are kept to microseconds, for one thread."""

import heapq
import itertools
import select
import time
from collections.abc import Callable

#: The kernel wakes a sleeper late by up to some tenths of a millisecond: the last stretch is spun.
SPIN_NS = 300_000


class Loop:
    """Calls back when a file is ready and when a time has come; a due timer goes before any file."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def rewatch(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        self._epoll.unregister(fd)
        del self._handlers[fd]

    def call_at(self, due_ns: int, callback: Callable[[], None]) -> None:
        """Call at this time of ``time.monotonic_ns``."""
        heapq.heappush(self._timers, (due_ns, next(self._order), callback))

    def run_once(self) -> None:
        """Wait for the next thing, and do it."""
        for fd, events in self._wait():
            self._run_due()
            if handler := self._handlers.get(fd):
                handler(events)
        self._run_due()

    def _wait(self) -> list[tuple[int, int]]:
        if not self._timers:
            return self._epoll.poll()
        if (wait_ns := self._timers[0][0] - time.monotonic_ns()) > SPIN_NS:
            # select() sleeps to the microsecond, epoll_wait() to the millisecond only.
            select.select([self._epoll], [], [], (wait_ns - SPIN_NS) * 1e-9)
        return self._epoll.poll(0)

    def _run_due(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic_ns():
            heapq.heappop(self._timers)[2]()
