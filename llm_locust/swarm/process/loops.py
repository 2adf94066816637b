"""Greenlets that live as long as their process and survive exceptions."""

import logging
from collections.abc import Callable

import gevent

from llm_locust.swarm.process.throttle import Throttle

logger = logging.getLogger(__name__)

#: Pause before a failed loop starts again.
PAUSE_S = 1.0


class Supervised:
    """A function that is called again after each exception, until it returns.

    A failure is logged with its traceback the first time its kind occurs, and then, with the number of all
    failures so far, at most every 30 s.

    Attributes:
        failures: number of times the function has failed.
    """

    def __init__(self, work: Callable[[], object], name: str, pause_s: float = PAUSE_S) -> None:
        self.failures = 0
        self._work = work
        self._name = name
        self._pause_s = pause_s
        self._kinds: set[type[Exception]] = set()
        self._may_say = Throttle()

    def __call__(self) -> None:
        """Call the function until it returns. GreenletExit and the like end it."""
        while True:
            try:
                self._work()
                return
            except Exception as e:
                self._note(e)
            gevent.sleep(self._pause_s)

    def _note(self, error: Exception) -> None:
        self.failures += 1
        text = "%s failed (%d times so far) and goes on: %s: %s"
        told = (self._name, self.failures, type(error).__name__, error)
        if type(error) not in self._kinds:
            self._kinds.add(type(error))
            self._may_say()
            logger.error(text, *told, exc_info=not isinstance(error, OSError))
        elif self._may_say():
            logger.error(text, *told)


def spawn_loop(
    work: Callable[[], object], name: str, pause_s: float = PAUSE_S
) -> "gevent.Greenlet[[], None]":
    """Run an endless loop in a greenlet of its own, as :class:`Supervised`."""
    return gevent.spawn(Supervised(work, name, pause_s))


def every(interval_s: float, work: Callable[[], object], name: str) -> "gevent.Greenlet[[], None]":
    """Call a function repeatedly in a greenlet, first after the interval, as :func:`spawn_loop`."""

    def loop() -> None:
        while True:
            gevent.sleep(interval_s)
            work()

    return spawn_loop(loop, name, pause_s=0.0)
