"""Time limits of one request, and the share of the event loop that decoding may take."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import gevent
from gevent.hub import Waiter

from llm_locust.client.http.errors import RequestTimeoutError

if TYPE_CHECKING:
    from gevent._types import _TimerWatcher


# --- Time limits of one request. A timeout on the whole alone does not cover a stream


#: Time between two looks whether an answer is over though its response goes on, in seconds.
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits of one request, in seconds.

    ``first_s`` limits the wait for the first event of a stream, however early the headers arrive (without a
    stream: for the first byte). ``gap_s`` limits the silence after each event (after each read), ``total_s``
    the whole request.
    """

    first_s: float = 60.0
    gap_s: float = 30.0
    total_s: float = 600.0

    def within(self, bound_s: float | None) -> "Timeouts":
        """These limits, with no silence longer than ``bound_s``."""
        if bound_s is None:
            return self
        return Timeouts(min(self.first_s, bound_s), min(self.gap_s, bound_s), self.total_s)

    def left_s(self, sent_ns: int, last_ns: int | None, *, heard: bool, now_ns: int | None = None) -> float:
        """Time from now on, as :meth:`slack_s`, of a request sent and last heard of then (monotonic)."""
        now = time.monotonic_ns() if now_ns is None else now_ns
        silent_s = None if last_ns is None else (now - last_ns) * 1e-9
        return self.slack_s((now - sent_ns) * 1e-9, silent_s, heard=heard)

    def check_total(self, sent_ns: int) -> None:
        """Raise RequestTimeoutError if a request sent then (monotonic) has taken as long as it may."""
        self._check_total((time.monotonic_ns() - sent_ns) * 1e-9)

    def slack_s(self, waited_s: float, silent_s: float | None, *, heard: bool) -> float:
        """Time until a limit can be exceeded at the earliest, whatever arrives, or until the next look at the
        answer.

        Args:
            waited_s: time since the request was sent.
            silent_s: time since the last event, None before the first.
            heard: whether any byte has arrived.

        Raises:
            RequestTimeoutError: a limit is exceeded.
        """
        self._check_total(waited_s)
        slack_s = self.first_s - waited_s if silent_s is None else self.gap_s - silent_s
        if slack_s > 0:
            # An event may arrive now: a gap follows.
            return min(slack_s, self.gap_s, self.total_s - waited_s, _LOOK_S)
        if silent_s is not None:
            raise RequestTimeoutError(f"no event for {self.gap_s:g} s (--timeouts gap={self.gap_s:g}s)")
        what, first = "event" if heard else "byte", f"{self.first_s:g}"
        raise RequestTimeoutError(f"no {what} within {first} s (--timeouts first={first}s)")

    def _check_total(self, waited_s: float) -> None:
        if waited_s >= self.total_s:
            total = f"{self.total_s:g}"
            raise RequestTimeoutError(f"not complete within {total} s (--timeouts total={total}s)")


class OneTimer:
    """One call from the event loop, some time from now."""

    __slots__ = ("_timer",)

    def __init__(self) -> None:
        self._timer: _TimerWatcher | None = None

    def arm(self, seconds: float, call: Callable[[], object]) -> None:
        """Replace the last one."""
        self.disarm()
        self._timer = timer = gevent.get_hub().loop.timer(max(seconds, 0.001))
        timer.start(call)

    def disarm(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()
            timer.close()


# --- Share of the event loop used for decoding


T = TypeVar("T")

#: Time in one turn of the event loop for decoding, over all connections. A connection beyond it is not read
#: until the next turn, so that only its own server has to wait.
DECODING_S = 0.005

#: Bytes of an answer above which its record is made in a turn of its own: that takes up to 5 ms.
LONG_ANSWER_BYTES = 1 << 20

#: Too short to be noticed, and long enough for another turn to start.
_NEXT_TURN_S = 1e-4


class DecodeBudget:
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
DECODE_BUDGET = DecodeBudget()
