"""CPU time that this process did not get: stolen by the hypervisor, or throttled by a limit.

Both are counters of the kernel. ``steal`` in ``/proc/stat`` is the time in which this machine had work and
its hypervisor ran another one. ``nr_throttled`` in a cgroup's ``cpu.stat`` (versions 1 and 2) counts the
periods, out of ``nr_periods``, in which the group had used up its CPU limit and was stopped.
"""

from dataclasses import dataclass
from pathlib import Path

from llm_locust.host.cgroups import CGROUPS, PROC, group_folders

#: Fields of the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE, _STEAL = (3, 4), 7


@dataclass(frozen=True, slots=True)
class Taken:
    """Counters at one point in time; None if the system has none.

    ``wanted`` is the time in which the machine's CPUs worked or had work, and ``stolen`` the part of it that
    was not granted, both in ticks. ``limits`` are the CPU limits, from the inner group to the outer ones: for
    each, its periods so far and the throttled ones.
    """

    wanted: int | None = None
    stolen: int | None = None
    limits: tuple[tuple[int, int], ...] | None = None

    def steal_percent(self, before: "Taken") -> float | None:
        """Share of the CPU time wanted since ``before`` that was stolen; 0 if none was wanted."""
        if self.stolen is None or before.stolen is None or self.wanted is None or before.wanted is None:
            return None
        return _percent(self.stolen - before.stolen, self.wanted - before.wanted)

    def throttled_percent(self, before: "Taken") -> float | None:
        """Share of throttled periods since ``before``, of the tightest limit; 0 without a limit."""
        if self.limits is None or before.limits is None:
            return None
        pairs = zip(self.limits, before.limits, strict=True)
        return max((_percent(now[1] - then[1], now[0] - then[0]) for now, then in pairs), default=0.0)


def _percent(part: int, whole: int) -> float:
    return 100 * max(0, part) / whole if whole > 0 else 0.0


class CpuTaken:
    """Reader of both counters; a read takes some 50 µs.

    Args:
        proc, cgroups: paths of /proc and of the cgroup file systems.
    """

    def __init__(self, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._stat = proc / "stat"
        files = [folder / "cpu.stat" for folder in group_folders("cpu", proc, cgroups)]
        self._limits = [file for file in files if _throttled(file) is not None]

    def read(self) -> Taken:
        """Read the counters."""
        limits = [_throttled(file) for file in self._limits]
        whole = None if None in limits or not limits else tuple(each for each in limits if each is not None)
        return Taken(*_steal(self._stat), whole)


def _steal(stat: Path) -> tuple[int | None, int | None]:
    try:
        with stat.open() as file:
            fields = [int(text) for text in file.readline().split()[1 : _STEAL + 2]]
    except (OSError, ValueError):
        return None, None
    if len(fields) <= _STEAL:
        return None, None
    return sum(n for place, n in enumerate(fields) if place not in _IDLE), fields[_STEAL]


def _throttled(file: Path) -> tuple[int, int] | None:
    try:
        counters = dict(line.split(maxsplit=1) for line in file.read_text().splitlines() if " " in line)
        return int(counters["nr_periods"]), int(counters["nr_throttled"])
    except (OSError, ValueError, KeyError):
        return None
