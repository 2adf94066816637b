"""Open files, local ports and memory against the users of one process."""

from llm_locust.doctor.finding import Finding, fail, ok, skipped, warn
from llm_locust.host.open_files import MARGIN, FileLimits, descriptors_for
from llm_locust.host.ports import Ports
from llm_locust.report.text import count, plural

#: Hard limit below which few loads fit: the soft limit of most systems.
FEW_FILES = 1_024

_MIB = 1 << 20

#: Resident memory of a process, and of each of its users, in MiB: 148 were measured with
#: 10 users, 205 with 1,000.
PROCESS_MIB, USER_MIB = 150, 0.1


def judge_files(limits: FileLimits, users: int) -> Finding:
    """Hard limit of open files: a run raises the soft one by itself."""
    needed = descriptors_for(users, targets=1)
    if limits.hard is None:
        return ok("unlimited")
    figure = f"{count(limits.hard)} at most, {count(needed)} needed for {plural(users, 'user')}"
    if limits.hard < needed:
        return fail(
            figure,
            f"raise the limit with `ulimit -n {needed}` (a container: in its runtime), or use more processes",
        )
    if limits.hard < FEW_FILES:
        return warn(
            figure,
            f"raise the limit with `ulimit -n 65536` (a container: in its runtime): over "
            f"{count(limits.hard - MARGIN)} requests at once fail, also in an open loop",
        )
    return ok(figure)


def judge_ports(ports: Ports | None, users: int) -> Finding:
    """Ephemeral ports: each connection to the same address and port holds one of its own."""
    if ports is None:
        return skipped("this system does not report its local ports")
    waiting = "" if ports.time_wait is None else f", {count(ports.time_wait)} in TIME_WAIT"
    figure = f"{count(ports.count)} ({ports.first}-{ports.last}){waiting}"
    change = 'widen the range: `sysctl -w net.ipv4.ip_local_port_range="1024 65535"`, or use more machines'
    if ports.count < users:
        return fail(f"{figure}, {count(users)} needed", change)
    if ports.count < 2 * users:
        return warn(f"{figure}, {count(users)} needed", change)
    if ports.time_wait is not None and 2 * ports.time_wait > ports.count:
        return warn(
            figure, "wait a minute after other load, or widen the range: closed connections hold ports"
        )
    return ok(figure)


def judge_memory(available_bytes: int | None, users: int) -> Finding:
    """Memory left on the machine and in the container, against what one process with these users takes."""
    if available_bytes is None:
        return skipped("this system does not report its memory")
    needed_mib, available_mib = PROCESS_MIB + USER_MIB * users, available_bytes / _MIB
    figure = (
        f"{count(available_mib)} MiB left, about {count(needed_mib)} MiB needed for {plural(users, 'user')}"
    )
    change = "raise the container's memory limit, or use a machine with more memory"
    if available_mib < needed_mib:
        return fail(figure, change)
    return warn(figure, change) if available_mib < 2 * needed_mib else ok(figure)
