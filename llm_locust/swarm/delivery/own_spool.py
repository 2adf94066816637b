"""Location of a worker's batches that the master does not have yet."""

import logging
from pathlib import Path
from typing import Any

from llm_locust.options.option import OWN_SPOOL
from llm_locust.store import Spool
from llm_locust.store.files import check_folder_name
from llm_locust.store.parts import SPOOL_DIR
from llm_locust.swarm.channel.messages import RunInfo

logger = logging.getLogger(__name__)


def own_spool(options: Any, worker: str, run: RunInfo) -> Spool | None:
    """Return the spool of one worker in one run; None if batches are kept in memory."""
    # The master's options replace this process's options, but not its disk.
    chosen = getattr(options, OWN_SPOOL, None) or getattr(options, "spool", None)
    if chosen == "off":
        return None
    root = Path(chosen) if chosen else Path(run["path"]).parent
    try:
        name = check_folder_name(worker, "this worker's id")
        of_run = check_folder_name(run["id"], "the run's id")
        folder = root / of_run if chosen else Path(run["path"]) / SPOOL_DIR
        return Spool(folder / name, root)
    except ValueError as e:
        logger.error("batches are kept in memory, not in a spool: %s", e)
        return None
