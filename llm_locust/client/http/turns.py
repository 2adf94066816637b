"""Share of the event loop used for decoding."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import gevent
from gevent.hub import Waiter

if TYPE_CHECKING:
    from gevent._types import _TimerWatcher

T = TypeVar("T")

#: Time in one turn of the event loop for decoding, over all connections. A connection beyond it is not read
#: until the next turn, so that only its own server has to wait.
DECODING_S = 0.005

#: Bytes of an answer above which its record is made in a turn of its own: that takes up to 5 ms.
LONG_ANSWER_BYTES = 1 << 20

#: Too short to be noticed, and long enough for another turn to start.
_NEXT_TURN_S = 1e-4


class LoopTurn:
    """Time spent decoding in this turn of the event loop."""

    def __init__(self) -> None:
        self._at = -1
        self._spent_s = 0.0
        self._waiters: deque[Waiter[None]] = deque()  # a killed greenlet's takes no notice of its turn
        self._next: _TimerWatcher | None = None  # the next turn, if there are waiters

    def has_time(self) -> bool:
        """Whether another slice may be decoded."""
        turn = gevent.get_hub().loop.iteration
        if turn != self._at:
            self._at, self._spent_s = turn, 0.0
        return self._spent_s < DECODING_S

    def spend(self, seconds: float) -> None:
        self._spent_s += seconds

    def take_steps(self, step: Callable[[], bool]) -> bool:
        """Take steps, each of which returns whether there is another one, as long as this turn has time.

        Return whether all are taken.
        """
        more = True
        while more and self.has_time():
            began_s = time.monotonic()
            more = step()
            self.spend(time.monotonic() - began_s)
        return not more

    def wait(self) -> None:
        """Wait, in a greenlet, for a turn of the loop that has time, behind those that wait already."""
        if not self._waiters and self.has_time():
            return
        waiter: Waiter[None] = Waiter(gevent.get_hub())
        self._waiters.append(waiter)
        self._wake_in_next()
        waiter.get()

    def _wake_in_next(self) -> None:
        if self._next is None:
            # A timer, not a callback: the loop looks for what else there is to do before it.
            self._next = timer = gevent.get_hub().loop.timer(0.0)
            timer.start(self._wake)

    def _wake(self) -> None:
        """Let the greenlets go on that wait, one after another, as long as this turn has time."""
        timer, self._next = self._next, None
        if timer is not None:
            timer.close()
        while self._waiters and self.has_time():
            self._waiters.popleft().switch(None)
        if self._waiters:
            self._wake_in_next()

    def take(self, work: Callable[[], None]) -> None:
        """Do indivisible work in a turn of its own, in a greenlet."""
        self.wait()
        self.spend(DECODING_S)
        work()

    def each(self, items: Iterable[T], work: Callable[[T], object]) -> None:
        """Do work for each item in as many turns as it takes, in a greenlet."""
        for item in items:
            self.wait()
            began_s = time.monotonic()
            work(item)
            self.spend(time.monotonic() - began_s)

    def wait_for_next(self) -> None:
        """Wait for the next turn of the loop."""
        gevent.sleep(_NEXT_TURN_S)


#: For this process, which has one event loop.
TURN = LoopTurn()
