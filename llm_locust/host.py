"""The machine and the container of this process, by its kernel: CPU, memory, clocks, files, ports."""

import errno
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# --- Control groups that limit this process (versions 1 and 2), and their limits of CPU and memory


PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

#: Folders of a controller's version 1 and of version 2 below the cgroup file systems.
_ROOTS = {"cpu": ("cpu", "cpu,cpuacct"), "memory": ("memory",), "": ("", "unified")}

#: Version 1 writes "no limit" of memory as the largest number of whole pages.
_UNLIMITED_BYTES = 1 << 60


def group_folders(controller: str, proc: Path = PROC, cgroups: Path = CGROUPS) -> list[Path]:
    """Folders of this process's group and of its parents, as far as they are visible from here.

    Args:
        controller: ``cpu`` or ``memory``. Version 2 has one folder for all controllers.
        proc, cgroups: paths of /proc and of the cgroup file systems.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    folders = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        named = "" if number == "0" else controller if controller in controllers.split(",") else None
        for root in () if named is None else _ROOTS[named]:
            top = cgroups / root
            group = top / path.lstrip("/") if ".." not in path else top
            folders += [group, *(parent for parent in group.parents if parent.is_relative_to(top))]
    return folders


def cpu_limit_cores(proc: Path = PROC, cgroups: Path = CGROUPS) -> float | None:
    """Tightest CPU limit in cores: quota / period. None if no group sets one."""
    limits = (
        limit
        for folder in group_folders("cpu", proc, cgroups)
        for limit in (_quota_v2(folder), _quota_v1(folder))
        if limit is not None
    )
    return min(limits, default=None)


def memory_left_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Memory that the tightest group still allows: its limit less what its processes use.

    Cached file contents count as free: the kernel drops them first. None if no group sets a limit.
    """
    return min(_memory_left(group_folders("memory", proc, cgroups)), default=None)


def _memory_left(folders: list[Path]) -> Iterator[int]:
    names = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
    for folder in folders:
        for limit_name, used_name in names:
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is not None and used is not None and limit < _UNLIMITED_BYTES:
                yield max(0, limit - max(0, used - _cached_bytes(folder / "memory.stat")))


