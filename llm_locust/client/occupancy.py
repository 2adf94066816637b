"""How many calls are under way, added up over time by a counter of its own."""

import time
from collections.abc import Callable


class Occupancy:
    """The area under the number of calls under way: an account of a run that looks at no record.

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
        """So many more calls are under way from now on."""
        now_ns = self._monotonic_ns()
        self._total_ns += self._level * (now_ns - self._at_ns)
        self._level, self._at_ns = self._level + by, now_ns

    @property
    def total_ns(self) -> int:
        """The sum of the times that calls have been under way until now."""
        self.change(0)
        return self._total_ns
