"""Waiting for other greenlets."""

import time
from collections.abc import Callable

import gevent


def wait_until(condition: Callable[[], bool], timeout_s: float, poll_s: float = 0.05) -> bool:
    """Let other greenlets run until the condition holds; return whether it did."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        gevent.sleep(poll_s)
    return True
