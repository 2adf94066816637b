"""Limit of open files of this process, and how many a load needs."""

import logging
import resource
from dataclasses import dataclass

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
