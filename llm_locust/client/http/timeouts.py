"""Time limits of one request. A timeout on the whole alone does not cover a stream."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gevent

from llm_locust.client.http.errors import RequestTimeoutError

if TYPE_CHECKING:
    from gevent._types import _TimerWatcher


#: Time between two looks whether an answer is over though its response goes on, in seconds.
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits of one request, in seconds.

    ``first_s`` limits the wait for the first event of a stream, however early the headers arrive (without a
    stream: for the first byte). ``gap_s`` limits the silence after each event (after each read), ``total_s``
    the whole request.
    """

    first_s: float = 60.0
    gap_s: float = 30.0
    total_s: float = 600.0

    def within(self, bound_s: float | None) -> "Timeouts":
        """These limits, with no silence longer than ``bound_s``."""
        if bound_s is None:
            return self
        return Timeouts(min(self.first_s, bound_s), min(self.gap_s, bound_s), self.total_s)

    def left_s(self, sent_ns: int, last_ns: int | None, *, heard: bool, now_ns: int | None = None) -> float:
        """Time from now on, as :meth:`slack_s`, of a request sent and last heard of then (monotonic)."""
        now = time.monotonic_ns() if now_ns is None else now_ns
        silent_s = None if last_ns is None else (now - last_ns) * 1e-9
        return self.slack_s((now - sent_ns) * 1e-9, silent_s, heard=heard)

    def check_total(self, sent_ns: int) -> None:
        """Raise RequestTimeoutError if a request sent then (monotonic) has taken as long as it may."""
        self._check_total((time.monotonic_ns() - sent_ns) * 1e-9)

    def slack_s(self, waited_s: float, silent_s: float | None, *, heard: bool) -> float:
        """Time until a limit can be exceeded at the earliest, whatever arrives, or until the next look at the
        answer.

        Args:
            waited_s: time since the request was sent.
            silent_s: time since the last event, None before the first.
            heard: whether any byte has arrived.

        Raises:
            RequestTimeoutError: a limit is exceeded.
        """
        self._check_total(waited_s)
        slack_s = self.first_s - waited_s if silent_s is None else self.gap_s - silent_s
        if slack_s > 0:
            # An event may arrive now: a gap follows.
            return min(slack_s, self.gap_s, self.total_s - waited_s, _LOOK_S)
        if silent_s is not None:
            raise RequestTimeoutError(f"no event for {self.gap_s:g} s (--timeouts gap={self.gap_s:g}s)")
        what, first = "event" if heard else "byte", f"{self.first_s:g}"
        raise RequestTimeoutError(f"no {what} within {first} s (--timeouts first={first}s)")

    def _check_total(self, waited_s: float) -> None:
        if waited_s >= self.total_s:
            total = f"{self.total_s:g}"
            raise RequestTimeoutError(f"not complete within {total} s (--timeouts total={total}s)")


class OneTimer:
    """One call from the event loop, some time from now."""

    __slots__ = ("_timer",)

    def __init__(self) -> None:
        self._timer: _TimerWatcher | None = None

    def arm(self, seconds: float, call: Callable[[], object]) -> None:
        """Replace the last one."""
        self.disarm()
        self._timer = timer = gevent.get_hub().loop.timer(max(seconds, 0.001))
        timer.start(call)

    def disarm(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()
            timer.close()
