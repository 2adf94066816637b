"""Local ports for outgoing connections."""

from dataclasses import dataclass
from pathlib import Path

from llm_locust.host.cgroups import PROC


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
