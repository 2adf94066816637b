"""Everything again from the records: with other limits, another window, of some of the requests only."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from msgspec import to_builtins

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.metrics.breakdown import breakdown
from llm_locust.metrics.gates import EDGE
from llm_locust.metrics.measured import Measured, find_window, limits_of, measure, measured_from
from llm_locust.metrics.question import FromTo, Question
from llm_locust.metrics.requests.slo import Slo
from llm_locust.metrics.sections.failures import iso
from llm_locust.metrics.select.request_fields import Terms
from llm_locust.metrics.select.selection import asked, selected
from llm_locust.metrics.select.where import Where, parse_where
from llm_locust.metrics.summary import summarise
from llm_locust.metrics.summary_types.summary import Summary, typed
from llm_locust.metrics.window import Window, sweep_window, united
from llm_locust.report.inputs.live_figures import read_live_end
from llm_locust.report.inputs.scraped import Scraped
from llm_locust.report.inputs.sources import Source
from llm_locust.report.run.totals import dropped_totals, sum_of, with_batches
from llm_locust.store import StoreError


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
    requests = asked(chosen)
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
    if len(source.runs) > 1 and len({run.manifest.seed for run in source.runs}) > 1:
        summary["run"]["seed"] = None
    if len(source.runs) > 1 or not question.is_plain:
        summary["analysis"] = _told(source, question, where, len(chosen))
    if stages is not None and len(stages) == 1:
        summary["run"].pop("is_sweep", None)  # one load again
    if manifest.dropped is not None:
        summary |= _dropped(source, question)
    if by := _dimensions(question, manifest):
        summary["by"] = _by(measured, requests, by, question)
    return Analysis(typed(summary), manifest, requests, measured, scraped)


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


def _told(source: Source, question: Question, where: Where | None, chosen: int) -> dict[str, Any]:
    return {
        "runs": [run.manifest.id for run in source.runs],
        "where": None if where is None else where.text,
        "requests": chosen,
        "of": len(source.requests),
        "percentiles": None if question.percentiles is None else list(question.percentiles),
        "by": list(question.by),
    }


def _dropped(source: Source, question: Question) -> dict[str, Any]:
    """``dropped``, and ``since_start`` of all requests; without it if what is left of some cannot be read."""
    facts = source.manifest.dropped
    assert facts is not None
    told = {"records": facts.records, "batches": facts.batches, "until": iso(facts.until_ns), "to": facts.to}
    found: dict[str, Any] = {"dropped": told}
    try:
        total = sum_of(
            with_batches(dropped_totals(run.manifest.id, run.expired), run.requests.parts(), run.manifest)
            for run in source.runs
        )
    except StoreError:
        return found
    known = sum(each.rows for run in source.runs for each in run.expired)
    since_start = total.since_start(judged=bool(source.manifest.slo or source.manifest.class_slos))
    if question.is_plain and known == facts.records and since_start is not None:
        found["since_start"] = to_builtins(since_start)
    return found


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
    said = [manifest.options, document, *(found for found in each if isinstance(found, dict))]
    return any(found.get("models") for found in said)


def _by(measured: Measured, requests: Requests, by: tuple[str, ...], question: Question) -> dict[str, Any]:
    found = {name: breakdown(measured, requests, name, question.places) for name in by}
    return {by: {"groups": each.groups, "left_out": each.left_out} for by, each in found.items()}
