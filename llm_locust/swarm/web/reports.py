"""Reports of this process's runs, for the web UI: by the run's id, and only files with known names."""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import gevent
import gevent.lock

from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.summary import read_summary
from llm_locust.figures.text import number, percent, short
from llm_locust.figures.verdict import verdict
from llm_locust.metrics.structs import LatencyTable
from llm_locust.options.report import Keep
from llm_locust.report.headline import headline_of
from llm_locust.report.so_far import SO_FAR_DIR
from llm_locust.store import (
    REPORT_HTML_FILE,
    REPORT_MD_FILE,
    REQUESTS_FILE,
    SUMMARY_FILE,
    TIMESERIES_FILE,
    read_manifest,
)
from llm_locust.store.facts import parts_of
from llm_locust.store.frame_log import segments_of
from llm_locust.swarm.process.children import (
    REPORT_COMMANDS,
    STDERR,
    ElsewhereError,
    last_words,
    run_elsewhere,
)
from llm_locust.swarm.run.finishing import drop_elsewhere, patience_s, upload_so_far

#: A page of two runs takes seconds; what takes longer is not waited for.
_WITHIN_S = 120.0

#: Characters of a result in the list.
_LONGEST = 160

#: Files of a run directory that are served, with their types.
SERVED = {
    REPORT_HTML_FILE: "text/html; charset=utf-8",
    REPORT_MD_FILE: "text/plain; charset=utf-8",
    SUMMARY_FILE: "application/json",
    TIMESERIES_FILE: "text/csv; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class ListedRun:
    id: str
    path: Path
    host: str
    model: str

    @property
    def is_reported(self) -> bool:
        return (self.path / REPORT_HTML_FILE).exists()

    @property
    def is_reported_so_far(self) -> bool:
        """Whether there is a rolling summary and no report yet."""
        return not self.is_reported and (self.path / SO_FAR_DIR / REPORT_HTML_FILE).exists()


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What the list says of a run, as text: ``word`` is PASS, FAIL or why it is neither."""

    word: str
    result: str
    tone: str
    goodput: str
    ttft_p99: str
    e2el_p99: str

    @classmethod
    def of(cls, run: Path) -> "RunFigures":
        """Of a run with a report, by the verdict that this has (raises OSError, ValueError)."""
        summary, manifest = read_summary((run / SUMMARY_FILE).read_bytes()), read_manifest(run)
        found = headline_of(
            summary, verdict(summary, manifest, bool(manifest.options.get("allow_incomplete")))
        )
        whole = not summary.is_of_parts
        return cls(
            found.word,
            short(found.result, _LONGEST),
            found.tone.value,
            percent(summary.goodput.ratio if whole else None),
            *(_p99(summary.latency_ms.get(key) if whole else None) for key in ("ttft", "e2el")),
        )


def _p99(latency: LatencyTable | None) -> str:
    value = None if latency is None else latency.get("p99")
    return UNDEFINED if value is None else f"{number(value)} ms"


class ComparisonError(ValueError):
    """Why there is no page of two runs, in a line."""


class Reports:
    """Runs of this process, the newest first. Nothing else on the disk can be requested."""

    def __init__(self) -> None:
        self._runs: dict[str, ListedRun] = {}
        self._figures: dict[str, tuple[int, RunFigures | None]] = {}
        self._making = gevent.lock.Semaphore()

    def add(self, run: ListedRun) -> None:
        self._runs[run.id] = run

    @property
    def runs(self) -> list[ListedRun]:
        return list(reversed(self._runs.values()))

    def file(self, run: str, name: str, *, so_far: bool = False) -> Path | None:
        """Path of a run's file; None if there is none."""
        listed = self._runs.get(run)
        if listed is None or name not in SERVED:
            return None
        path = (listed.path / SO_FAR_DIR if so_far else listed.path) / name
        return path if path.is_file() else None

    def figures(self, run: ListedRun) -> RunFigures | None:
        """What the run's summary says; None without a summary that can be read. Call it off the hub."""
        try:
            written_ns = (run.path / SUMMARY_FILE).stat().st_mtime_ns
            if run.id not in self._figures or self._figures[run.id][0] != written_ns:
                self._figures[run.id] = written_ns, RunFigures.of(run.path)
        except (OSError, ValueError):
            return None
        return self._figures[run.id][1]

    def comparison(self, base: str, new: str) -> Path | None:
        """The page that compares two runs, made by a process of its own if it is not there yet.

        Returns:
            None if one of them is no run with a report, or both are the same.

        Raises:
            ComparisonError: it cannot be made, or another one is being made.
        """
        both = [self._runs.get(each) for each in (base, new)]
        if base == new or not all(run is not None and run.is_reported for run in both):
            return None
        ours, theirs = (run.path for run in both if run is not None)
        path = theirs / f"compare-{hashlib.sha256(base.encode()).hexdigest()[:12]}.html"
        made_s = max((each / SUMMARY_FILE).stat().st_mtime for each in (ours, theirs))
        if path.is_file() and path.stat().st_mtime >= made_s:
            return path
        if not self._making.acquire(blocking=False):
            raise ComparisonError("another comparison is being made: try again in a few seconds")
        try:
            words = ["compare", "--", *map(str, (ours, theirs, path))]
            code, output = run_elsewhere(REPORT_COMMANDS, words, heard=(STDERR,), within_s=_WITHIN_S)
        except ElsewhereError as e:
            raise ComparisonError(f"the process that makes it {e}") from e
        finally:
            self._making.release()
        if code:
            raise ComparisonError(last_words(output) or f"the process that makes it ended with {code}")
        return path


# --------------------
# Rolling summaries of a soak: every few minutes a separate process reports on the run so far.
#
# Another one copies the run to the destination of ``--upload``, so that the data outlives the machine.
# --------------------


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
        code, output = run_elsewhere(
            REPORT_COMMANDS, ["so-far", "--", str(run)], heard=(STDERR,), within_s=patience_s(run)
        )
    except ElsewhereError as e:
        logger.warning("no rolling summary this time: its process %s", e)
        return False
    if code == 0:
        logger.info("rolling summary written into %s", run / SO_FAR_DIR)
    elif current() != run:
        logger.info("no rolling summary: the run has ended")
    else:
        logger.warning(
            "no rolling summary this time: %s", last_words(output) or f"its process ended with {code}"
        )
    return code == 0
