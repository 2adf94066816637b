"""Exit of a process that cannot do its job, and of workers that ``--processes`` forked."""

import ctypes
import logging
import os
import re
import secrets
import signal
import socket
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import PurePath
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import gevent
import psutil
from greenlet import greenlet

from llm_locust.core import EXIT_USAGE
from llm_locust.host import ephemeral_ports, exhausted
from llm_locust.options.settings import UsageError
from llm_locust.swarm.process.event_loop import spawn_loop

if TYPE_CHECKING:
    from locust.env import Environment
    from locust.event import EventHook


logger = logging.getLogger(__name__)

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
    elif _told_by_kernel() and os.getppid() != _PARENT:  # it has ended in between
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
    said = any(word.startswith(("--master-", "--expect-workers")) for word in words)
    said = said or any(name in os.environ for name in _VARIABLES)
    said = said or any(getattr(options, name, default) != default for name, default in _CHANNEL.items())
    if said or getattr(options, "swarm_secret_env", None):
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


def _told_by_kernel() -> bool:
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
    from llm_locust.report.output import (
        one_line,
    )  # deferred: a process that goes on does not need the report package

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
        print("llm-locust: error: interrupted (Ctrl-C)", file=sys.stderr, flush=True)
        return EXIT_USAGE
    if (reason := exhausted(error)) is not None:
        print(f"llm-locust: error: {reason}", file=sys.stderr, flush=True)
        return EXIT_USAGE
    frames = traceback.extract_tb(trace)
    loading = [n for n, frame in enumerate(frames) if frame.name == "load_locustfile"]
    shown = [f for f in frames[loading[0] + 1 :] if "importlib" not in f.filename] if loading else frames
    told = "".join(traceback.format_exception_only(error)).strip()
    print("".join(traceback.format_list(shown)) + told, file=sys.stderr)
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({PurePath(error.filename).name}:{error.lineno})"
    else:
        own = [frame for frame in shown if not is_library(frame.filename)] or shown
        where = f" ({PurePath(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    what = "the locustfile cannot be loaded" if loading else "Locust failed"
    print(f"llm-locust: error: {what}: {told.splitlines()[-1]}{where}", file=sys.stderr, flush=True)
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