def _quota_v2(folder: Path) -> float | None:
    """``cpu.max``: quota and period in microseconds, or ``max``."""
    words = _text(folder / "cpu.max").split()
    if len(words) != 2 or not all(word.isdecimal() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _quota_v1(folder: Path) -> float | None:
    quota, period = (_number(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return quota / period if quota is not None and period else None


def _cached_bytes(stat: Path) -> int:
    """Inactive file cache of a group and its descendants; 0 if unknown."""
    found = dict(line.split(maxsplit=1) for line in _text(stat).splitlines() if " " in line)
    for name in ("total_inactive_file", "inactive_file"):
        if (value := found.get(name, "").strip()).isdecimal():
            return int(value)
    return 0


def _number(file: Path) -> int | None:
    """Non-negative number in a file; None without one (``max``, ``-1``)."""
    text = _text(file).strip()
    return int(text) if text.isdecimal() else None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


# --------------------
# CPU time that this process did not get: taken by other programs, by the hypervisor, or by a limit.
#
# All are counters of the kernel. ``/proc/self/task/*/schedstat`` has the time in which each thread was
# ready to run and waited for a core, its run-queue wait. ``steal`` in ``/proc/stat`` is the time in which
# this machine had work and its hypervisor ran another one. ``nr_throttled`` in a cgroup's ``cpu.stat``
# (versions 1 and 2) counts the periods, out of ``nr_periods``, in which the group had used up its CPU limit
# and was stopped.
# --------------------


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


# --- Memory that this process may still use


def memory_available_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """The smaller of what the machine and the container have left; None if the system reports neither."""
    left = (_machine_bytes(proc / "meminfo"), memory_left_bytes(proc, cgroups))
    return min((each for each in left if each is not None), default=None)


def _machine_bytes(meminfo: Path) -> int | None:
    """The kernel's estimate ``MemAvailable``."""
    try:
        for line in meminfo.read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return int(rest.split()[0]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None


# --- Clock source of the kernel, and what a reading of the clock costs


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


# --- Limit of open files of this process, and how many a load needs


logger = logging.getLogger(__name__)

#: Descriptors for anything but connections to the servers: channel, spool, logs, threads, Python itself.
MARGIN = 64


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Limits of open files; None is unlimited. A process may raise ``soft`` up to ``hard`` itself."""

    soft: int | None
    hard: int | None


def file_limits() -> FileLimits:
    """Limits of this process."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FileLimits(*(None if limit == resource.RLIM_INFINITY else limit for limit in limits))


def descriptors_for(at_once: int, targets: int) -> int:
    """Open files needed for this many requests at once.

    One connection each. With several targets twice that: idle connections to one stay open while the requests
    are at another.
    """
    return at_once * (2 if targets > 1 else 1) + MARGIN


def no_connection(open_now: int) -> str | None:
    """Why this process may not open a connection beside ``open_now`` others; None if it may.

    The last descriptors are kept for its own files (:data:`MARGIN`): without one it could neither write its
    records nor say what is wrong.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = min(MARGIN, soft // 2)
    if soft == resource.RLIM_INFINITY or open_now < soft - kept:
        return None
    own = f"it may have {soft} open files and keeps {kept} of them for its own"
    return f"{own}: raise `ulimit -n`, or use more workers"


def raise_file_limit(needed: int) -> bool:
    """Raise the soft limit to the hard one if needed; return whether ``needed`` files are allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return True
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as e:  # macOS has a lower limit of its own
            logger.debug("the limit of open files cannot be raised to %d: %s", hard, e)
            return False
    return hard == resource.RLIM_INFINITY or hard >= needed


# --- Local ports for outgoing connections


@dataclass(frozen=True, slots=True)
class Ports:
    """Ephemeral ports from ``first`` to ``last``; ``time_wait`` connections still hold one. None: unknown."""

    first: int
    last: int
    time_wait: int | None

    @property
    def count(self) -> int:
        """Connections that may be open to one address and port at once."""
        return max(0, self.last - self.first + 1)


def ephemeral_ports(proc: Path = PROC) -> Ports | None:
    """Ports of this network namespace; None if the system does not report them."""
    try:
        first, last = (proc / "sys/net/ipv4/ip_local_port_range").read_text().split()
        return Ports(int(first), int(last), _time_wait(proc / "net/sockstat"))
    except (OSError, ValueError):
        return None


def _time_wait(sockstat: Path) -> int | None:
    """Connections in TIME_WAIT: the number after ``tw`` in the line ``TCP:``."""
    try:
        for line in sockstat.read_text().splitlines():
            words = line.split()
            if words[:1] == ["TCP:"] and "tw" in words:
                return int(words[words.index("tw") + 1])
    except (OSError, ValueError, IndexError):
        pass
    return None


# --- Errors that mean that this machine, or this process's share of it, has run out of something


#: As Python words it where the system refuses a thread.
NO_THREAD = "can't start new thread"


_DISK = "free some of the disk, or name a directory elsewhere (`--out`, `--spool`)"
_TO_DO = {
    errno.EMFILE: "raise `ulimit -n`, or use more workers",
    errno.ENFILE: "the whole machine has no file left to open: end other programs, or raise fs.file-max",
    errno.ENOSPC: _DISK,
    errno.EDQUOT: _DISK,
    errno.EFBIG: "raise `ulimit -f`",
}


#: What to do about it, of files and disks, each text as :func:`exhausted` has it behind its cause.
ADVICE = tuple(f": {text}" for text in dict.fromkeys(_TO_DO.values()))


def exhausted(error: BaseException) -> str | None:
    """What has run out and what to do, in a sentence; None if the error means something else."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, SystemError):  # of libev, whose text has it
        number = next((each for each in _TO_DO if os.strerror(each) in str(error)), None)
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return "memory has run out: raise `ulimit -v` or the memory limit of the container"
    if number is not None and number in _TO_DO:
        return f"{os.strerror(number)}: {_TO_DO[number]}"
    if isinstance(error, BlockingIOError) or (isinstance(error, RuntimeError) and NO_THREAD in str(error)):
        return (
            "no more threads or processes can be started: raise `ulimit -u`, the container's limit of "
            "processes (pids) or, for their stacks, its memory limit and `ulimit -v`"
        )
    return None


def reason_of(error: Exception) -> str:
    """What has run out and what to do; of other errors, their own words."""
    return exhausted(error) or (isinstance(error, OSError) and error.strerror) or str(error)
