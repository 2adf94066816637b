"""Settings that keep the event loop of a process with users free of long pauses."""

import functools
import gc
import sys

from locust import argument_parser

#: Longest time for which a thread keeps the interpreter from the event loop, instead of Python's 5 ms.
THREAD_SLICE_S = 0.0005


def interrupt_threads() -> None:
    """Let the event loop run soon while a thread computes, such as one that makes a web page.

    A timer that ends meanwhile was 5.6 ms late (median), and is 0.8 ms late; two threads that compute take
    no more time for it.
    """
    sys.setswitchinterval(THREAD_SLICE_S)


def keep_collections_short() -> None:
    """Exclude all objects that live now from garbage collection, and collect less often.

    A full collection takes 75 ms with all imported modules, 0.1 ms without; with thousands of users it would
    hold the loop again. A request leaves no cycles, so that there is almost nothing to find.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 100)


def remember_default_arguments() -> None:
    """Cache the names of Locust's own arguments.

    A worker looks them up for every option of every spawn message, and each time Locust builds its whole
    parser: 60 ms in the event loop, every second of a ramp. The answer never changes.
    """
    if not hasattr(argument_parser.default_args_dict, "cache_info"):
        argument_parser.default_args_dict = functools.cache(argument_parser.default_args_dict)
