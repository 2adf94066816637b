"""The first moment of a process: its standard files are open, and a signal ends it with one line and the exit
code of a run that could not start.

It imports nothing that takes time: a process uses it in its first moment.
"""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from llm_locust.core import EXIT_USAGE

#: What tells a process to end.
ENDING = (signal.SIGINT, signal.SIGTERM)


def open_standard_files() -> None:
    """Give this process the null device in place of each standard file that it was started without.

    Else Python has None there, and the next socket may get the file's number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            found = os.open(os.devnull, os.O_RDWR)  # the least free number
            os.set_inheritable(found, found == number)
            setattr(sys, name, open(found, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115


def end_at_a_signal() -> None:
    """Let SIGINT and SIGTERM end this process by :func:`end_early`, if nobody else has taken them."""
    for number in ENDING:
        take_signal(number, lambda number, _: end_early(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def take_signal(number: int, handler: Callable[[int, FrameType | None], Any]) -> bool:
    """Handle a signal, unless its handler is one of the user's; return whether it is handled."""
    taken = signal.getsignal(number)
    ours = getattr(taken, "__module__", "").startswith("llm_locust.")
    if not ours and taken not in (signal.SIG_DFL, signal.default_int_handler):
        return False
    try:
        signal.signal(number, handler)
    except ValueError:  # not the main thread: Locust is used as a library
        return False
    return True


def end_early(number: int) -> NoReturn:
    """End this process, in which no load has begun."""
    sys.stdout.flush()
    print(f"llm-locust: error: {interrupted(number)}", file=sys.stderr, flush=True)
    os._exit(EXIT_USAGE)


def interrupted(number: int) -> str:
    """What a signal before the load has done."""
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    return f"interrupted before the load began ({name})"


def keep_for_the_next_program() -> None:
    """Hold back signals until :func:`end_at_a_signal`: this process is about to be another program (exec)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
