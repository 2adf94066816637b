"""Filter for this process's log and for Locust's table of exceptions. It removes echoed keys, and control
characters that could manipulate a terminal. What gevent prints about a failed greenlet goes to the log in the
same way.

Text from a server reaches the log through the record, which has been cleaned. But a library of the user, such
as the openai SDK, may quote a server's answer in an exception, and Locust logs and shows exceptions as they
are.
"""

import logging
import re
import traceback
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import gevent
from locust.env import Environment

from llm_locust.host import exhausted
from llm_locust.swarm.process.signals import SIGNALS
from llm_locust.wire.foreign_text import blanked

logger = logging.getLogger(__name__)

#: Attribute of an environment that holds its filter. Only Locust's environments outlive a call.
_ATTRIBUTE = "llm_locust_hush"

#: Loggers that Locust gives handlers of their own.
_LOGGERS = ("", "locust", "locust.stats_logger")

#: Loggers of libraries that log a line for each request.
_CHATTY = ("httpx", "httpx2")

#: Most characters of a failed greenlet's description, which includes its arguments.
_MOST_CONTEXT = 500

_FORMATTER = logging.Formatter()

#: Control characters except tab and line feed, and characters that change the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Hush(logging.Filter):
    """Filter of log handlers that blanks secrets and control characters; no line is suppressed."""

    def __init__(self) -> None:
        super().__init__()
        self._secrets: dict[str, None] = {}  # in order; users may have thousands of tokens

    def add(self, secrets: Iterable[str]) -> None:
        self._secrets |= dict.fromkeys(secrets)

    def blank(self, text: str) -> str:
        """Replace secrets, and each control character by U+FFFD."""
        return _CONTROL.sub("\ufffd", blanked(text, self._secrets))

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if (shown := self.blank(message)) != message:
            record.msg, record.args = shown, ()
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


def attach_hush(environment: Environment) -> None:
    """Install the filter for the log, the table of exceptions and reports of failed greenlets. It removes the
    secrets that :func:`hush` names later."""
    found = Hush()
    vars(environment)[_ATTRIBUTE] = found
    for name in _LOGGERS:
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(found)
    for name in _CHATTY:
        if logging.getLogger(name).level == logging.NOTSET and not logger.isEnabledFor(logging.DEBUG):
            logging.getLogger(name).setLevel(logging.WARNING)
    vars(gevent.get_hub())["print_exception"] = found.log_greenlet
    handlers = environment.events.user_error._handlers
    handlers[:] = [_hushed(handler, found) for handler in handlers]


def hush(environment: Environment, secrets: Iterable[str]) -> None:
    """Add texts that must not appear in any log from now on."""
    found: Hush | None = vars(environment).get(_ATTRIBUTE)
    if found is not None:
        found.add(secrets)


def _name(kind: type[BaseException]) -> str:
    """As in the last line of a traceback: with its module, unless it is built in."""
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _hushed(handler: Callable[..., Any], found: Hush) -> Callable[..., Any]:
    def handle(user_instance: Any, exception: BaseException, tb: Any, **more: Any) -> None:
        text = str(exception)
        shown = found.blank(text)
        # Locust's own table has the text only: with the type it is the last line of a traceback.
        if shown != text or handler.__module__ == "locust.runners":
            exception = Exception(f"{_name(type(exception))}: {shown}")
        handler(user_instance=user_instance, exception=exception, tb=tb, **more)

    return handle
