"""A run's summary from its records, and all files of its report: at its end, and again with other limits."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import UNSET, structs

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.figures.parts import breakdown
from llm_locust.figures.run_facts import AnalysisFacts, DroppedPart, SinceStart
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import Summary, as_json
from llm_locust.figures.verdict import RunVerdict, verdict
from llm_locust.host import reason_of
from llm_locust.metrics.limits import EDGE, Slo
from llm_locust.metrics.measured import Measured, find_window, limits_of, measure, measured_from
from llm_locust.metrics.question import PLAIN, FromTo, Question
from llm_locust.metrics.select import Terms, Where, parse_where, selected, without_first_tries
from llm_locust.metrics.window import Window, iso, sweep_window, united
from llm_locust.report.csv_tables import arms_csv, curve_csv, repeats_csv, stages_csv, timeseries_csv
from llm_locust.report.dropping import dropped_totals, sum_of, with_batches
from llm_locust.report.headline import headline_of
from llm_locust.report.html.page import html_report
from llm_locust.report.inputs import Scraped, Source, read_live_end
from llm_locust.report.markdown import markdown
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
class Analysis:
    """A summary, and what it was made of."""

    summary: Summary
    manifest: Manifest
    requests: Requests
    measured: Measured
    scraped: Scraped | None = None


def analyse(source: Source, question: Question) -> Analysis:
    """The summary that answers a question.

    The window is the whole run's, whatever ``where`` leaves of its requests, so that rates are of the time
    that was measured. Of several runs it is the union of each one's own window, on the wall clock: rates
    are per second of that union, and where runs were under way together their loads add up. What
    servers said of themselves is of one run, or of all its parts; the live view is of one run only.

    The summary of more than the run's own report has ``analysis``: what was asked, of how many requests;
    and ``by``, where that was asked for.

    Raises:
        SloError, GateError, WhereError: a text cannot be read.
        StoreError: the requests cannot be read.
        ValueError: the window is not in the run, or the condition needs an SLO that is not there.
    """
    manifest = source.manifest
    slo, _ = question.slo_of(manifest), question.gates_of(manifest)  # a wrong text is said before the reading
    where = None if question.where is None else parse_where(question.where)
    chosen = source.requests if where is None else _chosen(source, where, slo)
    stages = _stages_chosen(source, where, chosen)
    _refuse_sweep(source, question, stages)
    in_window = replace(question, window=_window(source, question, stages))
    requests = without_first_tries(chosen)
    measured = measure(requests, manifest, in_window)
    path = source.runs[0].path if len(source.runs) == 1 else None
    scraped = None if where is not None else Scraped.of(source.scraped)
    summary = summarise(
        requests,
        manifest,
        in_window,
        rows_of_run=None if where is None else len(source.requests),
        measured=measured,
        server=None if scraped is None else scraped.series(measured.window),
        live=None if path is None else read_live_end(path, manifest.id),
    )
    run = summary.run
    if len(source.runs) > 1 and len({run.manifest.seed for run in source.runs}) > 1:
        run = structs.replace(run, seed=None)
    if stages is not None and len(stages) == 1:
        run = structs.replace(run, is_sweep=UNSET)  # one load again
    is_own = len(source.runs) == 1 and question.is_plain
    since_start, dropped = (None, None) if manifest.dropped is None else _dropped(source, question)
    by = _dimensions(question, manifest)
    summary = structs.replace(
        summary,
        run=run,
        analysis=None if is_own else _analysis_facts(source, question, where, len(chosen)),
        since_start=since_start,
        dropped=dropped,
        by={name: breakdown(measured, requests, name, question.places) for name in by} or None,
    )
    return Analysis(summary, manifest, requests, measured, scraped)


def _window(source: Source, question: Question, stages: frozenset[int] | None) -> str | FromTo | Window:
    asked_for = question.window_of(source.manifest)
    if stages is not None and asked_for == "run":
        measured_part = sweep_window(source.manifest, stages)
        if measured_part is not None:
            return measured_part
    if question.where is None and len(source.runs) == 1:
        return asked_for
    return united([find_window(run.requests, run.manifest, question) for run in source.runs])


def _stages_chosen(source: Source, where: Where | None, chosen: Requests) -> frozenset[int] | None:
    """Stages of the requests that a condition on stages leaves; None without such a condition."""
    if where is None or "stage" not in where.fields:
        return None
    if len(source.runs) > 1:
        raise ValueError("where: stage is of one run; give one run, not several")
    if not source.manifest.stages:
        raise ValueError(f"where: the run {source.manifest.name!r} has no stages")
    found: set[int] = set()
    for batch in chosen.parts(["stage"]):
        numbers = batch.floats("stage")
        found.update(np.unique(numbers[~np.isnan(numbers)]).astype(int).tolist())
    return frozenset(found)


def _refuse_sweep(source: Source, question: Question, stages: frozenset[int] | None) -> None:
    """Refuse figures over several loads (raises ValueError)."""
    swept = [run.manifest for run in source.runs if run.manifest.is_sweep]
    if swept and len(source.runs) > 1:
        raise ValueError(f"the run {swept[0].name!r} is a sweep: its loads cannot be pooled with other runs")
    gates = [gate for gate in question.gates_of(source.manifest) if gate.metric != EDGE]
    if swept and gates and (stages is None or len(stages) != 1):
        raise ValueError("--gate: a sweep has several loads; choose one by --where, as stage==3")


def _chosen(source: Source, where: Where, slo: Slo) -> Requests:
    limits = limits_of(source.manifest, slo)
    if "good" in where.fields and not limits:
        raise ValueError("where: good needs limits of a request: give them by --slo, as ttft=500ms")
    terms = Terms(source.manifest.started_ns, limits, measured_from(source.manifest))
    return selected(source.requests, where, terms)


def _analysis_facts(source: Source, question: Question, where: Where | None, chosen: int) -> AnalysisFacts:
    return AnalysisFacts(
        runs=[run.manifest.id for run in source.runs],
        where=None if where is None else where.text,
        requests=chosen,
        of=len(source.requests),
        percentiles=None if question.percentiles is None else list(question.percentiles),
        by=list(question.by),
    )


def _dropped(source: Source, question: Question) -> tuple[SinceStart | None, DroppedPart]:
    """``since_start`` of all requests, and ``dropped``; the former is None if what is left of some cannot be
    read."""
    facts = source.manifest.dropped
    assert facts is not None
    dropped = DroppedPart(
        records=facts.records, batches=facts.batches, until=iso(facts.until_ns), to=facts.to
    )
    try:
        total = sum_of(
            with_batches(dropped_totals(run.manifest.id, run.expired), run.requests.parts(), run.manifest)
            for run in source.runs
        )
    except StoreError:
        return None, dropped
    expired = sum(each.rows for run in source.runs for each in run.expired)
    since_start = total.since_start(judged=bool(source.manifest.slo or source.manifest.class_slos))
    return since_start if question.is_plain and expired == facts.records else None, dropped


def _dimensions(question: Question, manifest: Manifest) -> tuple[str, ...]:
    """The dimensions that are asked for, and the model where a run of one load is over several."""
    if manifest.is_sweep or manifest.arms or "model" in question.by or not _asks_for_models(manifest):
        return question.by
    return (*question.by, "model")


def _asks_for_models(manifest: Manifest) -> bool:
    """Whether ``--models``, the top level of the scenario or a class of it says what models to ask for."""
    document = manifest.scenario_document
    classes = document.get("classes")
    each = classes.values() if isinstance(classes, dict) else classes if isinstance(classes, list) else ()
    documents = [manifest.options, document, *(found for found in each if isinstance(found, dict))]
    return any(found.get("models") for found in documents)


# --- From the records of a run directory to its summary and reports


@dataclass(frozen=True, slots=True)
class Report:
    """A run's summary and the verdict on it, None as in :func:`~llm_locust.figures.verdict.verdict`."""

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
        ValueError: as :func:`~llm_locust.report.analysis.analyse` raises it.
    """
    found = analyse(Source.of(run), question)
    judged = verdict(found.summary, found.manifest, allow_incomplete)
    write_reports(run, found, judged)
    return Report(found.summary, judged)


def write_reports(directory: Path, found: Analysis, judged: RunVerdict | None) -> None:
    """Write ``summary.json`` and all that is made of it and of its requests into a directory.

    Args:
        judged: the verdict on it, as :func:`~llm_locust.figures.verdict.verdict` gives it.

    Raises:
        StoreError: a file cannot be written.
    """
    words = headline_of(found.summary, judged)
    texts: dict[str, str | bytes] = {
        TIMESERIES_FILE: timeseries_csv(found.requests, found.manifest),
        REPORT_MD_FILE: markdown(found.summary, words, found.manifest),
        REPORT_HTML_FILE: html_report(
            found.requests, found.manifest, found.summary, found.measured, found.scraped, words
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
        what = f"the reports in {str(directory)!r} cannot be written"
        raise StoreError(f"{what}: {reason_of(refused[-1])}") from refused[-1]
