"""Requests of a timetable, each begun at its time, whatever the servers do.

Times are seconds of the schedule. A late request is started at once; none is dropped.
"""

import ctypes
import logging
import math
import os
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import gevent
from gevent.event import Event
from greenlet import getcurrent, greenlet

from llm_locust.swarm.process.stopping import SENDERS
from llm_locust.workload.arrivals import Timed, Timetable
from llm_locust.workload.trace_formats import TraceEntry, TraceError

logger = logging.getLogger(__name__)


# --------------------
# Event loop timer with a precision of a tenth of a millisecond.
#
# The loop's own timers are as coarse as the timeout of ``epoll_wait``: whole milliseconds, always late. A
# Linux timer file descriptor is one more descriptor that ``epoll`` waits for, and becomes readable on time.
# --------------------


_CLOCK_MONOTONIC = 1
_READ, _FIRST = 1, 2  # libev's EV_READ and EV_MAXPRI


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """Calls ``on_ring`` in the event loop after each :meth:`ring_in`; without Linux, by the loop's timer."""

    def __init__(self, on_ring: Callable[[], None]) -> None:
        self._on_ring = on_ring
        self._loop: Any = gevent.get_hub().loop
        self._timer: Any = None
        self._fd = _timerfd()
        if self._fd is not None:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._spec = _Itimerspec()
            # Before the sockets that became readable in the same turn.
            self._watcher: Any = self._loop.io(self._fd, _READ, priority=_FIRST)
            self._watcher.start(self._on_readable)

    def ring_in(self, seconds: float) -> None:
        """Ring after this time, instead of at the time set before."""
        if self._fd is None:
            self.quiet()
            self._timer = self._loop.timer(max(0.0, seconds))
            # Counted from now, not from the loop's cached time: that would ring too early.
            self._timer.start(self._on_ring, update=True)
            return
        whole = math.floor(max(seconds, 1e-9))
        self._spec.value = _Timespec(whole, max(1, int((max(seconds, 1e-9) - whole) * 1e9)))
        self._libc.timerfd_settime(self._fd, 0, ctypes.byref(self._spec), None)

    def quiet(self) -> None:
        """Cancel the alarm."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None
        if self._fd is not None:
            self._spec.value = _Timespec(0, 0)
            self._libc.timerfd_settime(self._fd, 0, ctypes.byref(self._spec), None)

    def close(self) -> None:
        """Cancel the alarm for good."""
        self.quiet()
        if self._fd is not None:
            self._watcher.close()
            os.close(self._fd)
            self._fd = None

    def _on_readable(self) -> None:
        assert self._fd is not None
        with suppress(BlockingIOError):
            os.read(self._fd, 8)
        self._on_ring()


def _timerfd() -> int | None:
    """Create a timer descriptor; None if the system has none."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    return fd if fd >= 0 else None


# --- Reusable greenlets: waking one costs a twentieth of creating one


Work = TypeVar("Work")


class Greenlets(Generic[Work]):
    """Runs each piece of work soon in its own greenlet; creates as many as there is work at once.

    Args:
        work: may block; an exception ends only that piece.
    """

    def __init__(self, work: Callable[[Work], None]) -> None:
        self._work = work
        self._hub = gevent.get_hub()
        self._busy: set[Any] = set()
        self._idle: list[Any] = []
        self._closed = False

    def start(self, item: Work) -> None:
        """Start the work on an item in the event loop's next turn."""
        worker = self._idle.pop() if self._idle else greenlet(self._live, self._hub)
        self._busy.add(worker)
        self._hub.loop.run_callback(worker.switch, item)

    def close(self) -> None:
        """Kill all greenlets, wherever their work stands."""
        self._closed = True
        for worker in [*self._busy, *self._idle]:
            gevent.kill(worker)
        self._busy.clear()
        self._idle.clear()

    def _live(self, item: Work) -> None:
        me = getcurrent()
        SENDERS.add(me)
        while True:
            self._work(item)
            self._busy.discard(me)
            if self._closed:
                return
            self._idle.append(me)
            item = self._hub.switch()


# --- Turns of a replayed session that wait for turns they depend on


#: Most ended turns remembered: twice as many as a trace may refer back, because some end out of order.
MEMORY = 200_000


class Freed(NamedTuple):
    """A turn that may start at ``due_s``."""

    due_s: float
    entry: TraceEntry


class TurnOrder:
    """Order of the turns of one worker's sessions. Times are seconds of the schedule."""

    def __init__(self) -> None:
        self._ended_s: OrderedDict[str, float] = OrderedDict()
        self._followers: defaultdict[str, list[TraceEntry]] = defaultdict(list)
        self._missing: dict[
            int, int
        ] = {}  # k of a waiting turn: how many of those it waits for have not ended

    def __len__(self) -> int:
        """Number of turns that wait for others."""
        return len(self._missing)

    def due_s(self, entry: TraceEntry) -> float | None:
        """Time at which the turn may start; None if others must end first, see :meth:`over`."""
        missing = [id_ for id_ in entry.after if id_ not in self._ended_s]
        if not missing:
            return self._due_s(entry)
        self._missing[entry.k] = len(missing)
        for id_ in missing:
            self._followers[id_].append(entry)
        return None

    def over(self, entry: TraceEntry, ended_s: float) -> list[Freed]:
        """Note the end of a turn; return the turns that waited for nothing else."""
        if entry.id is None:
            return []
        self._ended_s[entry.id] = ended_s
        freed = []
        for follower in self._followers.pop(entry.id, ()):
            self._missing[follower.k] -= 1
            if not self._missing[follower.k]:
                del self._missing[follower.k]
                freed.append(Freed(self._due_s(follower), follower))
        if len(self._ended_s) > MEMORY:
            self._ended_s.popitem(last=False)
        return freed

    def _due_s(self, entry: TraceEntry) -> float:
        return entry.due_s([self._ended_s[id_] for id_ in entry.after if id_ in self._ended_s])


# --- The dispatcher of one worker's part of a schedule


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
