"""Standard output as commands use it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from llm_locust.report.text import clean


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
