"""Heavy work off the event loop."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import gevent

P = ParamSpec("P")
T = TypeVar("T")


def off_the_hub(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do the work in a thread while other greenlets have their turn; gives or raises what it does."""

    def attempt() -> tuple[T | None, Exception | None]:
        # gevent prints the traceback of whatever leaves a task of its pool.
        try:
            return work(*args, **kwargs), None
        except Exception as e:
            return None, e

    result, error = gevent.get_hub().threadpool.apply(attempt)
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # None only where T has it
