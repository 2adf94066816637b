"""The time of an open loop's schedule."""

import time
from collections.abc import Callable

from llm_locust.client.http.clock import ClockPair, read_clocks


class ScheduleClock:
    """The schedule's time in this process.

    Args:
        origin: the schedule's beginning.
        read: the clocks.
    """

    def __init__(self, origin: ClockPair, read: Callable[[], ClockPair] = read_clocks) -> None:
        self._origin_ns = origin.monotonic_ns
        self._read = read

    @classmethod
    def beginning_at(cls, realtime_ns: int, read: Callable[[], ClockPair] = read_clocks) -> "ScheduleClock":
        """The schedule that begins when this process's realtime, as it is set now, shows ``realtime_ns``."""
        return cls(ClockPair(realtime_ns, realtime_ns - read().offset_ns), read)

    def now_s(self) -> float:
        return (time.monotonic_ns() - self._origin_ns) * 1e-9

    def realtime_ns(self, at_s: float) -> int:
        """An instant of the schedule on this process's realtime, as that is set now."""
        return self._read().offset_ns + self._origin_ns + round(at_s * 1e9)
