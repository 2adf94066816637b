"""Log lines for people: time and text, no line that misleads, and one traceback for each place."""

import logging
import re
import sys
import time
from typing import Any

from llm_locust.host import exhausted
from llm_locust.swarm.process.leaving import innermost

#: What Locust logs and what is not so, or not so for long, where this package has the load.
_MISLEADING = re.compile(
    r"No run time limit set"  # a number of requests, a trace or a sweep ends a run too
    r"|Run time limit set to \d"  # it counts from the first moment of the load, and is logged then
    r"|Ramping to 1 users"  # one user is no ramp, and in an open loop the rate is not of users
    r"|All users spawned: .*\(1 total users\)"
    r"|Your selected spawn rate is very high"  # it is known to work
    r"|While stopping users, we encountered a user that didn't have proper args"  # it has just ended
    r"|\S+ had no tasks left after filtering"  # no user of the class is started
    r"|Bad response code from worker children"  # they have said what it means
    r"|Uncaught exception in event handler: \nTraceback .*\bSystemExit\b"
)

#: Loggers that report exceptions of users: Locust's two, and gevent's reports of failed greenlets.
_OF_USERS = ("locust.user.users", "locust.user.task", "llm_locust.swarm.process.hush")

#: Interval at which an exception that goes on is counted.
_COUNT_INTERVAL_S = 30.0

#: Most places of exceptions that are known; further ones are shown in full.
_MOST_PLACES = 1000

_TRACEBACK = "Traceback (most recent call last)"

#: Of a listener: where it happened tells nothing of who took the memory. Of a user's task it may.
_OUT_OF_MEMORY = re.compile(rf"{re.escape(_TRACEBACK)}[^\0]*\nMemoryError\s*\Z")


class LineFormatter(logging.Formatter):
    """``10:31:02 text`` on a terminal, elsewhere with the date; warnings and errors say that they are."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__(datefmt="%H:%M:%S" if is_terminal else "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        level = "" if record.levelno < logging.WARNING else f"{record.levelname}: "
        return f"{self.formatTime(record, self.datefmt)} {level}{record.message}"


class LineFilter(logging.Filter):
    """Drops lines that mislead, and all but the first traceback of an exception at one place.

    Users by the hundred raise the same exception, and each is logged twice: by Locust and by gevent. The
    later ones are counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[tuple[str, str], list[float]] = {}  # count, and when it was last told

    def filter(self, record: logging.LogRecord) -> bool:
        shown = getattr(record, "llm_locust_shown", None)  # one record passes several handlers
        if shown is None:
            shown = self._is_shown(record)
            vars(record)["llm_locust_shown"] = shown
        return bool(shown)

    def _is_shown(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if _MISLEADING.match(text):
            return False
        if record.name not in _OF_USERS or _TRACEBACK not in text:
            if _OUT_OF_MEMORY.search(text):
                record.msg, record.args = f"{text.splitlines()[0].rstrip()} {exhausted(MemoryError())}", ()
            return True
        error = text.rstrip().rpartition("\n")[2]
        place = (innermost(text), error.partition(":")[0])
        if place not in self._places:
            if len(self._places) < _MOST_PLACES:
                self._places[place] = [1, time.monotonic()]
            return True
        counted = self._places[place]
        counted[0] += record.name != _OF_USERS[-1]
        if time.monotonic() - counted[1] < _COUNT_INTERVAL_S:
            return False
        counted[1] = time.monotonic()
        record.msg, record.args = f"{error} (at {place[0]}): {counted[0]:.0f} times so far", ()
        return True


def take_log() -> None:
    """Let the log of Locust's command have such lines, unless its level is DEBUG."""
    main = vars(sys.modules["locust.main"])
    set_up = main["setup_logging"]

    def setup_logging(level: str, *more: Any) -> None:
        set_up(level, *more)
        if level.upper() != "DEBUG":
            _format()

    main["setup_logging"] = setup_logging


def _format() -> None:
    lines = LineFilter()
    for name in ("", "locust", "locust.stats_logger"):
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(lines)
            if type(handler) is logging.StreamHandler and name != "locust.stats_logger":
                handler.setFormatter(LineFormatter(handler.stream.isatty()))
