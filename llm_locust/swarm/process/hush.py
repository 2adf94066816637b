"""What others say, made fit for this process's log and Locust's table of exceptions: without keys that they
echo, and without control characters, which could write anything to a terminal. What gevent prints of a
greenlet that failed goes to the log in the same way.

What a server says goes through the record, which has none. But a library of the user's, such as the openai
SDK, may quote a server's answer in an exception, and Locust logs and shows exceptions as they are.
"""

import logging
import re
import traceback
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import gevent
from locust.env import Environment

from llm_locust.wire.secrecy import blanked

logger = logging.getLogger(__name__)

#: Where an environment keeps its filter. Locust's environments are the only state that outlives a call.
_ATTRIBUTE = "llm_locust_hush"

#: Those that Locust gives handlers of their own.
_LOGGERS = ("", "locust", "locust.stats_logger")

#: Characters of what says which greenlet failed: its arguments are among them.
_MOST_CONTEXT = 500

_FORMATTER = logging.Formatter()

#: Control characters but tab and line feed, and those that turn the direction of the text around them.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Hush(logging.Filter):
    """A filter of log handlers that blanks secrets and control characters; it lets every line through."""

    def __init__(self) -> None:
        super().__init__()
        self._secrets: tuple[str, ...] = ()

    def add(self, secrets: Iterable[str]) -> None:
        self._secrets = tuple(dict.fromkeys((*self._secrets, *secrets)))

    def blank(self, text: str) -> str:
        """The text without secrets, U+FFFD for each control character."""
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
        """Log an exception that ended a greenlet; in place of gevent's ``Hub.print_exception``."""
        lines = traceback.format_exception(kind, error, trace)
        # Blanked here too: without a handler logging itself writes the line to standard error.
        logger.error("%s", self.blank(f"{str(context)[:_MOST_CONTEXT]} failed\n{''.join(lines)}".rstrip()))


def attach_hush(environment: Environment) -> None:
    """Keep secrets out of the log, the table of exceptions and what is said of greenlets that failed, from
    when :func:`hush` names them."""
    found = Hush()
    vars(environment)[_ATTRIBUTE] = found
    for name in _LOGGERS:
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(found)
    vars(gevent.get_hub())["print_exception"] = found.log_greenlet
    handlers = environment.events.user_error._handlers
    handlers[:] = [_hushed(handler, found) for handler in handlers]


def hush(environment: Environment, secrets: Iterable[str]) -> None:
    """Texts that must stand in no log from here on."""
    found: Hush | None = vars(environment).get(_ATTRIBUTE)
    if found is not None:
        found.add(secrets)


def _hushed(handler: Callable[..., Any], found: Hush) -> Callable[..., Any]:
    def handle(user_instance: Any, exception: BaseException, tb: Any, **more: Any) -> None:
        text = str(exception)
        shown = found.blank(text)
        told = exception if shown == text else Exception(f"{type(exception).__name__}: {shown}")
        handler(user_instance=user_instance, exception=told, tb=tb, **more)

    return handle
