"""What keeps the event loop of a process with users free of long pauses."""

import functools
import gc

from locust import argument_parser


def keep_collections_short() -> None:
    """Put all that lives now out of the garbage collector's sight, and let it look less often.

    A full collection takes 75 ms with all that is imported, 0.1 ms without; with thousands of users it
    would hold the loop again. A request leaves no cycles, so that there is next to nothing to find.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 100)


def remember_default_arguments() -> None:
    """Let Locust work out the names of its own arguments once.

    A worker asks for them for every option of every spawn message, and each time Locust builds its
    whole parser: 60 ms in the event loop, every second of a ramp. The answer never changes.
    """
    if not hasattr(argument_parser.default_args_dict, "cache_info"):
        argument_parser.default_args_dict = functools.cache(argument_parser.default_args_dict)
