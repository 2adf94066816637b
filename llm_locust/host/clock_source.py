"""Clock source of the kernel, and what a reading of the clock costs."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_CURRENT = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")

_BATCHES, _READINGS = 20, 1_000


@dataclass(frozen=True, slots=True)
class ClockSource:
    """``name`` such as ``tsc``, None if unknown; ``reading_ns`` is the time of one reading from Python."""

    name: str | None
    reading_ns: float


def clock_source(current: Path = _CURRENT, now_ns: Callable[[], int] = time.monotonic_ns) -> ClockSource:
    """Clock source of this machine. Takes about 2 ms."""
    try:
        name = current.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        name = None
    return ClockSource(name, min(_batch_ns(now_ns) for _ in range(_BATCHES)) / _READINGS)


def _batch_ns(now_ns: Callable[[], int]) -> int:
    """Duration of one batch. The shortest of several is the one that nothing interrupted."""
    began_ns = now_ns()
    for _ in range(_READINGS - 1):
        now_ns()
    return now_ns() - began_ns
