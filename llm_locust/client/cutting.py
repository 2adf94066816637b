"""Requests that the end of a load cuts."""

from typing import Protocol

from gevent.lock import BoundedSemaphore


class Calls(Protocol):
    """The calls in flight of one process."""

    @property
    def unanswered(self) -> int: ...

    def abandon_calls(self) -> int: ...


class Cutting:
    """Cuts the calls in flight at the end of a load, and counts each once.

    A signal and the master may ask for the end at once, each in a greenlet of its own, and cutting takes
    several turns of the loop: one greenlet cuts, another waits for it.

    Attributes:
        count: requests cut so far; None before the end of the drain.
    """

    def __init__(self, calls: Calls) -> None:
        self.count: int | None = None
        self._calls = calls
        self._one = BoundedSemaphore()

    def end_drain(self) -> None:
        """Cut what the drain has left, once."""
        with self._one:
            if self.count is None:
                self.count = self._calls.abandon_calls() if self._calls.unanswered else 0

    def cut_rest(self) -> None:
        """Cut what is still in flight."""
        with self._one:
            self.count = (self.count or 0) + self._calls.abandon_calls()
