"""Signals of a Locust process, from the import of this package to its last message."""

import logging
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

import gevent
from greenlet import getcurrent, greenlet

from llm_locust.core import EXIT_INCOMPLETE, EXIT_USAGE
from llm_locust.swarm.process.early_signals import ENDING, end_early, take_signal
from llm_locust.swarm.process.event_loop import wait_until
from llm_locust.swarm.process.leaving import end_workers, fork, forked, parent_is_gone, place_of

if TYPE_CHECKING:
    from gevent._types import _TimerWatcher

logger = logging.getLogger(__name__)

#: Interval of looks at whether the event loop is held. Whoever holds it at two looks, and has used this much
#: CPU time meanwhile, is ended.
HELD_S, HELD_CPU_S = 5.0, 1.0

#: Then the next one that holds it has this long.
AGAIN_S = 1.0

#: The threads of a parent end within this time.
PARENT_ENDS_WITHIN_S = 1.0

#: Time that a process has to end after it was told so twice.
LAST_S = 10.0


class Signals:
    """Handler of SIGINT and SIGTERM, which both are taken from the first moment on.

    Before a load: one line, and exit code 2. Then Ctrl-C is raised where Locust expects it, in the main
    greenlet: Python's own handler raises in whichever greenlet is running, possibly the one that stops the
    load. The first SIGTERM is Locust's, whose handler stops the load and waits for the report; a second one
    is like the second Ctrl-C, and the process ends :data:`LAST_S` later at the latest. User code that holds
    the event loop is ended after some :data:`HELD_S`: no signal, and no run time, could be noticed otherwise.

    A handler that the user has installed is kept.

    Attributes:
        take: called with the number of interrupts so far, including this one; returns whether it was handled.
            Otherwise KeyboardInterrupt is raised.
        has_begun: whether a load has begun.
        cut: logs a reason and ends the load for it; returns the longest time until the end, in seconds.
        shut_down: Locust's handler of SIGTERM, once it has one.
    """

    def __init__(self) -> None:
        self.take: Callable[[int], bool] = lambda _: False
        self.has_begun: Callable[[], bool] = lambda: False
        self.cut: Callable[[str], float] = self._cut
        self.shut_down: Callable[[], None] | None = None
        self._last_resort: _TimerWatcher | None = None
        self._counts: Counter[int] = Counter()
        self._is_noticed = True
        self._freed: WeakSet[greenlet] = WeakSet()
        self._has_alarm = False
        self._asked_s = self._asked_cpu_s = 0.0
        self._told_s = -math.inf

    def take_over(self) -> None:
        """Take the signals of this process, which is one of Locust's command, before Locust takes any."""
        main = vars(sys.modules["locust.main"])
        main["gevent"] = _Gevent(self)
        for number in ENDING:
            take_signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        self._has_alarm = take_signal(signal.SIGALRM, self._on_alarm)

    def run_out(self, reason: str) -> None:
        """End the process, whose event loop has lost a greenlet because something has run out.

        Whoever waits for that greenlet waits for ever, so the process ends without a report if need be.
        """
        if self._last_resort is not None:
            return
        self._last_resort = gevent.get_hub().loop.timer(LAST_S)
        self._last_resort.start(self._give_up, reason)
        patience_s = self.cut(reason)
        self._last_resort.stop()
        self._last_resort = gevent.get_hub().loop.timer(LAST_S + patience_s)
        self._last_resort.start(self._give_up, reason)

    def _give_up(self, reason: str) -> None:
        if self.has_begun():
            _end_now(reason)
        end_workers()
        os._exit(EXIT_USAGE)

    def _cut(self, reason: str) -> float:
        logger.error("%s", reason)
        if self.shut_down is not None:
            gevent.spawn(self.shut_down)
        return 0.0

    def look_in(self, seconds: float) -> None:
        """Look then, and every few seconds, whether the event loop is held: the load should be over."""
        if self._has_alarm:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, HELD_S), HELD_S)

    def look_no_more(self) -> None:
        """The load is over."""
        if self._has_alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM and forked():
            # The kernel sends one for each of its parent's threads.
            last_s, self._told_s = self._told_s, time.monotonic()
            if self._told_s - last_s < PARENT_ENDS_WITHIN_S:
                return
        self._counts[number] += 1
        if self.shut_down is None and not self.has_begun():
            if forked():  # its parent has said why, or says it
                os._exit(EXIT_USAGE)
            end_workers()
            end_early(number)
        if not self._is_noticed and time.monotonic() - self._asked_s > HELD_S:
            self._free(frame)
        self._ask(partial(gevent.spawn, self._handle, number))

    def _ask(self, then: Callable[[], object] = lambda: None) -> None:
        """Let the event loop notice, and look again in a while whether it has."""

        def notice() -> None:
            self._is_noticed = True
            then()

        if self._is_noticed:
            self._is_noticed = False
            self._asked_s, self._asked_cpu_s = time.monotonic(), time.process_time()
        gevent.get_hub().loop.run_callback_threadsafe(notice)
        if self._has_alarm and not signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, HELD_S)

    def _on_alarm(self, _: int, frame: FrameType | None) -> None:
        if self._is_noticed:
            if signal.getitimer(signal.ITIMER_REAL)[1]:
                self._ask()
            return
        # The loop of a process that was stopped, or had no CPU, is not held.
        cpu_s = time.process_time() - self._asked_cpu_s
        is_held = time.monotonic() - self._asked_s > 1.9 * HELD_S and cpu_s > HELD_CPU_S
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S if is_held else HELD_S, HELD_S)
        if is_held:
            self._free(frame)

    def _free(self, frame: FrameType | None) -> None:
        """End what holds the event loop: the greenlet, or, where that does not help, the process."""
        place, me = f" at {place_of(frame)}", getcurrent()
        if me in self._freed or me is gevent.get_hub() or not isinstance(me, gevent.Greenlet):
            _end_now(f"the event loop is held by code that does not end{place}")
        self._freed.add(me)
        logger.error("the event loop is held by code that does not wait%s: its greenlet is ended", place)
        raise gevent.GreenletExit

    def _handle(self, number: int) -> None:
        """Handle a signal in the event loop."""
        count = self._counts[number]
        if count == 1 and forked() and wait_until(parent_is_gone, PARENT_ENDS_WITHIN_S / 10, 0.01):
            logger.warning("the process that started this worker has ended, so this worker ends too")
        if number == signal.SIGTERM and count > 1:
            logger.error("told to end again: the process ends within %g s", LAST_S)
            gevent.spawn_later(LAST_S, _end_now, "it was told to end twice (SIGTERM)")
            self.take(2)
        elif number == signal.SIGTERM and self.shut_down is not None:
            self.shut_down()
        elif number == signal.SIGTERM or not self.take(count):
            gevent.get_hub().handle_system_error(KeyboardInterrupt, KeyboardInterrupt())


class _Gevent:
    """The module ``gevent`` for Locust's command: it sets no handlers itself, and forks workers that end with
    their parent."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    def __getattr__(self, name: str) -> Any:
        return getattr(gevent, name)

    def signal_handler(self, number: int, handler: Callable[[], None]) -> None:
        if number == signal.SIGTERM:
            self._signals.shut_down = handler
        else:
            gevent.signal_handler(number, handler)

    fork = staticmethod(fork)


def _end_now(why: str) -> NoReturn:
    """End this process without a report. What it has received is in its files."""
    text = (
        f"llm-locust: error: the process ends without a report: {why}; `llm-locust merge` reads its records"
    )
    print(text, file=sys.stderr, flush=True)
    end_workers()
    os._exit(EXIT_INCOMPLETE)


#: Of this process. Handlers of signals are a process's, too.
SIGNALS = Signals()
