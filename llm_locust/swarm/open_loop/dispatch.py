"""Dispatch of requests at the times of a schedule, whatever happens to earlier ones.

Times are seconds of the schedule, which starts at a point of this process's monotonic clock. A late request
is started at once; none is dropped.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import gevent
from gevent.event import Event

from llm_locust.swarm.open_loop.alarm import Alarm
from llm_locust.swarm.open_loop.greenlets import Greenlets
from llm_locust.swarm.open_loop.turns import TurnOrder
from llm_locust.workload.arrivals import Timed, Timetable
from llm_locust.workload.traces import TraceEntry, TraceError

logger = logging.getLogger(__name__)

#: How far ahead the timetable is read. A change of the rate must be announced earlier than this.
HORIZON_S = 0.25

#: How far ahead requests are prepared, and how many of them.
AHEAD_S = 0.1
MOST_READY = 256

#: Shortest rest, longer if this many are due at a time: a wake-up takes as long as starting a dozen requests.
LEAST_REST_S = 0.0001
MANY_AT_A_TIME, LONGER_REST_S = 8, 0.0015

#: Longest time for preparing before other greenlets get their turn.
TURN_S = 0.001

T = TypeVar("T", bound=Timed)
T_contra = TypeVar("T_contra", bound=Timed, contravariant=True)
P = TypeVar("P")


class Sender(Protocol[T_contra, P]):
    """Action taken at an arrival."""

    def prepare(self, arrival: T_contra) -> P:
        """Prepare all that can be prepared before the request is due; must not block."""
        ...

    def send(self, arrival: T_contra, prepared: P, due_s: float) -> None:
        """Send the request and wait for its end, in a greenlet of its own."""
        ...

    def slo_class(self, arrival: T_contra) -> str:
        """SLO class of the arrival's request, before it is prepared."""
        ...


class _Slot(NamedTuple, Generic[T]):
    """An arrival whose request has not started. Ordered by due time; ``k`` is unique."""

    due_s: float
    k: int
    arrival: T
    prepared: Any = None  # a P, once prepared


