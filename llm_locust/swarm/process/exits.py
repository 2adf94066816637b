"""How a process ends: with which exit code, with its forked workers, and by which signal."""

import ctypes
import logging
import math
import os
import re
import secrets
import signal
import socket
import sys
import sysconfig
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import PurePath
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

import gevent
import psutil
from greenlet import getcurrent, greenlet

from llm_locust.core import EXIT_INCOMPLETE, EXIT_USAGE
from llm_locust.host import ephemeral_ports, exhausted
from llm_locust.options.settings import UsageError
from llm_locust.swarm.process.early_signals import ENDING, end_early, take_signal
from llm_locust.swarm.process.event_loop import spawn_loop, wait_until

if TYPE_CHECKING:
    from gevent._types import _TimerWatcher
    from locust.env import Environment
    from locust.event import EventHook

logger = logging.getLogger(__name__)

# --- Workers that ``--processes`` forks: they end with their parent, and meet it at a port of their own


#: Set at import: processes forked by ``--processes`` inherit the parent's value.
_PARENT = os.getpid()

#: Processes that this one has forked.
_FORKS: list[int] = []

_LOOK_INTERVAL_S = 1.0
_PR_SET_PDEATHSIG = 1

LOOPBACK = "127.0.0.1"

#: Locust's options of the channel, and their defaults.
_CHANNEL = {"master_host": LOOPBACK, "master_port": 5557, "master_bind_host": "*", "master_bind_port": 5557}
_VARIABLES = (
    *("LOCUST_MASTER_NODE_HOST", "LOCUST_MASTER_NODE_PORT"),
    *("LOCUST_MASTER_BIND_HOST", "LOCUST_MASTER_BIND_PORT"),
)

#: Ports to choose from, if the system does not say which it gives to connections.
_FIRST_PORT, _LAST_PORT = 20_000, 30_000
_MOST_TRIES = 100


def forked() -> bool:
    """Whether this process was forked by another one, as ``--processes`` does."""
    return os.getpid() != _PARENT


def fork() -> int:
    """As gevent's; the child is told to end (SIGTERM) as soon as its parent has ended, however it ends."""
    pid: int = gevent.fork()
    if pid:
        _FORKS.append(pid)
    elif _ends_with_parent() and os.getppid() != _PARENT:  # it has ended in between
        os.kill(os.getpid(), signal.SIGTERM)
    return pid


