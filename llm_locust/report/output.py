"""Standard output as commands use it."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from llm_locust.report.text import clean
from llm_locust.wire.names import CONTROL

#: Of what may wait while a run goes on.
_NICENESS = 10


@contextmanager
def printing() -> Iterator[None]:
    """Let the reader of standard output, such as head, leave when it has seen enough."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def one_line(error: Exception | str) -> str:
    """The text of an error as one line that a terminal can show (:func:`~llm_locust.report.text.clean`)."""
    return clean(error) or type(error).__name__


def done_beside(work: Callable[[], object]) -> int:
    """Do some work below a master that answers heartbeats on the same few cores.

    Returns:
        0, or 1 with a line on standard error that says why it was not done (an OSError or a ValueError).
    """
    with suppress(OSError):
        os.nice(_NICENESS)
    try:
        work()
    except (OSError, ValueError) as e:
        print(one_line(e), file=sys.stderr)
        return 1
    return 0


def shown_json(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON that a terminal can show, without a line end.

    Control and format characters in texts are written as ``\\uXXXX``: the value read back is the same.
    """
    data = msgspec.json.encode(value)
    text = (data if indent is None else msgspec.json.format(data, indent=indent)).decode()
    # The encoder escapes those of ASCII but DEL; a line feed stands between the parts only.
    return CONTROL.sub(lambda found: "\n" if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)
