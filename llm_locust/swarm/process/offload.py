"""Blocking work off the event loop."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import gevent

P = ParamSpec("P")
T = TypeVar("T")


def off_the_hub(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``work`` in a thread while other greenlets run; return or raise its result."""

    def attempt() -> tuple[T | None, Exception | None]:
        # gevent prints the traceback of any exception that leaves a task of its pool.
        try:
            return work(*args, **kwargs), None
        except Exception as e:
            return None, e

    result, error = gevent.get_hub().threadpool.apply(attempt)
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # None only where T has it
