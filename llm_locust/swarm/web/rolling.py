"""Rolling summaries of a soak: every few minutes a separate process reports on the run so far.

Another one copies the run to the destination of ``--upload``, so that the data outlives the machine.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import gevent

from llm_locust.options.report import Keep
from llm_locust.report.run.so_far import SO_FAR_DIR
from llm_locust.store import REQUESTS_FILE
from llm_locust.store.parts import parts_of
from llm_locust.store.segments import segments_of
from llm_locust.swarm.process.children import STDERR, LateError, run_elsewhere
from llm_locust.swarm.run.finishing import patience_s
from llm_locust.swarm.run.upkeep import drop_elsewhere, upload_so_far

logger = logging.getLogger(__name__)


def summarise_forever(
    interval_s: float,
    run: Callable[[], Path | None],
    upload: str | None = None,
    *,
    keep: Keep | None = None,
    summarises: bool = True,
) -> NoReturn:
    """Look after the current run every ``interval_s``; what takes longer delays the next time.

    Args:
        run: returns the directory of the current run, None without one.
        upload: destination of a copy each time.
        keep: how long records stay in the directory, and in those of earlier parts of the run.
        summarises: whether to write a summary.
    """
    while True:
        gevent.sleep(interval_s)
        path = run()
        if path is None:
            continue
        if summarises:
            summarise_elsewhere(path, run)
        if upload is None or run() != path:  # otherwise the run has ended, and its final upload is due
            continue
        uploaded = upload_so_far(path, upload)
        if keep is None:
            continue
        if uploaded and run() == path:
            drop_elsewhere(path, keep, upload)
        for earlier in _left_by_death(path):
            if run() == path and upload_so_far(earlier, upload):
                drop_elsewhere(earlier, keep, upload, ended=True)


def _left_by_death(path: Path) -> list[Path]:
    """Parts before this one of a restartable run that have segments, because their masters made no report."""
    parts = parts_of(path.parent)
    before = parts[: parts.index(path)] if path in parts else []
    return [part for part in before if segments_of(part) and not (part / REQUESTS_FILE).exists()]


def summarise_elsewhere(run: Path, current: Callable[[], Path | None]) -> bool:
    """Write ``so-far/`` of a run in a process of its own; log why if that failed.

    Args:
        current: returns the directory of the run that goes on. Frames of one that has ended go meanwhile.
    """
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
    elif current() != run:
        logger.info("no rolling summary: the run has ended")
    else:
        logger.warning("no rolling summary this time: %s", reason[-500:] or f"its process ended with {code}")
    return code == 0
