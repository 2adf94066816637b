"""The share of the event loop that decoding has."""

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import gevent

T = TypeVar("T")

#: How much of one turn of the event loop goes to decoding, of all connections together. A connection
#: whose turn is over is not read until the next one, so that its server has to wait, and nobody else.
DECODING_S = 0.005

#: Too short to be noticed, and long enough that another turn begins.
_NEXT_TURN_S = 1e-4


class Turn:
    """How long this turn of the event loop has decoded so far."""

    def __init__(self) -> None:
        self._at = -1.0
        self._spent_s = 0.0

    def has_time(self, loop_now: float) -> bool:
        """Whether another slice may be decoded. ``loop_now`` is the loop's time, new in each turn."""
        if loop_now != self._at:
            self._at, self._spent_s = loop_now, 0.0
        return self._spent_s < DECODING_S

    def spend(self, seconds: float) -> None:
        self._spent_s += seconds

    def wait(self) -> None:
        """Let the loop take turns until one has time. For work in a greenlet."""
        loop = gevent.get_hub().loop
        while not self.has_time(loop.now()):
            gevent.sleep(_NEXT_TURN_S)

    def take(self, work: Callable[[], None]) -> None:
        """Do work that cannot be cut in a turn that it has for itself. For a greenlet."""
        self.wait()
        self.spend(DECODING_S)
        work()

    def each(self, items: Iterable[T], work: Callable[[T], object]) -> None:
        """Do work for each item in as many turns as it takes. For a greenlet."""
        for item in items:
            self.wait()
            began_s = time.monotonic()
            work(item)
            self.spend(time.monotonic() - began_s)

    def wait_for_next(self) -> None:
        """Let the loop take a turn."""
        gevent.sleep(_NEXT_TURN_S)


#: Of this process, which has one event loop.
TURN = Turn()
