"""How often the event loop looks for readable sockets: not more often than there is reason to.

With hundreds of streams a busy loop wakes up for every single token, and half of a token's cost is
that waking. Arrival times are the kernel's, so reads can wait for each other without any loss of
truth: a loop that waits a twentieth of the usual gap between two events of a stream, a millisecond
at most, finds many streams readable at once and spends a quarter less CPU per token. How late a
read is stays measured (``client_lag_ns``). Two events of one stream that one read takes together
know only the later one's stamp, which is why the pause follows the gap.
"""

import time
from collections.abc import Callable

import gevent
from gevent.monkey import get_original

from llm_locust.client.clock import ANCILLARY_BYTES

#: Two looks for readable sockets are never kept further apart than this.
LONGEST_PAUSE_S = 0.001

#: The usual gap between two events of a stream, over the pause that it allows.
GAP_OVER_PAUSE = 20

#: A shorter pause saves nothing: it costs a system call itself.
SHORTEST_PAUSE_S = 0.0002

#: With fewer calls under way than this the loop costs little, and each read is taken at once.
BUSY_CALLS = 32

_sleep = get_original("time", "sleep")


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


class PollLimiter:
    """Bounds how often this thread's gevent loop polls, while it is busy.

    A loop that has not polled for the pause polls at once: nothing is delayed where events are rare.
    Does nothing where the kernel does not stamp packets.

    Args:
        pause_s: how far apart two polls are to be now.
    """

    def __init__(self, pause_s: Callable[[], float]) -> None:
        self._pause_s = pause_s
        self._polled_at = 0.0
        self._watcher = gevent.get_hub().loop.prepare(ref=False)
        if ANCILLARY_BYTES:
            self._watcher.start(self._before_poll)

    def close(self) -> None:
        """Let the loop poll as it likes again."""
        self._watcher.stop()
        self._watcher.close()

    def _before_poll(self) -> None:
        now = time.monotonic()
        early_s = self._polled_at + self._pause_s() - now
        if early_s > 0:
            _sleep(early_s)  # the whole thread: this is the loop's own pause before it polls
            now = time.monotonic()
        self._polled_at = now
