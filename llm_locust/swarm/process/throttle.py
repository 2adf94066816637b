"""Rate limit for log messages that could otherwise repeat every second for hours."""

import time
from collections.abc import Callable


class Throttle:
    """Returns True at once, and then at most every ``interval_s`` seconds."""

    __slots__ = ("_clock", "_interval_s", "_next_s")

    def __init__(self, interval_s: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._next_s = float("-inf")

    def __call__(self) -> bool:
        now = self._clock()
        if now < self._next_s:
            return False
        self._next_s = now + self._interval_s
        return True