def ended_forks() -> list[int]:
    """Processes forked by :func:`fork` that have ended; none is reaped here, as Locust asks for them."""
    return [pid for pid in _FORKS if not _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def parent_is_gone() -> bool:
    """Whether this process was forked by one that has ended."""
    return forked() and os.getppid() != _PARENT


def end_with_parent() -> None:
    """Let a forked worker end when its parent has ended, where the kernel does not see to it."""
    if forked() and not sys.platform.startswith("linux"):
        spawn_loop(_follow_parent, "the watch on the parent process")


def meet_on_loopback(options: Any, words: Sequence[str]) -> None:
    """Choose a free port of the loopback interface for a master and its forked workers, if nothing is said of
    it, and they alone can know the run's secret.

    Two runs on one machine so do not meet.

    Args:
        options: Locust's, which are changed.
        words: the command line.
    """
    if not getattr(options, "processes", None) or getattr(options, "worker", False):
        return
    chosen = any(word.startswith(("--master-", "--expect-workers")) for word in words)
    chosen = chosen or any(name in os.environ for name in _VARIABLES)
    chosen = chosen or any(getattr(options, name, default) != default for name, default in _CHANNEL.items())
    if chosen or getattr(options, "swarm_secret_env", None):
        return
    options.master_bind_host = LOOPBACK
    options.master_port = options.master_bind_port = free_port()


def free_port() -> int:
    """A port of the loopback interface that is free, and not one that the kernel gives to connections: a
    worker that looks for its master there would be connected to itself."""
    given = ephemeral_ports()
    first, last = (_FIRST_PORT, _LAST_PORT) if given is None else (max(1_024, given.first // 2), given.first)
    if last - first < _MOST_TRIES:
        first, last = _FIRST_PORT, _LAST_PORT
    for _ in range(_MOST_TRIES):
        port = first + secrets.randbelow(last - first)
        with suppress(OSError), closing(socket.socket()) as probe:
            probe.bind((LOOPBACK, port))
            return port
    return _CHANNEL["master_port"]  # type: ignore[return-value]


def _ends_with_parent() -> bool:
    """Let Linux send SIGTERM to this process when its parent ends."""
    if not sys.platform.startswith("linux"):
        return False
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    return True


def _follow_parent() -> None:
    while not parent_is_gone():
        gevent.sleep(_LOOK_INTERVAL_S)
    os.kill(os.getpid(), signal.SIGTERM)


# --------------------
# Exit of a process that cannot do its job.
#
# Locust exits with 1 or -1 if it cannot start: no user class, no workers in time, a busy port. Here 1 means
# that a gate broke, so these become 2. Once a run's result decides, Locust exits with that code as it is.
# --------------------


#: Modules of Locust that end the process by ``sys.exit``.
_LEAVING = (
    *("locust.argument_parser", "locust.main", "locust.runners", "locust.stats"),
    "locust.util.load_locustfile",
)

_FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d{1,9}), in (\S+)', re.MULTILINE)

#: Parts of a path whose code is not a locustfile's.
_LIBRARIES = frozenset({"site-packages", "dist-packages", "llm_locust"})

_STANDARD_LIBRARY = sysconfig.get_path("stdlib")


def leave(error: UsageError) -> NoReturn:
    """End this process for a usage error, and the workers that ``--processes`` forked from it.

    Without a master those would wait forever.
    """
    from llm_locust.report.output import one_line  # deferred: a process that goes on needs no report package

    print(f"llm-locust: error: {one_line(error)}", file=sys.stderr, flush=True)
    end_workers()
    raise SystemExit(EXIT_USAGE)


def end_workers() -> None:
    """End the workers that ``--processes`` forked. They end with their parent too, where no file is left to
    read who they are."""
    with suppress(OSError, psutil.Error):
        for child in psutil.Process().children():
            child.terminate()


class StartingSys:
    """The module ``sys`` with an ``exit`` for a process that has not finished a run."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)

    @staticmethod
    def exit(code: object = None) -> NoReturn:
        """End the process with :func:`usage_code`."""
        raise SystemExit(usage_code(code))


def usage_code(code: object) -> int:
    """Exit code of a process that could not start: 0 for 0 and None, otherwise 2.

    A text instead of a number is printed, as Python does.
    """
    if isinstance(code, str):
        print(code, file=sys.stderr)
    return 0 if code is None or code == 0 else EXIT_USAGE


def take_exits() -> None:
    """Let what Locust and a failing locustfile end with be :func:`usage_code`, in a process of Locust's
    command."""
    for name in _LEAVING:
        if name in sys.modules:
            vars(sys.modules[name])["sys"] = StartingSys()
    sys.excepthook = _on_uncaught


def give_exits_back(environment: "Environment") -> None:
    """Let Locust exit with the run's own code once the process is quitting."""
    environment.events.quitting.add_listener(lambda **_: _give_back())


def keep_exits(environment: "Environment", settle: Callable[[], None]) -> None:
    """Let no listener to the end of a load, or of the process, decide the exit code alone.

    Args:
        settle: called after all listeners to ``quitting``: sets the code.
    """
    events = environment.events
    for hook in (events.test_stopping, events.test_stop, events.quitting, events.quit):
        vars(hook)["fire"] = partial(_fire, environment, hook)
    events.quitting._handlers.insert(0, lambda **_: settle())  # they are called from the last to the first


def _fire(whose: "Environment", hook: "EventHook", /, *, reverse: bool = False, **given: Any) -> None:
    """As Locust's, but a listener that calls ``sys.exit`` sets the exit code only, and the others follow."""
    for handler in [*hook._handlers][:: -1 if reverse else 1]:
        one = type(hook)()
        one.add_listener(handler)
        try:
            one.fire(**given)
        except SystemExit as e:
            if whose.process_exit_code is None and isinstance(e.code, int):
                whose.process_exit_code = e.code


def _give_back() -> None:
    for name in _LEAVING:
        if name in sys.modules:
            vars(sys.modules[name])["sys"] = sys


def _on_uncaught(_: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report an exception that nobody caught (raises SystemExit, whose code Python then takes)."""
    raise SystemExit(report_uncaught(error, trace))


def report_uncaught(error: BaseException, trace: TracebackType | None) -> int:
    """Print the traceback from the locustfile on, and one line that says what failed; give the exit code."""
    if isinstance(error, KeyboardInterrupt):
        has_begun = SIGNALS.has_begun()
        after = "; `llm-locust merge` reads the run's records" if has_begun else ""
        print(f"llm-locust: error: interrupted (Ctrl-C){after}", file=sys.stderr, flush=True)
        return EXIT_INCOMPLETE if has_begun else EXIT_USAGE
    if (reason := exhausted(error)) is not None:
        print(f"llm-locust: error: {reason}", file=sys.stderr, flush=True)
        return EXIT_USAGE
    frames = traceback.extract_tb(trace)
    loading = [n for n, frame in enumerate(frames) if frame.name == "load_locustfile"]
    listed = [f for f in frames[loading[0] + 1 :] if "importlib" not in f.filename] if loading else frames
    text = "".join(traceback.format_exception_only(error)).strip()
    print("".join(traceback.format_list(listed)) + text, file=sys.stderr)
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({PurePath(error.filename).name}:{error.lineno})"
    else:
        own = [frame for frame in listed if not is_library(frame.filename)] or listed
        where = f" ({PurePath(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    what = "the locustfile cannot be loaded" if loading else "Locust failed"
    print(f"llm-locust: error: {what}: {text.splitlines()[-1]}{where}", file=sys.stderr, flush=True)
    return EXIT_USAGE


def place_of(frame: FrameType | None) -> str:
    """Where code stands: the innermost line that is not a library's, or the innermost one."""
    innermost = ""
    while frame is not None:
        file = frame.f_code.co_filename
        where = f"{PurePath(file).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        if not is_library(file) and not file.startswith((_STANDARD_LIBRARY, "<")):
            return where
        innermost, frame = innermost or where, frame.f_back
    return innermost or "an unknown place"


def innermost(traceback: str) -> str:
    """The innermost line of a formatted traceback that is not a library's, or the last one, as ``file:line in
    function``; empty if there is none. The file is without its folders.
    """
    frames = _FRAME.findall(traceback)
    if not frames:
        return ""
    file, line, function = next((f for f in reversed(frames) if not is_library(f[0])), frames[-1])
    return f"{PurePath(file).name}:{line} in {function}"


def is_library(file: str) -> bool:
    """Whether a file of a traceback is not the user's own."""
    return bool(_LIBRARIES.intersection(PurePath(file).parts))


def leave_once(environment: "Environment") -> None:
    """Let one greenlet at a time shut the process down. Call it after all other listeners were added.

    On SIGTERM Locust shuts down in a separate greenlet and, because that ends the runner, again in the main
    one. One of them would exit while the other still works.
    """
    leaving: list[greenlet] = []

    def wait_for_the_first(**_: object) -> None:
        leaving.append(gevent.getcurrent())
        first = leaving[0]
        # Its SystemExit is raised in the main greenlet, inside this wait.
        while first is not gevent.getcurrent() and not first.dead:
            gevent.sleep(0.05)

    environment.events.quitting.add_listener(wait_for_the_first)


# --- Signals of a Locust process, from the import of this package to its last message


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
        self._end_asked_s = -math.inf

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
        if patience_s > 0:
            later = gevent.get_hub().loop.timer(LAST_S + patience_s)
            later.start(self._give_up, reason)  # where it cannot, the first one is there
            self._last_resort.stop()
            self._last_resort = later

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
            last_s, self._end_asked_s = self._end_asked_s, time.monotonic()
            if self._end_asked_s - last_s < PARENT_ENDS_WITHIN_S:
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
