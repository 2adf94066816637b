"""Event loop timer with a precision of a tenth of a millisecond.

The loop's own timers are as coarse as the timeout of ``epoll_wait``: whole milliseconds, always late. A Linux
timer file descriptor is one more descriptor that ``epoll`` waits for, and becomes readable on time.
"""

import ctypes
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent

_CLOCK_MONOTONIC = 1
_READ, _FIRST = 1, 2  # libev's EV_READ and EV_MAXPRI


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """Calls ``on_ring`` in the event loop after each :meth:`ring_in`; without Linux, by the loop's timer."""

    def __init__(self, on_ring: Callable[[], None]) -> None:
        self._on_ring = on_ring
        self._loop: Any = gevent.get_hub().loop
        self._timer: Any = None
        self._fd = _timerfd()
        if self._fd is not None:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._spec = _Itimerspec()
            # Before the sockets that became readable in the same turn.
            self._watcher: Any = self._loop.io(self._fd, _READ, priority=_FIRST)
            self._watcher.start(self._on_readable)

    def ring_in(self, seconds: float) -> None:
        """Ring after this time, instead of at the time set before."""
        if self._fd is None:
            self.quiet()
            self._timer = self._loop.timer(max(0.0, seconds))
            # Counted from now, not from the loop's cached time: that would ring too early.
            self._timer.start(self._on_ring, update=True)
            return
        whole = math.floor(max(seconds, 1e-9))
        self._spec.value = _Timespec(whole, max(1, int((max(seconds, 1e-9) - whole) * 1e9)))
        self._libc.timerfd_settime(self._fd, 0, ctypes.byref(self._spec), None)

    def quiet(self) -> None:
        """Cancel the alarm."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None
        if self._fd is not None:
            self._spec.value = _Timespec(0, 0)
            self._libc.timerfd_settime(self._fd, 0, ctypes.byref(self._spec), None)

    def close(self) -> None:
        """Cancel the alarm for good."""
        self.quiet()
        if self._fd is not None:
            self._watcher.close()
            os.close(self._fd)
            self._fd = None

    def _on_readable(self) -> None:
        assert self._fd is not None
        with suppress(BlockingIOError):
            os.read(self._fd, 8)
        self._on_ring()


def _timerfd() -> int | None:
    """Create a timer descriptor; None if the system has none."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    return fd if fd >= 0 else None
