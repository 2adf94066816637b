"""Everything again from the records: with other limits, another window, of some of the requests only."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.core.durations import parse_time
from llm_locust.core.manifest import Manifest
from llm_locust.metrics.answers.accuracy import Answers, ByPrompt
from llm_locust.metrics.breakdown import breakdown
from llm_locust.metrics.deployment.cost import Prices
from llm_locust.metrics.gates import parse_gates
from llm_locust.metrics.measured import Measured, find_window, limits_of, measure, measured_from
from llm_locust.metrics.requests.slo import Slo, parse_slo
from llm_locust.metrics.select.request_fields import Terms
from llm_locust.metrics.select.selection import asked, selected
from llm_locust.metrics.select.where import Where, parse_where
from llm_locust.metrics.stats.percentiles import PERCENTILES
from llm_locust.metrics.summary import WINDOWS, chosen_window, summarise
from llm_locust.metrics.summary_types.summary import Summary, typed
from llm_locust.metrics.window import Window, given_window, united
from llm_locust.report.inputs.live_figures import read_live_end
from llm_locust.report.inputs.scraped import Scraped
from llm_locust.report.inputs.sources import Run, Source
from llm_locust.roofline.roof import roof_of_options
from llm_locust.store import open_requests

FromTo = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a report is asked for beside what the run's manifest says. None: as the manifest has it.

    Attributes:
        slo, gates: texts such as ``ttft=500ms`` and ``goodput>=95%``; an empty one means none.
        window: ``run``, ``steady``, or seconds after the run's start, from and to.
        percentiles: key in the summary -> percent; shown instead of the usual ones.
        by: dimensions that the figures are told by as well.
        where: a condition; the requests that do not meet it are left out.
        prices: for what answers cost; each that is None is the manifest's.
        roof: options of :func:`~llm_locust.roofline.roof.roof_of_options` instead of the manifest's.
    """

    slo: str | None = None
    gates: str | None = None
    warmup_s: float | None = None
    window: str | FromTo = "run"
    percentiles: Mapping[str, float] | None = None
    by: tuple[str, ...] = ()
    where: str | None = None
    prices: Prices | None = None
    quality_baseline: Path | None = None
    roof: Mapping[str, Any] | None = None

    @property
    def is_plain(self) -> bool:
        """The report is the run's own: nothing else than its manifest says was asked for."""
        return self == Question()


@dataclass(frozen=True, slots=True)
class Analysis:
    """A summary, and what it was made of."""

    summary: Summary
    manifest: Manifest
    requests: Requests
    measured: Measured
    scraped: Scraped | None = None


def parse_window(text: str) -> str | FromTo:
    """``run``, ``steady``, or the seconds of ``30s-90s``, ``30s-`` and ``-90s``.

    Raises:
        ValueError: it is none of them.
    """
    if text in WINDOWS:
        return text
    start, dash, end = text.partition("-")
    if not dash or not (start.strip() or end.strip()):
        raise ValueError(f'unknown window "{text}": write {", ".join(WINDOWS)}, or a span such as 30s-90s')
    try:
        start_s = parse_time(start.strip()) if start.strip() else 0.0
        end_s = parse_time(end.strip()) if end.strip() else math.inf
    except ValueError as e:
        raise ValueError(f'window "{text}": {e}') from None
    if start_s >= end_s:
        raise ValueError(f'window "{text}": its end has to be after its start')
    return start_s, end_s


