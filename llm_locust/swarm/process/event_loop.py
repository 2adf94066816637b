"""Work beside the users on a process's event loop, and what keeps the loop free of long pauses."""

import errno
import gc
import logging
import sys
import time
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

import gevent
from gevent.lock import BoundedSemaphore

from llm_locust.host import exhausted

logger = logging.getLogger(__name__)

# --- Rate limit for log messages that could otherwise repeat every second for hours


class RateLimiter:
    """Limit of one log line to one in ``interval_s`` seconds."""

    __slots__ = ("_clock", "_interval_s", "_next_s")

    def __init__(self, interval_s: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._next_s = float("-inf")

    def ready(self) -> bool:
        """Whether the next line may be logged: the first one, and then one in each interval."""
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
        self._log_limit = RateLimiter()

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
        values = (self._name, self.failures, type(error).__name__, why or error)
        if type(error) not in self._kinds:
            self._kinds.add(type(error))
            self._log_limit.ready()
            is_own = not (isinstance(error, OSError) or why)
            logger.error(text, *values, exc_info=is_own)
        elif self._log_limit.ready():
            logger.error(text, *values)


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


# --- Blocking work off the event loop


P = ParamSpec("P")


T = TypeVar("T")


def off_the_hub(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``work`` in a thread while other greenlets run; return or raise its result.

    Raises:
        BlockingIOError: no thread can be started.
    """

    def attempt() -> tuple[T | None, Exception | None]:
        # gevent prints the traceback of any exception that leaves a task of its pool.
        try:
            return work(*args, **kwargs), None
        except Exception as e:
            return None, e

    try:
        result, error = gevent.get_hub().threadpool.apply(attempt)
    except RuntimeError as e:  # no thread: whoever asks is ready for an OSError
        if (reason := exhausted(e)) is None:
            raise
        raise BlockingIOError(errno.EAGAIN, reason) from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # None only where T has it


#: Longest time for which a :class:`Fresh` value is kept.
KEEP_S = 1.0


class Fresh(Generic[T]):
    """A value that is computed on request, by one greenlet at a time, and cached for a while."""

    def __init__(self, make: Callable[[], T], keep_s: float = KEEP_S) -> None:
        self._make = make
        self._keep_s = keep_s
        self._lock = BoundedSemaphore(1)
        self._kept: tuple[float, T] | None = None

    def __call__(self) -> T:
        with self._lock:
            if self._kept is None or time.monotonic() - self._kept[0] >= self._keep_s:
                self._kept = None
                value = self._make()
                self._kept = time.monotonic(), value
            return self._kept[1]


# --- Settings that keep the event loop free of long pauses


#: Longest time for which a thread keeps the interpreter from the event loop, instead of Python's 5 ms.
THREAD_SLICE_S = 0.0005


def interrupt_threads() -> None:
    """Let the event loop run soon while a thread computes, such as one that makes a web page.

    A timer that ends meanwhile was 5.6 ms late (median), and is 0.8 ms late; two threads that compute take
    no more time for it.
    """
    sys.setswitchinterval(THREAD_SLICE_S)


def keep_collections_short() -> None:
    """Exclude all objects that live now from garbage collection, and collect less often.

    A full collection takes 75 ms with all imported modules, 0.1 ms without; with thousands of users it would
    hold the loop again. A request leaves no cycles, so that there is almost nothing to find.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 100)
