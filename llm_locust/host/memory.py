"""Memory that this process may still use."""

from pathlib import Path

from llm_locust.host.cgroups import CGROUPS, PROC, memory_left_bytes


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
