"""How often the event loop looks for readable sockets: not more often than there is reason to.

With hundreds of streams a busy loop wakes up for every single token, and half of a token's cost is
that waking. Arrival times are the kernel's, so reads can wait for each other without any loss of
truth: a loop that looks at most every 0.5 ms finds several streams readable at once, and spends a
quarter less CPU per token. How late a read is stays measured (``client_lag_ns``). Two events of one
stream that one read would take together know only the later one's stamp, so that a loop does not
wait where the events of a stream come fast.
"""

import time
from collections.abc import Callable

import gevent
from gevent.monkey import get_original

from llm_locust.client.clock import ANCILLARY_BYTES

#: Two looks for readable sockets are at least this far apart while the loop is busy.
POLL_INTERVAL_S = 0.0005

#: The loop waits only where the events of one stream are this many intervals apart.
GAP_INTERVALS = 10

#: With fewer calls under way than this the loop costs little, and each read is taken at once.
BUSY_CALLS = 32

_sleep = get_original("time", "sleep")


class PollLimiter:
    """Bounds how often this thread's gevent loop polls, while it is busy.

    A loop that has not polled for the interval polls at once: nothing is delayed where events are
    rare. Does nothing where the kernel does not stamp packets.

    Args:
        calls_under_way: how many calls are open now.
        event_gap_s: the usual time between two reads of one call; NaN while it is not known.
    """

    def __init__(
        self,
        calls_under_way: Callable[[], int],
        event_gap_s: Callable[[], float],
        *,
        interval_s: float = POLL_INTERVAL_S,
        busy: int = BUSY_CALLS,
    ) -> None:
        self._calls_under_way = calls_under_way
        self._event_gap_s = event_gap_s
        self._interval_s = interval_s
        self._busy = busy
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
        early_s = self._polled_at + self._interval_s - now
        if (
            early_s > 0
            and self._calls_under_way() >= self._busy
            and self._event_gap_s() >= GAP_INTERVALS * self._interval_s
        ):
            _sleep(early_s)  # the whole thread: this is the loop's own pause before it polls
            now = time.monotonic()
        self._polled_at = now
