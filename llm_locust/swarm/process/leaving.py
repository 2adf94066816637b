"""Exit of a process that cannot do its job.

Locust exits with 1 or -1 if it cannot start: no user class, no workers in time, a busy port. Here 1 means
that a gate broke, so these become 2. Once a run's result decides, Locust exits with that code as it is.
"""

import sys
import traceback
from pathlib import PurePath
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import psutil

from llm_locust.core.exit_codes import EXIT_USAGE
from llm_locust.options.settings import UsageError

if TYPE_CHECKING:
    from locust.env import Environment

#: Modules of Locust that end the process by ``sys.exit``.
_LEAVING = (
    *("locust.argument_parser", "locust.main", "locust.runners", "locust.stats"),
    "locust.util.load_locustfile",
)

#: Parts of a path whose code is not a locustfile's.
_LIBRARIES = frozenset({"site-packages", "dist-packages", "llm_locust"})

#: Code of a process that Ctrl-C ended before it could do anything, as shells have it.
_EXIT_INTERRUPTED = 130


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
        return _EXIT_INTERRUPTED
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


def is_library(file: str) -> bool:
    """Whether a file of a traceback is not the user's own."""
    return bool(_LIBRARIES.intersection(PurePath(file).parts))
