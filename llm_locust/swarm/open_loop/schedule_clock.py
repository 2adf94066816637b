"""Time of an open loop's schedule."""

import time
from collections.abc import Callable

from llm_locust.client.http.clock import ClockPair, read_clocks


class ScheduleClock:
    """Conversion between the schedule's time and this process's clocks.

    Args:
        origin: start of the schedule.
        read: the clocks.
    """

    def __init__(self, origin: ClockPair, read: Callable[[], ClockPair] = read_clocks) -> None:
        self._origin_ns = origin.monotonic_ns
        self._read = read

    @classmethod
    def beginning_at(cls, realtime_ns: int, read: Callable[[], ClockPair] = read_clocks) -> "ScheduleClock":
        """Clock of a schedule that starts when this process's realtime reads ``realtime_ns``."""
        return cls(ClockPair(realtime_ns, realtime_ns - read().offset_ns), read)

    def now_s(self) -> float:
        return (time.monotonic_ns() - self._origin_ns) * 1e-9

    def realtime_ns(self, at_s: float) -> int:
        """Convert a time of the schedule to this process's realtime, as set now."""
        return self._read().offset_ns + self._origin_ns + round(at_s * 1e9)
