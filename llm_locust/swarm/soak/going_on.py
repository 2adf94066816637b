"""What a master does first when it may be the next one of a restartable run."""

import logging
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from llm_locust.options.settings import UsageError
from llm_locust.store import StoreError
from llm_locust.store.facts import RunProgress, course_of, parts_of
from llm_locust.swarm.process.leaving import leave
from llm_locust.swarm.run.finishing import FinishError, join_elsewhere
from llm_locust.swarm.soak.resuming import resume

logger = logging.getLogger(__name__)


def go_on(options: Namespace, now_ns: int, locustfiles: Sequence[str]) -> None:
    """Set Locust's run time to what is left of the whole run, if there are parts of it.

    A sweep has its own end, and its run time is that of a part. If nothing is left, the report of all parts
    is made again. Without a web UI the process then ends with its exit code; with one it starts no load by
    itself.
    """
    if getattr(options, "resume", False):
        try:
            if resume(options, locustfiles):
                logger.warning("the sweep in %s is finished: its report is made again", options.out)
                _make_report(options)
        except (UsageError, StoreError, OSError) as e:
            leave(UsageError(str(e)))
        return
    course = _course(options)
    if course is None or not course.parts:
        return
    run_time_s = options.run_time
    if isinstance(run_time_s, int | float) and run_time_s:
        left_s = int(course.left_s(run_time_s, now_ns))
        if not course.over and left_s:
            options.run_time = left_s
            logger.info("part %d of the run in %s: %d s are left", *_told(course, options), left_s)
            return
    elif not course.over:
        logger.info("part %d of the run in %s", *_told(course, options))
        return
    why = course.over or f"its {run_time_s:g} s are over"
    logger.warning("the run in %s is not begun again: %s; name another --out for a new one", options.out, why)
    _make_report(options)


def earlier_parts(options: object) -> tuple[Path, ...]:
    """Parts that were written before this process started."""
    out = getattr(options, "out", None)
    is_in_parts = getattr(options, "restartable", False) or getattr(options, "resume", False)
    return tuple(parts_of(Path(out))) if out and is_in_parts else ()


def _told(course: RunProgress, options: Namespace) -> tuple[int, str]:
    return len(course.parts) + 1, str(options.out)


def _course(options: object) -> RunProgress | None:
    out = getattr(options, "out", None)
    if not getattr(options, "restartable", False) or not out:
        return None
    try:
        return course_of(Path(out))
    except StoreError as e:
        leave(UsageError(f"--restartable: {e}"))


def _make_report(options: Namespace) -> None:
    options.autostart = False
    try:
        report = join_elsewhere(Path(options.out), allow_incomplete=bool(options.allow_incomplete))
    except FinishError as e:
        leave(UsageError(f"there is no report of all parts: {e}"))
    if options.headless:
        raise SystemExit(report.exit_code)
