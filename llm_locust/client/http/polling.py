"""Rate at which the event loop polls for readable sockets, limited to what is useful.

With hundreds of streams a busy loop wakes up for every single token, and half of a token's cost is the
wake-up. Arrival times come from the kernel, so that reads can be grouped without loss of accuracy: a loop
that waits a twentieth of the usual gap between two events of a stream, at most a millisecond, finds many
streams readable at once and spends a quarter less CPU per token. The lateness of reads is still measured
(``client_lag_ns``). If one read returns two events of one stream, only the later one's stamp is known, which
is why the pause follows the gap.

The data of such a read arrived after the last time at which its socket was known to be empty. The loop
provides one: a poll that did not report the socket found it empty.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import gevent
from gevent.monkey import get_original

from llm_locust.client.http.clock import ANCILLARY_BYTES

#: Longest pause between two polls.
LONGEST_PAUSE_S = 0.001

#: Ratio of the usual gap between two events of a stream to the pause that it allows.
GAP_OVER_PAUSE = 20

#: Shortest useful pause: a pause costs a system call itself.
SHORTEST_PAUSE_S = 0.0002

#: Least calls in flight for a pause. With fewer the loop costs little, and each read is done at once.
BUSY_CALLS = 32

#: A poll that took longer than this has waited: no socket was readable when it started.
WAITED_NS = 100_000

#: Marks of a read in the low bits of the time at which its socket was known to be empty: the poll before it
#: waited; it filled its buffer, or is a part of a read and not the last, so that more data may have been
#: there; its last bytes completed nothing yet (of a TLS record), so that its stamp may be later than all data
#: that it returned; it has the stamp of its only packet, or is the part of a read that one packet brought, so
#: that its stamp is that of all its data.
WAITED, FILLED, CUT, EXACT = 1, 2, 4, 8
MARKS = 15

_sleep = get_original("time", "sleep")

if TYPE_CHECKING:
    from gevent.hub import Hub


def pause_s(calls_under_way: int, event_gap_s: float) -> float:
    """Pause between two polls in seconds; 0 if each read is to be done at once.

    Args:
        calls_under_way: number of calls in flight.
        event_gap_s: usual time between two reads of one call; NaN if unknown.
    """
    if calls_under_way < BUSY_CALLS:
        return 0.0
    pause = event_gap_s / GAP_OVER_PAUSE
    return min(pause, LONGEST_PAUSE_S) if pause >= SHORTEST_PAUSE_S else 0.0


class Polls:
    """Polls of one event loop. ``empty_ns`` applies to the reads that follow the last one.

    ``empty_ns`` is the last monotonic time at which the sockets that the poll reported were known to be
    empty, with :data:`WAITED` in its low bits: the start of a poll that had to wait for the first of them,
    else the end of the poll before. Reading it costs nothing; a poll costs two readings of the clock.
    """

    __slots__ = ("_after", "_before", "_began_ns", "_ended_ns", "empty_ns", "pause_s")

    def __init__(self, hub: "Hub") -> None:
        self.pause_s: Callable[[], float] | None = None
        self.empty_ns = 0
        self._began_ns = self._ended_ns = 0
        # Last before the poll, after the greenlets that are due, and first after it.
        self._before = hub.loop.prepare(ref=False, priority=-2)
        self._after = hub.loop.check(ref=False, priority=2)
        self._before.start(self._before_poll)
        self._after.start(self._after_poll)

    @property
    def are_grouped(self) -> bool:
        """Whether the loop pauses between polls now."""
        return self.pause_s is not None and self.pause_s() > 0

    def _before_poll(self) -> None:
        now_ns = time.monotonic_ns()
        if self.pause_s is not None:
            early_s = self.pause_s() - (now_ns - self._began_ns) * 1e-9
            if early_s > 0:
                _sleep(early_s)  # blocks the whole thread: this is the loop's pause before it polls
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
    """Polls of this thread's loop, observed from the first call on."""
    hub = gevent.get_hub()
    found = _POLLS.get(hub)
    if found is None:
        found = _POLLS[hub] = Polls(hub)
    return found


class PollLimiter:
    """Limits how often this thread's gevent loop polls while it is busy.

    A loop that has not polled for the length of the pause polls at once: nothing is delayed if events are
    rare. Does nothing if the kernel does not stamp packets.

    Args:
        pause_s: returns the current pause between two polls.
    """

    def __init__(self, pause_s: Callable[[], float]) -> None:
        self._polls = polls()
        self._pause_s = pause_s
        if ANCILLARY_BYTES:
            self._polls.pause_s = pause_s

    def close(self) -> None:
        """Stop limiting the loop."""
        if self._polls.pause_s is self._pause_s:
            self._polls.pause_s = None
