"""``summary.json``: every number of a run, computed once, from its records.

Its keys are a contract. Values are plain Python; what is not defined is None."""

from functools import partial
from typing import Any

import numpy as np
from msgspec import to_builtins

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.figures.arms import arms
from llm_locust.figures.curve import curve, curves
from llm_locust.figures.figure import Run
from llm_locust.figures.gates import Ramp
from llm_locust.figures.live_check import LiveEnd
from llm_locust.figures.parts import whole_and_parts
from llm_locust.figures.search import search
from llm_locust.figures.servers import servers
from llm_locust.figures.spike import spike
from llm_locust.figures.stage_checks import worth
from llm_locust.figures.stages import outside, repeats, stages
from llm_locust.figures.summary import FIGURES, OPTIONAL, SUMMARY_SCHEMA, Summary
from llm_locust.figures.unrecorded import Unrecorded, judged
from llm_locust.figures.user_time import user_time
from llm_locust.metrics.answers import Answers
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.question import PLAIN, Question
from llm_locust.metrics.requests.goodput import Missing
from llm_locust.metrics.select import without_first_tries
from llm_locust.metrics.server_series import ServerSeries
from llm_locust.metrics.steady_window import LoadOverTime, asked_load, plateau


def summarise(
    requests: Requests,
    manifest: Manifest,
    question: Question = PLAIN,
    *,
    rows_of_run: int | None = None,
    measured: Measured | None = None,
    server: ServerSeries | None = None,
    live: LiveEnd | None = None,
) -> dict[str, Any]:
    """The content of ``summary.json``: JSON-ready, with None for what is not defined.

    The manifest's option ``slo_from`` (``sent`` or ``scheduled``) says where the SLO is measured from;
    without it an open loop is measured from scheduled, a closed one from sent.

    Args:
        requests: a batch, or requests that are read part by part and never are in memory as a whole. First
            tries of requests that were sent again are counted, and are in no other figure.
        rows_of_run: where ``requests`` are a selection, the number that they were selected from:
            completeness is the run's, and of lost requests it is not known whether they belong here.
        measured: what :func:`~llm_locust.metrics.measured.measure` gives for all of this, where it is there.
        server: what was scraped of the servers, in the same window, for ``server`` and ``energy``; both are
            of all requests, so of a selection there is neither.
        live: the run's last live figures, for ``live_check``, which a selection has not either.

    Raises:
        ValueError: as :class:`~llm_locust.metrics.question.Question` and
            :func:`~llm_locust.metrics.measured.find_window` raise it.
    """
    stored, requests = len(without_first_tries(requests).stored), without_first_tries(requests)
    m = measured or measure(requests, manifest, question)
    of_selection = rows_of_run is not None
    rows = stored if rows_of_run is None else rows_of_run
    missing = _missing(manifest, rows, question, of_selection=of_selection)
    by_class = None if of_selection else manifest.unsent_by_class(question.warmup_of(manifest))
    answers = Answers.of(requests)
    run = Run(
        requests=requests,
        m=m,
        manifest=manifest,
        question=question,
        rows=rows,
        of_selection=of_selection,
        server=None if of_selection else server,
        live=live,
        answers=answers,
        whole=whole_and_parts(m, answers, question.places, missing.placed, by_class),
        unrecorded=missing.placed.known,
    )
    summary = {
        "schema": SUMMARY_SCHEMA,
        **run.whole,
        **_figures(run),
        **_stages(run),
        "server": servers(run.server, m.c, m.window) if run.server else {},
        "gates": [],
    }
    plain = _plain(summary)
    times = run.figure(FIGURES["user_time"].compute)
    judged_by = plain if times is None else plain | {"user_time": times}
    found = _gated(judged_by, requests, m, manifest, question, missing, of_selection=of_selection)
    return _plain(plain | found)


def _figures(run: Run) -> dict[str, Any]:
    found = {name: run.figure(figure.compute) for name, figure in FIGURES.items()}
    for name, value in found.items():
        if value is None and name in OPTIONAL:
            found[name] = {}
        if isinstance(value, str):
            found[name] = {"missing": value}
    return {name: value for name, value in found.items() if value is not None}


