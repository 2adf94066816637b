"""Limit of open files: enough for the connections of a load, ensured before it starts."""

import logging
import math
import resource
import sys

from llm_locust.options.settings import UsageError
from llm_locust.swarm.channel.messages import RunInfo

logger = logging.getLogger(__name__)

#: Descriptors for anything but connections to the servers: channel, spool, logs, threads, Python itself.
MARGIN = 64


def ensure_descriptors(run: RunInfo, workers: int, max_in_flight: int | None, *, open_loop: bool) -> None:
    """Ensure that this process may open as many files as its share of the load needs.

    The soft limit is raised as far as the hard one allows. For an open loop without ``--max-in-flight`` the
    number of requests in flight is unknown: there it is raised all the way, and nothing is checked.

    Raises:
        UsageError: the hard limit is too low; the text names the number that is needed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    at_once = max_in_flight if open_loop else round(run["rate"])
    if at_once is None:
        _raise_to(sys.maxsize, soft, hard)
        return
    share = math.ceil(at_once / max(1, workers))
    needed = descriptors_for(share, len(run["targets"]))
    if not _raise_to(needed, soft, hard):
        what = "requests at once" if open_loop else "users"
        raise UsageError(
            f"{share} {what} need {needed} open files in this process, and it may have {hard}: raise the "
            f"limit before the start, by `ulimit -n {needed}` (a container's by its runtime), or use "
            "more workers"
        )


def descriptors_for(at_once: int, targets: int) -> int:
    """Open files needed for this many requests at once.

    One connection each. With several targets twice that: idle connections to one stay open while the requests
    are at another.
    """
    return at_once * (2 if targets > 1 else 1) + MARGIN


def _raise_to(needed: int, soft: int, hard: int) -> bool:
    """Raise the soft limit to the hard one if needed; return whether ``needed`` files are allowed."""
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return True
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as e:  # macOS has a lower limit of its own
            logger.debug("the limit of open files cannot be raised to %d: %s", hard, e)
            return False
    return hard == resource.RLIM_INFINITY or hard >= needed
