"""Share of the event loop used for decoding."""

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import gevent

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
        self._at = -1.0
        self._spent_s = 0.0

    def has_time(self, loop_now: float) -> bool:
        """Whether another slice may be decoded. ``loop_now`` counts the turns of the loop."""
        if loop_now != self._at:
            self._at, self._spent_s = loop_now, 0.0
        return self._spent_s < DECODING_S

    def spend(self, seconds: float) -> None:
        self._spent_s += seconds

    def take_steps(self, step: Callable[[], bool]) -> bool:
        """Take steps, each of which returns whether there is another one, as long as this turn has time.

        Return whether all are taken.
        """
        loop_now, more = float(gevent.get_hub().loop.iteration), True
        while more and self.has_time(loop_now):
            began_s = time.monotonic()
            more = step()
            self.spend(time.monotonic() - began_s)
        return not more

    def wait(self) -> None:
        """Wait, in a greenlet, for a turn of the loop that has time."""
        loop = gevent.get_hub().loop
        while not self.has_time(float(loop.iteration)):
            gevent.sleep(_NEXT_TURN_S)

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