def _missing(manifest: Manifest, rows: int, question: Question, *, of_selection: bool) -> Unrecorded:
    """The requests without a record that figures may be of; ``rows`` are all that the run has."""
    unsent = manifest.requests_unsent(question.warmup_of(manifest))
    of_run = Missing(manifest.requests_lost(rows), unsent)
    if of_selection:
        return Unrecorded.of_selection(of_run, manifest, question.where)
    return Unrecorded.of_run(of_run)


def _gated(
    summary: dict[str, Any],
    requests: Requests,
    m: Measured,
    manifest: Manifest,
    question: Question,
    missing: Unrecorded,
    *,
    of_selection: bool,
) -> dict[str, Any]:
    """``gates``, and ``arms`` of a run that has some: each gate is on each of them then."""
    gates = question.gates_of(manifest)
    if not manifest.arms:
        load = None if of_selection or manifest.is_sweep else asked_load(requests, manifest, m.c.origin_ns)
        done = None if of_selection else _done(manifest, m)
        of_users = {}
        if of_selection and not manifest.open_loop and not m.window.gaps:
            of_users = {"user_time": user_time(requests, m, are_all=False)}
        given = (summary | of_users, m, question.places, missing, _ramp(load, m), done)
        return {"gates": judged(gates, *given)}
    of_arm = partial(judged, gates, percentiles=question.places, missing=missing.of_arm())
    of = (requests, manifest, question, m.window, missing.most)
    found, outcomes = arms(*of, of_selection=of_selection, gates=of_arm)
    return {"arms": found, "gates": outcomes}


def _ramp(load: LoadOverTime | None, m: Measured) -> Ramp | None:
    """How much of the window the load was on its plateau; None where it is not known."""
    level = None if load is None or m.window.gaps else plateau(load, m.c, m.window)
    if load is None or level is None:
        return None
    edges = np.array([m.window.start_s(m.c), m.window.end_s(m.c)])
    return Ramp(level.share, float(load.levels(edges)[0]), level.level, load.unit)


def _done(manifest: Manifest, m: Measured) -> float | None:
    """The share that a run that was cut short had of the load that was asked for; None if that is unknown."""
    if not manifest.cut_short or manifest.is_sweep or not len(m.c):
        return None
    requests = manifest.options.get("num_requests")
    if isinstance(requests, int) and requests > 0:
        return min(1.0, len(m.c) / requests)
    if manifest.load_ends_ns is None or manifest.load_ends_ns <= m.window.start_ns:
        return None
    return min(1.0, m.window.seconds * 1e9 / (manifest.load_ends_ns - m.window.start_ns))


def _plain(summary: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = to_builtins(summary)
    return {name: plain[name] for name in Summary.__struct_fields__ if name in plain}


def _stages(run: Run) -> dict[str, Any]:
    """``stages`` of a run that has some, and what is of them; a selection has nothing."""
    requests, m, manifest, question = run.requests, run.m, run.manifest, run.question
    if run.of_selection or not manifest.stages:
        return {}
    found: dict[str, Any] = {"stages": stages(requests, manifest, question, run.rows)}
    kept = [stage for stage in found["stages"] if stage["repeated_as"] is None]
    asked_for = {
        "repeats": repeats(kept),
        "outside_stages": outside(m.c, manifest),
        "search": search(requests, manifest, question),
        **_curves(kept, manifest),
        "spike": spike(m, manifest, kept, run.unrecorded),
    }
    return found | {key: value for key, value in asked_for.items() if value}


def _curves(kept: list[dict[str, Any]], manifest: Manifest) -> dict[str, Any]:
    """The ``curve`` of a sweep, ``curves`` of one over lengths, or ``prefix_cache`` of one over shares."""
    if not manifest.is_sweep:
        return {}
    if (found := worth(kept)) is not None:
        return {"prefix_cache": found}
    if any(stage.lengths for stage in manifest.stages):
        return {"curves": curves(kept, manifest.seed)}
    return {"curve": curve(kept, manifest.seed)}
