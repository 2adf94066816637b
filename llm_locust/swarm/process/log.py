"""Log of a process: without secrets and control characters, and without lines that mislead.

Text from a server reaches the log through the record, which has been cleaned. But a library of the user, such
as the openai SDK, may quote a server's answer in an exception, and Locust logs and shows exceptions as they
are. So the log, Locust's table of exceptions, and what gevent prints about a failed greenlet are redacted.
"""

import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import gevent

from llm_locust.host import ADVICE, exhausted
from llm_locust.swarm.process.exits import SIGNALS, innermost
from llm_locust.wire.foreign_text import blanked

if TYPE_CHECKING:
    from locust.env import Environment

logger = logging.getLogger(__name__)

#: Attribute of an environment that holds its filter. Only Locust's environments outlive a call.
_ATTRIBUTE = "llm_locust_redactor"

#: Loggers that Locust gives handlers of their own.
_LOGGERS = ("", "locust", "locust.stats_logger")

#: Loggers of libraries that log a line for each request.
_CHATTY = ("httpx", "httpx2")

#: Most characters of a failed greenlet's description, which includes its arguments.
_MOST_CONTEXT = 500

_FORMATTER = logging.Formatter()

#: Control characters except tab and line feed, and characters that change the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Redactor(logging.Filter):
    """Filter of log handlers that blanks secrets and control characters; no line is suppressed.

    What to do about a full disk is said once: each line behind it names only the cause."""

    def __init__(self) -> None:
        super().__init__()
        self._secrets: dict[str, None] = {}  # in order; users may have thousands of tokens
        self._advised: dict[str, logging.LogRecord] = {}  # by the advice, the record that has it

    def add(self, secrets: Iterable[str]) -> None:
        self._secrets |= dict.fromkeys(secrets)

    def blank(self, text: str) -> str:
        """Replace secrets, and each control character by U+FFFD."""
        return _CONTROL.sub("\ufffd", blanked(text, self._secrets))

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        redacted = self.blank(message)
        for advice in ADVICE:
            if advice in redacted and self._advised.setdefault(advice, record) is not record:
                redacted = redacted.replace(advice, "")
        if redacted != message:
            record.msg, record.args = redacted, ()
        if record.exc_info and not record.exc_text:
            record.exc_text = self.blank(_FORMATTER.formatException(record.exc_info))
        return True

    def log_greenlet(
        self,
        context: object,
        kind: type[BaseException],
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Log an exception that ended a greenlet; replaces gevent's ``Hub.print_exception``."""
        if error is not None and (reason := exhausted(error)) is not None:
            if isinstance(error, MemoryError):  # the greenlet may never have begun: somebody waits for it
                SIGNALS.run_out(reason)
            else:
                logger.error("%s", reason)
            return
        lines = traceback.format_exception(kind, error, trace)
        # Blanked here too: without a handler, logging itself writes the line to standard error.
        logger.error("%s", self.blank(f"{str(context)[:_MOST_CONTEXT]} failed\n{''.join(lines)}".rstrip()))


def attach_redactor(environment: "Environment") -> None:
    """Install the filter for the log, the table of exceptions and reports of failed greenlets. It removes the
    secrets that :func:`redact` names later."""
    redactor = vars(environment)[_ATTRIBUTE] = Redactor()
    _add_filter(redactor)
    for name in _CHATTY:
        if logging.getLogger(name).level == logging.NOTSET and not logger.isEnabledFor(logging.DEBUG):
            logging.getLogger(name).setLevel(logging.WARNING)
    vars(gevent.get_hub())["print_exception"] = redactor.log_greenlet
    handlers = environment.events.user_error._handlers
    handlers[:] = [_redacted(handler, redactor) for handler in handlers]


def _add_filter(added: logging.Filter) -> None:
    for name in _LOGGERS:
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(added)


def exporter_secrets(environ: Mapping[str, str]) -> Iterator[str]:
    """Keys in the variables of OpenTelemetry's exporters, which quote headers and addresses in the log."""
    for name, value in environ.items():
        if name.startswith("OTEL_EXPORTER_") and name.endswith("_HEADERS"):
            for header in value.split(","):
                text = header.partition("=")[2] or header
                yield from (text.strip(), unquote(text).split(" ")[-1].strip())
        elif name.startswith("OTEL_EXPORTER_") and name.endswith("_ENDPOINT") and "@" in value:
            user = value.partition("://")[2].rpartition("@")[0]
            yield from (user, user.partition(":")[2])


def redact(environment: "Environment", secrets: Iterable[str]) -> None:
    """Add texts that must not appear in any log from now on."""
    redactor: Redactor | None = vars(environment).get(_ATTRIBUTE)
    if redactor is not None:
        redactor.add(secrets)


def _redacted(handler: Callable[..., Any], redactor: Redactor) -> Callable[..., Any]:
    def handle(user_instance: Any, exception: BaseException, tb: Any, **more: Any) -> None:
        text = str(exception)
        redacted = redactor.blank(text)
        # Locust's own table has the text only: with the type it is the last line of a traceback.
        if redacted != text or handler.__module__ == "locust.runners":
            kind = type(exception)
            module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
            exception = Exception(f"{module}{kind.__qualname__}: {redacted}")
        handler(user_instance=user_instance, exception=exception, tb=tb, **more)

    return handle


# --- Lines: time and text, none that misleads, one traceback for each place


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
_OF_USERS = ("locust.user.users", "locust.user.task", "llm_locust.swarm.process.log")

#: Interval at which an exception that goes on is counted.
_COUNT_INTERVAL_S = 30.0

#: Most places of exceptions that are known; further ones are shown in full.
_MOST_PLACES = 1000

_TRACEBACK = "Traceback (most recent call last)"

#: Of a listener: where it happened tells nothing of who took the memory. Of a user's task it may. numpy and
#: pyarrow have errors of their own for it.
_OUT_OF_MEMORY = re.compile(rf"{re.escape(_TRACEBACK)}[^\0]*\n[\w.]*MemoryError\b[^\n]*\s*\Z")


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
        is_shown = getattr(record, "llm_locust_shown", None)  # one record passes several handlers
        if is_shown is None:
            is_shown = self._is_shown(record)
            vars(record)["llm_locust_shown"] = is_shown
        return bool(is_shown)

    def _is_shown(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if _MISLEADING.match(text):
            return False
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        is_own = record.name.partition(".")[0] in ("locust", "llm_locust")
        if is_own and error is not None and (reason := exhausted(error)) is not None:
            record.msg, record.args = f"{text.rstrip()}: {reason}", ()
            record.exc_info = record.exc_text = None
            return True
        if record.name not in _OF_USERS or _TRACEBACK not in text:
            if _OUT_OF_MEMORY.search(text):
                record.msg, record.args = f"{text.splitlines()[0].rstrip()} {exhausted(MemoryError())}", ()
            return True
        told = text.rstrip().rpartition("\n")[2]
        place = (innermost(text), told.partition(":")[0])
        if place not in self._places:
            if len(self._places) < _MOST_PLACES:
                self._places[place] = [1, time.monotonic()]
            return True
        counted = self._places[place]
        counted[0] += record.name != _OF_USERS[-1]
        if time.monotonic() - counted[1] < _COUNT_INTERVAL_S:
            return False
        counted[1] = time.monotonic()
        record.msg, record.args = f"{told} (at {place[0]}): {counted[0]:.0f} times so far", ()
        return True


def take_log() -> None:
    """Let the log of Locust's command have such lines, unless its level is DEBUG."""
    main = vars(sys.modules["locust.main"])
    set_up = main["setup_logging"]

    def setup_logging(level: str, *more: Any) -> None:
        set_up(level, *more)
        exporters = Redactor()  # they are set up, and warn, before there is an environment
        exporters.add(filter(None, exporter_secrets(os.environ)))
        _add_filter(exporters)
        vars(gevent.get_hub())["print_exception"] = exporters.log_greenlet
        if level.upper() != "DEBUG":
            _format()

    main["setup_logging"] = setup_logging


def _format() -> None:
    lines = LineFilter()
    for name in _LOGGERS:
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(lines)
            if type(handler) is logging.StreamHandler and name != "locust.stats_logger":
                handler.setFormatter(LineFormatter(handler.stream.isatty()))
