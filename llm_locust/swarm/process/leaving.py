"""Exit of a process that cannot do its job.

Locust exits with 1 or -1 if it cannot start: no user class, no workers in time, a busy port. Here 1 means
that a gate broke, so these become 2. Once a run's result decides, Locust exits with that code as it is.
"""

import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import PurePath
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import psutil

from llm_locust.core.exit_codes import EXIT_USAGE
from llm_locust.host.exhausted import exhausted
from llm_locust.options.settings import UsageError

if TYPE_CHECKING:
    from locust.env import Environment
    from locust.event import EventHook

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
    for child in psutil.Process().children():
        child.terminate()
    raise SystemExit(EXIT_USAGE)


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
