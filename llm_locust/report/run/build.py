"""From the records of a run directory to its summary and reports."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from llm_locust.metrics.question import PLAIN, Question
from llm_locust.metrics.summary_types.summary import Summary, as_json
from llm_locust.metrics.verdict import RunVerdict, verdict
from llm_locust.report.html import html_report
from llm_locust.report.inputs.sources import Source
from llm_locust.report.render.markdown import markdown
from llm_locust.report.run.analysis import Analysis, analyse
from llm_locust.report.run.timeseries import timeseries_csv
from llm_locust.report.sections.headline import verdict as in_words
from llm_locust.report.tables.arms_csv import arms_csv
from llm_locust.report.tables.curve_csv import curve_csv
from llm_locust.report.tables.repeats_csv import repeats_csv
from llm_locust.report.tables.stages_csv import stages_csv
from llm_locust.store import (
    ARMS_FILE,
    CURVE_FILE,
    REPEATS_FILE,
    REPORT_HTML_FILE,
    REPORT_MD_FILE,
    STAGES_FILE,
    SUMMARY_FILE,
    TIMESERIES_FILE,
    StoreError,
    write_json,
    write_text,
)


@dataclass(frozen=True, slots=True)
class Report:
    """A run's summary and the verdict on it, None as in :func:`~llm_locust.metrics.verdict.verdict`."""

    summary: Summary
    verdict: RunVerdict | None

    @property
    def exit_code(self) -> int:
        return 0 if self.verdict is None else self.verdict.code


def build_report(run: Path, question: Question = PLAIN, *, allow_incomplete: bool = False) -> Report:
    """Compute a run's summary and write it, ``report.html``, ``report.md`` and ``timeseries.csv``,
    ``stages.csv`` of a run with stages, ``repeats.csv`` if it measured a load more than once,
    ``curve.csv`` if it measured several, and ``arms.csv`` of one with arms.

    The requests are read part by part: memory grows by some 250 bytes a request, however
    many tokens each of them had. Each file is replaced as a whole.

    Args:
        run: a run directory with its manifest and requests.
        question: without one, the run's own report.
        allow_incomplete: missing records do not make the exit code 4.

    Raises:
        StoreError: the run cannot be read or the reports cannot be written.
        ValueError: as :func:`~llm_locust.report.run.analysis.analyse` raises it.
    """
    found = analyse(Source.of(run), question)
    judged = verdict(found.summary, found.manifest, allow_incomplete)
    write_reports(run, found, judged)
    return Report(found.summary, judged)


def write_reports(directory: Path, found: Analysis, judged: RunVerdict | None) -> None:
    """Write ``summary.json`` and all that is made of it and of its requests into a directory.

    Args:
        judged: the verdict on it, as :func:`~llm_locust.metrics.verdict.verdict` gives it.

    Raises:
        StoreError: a file cannot be written.
    """
    told = in_words(found.summary, judged)
    texts: dict[str, str | bytes] = {
        TIMESERIES_FILE: timeseries_csv(found.requests, found.manifest),
        REPORT_MD_FILE: markdown(found.summary, told, found.manifest),
        REPORT_HTML_FILE: html_report(
            found.requests, found.manifest, found.summary, found.measured, found.scraped, told
        ),
    }
    tables = {
        STAGES_FILE: stages_csv(found.summary.stages),
        REPEATS_FILE: repeats_csv(found.summary),
        CURVE_FILE: curve_csv(found.summary),
        ARMS_FILE: arms_csv(found.summary),
    }
    texts |= {name: text for name, text in tables.items() if text is not None}
    writers: list[Callable[[], None]] = [
        *(partial(write_text, directory / name, text) for name, text in texts.items()),
        # The last: where it is, the others are.
        partial(write_json, directory / SUMMARY_FILE, as_json(found.summary)),
    ]
    refused = []
    for write in writers:
        try:
            write()
        except OSError as e:  # what has less to write may find room
            refused.append(e)
    if refused:
        reason = refused[-1].strerror or refused[-1]
        raise StoreError(f"the reports in {str(directory)!r} cannot be written: {reason}") from refused[-1]
