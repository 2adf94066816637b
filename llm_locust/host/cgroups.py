"""Control groups that limit this process (versions 1 and 2), and their limits of CPU and memory."""

from collections.abc import Iterator
from pathlib import Path

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
