"""Waits of users that are not their think time: after a failure, and for the tools of agents."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol

from gevent.event import Event
from gevent.hub import Waiter

from llm_locust.client.recording import Answer
from llm_locust.core.record import UNJUDGED, Outcome
from llm_locust.swarm.users.dispatcher import Alarm
from llm_locust.workload.draws import BACKOFF, generator

# --------------------
# Back-off: a user of a closed loop whose request failed waits before its next one.
#
# Without it, one user against a wrong path makes hundreds of failures a second, a load that no real client
# makes. An open loop sends at the times of its schedule, whatever the server does, and has no back-off.
# --------------------


#: Bound of the wait after a first failure; it doubles with each further one up to the second bound.
FIRST_S = 0.1
MOST_S = 5.0

#: Longest ``Retry-After`` of a server that is respected.
MOST_RETRY_AFTER_S = 60.0

#: Outcomes that end a series of failures: the server did answer.
_SERVED = frozenset({Outcome.OK, Outcome.REJECTED})


def bound_s(failures: int) -> float:
    """Bound of the wait after this many failures in a row: min(5 s, 100 ms × 2^(failures − 1))."""
    return min(MOST_S, FIRST_S * 2.0 ** min(failures - 1, 16))


@dataclass(slots=True)
class _UserState:
    """A user's ``failures`` in a row, those of the whole run, and when its next request may start."""

    failures: int = 0
    total: int = 0
    ready_s: float = 0.0


class Backoffs:
    """Waits of the users of one process during one run.

    A wait ends at a random time, uniform between the failure and the bound ("full jitter"), so that users
    which failed together do not come back together. Time that the user spends otherwise, such as its think
    time, counts. A ``Retry-After`` comes on top.

    Attributes:
        waits: number of waits so far.
        waited_s: sum of their durations.

    Args:
        seed, worker_index: of the run and this process. Each user has draws of its own.
        now_s: monotonic clock.
        pause: waits for so many seconds, or less if :meth:`end` is called; None: in the event loop.
    """

    def __init__(
        self,
        seed: int,
        worker_index: int,
        now_s: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self.waits = 0
        self.waited_s = 0.0
        self._key = seed, worker_index
        self._users: dict[int, _UserState] = {}
        self._now_s = now_s
        self._ended = Event()
        self._pause = pause or self._ended.wait

    def note(self, answer: Answer) -> None:
        """Note how a request of a user ended. Cancelled ones, and first tries, change nothing."""
        record = answer.record
        if record.user is None or record.outcome in UNJUDGED:
            return
        if record.outcome in _SERVED:
            if (state := self._users.get(record.user)) is not None:
                state.failures, state.ready_s = 0, 0.0
            return
        state = self._users.setdefault(record.user, _UserState())
        state.failures += 1
        state.total += 1
        seed, worker_index = self._key
        draw = float(generator(seed, worker_index, record.user, BACKOFF, state.total).random())
        asked_s = min(answer.retry_after_s or 0.0, MOST_RETRY_AFTER_S)
        state.ready_s = self._now_s() + asked_s + draw * bound_s(state.failures)

    def wait(self, user: int) -> float | None:
        """Wait until the next request of a user may start, not at all if the load has ended.

        Return for how many seconds it has been allowed to: a process may notice the end of a wait late. None:
        no failure kept it from that.
        """
        state = self._users.get(user)
        if state is None or not state.failures or self._ended.is_set():
            return None
        began_s, ready_s = self._now_s(), state.ready_s  # which another walk of this user may set meanwhile
        if ready_s <= began_s:
            return began_s - ready_s
        self.waits += 1
        try:
            self._pause(ready_s - began_s)
        finally:  # also if the user is ended meanwhile
            self.waited_s += self._now_s() - began_s
        return max(0.0, self._now_s() - ready_s)

    def counts(self) -> dict[str, int]:
        """Number and sum of the waits, as in :class:`~llm_locust.swarm.channel.messages.LoadCounts`."""
        return {"backoff_waits": self.waits, "backoff_ns": round(self.waited_s * 1e9)}

    def end(self) -> None:
        """End all waits: the load has ended."""
        self._ended.set()


class LoadGate(Protocol):
    """A gate at which users wait between two stages."""

    @property
    def is_open(self) -> bool: ...


def admitted(user: int, due_ns: int, backoffs: Backoffs, gate: LoadGate, enter: Callable[[], object]) -> int:
    """Wait until a request of a user may start; return when it was due, by the wall clock: a next stage or
    the end of a back-off may be later than ``due_ns``. A process that is merely late moves nothing.

    Args:
        enter: waits at the gate, and ends a user whose load is over.
    """
    due_ns = _entered(due_ns, gate, enter)
    ready_for_s = backoffs.wait(user)
    if ready_for_s is not None:
        due_ns = max(due_ns, time.time_ns() - round(ready_for_s * 1e9))
    return _entered(due_ns, gate, enter)


def _entered(due_ns: int, gate: LoadGate, enter: Callable[[], object]) -> int:
    """Pass the gate; return when a request is due that was so at ``due_ns`` before it."""
    was_open = gate.is_open
    enter()
    return due_ns if was_open else time.time_ns()


# --- Pauses that end on time, however many there are: those of all agents of a process


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
