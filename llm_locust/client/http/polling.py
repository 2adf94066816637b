"""When the event loop looks for readable sockets, and how often: not more often than there is reason to.

With hundreds of streams a busy loop wakes up for every single token, and half of a token's cost is
that waking. Arrival times are the kernel's, so reads can wait for each other without any loss of
truth: a loop that waits a twentieth of the usual gap between two events of a stream, a millisecond
at most, finds many streams readable at once and spends a quarter less CPU per token. How late a
read is stays measured (``client_lag_ns``). Two events of one stream that one read takes together
know only the later one's stamp, which is why the pause follows the gap.

What such a read took came after the last moment at which its socket was known to be empty. The loop
gives one: a poll that did not report the socket found it empty.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import gevent
from gevent.monkey import get_original

from llm_locust.client.http.clock import ANCILLARY_BYTES

#: Two looks for readable sockets are never kept further apart than this.
LONGEST_PAUSE_S = 0.001

#: The usual gap between two events of a stream, over the pause that it allows.
GAP_OVER_PAUSE = 20

#: A shorter pause saves nothing: it costs a system call itself.
SHORTEST_PAUSE_S = 0.0002

#: With fewer calls under way than this the loop costs little, and each read is taken at once.
BUSY_CALLS = 32

#: A poll that took longer than this waited: no socket was readable when it began.
WAITED_NS = 100_000

#: Marks of a read in the low bits of the time at which its socket was known to be empty: the poll before
#: it waited; it filled its buffer, so that more may have been there; its last bytes completed nothing yet
#: (of a TLS record), so that its stamp may be later than all that it gave.
WAITED, FILLED, CUT = 1, 2, 4
MARKS = 7

_sleep = get_original("time", "sleep")

if TYPE_CHECKING:
    from gevent.hub import Hub


def pause_s(calls_under_way: int, event_gap_s: float) -> float:
    """How far apart two polls are to be; 0 where each read is to be taken at once.

    Args:
        calls_under_way: how many calls are open now.
        event_gap_s: the usual time between two reads of one call; NaN while it is not known.
    """
    if calls_under_way < BUSY_CALLS:
        return 0.0
    pause = event_gap_s / GAP_OVER_PAUSE
    return min(pause, LONGEST_PAUSE_S) if pause >= SHORTEST_PAUSE_S else 0.0


class Polls:
    """The polls of one event loop. ``empty_ns`` is for the reads that follow the last one.

    ``empty_ns`` is the last moment, monotonic, at which the sockets that the poll reported were known to be
    empty, with :data:`WAITED` in its low bits: the beginning of a poll that had to wait for the first of
    them, else the end of the poll before. Reading it costs nothing; a poll costs two readings of the clock.
    """

    __slots__ = ("_after", "_before", "_began_ns", "_ended_ns", "empty_ns", "pause_s")

    def __init__(self, hub: "Hub") -> None:
        self.pause_s: Callable[[], float] | None = None
        self.empty_ns = 0
        self._began_ns = self._ended_ns = 0
        # The last thing before the poll, behind the greenlets that are due, and the first after it.
        self._before = hub.loop.prepare(ref=False, priority=-2)
        self._after = hub.loop.check(ref=False, priority=2)
        self._before.start(self._before_poll)
        self._after.start(self._after_poll)

    def _before_poll(self) -> None:
        now_ns = time.monotonic_ns()
        if self.pause_s is not None:
            early_s = self.pause_s() - (now_ns - self._began_ns) * 1e-9
            if early_s > 0:
                _sleep(early_s)  # the whole thread: this is the loop's own pause before it polls
                now_ns = time.monotonic_ns()
        self._began_ns = now_ns

    def _after_poll(self) -> None:
        now_ns = time.monotonic_ns()
        if now_ns - self._began_ns > WAITED_NS:
            self.empty_ns = self._began_ns & ~MARKS | WAITED
        else:
            self.empty_ns = self._ended_ns & ~MARKS
        self._ended_ns = now_ns


_POLLS: "WeakKeyDictionary[Hub, Polls]" = WeakKeyDictionary()


def polls() -> Polls:
    """Those of this thread's loop, watched from the first call on."""
    hub = gevent.get_hub()
    found = _POLLS.get(hub)
    if found is None:
        found = _POLLS[hub] = Polls(hub)
    return found


class PollLimiter:
    """Bounds how often this thread's gevent loop polls, while it is busy.

    A loop that has not polled for the pause polls at once: nothing is delayed where events are rare.
    Does nothing where the kernel does not stamp packets.

    Args:
        pause_s: how far apart two polls are to be now.
    """

    def __init__(self, pause_s: Callable[[], float]) -> None:
        self._polls = polls()
        self._pause_s = pause_s
        if ANCILLARY_BYTES:
            self._polls.pause_s = pause_s

    def close(self) -> None:
        """Let the loop poll as it likes again."""
        if self._polls.pause_s is self._pause_s:
            self._polls.pause_s = None
