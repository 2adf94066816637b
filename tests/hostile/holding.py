"""How long a slice of work may hold an event loop, and how fast this machine is."""

import statistics
import time
from collections.abc import Callable

import msgspec

#: Of CPU time of the loop's thread: what else the machine does is not in it.
HOLD_S = 0.02

#: CPU time of :func:`known_work` on the machine that the bound is meant for.
KNOWN_WORK_S = 0.0036


def cpu_s(work: Callable[[], object], times: int = 1) -> float:
    """CPU seconds of this thread that a piece of work takes, the least of some times."""

    def once_s() -> float:
        begun = time.thread_time()
        work()
        return time.thread_time() - begun

    return min(once_s() for _ in range(times))


def known_work() -> float:
    """Median CPU time of work of a known size, because what held a loop is not the least of several times."""
    document = b"[" + b",".join(b'{"%05x":1e5}' % n for n in range(20_000)) + b"]"
    return statistics.median(cpu_s(lambda: msgspec.json.decode(document)) for _ in range(9))


def is_short(held_s: float) -> bool:
    """Whether work held the loop within the bound, which a machine that is slower now has longer for."""
    return held_s <= HOLD_S or held_s <= HOLD_S * known_work() / KNOWN_WORK_S