class Dispatcher(Generic[T, P]):
    """Dispatcher of one worker's part of a schedule.

    Attributes:
        in_flight: requests started and not ended.
        held_back: requests that had to wait because ``max_in_flight`` others were in flight.
        stopped_s: when :meth:`stop` was called; None before.

    Args:
        now_s: the schedule's time.
        max_in_flight: most requests at once; the others wait, in order.
        turns: set if arrivals may depend on each other.
        on_error: called with what :class:`Sender` raises; that request has ended.
    """

    def __init__(
        self,
        timetable: Timetable[T],
        sender: Sender[T, P],
        now_s: Callable[[], float],
        *,
        max_in_flight: int | None = None,
        turns: TurnOrder | None = None,
        on_error: Callable[[Exception], None] = lambda e: logger.error("a request was not sent: %r", e),
    ) -> None:
        self.in_flight = 0
        self.held_back = 0
        self._timetable = timetable
        self._sender = sender
        self._now_s = now_s
        self._max_in_flight = max_in_flight
        self._turns = turns
        self._on_error = on_error
        self._coming: list[_Slot[T]] = []  # heaps: not prepared yet
        self._ready: list[_Slot[T]] = []  # and prepared
        self._waiting: deque[_Slot[T]] = deque()  # held back, in order of due time
        self._longest_wait_s = 0.0
        self._asked_until_s = float("-inf")
        self.stopped_s: float | None = None
        self._missed: list[_Slot[T]] = []  # could not be prepared, or the load ended meanwhile
        self._wake = Event()
        self._greenlets = Greenlets(self._perform)

    @property
    def waiting(self) -> int:
        """Number of requests held back now."""
        return len(self._waiting)

    @property
    def unsent(self) -> list[T]:
        """Arrivals that were due when the load ended, or are due now, and were not started, without turns
        that wait for an earlier one."""
        slots = [*self._missed, *self._waiting]
        if self.stopped_s is not None:
            slots += [s for heap in (self._ready, self._coming) for s in heap if s.due_s <= self.stopped_s]
        return [slot.arrival for slot in slots]

    @property
    def longest_wait_s(self) -> float:
        """Longest time that a request was held back, including those that still are, or were at the end."""
        if not self._waiting:
            return self._longest_wait_s
        until_s = self._now_s() if self.stopped_s is None else self.stopped_s
        return max(self._longest_wait_s, until_s - self._waiting[0].due_s)

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight, waits, or is due soon."""
        return not (self.in_flight or self._waiting or self._ready or self._coming)

    def give_up_waiting(self) -> int:
        """Count the requests that are held back now as unsent; return their number."""
        given_up, self._waiting = self._waiting, deque()
        self._missed += given_up
        return len(given_up)

    @property
    def spent(self) -> bool:
        """Whether the timetable has ended, and all its requests too."""
        return self._exhausted and not (self._waiting or self.in_flight or self._turns)

    @property
    def _exhausted(self) -> bool:
        return self._timetable.ended and not (self._coming or self._ready)

    def run(self) -> None:
        """Start every request at its time, until all have ended or :meth:`stop` is called."""
        alarm = Alarm(self._wake.set)
        try:
            while not (self._stopped or self.spent):
                self._turn(alarm)
        finally:
            alarm.close()

    def _turn(self, alarm: Alarm) -> None:
        """Start and prepare what is due, then rest."""
        now_s = self._now_s()
        self._ask(now_s)
        started = self._start_due(now_s)
        if started:
            gevent.sleep(0)  # started requests send before anything else is prepared
        self._make_ready(self._now_s())
        rest_s = self._rest_s()
        if rest_s is not None:
            alarm.ring_in(max(rest_s, LEAST_REST_S if started < MANY_AT_A_TIME else LONGER_REST_S))
        self._wake.wait()
        self._wake.clear()

    @property
    def _stopped(self) -> bool:
        return self.stopped_s is not None

    def stop(self) -> None:
        """End the load: start nothing more. Requests in flight go on."""
        if self.stopped_s is None:
            now_s = self._now_s()
            with suppress(TraceError):  # then the rest of the trace is unknown
                self._ask(now_s)
            self.stopped_s = now_s
        self._wake.set()

    def wake(self) -> None:
        """Note that the timetable has changed."""
        self._wake.set()

    def kill(self) -> None:
        """Kill the requests in flight."""
        self.stop()
        self._greenlets.close()

    def _ask(self, now_s: float) -> None:
        """Read the near future from the timetable."""
        if now_s + HORIZON_S / 2 < self._asked_until_s or self._timetable.ended:
            return
        self._asked_until_s = now_s + HORIZON_S
        for arrival in self._timetable.before(self._asked_until_s):
            due_s = arrival.at_s
            if self._turns is not None and isinstance(arrival, TraceEntry):
                free_s = self._turns.due_s(arrival)
                if free_s is None:
                    continue
                due_s = free_s
            heappush(self._coming, _Slot(due_s, arrival.k, arrival))

    def _start_due(self, now_s: float) -> int:
        """Start what is due; return how many were started."""
        started = 0
        for heap in (self._ready, self._coming):
            while heap and heap[0].due_s <= now_s:
                self._due(heappop(heap))
                started += 1
        return started

    def _due(self, slot: _Slot[T]) -> None:
        if self._full or self._waiting:
            self.held_back += 1
            self._waiting.append(slot)
        else:
            self._begin(slot)

    @property
    def _full(self) -> bool:
        return self._max_in_flight is not None and self.in_flight >= self._max_in_flight

    def _begin(self, slot: _Slot[T]) -> None:
        self.in_flight += 1
        self._greenlets.start(slot)

    def _make_ready(self, now_s: float) -> None:
        """Prepare the next requests, if it is time to, until one is due; none while others are held back."""
        if self._stopped:
            return
        coming, ready = self._coming, self._ready
        stop_s = now_s + TURN_S
        while coming and coming[0].due_s <= now_s + AHEAD_S and len(ready) < MOST_READY and not self._waiting:
            self._make_one_ready(heappop(coming))
            now_s = self._now_s()
            if now_s >= stop_s or (ready and ready[0].due_s <= now_s):
                break

    def _make_one_ready(self, slot: _Slot[T]) -> None:
        try:
            prepared = self._sender.prepare(slot.arrival)
        except Exception as e:
            self._missed.append(slot)
            self._on_error(e)
            self._free_followers(slot)
        else:
            heappush(self._ready, _Slot(slot.due_s, slot.k, slot.arrival, prepared))

    def _rest_s(self) -> float | None:
        """Time until something is due; None until :meth:`wake` is called."""
        due_s = [heap[0].due_s - early_s for heap, early_s in self._heaps() if heap]
        if not self._timetable.ended:
            due_s.append(self._asked_until_s - HORIZON_S / 2)
        return max(0.0, min(due_s) - self._now_s()) if due_s else None

    def _heaps(self) -> list[tuple[list[_Slot[T]], float]]:
        """Each heap with how long before its due time its first entry needs work."""
        makes_ready = len(self._ready) < MOST_READY and not self._waiting
        # Half the time, so that a wake-up for a start mostly prepares the next ones as well.
        return [(self._ready, 0.0), (self._coming, AHEAD_S / 2 if makes_ready else 0.0)]

    def _perform(self, slot: _Slot[T]) -> None:
        sender = self._sender
        try:
            if self._stopped:
                self._missed.append(slot)
                return
            prepared = sender.prepare(slot.arrival) if slot.prepared is None else slot.prepared
            sender.send(slot.arrival, prepared, slot.due_s)
        except Exception as e:
            self._on_error(e)
        finally:
            self.in_flight -= 1
            self._free_followers(slot)
            self._begin_waiting()

    def _begin_waiting(self) -> None:
        while self._waiting and not self._full and not self._stopped:
            slot = self._waiting.popleft()
            self._longest_wait_s = max(self._longest_wait_s, self._now_s() - slot.due_s)
            self._begin(slot)
        if self._exhausted:
            self._wake.set()

    def _free_followers(self, slot: _Slot[T]) -> None:
        if self._turns is None or not isinstance(slot.arrival, TraceEntry):
            return
        for due_s, entry in self._turns.over(slot.arrival, self._now_s()):
            heappush(self._coming, _Slot(due_s, entry.k, cast(T, entry)))  # as the one it waited for is
            self._wake.set()
