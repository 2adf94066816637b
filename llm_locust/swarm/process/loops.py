"""Greenlets that live as long as their process and survive exceptions."""

import logging
import time
from collections.abc import Callable
from typing import Literal

import gevent

from llm_locust.host import exhausted

# --- Rate limit for log messages that could otherwise repeat every second for hours


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


# --- Waiting for other greenlets


def wait_until(condition: Callable[[], bool], timeout_s: float, poll_s: float = 0.05) -> bool:
    """Let other greenlets run until the condition holds; return whether it did."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        gevent.sleep(poll_s)
    return True


logger = logging.getLogger(__name__)

#: Pause before a failed loop starts again.
PAUSE_S = 1.0


class Supervised:
    """A function that is called again after each exception, until it returns.

    A failure is logged the first time its kind occurs, with its traceback if the system did not cause it.
    Then failures are logged at most every 30 s, with the number of all so far.

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
        why = exhausted(error)
        text = "%s failed (%d times so far) and goes on: %s: %s"
        told = (self._name, self.failures, type(error).__name__, why or error)
        if type(error) not in self._kinds:
            self._kinds.add(type(error))
            self._may_say()
            is_own = not (isinstance(error, OSError) or why)
            logger.error(text, *told, exc_info=is_own)
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


# --- When a worker last heard its master, and what it has to do about a silence


#: A worker that has heard nothing of its master for this long ends its load. A master answers every second.
SILENT_S = 8.0

#: Silence after which a worker gives up.
GIVE_UP_S = 30.0

#: Interval of the steps, at most.
STEP_S = 1.0

#: ``load``: the load may go on; ``stop``: it ends now; ``deliver``: a master is there again, which takes what
#: is held; ``leave``: give up. ZeroMQ connects again by itself, and looks the address up.
Step = Literal["load", "stop", "wait", "deliver", "leave"]


class MasterWatch:
    """Decides what a silence of the master means for its worker.

    Nothing is decided before the first sign of life: how long a worker looks for its first master is
    Locust's own limit (5 min). Between two steps at most :data:`STEP_S` of silence counts, so that a process
    that was stopped, or had no CPU, first reads what has arrived meanwhile.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stepped_s = clock()
        self.silent_s = 0.0
        self._met = self._stopped = self._is_stranger = False

    def heard(self) -> None:
        """Note a sign of life of a master that knows this worker."""
        self._met = True
        self.silent_s = 0.0

    def unknown(self) -> None:
        """Note the answer of a master that does not know this worker: it is another one than before."""
        self.heard()
        self._is_stranger = True

    def step(self) -> Step:
        """The next thing to do; ``stop`` is returned once."""
        now_s = self._clock()
        if self._met:
            self.silent_s += min(now_s - self._stepped_s, STEP_S)
        self._stepped_s = now_s
        silent_s = self.silent_s
        if silent_s >= GIVE_UP_S:
            return "leave"
        if (silent_s >= SILENT_S or self._is_stranger) and not self._stopped:
            self._stopped = True
            return "stop"
        if not self._stopped:
            return "load"
        return "deliver" if silent_s < SILENT_S else "wait"
