"""Integral of the number of calls in flight, by an independent counter."""

import time
from collections.abc import Callable


class Occupancy:
    """Area under the number of calls in flight: an account of a run that does not use the records.

    A change costs one reading of the clock.

    Args:
        monotonic_ns: the clock.
    """

    __slots__ = ("_at_ns", "_level", "_monotonic_ns", "_total_ns")

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._monotonic_ns = monotonic_ns
        self._level = self._total_ns = 0
        self._at_ns = monotonic_ns()

    def change(self, by: int) -> None:
        """Change the number of calls in flight."""
        now_ns = self._monotonic_ns()
        self._total_ns += self._level * (now_ns - self._at_ns)
        self._level, self._at_ns = self._level + by, now_ns

    @property
    def total_ns(self) -> int:
        """Sum of the times that calls have been in flight until now."""
        self.change(0)
        return self._total_ns
