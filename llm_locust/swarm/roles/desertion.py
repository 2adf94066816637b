"""End of a run whose last worker is gone, which Locust stops as if a user had stopped it."""

import logging

from locust.runners import STATE_MISSING, MasterRunner

from llm_locust.swarm.run.run import ActiveRun

logger = logging.getLogger(__name__)


def note_desertion(runner: MasterRunner, run: ActiveRun, ends_by_itself: bool) -> bool:
    """Log why a run that is being stopped has no worker left, and note it in the run.

    Args:
        ends_by_itself: the run has an end of its own, before which this one comes.

    Returns:
        Whether the process has to be ended once the records are in. Locust leaves that to its timer of the
        run time, which :mod:`llm_locust.swarm.process.run_time` takes over. After a last worker that quit it
        ends the process itself.
    """
    if runner.worker_count or run.stop_reason:
        return False
    missing = sum(client.state == STATE_MISSING for client in runner.clients.all)
    if missing:
        run.cut(f"no worker was left: {missing} of {len(list(run.roster))} went silent at the end")
    else:
        run.stop_reason = "no worker was left: the last one quit"
        run.cut_short = ends_by_itself
    logger.error("the run ends early: %s", run.stop_reason)
    return missing > 0 and ends_by_itself
