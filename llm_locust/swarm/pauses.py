"""Waits that end on time, however many there are: the pauses of all agents of a process."""

import time
from functools import cache
from heapq import heappop, heappush
from itertools import count
from typing import Any

from gevent.hub import Waiter

from llm_locust.swarm.users.open_loop import Alarm

#: The alarm is set anew after this at the latest: its descriptor takes no time of any length.
_LONGEST_S = 3600.0


class Pauses:
    """Waits of many greenlets by one :class:`Alarm`.

    ``gevent.sleep`` ends a whole millisecond late at most, as ``epoll_wait`` counts in these.
    """

    def __init__(self) -> None:
        self._alarm = Alarm(self._ring)
        self._waiting: list[tuple[int, int, Any]] = []  # a heap: when it is due, by the monotonic clock
        self._numbers = count()

    def until(self, due_ns: int) -> None:
        """Wait until a time of the wall clock, which may be set meanwhile."""
        while (left_ns := due_ns - time.time_ns()) > 0:
            self._wait(left_ns)

    def _wait(self, left_ns: int) -> None:
        waiter: Any = Waiter()
        heappush(self._waiting, (time.monotonic_ns() + left_ns, next(self._numbers), waiter))
        if self._waiting[0][2] is waiter:
            self._set()
        waiter.get()  # one that is killed here has nobody to wake when its time comes

    def _ring(self) -> None:
        now_ns = time.monotonic_ns()
        while self._waiting and self._waiting[0][0] <= now_ns:
            heappop(self._waiting)[2].switch(None)
            now_ns = time.monotonic_ns()
        if self._waiting:
            self._set()

    def _set(self) -> None:
        left_ns = self._waiting[0][0] - time.monotonic_ns()
        self._alarm.ring_in(min(left_ns * 1e-9, _LONGEST_S))


@cache
def pauses() -> Pauses:
    """The pauses of this process, which has one event loop."""
    return Pauses()