def analyse(source: Source, question: Question) -> Analysis:
    """The summary that answers a question.

    The window is the whole run's, whatever ``where`` leaves of its requests, so that rates are of the time
    that was measured. Of several runs it is the union of each one's own window, on the wall clock: rates
    are per second of that union, and where runs were under way together their loads add up. What
    servers said of themselves, and the live view, is of one run only.

    The summary of more than the run's own report has ``analysis``: what was asked, of how many requests;
    and ``by``, where that was asked for.

    Raises:
        SloError, GateError, WhereError: a text cannot be read.
        StoreError: the requests cannot be read.
        ValueError: the window is not in the run, or the condition needs an SLO that is not there.
    """
    manifest = source.manifest
    slo = parse_slo(manifest.slo if question.slo is None else question.slo)
    where = None if question.where is None else parse_where(question.where)
    gates = None if question.gates is None else parse_gates(question.gates)
    window = _window(source, question)
    warmup_s = manifest.warmup_s if question.warmup_s is None else question.warmup_s
    chosen = source.requests if where is None else _chosen(source, where, slo)
    requests = asked(chosen)
    measured = measure(requests, manifest, slo, chosen_window(window, warmup_s), warmup_s)
    path = source.runs[0].path if len(source.runs) == 1 else None
    scraped = None if path is None or where is not None else Scraped.of(path, manifest)
    summary = summarise(
        requests,
        manifest,
        slo=slo,
        gates=gates,
        warmup_s=warmup_s,
        window=window,
        percentiles=_ascending({**PERCENTILES, **(question.percentiles or {})}),
        rows_of_run=None if where is None else len(source.requests),
        prices=question.prices,
        quality_baseline=None if question.quality_baseline is None else _answers(question.quality_baseline),
        measured=measured,
        server=None if scraped is None else scraped.series(measured.window),
        live=None if path is None else read_live_end(path, manifest.id),
        roof=roof_of_options({**manifest.options, **(question.roof or {})}),
    )
    if len(source.runs) > 1 and len({run.manifest.seed for run in source.runs}) > 1:
        summary["run"]["seed"] = None
    if len(source.runs) > 1 or not question.is_plain:
        summary["analysis"] = _told(source, question, where, len(chosen))
    if question.by:
        summary["by"] = _by(measured, requests, question)
    return Analysis(typed(summary), manifest, requests, measured, scraped)


def _answers(run: Path) -> ByPrompt:
    """What another run's answers were worth, by their prompts' ids (raises StoreError)."""
    requests = asked(open_requests(run))
    return ByPrompt.of(Answers.of(requests), np.arange(len(requests)))


def _window(source: Source, question: Question) -> str | Window:
    if isinstance(question.window, str) and question.where is None and len(source.runs) == 1:
        return question.window
    return united([_window_of(run, question) for run in source.runs])


def _window_of(run: Run, question: Question) -> Window:
    manifest, asked = run.manifest, question.window
    if isinstance(asked, str):
        warmup_s = manifest.warmup_s if question.warmup_s is None else question.warmup_s
        return find_window(run.requests, manifest, asked, warmup_s)
    whole = find_window(run.requests, manifest, "run", 0.0)
    return given_window(whole, manifest.started_ns, *asked)


def _chosen(source: Source, where: Where, slo: Slo) -> Requests:
    limits = limits_of(source.manifest, slo)
    if "good" in where.fields and not limits:
        raise ValueError("where: good needs limits of a request: give them by --slo, as ttft=500ms")
    terms = Terms(source.manifest.started_ns, limits, measured_from(source.manifest))
    return selected(source.requests, where, terms)


def _ascending(places: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(places.items(), key=lambda place: place[1]))


def _told(source: Source, question: Question, where: Where | None, chosen: int) -> dict[str, Any]:
    return {
        "runs": [run.manifest.id for run in source.runs],
        "where": None if where is None else where.text,
        "requests": chosen,
        "of": len(source.requests),
        "percentiles": None if question.percentiles is None else list(question.percentiles),
        "by": list(question.by),
    }


def _by(measured: Measured, requests: Requests, question: Question) -> dict[str, Any]:
    places = _ascending({**PERCENTILES, **(question.percentiles or {})})
    found = {by: breakdown(measured, requests, by, places) for by in question.by}
    return {by: {"groups": each.groups, "left_out": each.left_out} for by, each in found.items()}
