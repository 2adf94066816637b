"""CPU time that this process did not get: taken by other programs, by the hypervisor, or by a limit.

All are counters of the kernel. ``/proc/self/task/*/schedstat`` has the time in which each thread was ready to
run and waited for a core, its run-queue wait. ``steal`` in ``/proc/stat`` is the time in which this machine
had work and its hypervisor ran another one. ``nr_throttled`` in a cgroup's ``cpu.stat`` (versions 1 and 2)
counts the periods, out of ``nr_periods``, in which the group had used up its CPU limit and was stopped.
"""

import time
from collections.abc import Mapping
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
    each, its periods so far and the throttled ones. ``waits`` are the run-queue waits of the threads so far,
    by their ids.
    """

    wanted: int | None = None
    stolen: int | None = None
    limits: tuple[tuple[int, int], ...] | None = None
    waits: "RunQueueWaits | None" = None

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

    def run_queue_percent(self, before: "Taken") -> float | None:
        """Run-queue wait of all threads since ``before``, in percent of the time that went by: more than 100
        if several waited."""
        if self.waits is None or before.waits is None:
            return None
        then = before.waits.ns
        waited_ns = sum(max(0, ns - then.get(thread, 0)) for thread, ns in self.waits.ns.items())
        return _percent(waited_ns, self.waits.at_ns - before.waits.at_ns)


@dataclass(frozen=True, slots=True)
class RunQueueWaits:
    """Run-queue waits of threads up to a time of the monotonic clock."""

    at_ns: int
    ns: Mapping[str, int]


def _percent(part: int, whole: int) -> float:
    return 100 * max(0, part) / whole if whole > 0 else 0.0


class CpuTaken:
    """Reader of the counters; a read takes some 100 µs.

    Args:
        proc, cgroups: paths of /proc and of the cgroup file systems.
    """

    def __init__(self, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._stat, self._threads = proc / "stat", proc / "self" / "task"
        files = [folder / "cpu.stat" for folder in group_folders("cpu", proc, cgroups)]
        self._limits = [file for file in files if _throttled(file) is not None]

    def read(self) -> Taken:
        """Read the counters."""
        limits = [_throttled(file) for file in self._limits]
        whole = None if None in limits or not limits else tuple(each for each in limits if each is not None)
        return Taken(*_steal(self._stat), whole, _waits(self._threads))


def _steal(stat: Path) -> tuple[int | None, int | None]:
    try:
        with stat.open() as file:
            fields = [int(text) for text in file.readline().split()[1 : _STEAL + 2]]
    except (OSError, ValueError):
        return None, None
    if len(fields) <= _STEAL:
        return None, None
    return sum(n for place, n in enumerate(fields) if place not in _IDLE), fields[_STEAL]


def _waits(threads: Path) -> RunQueueWaits | None:
    """RunQueueWaits of the threads that are there; None where the kernel does not count them."""
    ns: dict[str, int] = {}
    try:
        for thread in threads.iterdir():
            try:
                ns[thread.name] = int((thread / "schedstat").read_text().split()[1])
            except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                continue
    except (OSError, ValueError, IndexError):
        return None
    return RunQueueWaits(time.monotonic_ns(), ns) if ns else None


def _throttled(file: Path) -> tuple[int, int] | None:
    try:
        counters = dict(line.split(maxsplit=1) for line in file.read_text().splitlines() if " " in line)
        return int(counters["nr_periods"]), int(counters["nr_throttled"])
    except (OSError, ValueError, KeyError):
        return None
