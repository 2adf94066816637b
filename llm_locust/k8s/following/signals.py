"""Ctrl-C and SIGTERM of a command that has to clean up."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignals:
    """What the user has asked for since the start: the first Ctrl-C to end in order, the second and SIGTERM
    to end at once."""

    def __init__(self) -> None:
        self.to_end = False
        self.at_once = False
        self._news = threading.Event()

    def note(self, number: int) -> None:
        if self.to_end or number == signal.SIGTERM:
            self.at_once = True
        self.to_end = True
        self._news.set()

    def wait(self, seconds: float) -> None:
        """Wait, at most until something new is asked for."""
        self._news.wait(seconds)
        self._news.clear()


@contextmanager
def asked_to_end() -> Iterator[StopSignals]:
    """Note signals instead of dying of them."""
    asked = StopSignals()

    def note(number: int, _: FrameType | None) -> None:
        asked.note(number)

    former = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
