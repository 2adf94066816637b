"""End of a run whose last worker is gone, which Locust stops as if a user had stopped it."""

import logging

from locust.runners import STATE_MISSING, MasterRunner

from llm_locust.swarm.run.run import ActiveRun

logger = logging.getLogger(__name__)


def note_desertion(runner: MasterRunner, run: ActiveRun, ends_by_itself: bool) -> None:
    """Log why a run that is being stopped has no worker left, and note it in the run.

    Args:
        ends_by_itself: the run has an end of its own, before which this one comes.
    """
    if runner.worker_count or run.stop_reason:
        return
    missing = sum(client.state == STATE_MISSING for client in runner.clients.all)
    if missing:
        run.cut(f"no worker was left: {missing} of {len(list(run.roster))} went silent at the end")
    else:
        run.stop_reason = "no worker was left: the last one quit"
        run.cut_short = ends_by_itself
    logger.error("the run ends early: %s", run.stop_reason)
