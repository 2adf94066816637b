"""Waiting for what other greenlets do."""

import time
from collections.abc import Callable

import gevent


def wait_until(condition: Callable[[], bool], timeout_s: float, poll_s: float = 0.05) -> bool:
    """Give other greenlets their turn until the condition holds; gives whether it came to."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        gevent.sleep(poll_s)
    return True
