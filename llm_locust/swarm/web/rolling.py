"""Rolling summaries of a soak: every few minutes a separate process reports on the run so far.

Another one copies the run to the destination of ``--upload``, so that the data outlives the machine.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import gevent

from llm_locust.report.run.so_far import SO_FAR_DIR
from llm_locust.swarm.process.children import STDERR, LateError, run_elsewhere
from llm_locust.swarm.run.finishing import patience_s
from llm_locust.swarm.run.upkeep import upload_so_far

logger = logging.getLogger(__name__)


def summarise_forever(
    interval_s: float, run: Callable[[], Path | None], upload: str | None = None
) -> NoReturn:
    """Write a summary of the current run every ``interval_s``; one that takes longer delays the next.

    Args:
        run: returns the directory of the current run, None without one.
        upload: destination of a copy after each summary.
    """
    while True:
        gevent.sleep(interval_s)
        path = run()
        if path is None:
            continue
        summarise_elsewhere(path)
        if upload is not None and run() == path:  # otherwise the run has ended, and its final upload is due
            upload_so_far(path, upload)


def summarise_elsewhere(run: Path) -> bool:
    """Write ``so-far/`` of a run in a process of its own; log why if that failed."""
    try:
        code, said = run_elsewhere(
            "llm_locust.report.run.rolling", ["--", str(run)], heard=(STDERR,), within_s=patience_s(run)
        )
    except LateError as e:
        logger.warning("no rolling summary this time: its process %s", e)
        return False
    except OSError as e:
        logger.warning("no rolling summary: its process cannot be started: %s", e.strerror or e)
        return False
    reason = " ".join(said.decode(errors="replace").split())
    if code == 0:
        logger.info("rolling summary written into %s", run / SO_FAR_DIR)
    else:
        logger.warning("no rolling summary this time: %s", reason[-500:] or f"its process ended with {code}")
    return code == 0
