"""Limit of open files: enough for the connections of a load, ensured before it starts."""

import math
import sys

from llm_locust.host import descriptors_for, file_limits, raise_file_limit
from llm_locust.options.settings import UsageError
from llm_locust.swarm.channel.messages import RunInfo


def ensure_descriptors(run: RunInfo, workers: int, max_in_flight: int | None, *, open_loop: bool) -> None:
    """Ensure that this process may open as many files as its share of the load needs.

    The soft limit is raised as far as the hard one allows. For an open loop without ``--max-in-flight`` the
    number of requests in flight is unknown: there it is raised all the way, and nothing is checked.

    Raises:
        UsageError: the hard limit is too low; the text names the number that is needed.
    """
    at_once = max_in_flight if open_loop else round(run["rate"])
    if at_once is None:
        raise_file_limit(sys.maxsize)
        return
    share = math.ceil(at_once / max(1, workers))
    needed = descriptors_for(share, len(run["targets"]))
    if not raise_file_limit(needed):
        what = "requests at once" if open_loop else "users"
        raise UsageError(
            f"{share} {what} need {needed} open files in this process, and it may have {file_limits().hard}: "
            f"raise the limit before the start, by `ulimit -n {needed}` (a container's by its runtime), or "
            f"use more workers; `llm-locust doctor --users {share}` shows all limits of this machine"
        )
