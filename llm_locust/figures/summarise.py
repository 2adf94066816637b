"""``summary.json``: every number of a run, computed once, from its records.

Its keys are a contract. Values are plain Python; what is not defined is None."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from msgspec import json, to_builtins

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.core.other_requests import together
from llm_locust.figures.agents import agents
from llm_locust.figures.arms import arms
from llm_locust.figures.bottleneck import bottleneck
from llm_locust.figures.client import Scale, client_validity, littles_law
from llm_locust.figures.completeness import completeness
from llm_locust.figures.cost import cost
from llm_locust.figures.curve import curve, curves
from llm_locust.figures.energy import energy
from llm_locust.figures.errors import failures
from llm_locust.figures.fairness import deployment
from llm_locust.figures.figure import Run
from llm_locust.figures.gates import Ramp
from llm_locust.figures.images import images
from llm_locust.figures.inputs import inputs
from llm_locust.figures.interventions import interventions
from llm_locust.figures.live_check import LiveEnd
from llm_locust.figures.parts import whole_and_parts
from llm_locust.figures.quality import answers_of
from llm_locust.figures.reliability import reliability
from llm_locust.figures.roofline import roofline
from llm_locust.figures.search import search
from llm_locust.figures.servers import PREFILL, pool_sizes, servers
from llm_locust.figures.sessions import sessions
from llm_locust.figures.spike import spike
from llm_locust.figures.stage_checks import worth
from llm_locust.figures.stages import outside, repeats, stages
from llm_locust.figures.summary import FIGURES, OPTIONAL, SUMMARY_SCHEMA, Summary
from llm_locust.figures.tokens import delivery, held_ms, tokens
from llm_locust.figures.unrecorded import Unrecorded, judged
from llm_locust.figures.user_time import user_time
from llm_locust.metrics.columns import Rows
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.question import PLAIN, Question
from llm_locust.metrics.requests.gaps import LATE_S
from llm_locust.metrics.requests.goodput import Missing
from llm_locust.metrics.sections.completeness import requests_lost, requests_unsent, unsent_by_class
from llm_locust.metrics.sections.standstill import Silences
from llm_locust.metrics.sections.steady import LoadOverTime, asked_load, left_out, plateau
from llm_locust.metrics.select.selection import asked
from llm_locust.metrics.server_series import ServerSeries
from llm_locust.metrics.window import Population, iso, run_window, why_empty


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
    warmup_s = question.warmup_of(manifest)
    stored, requests = len(asked(requests).stored), asked(requests)
    m = measured or measure(requests, manifest, question)
    c, selection, pools = m.c, rows_of_run is not None, pool_sizes(server)
    rows = stored if rows_of_run is None else rows_of_run
    run = Run(
        requests=requests,
        m=m,
        manifest=manifest,
        question=question,
        rows=rows,
        of_selection=selection,
        server=None if selection else server,
        live=live,
    )
    answers, population = run.figure(answers_of), run.population
    missing = _missing(manifest, rows, question, of_selection=selection)
    by_class = None if selection else unsent_by_class(manifest, warmup_s)
    found = whole_and_parts(m, answers, question.places, missing.placed, by_class)
    found |= _sessions(requests, m, manifest, question)
    law = littles_law(c, m.window, requests, manifest, of_selection=selection or manifest.dropped is not None)
    client = _client(m, population, manifest, found["latency_ms"], law)
    silences = Silences.of(c, m.holes, m.window, m.judgement)
    summary = {
        "schema": SUMMARY_SCHEMA,
        "run": _run(manifest),
        "window": _window(m, manifest, question),
        **found,
        "tokens": _tokens(m, population.ok, found["latency_ms"]),
        "client": client,
        "littles_law": law,
        "completeness": completeness(manifest, rows),
        "reliability": reliability(requests, c, population, m.judgement, m.window, silences),
        **_servers(requests, m, manifest, client, None if selection else missing.placed.known, pools),
        **_stages(requests, m, manifest, question, None if selection else (rows, missing.placed.known)),
        "errors": failures(c, population.failed),
        "interventions": interventions(manifest, m.window),
        "gates": [],
        "cost": cost(question.prices_of(manifest), m.window.seconds, found, of_selection=selection),
        **_scraped(None if selection else server, m, found),
        "roofline": roofline(requests, m, manifest, question, pools, of_selection=selection),
        **({} if selection else _of_users(requests, m, manifest, silences)),
        **_figures(run),
    }
    return _plain(summary | _gated(summary, requests, m, manifest, question, missing, of_selection=selection))


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
    unsent = requests_unsent(manifest, question.warmup_of(manifest))
    of_run = Missing(requests_lost(manifest, rows), unsent)
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
    plain: dict[str, Any] = json.decode(json.encode(summary))
    return {name: plain[name] for name in Summary.__struct_fields__ if name in plain}


def _tokens(m: Measured, ok: Rows, latency_ms: dict[str, Any]) -> dict[str, Any]:
    counted = tokens(m.c, ok, m.credits.output_tokens)
    tpot_ms, for_each_ms = latency_ms["tpot"]["p50"], held_ms(m.c, ok)
    # A client that read late merges events itself, if it was as late as these are apart.
    lag_ms = float(np.median(m.c.client_lag_s[ok])) * 1e3 if len(ok) else 0.0
    late = lag_ms >= max(LATE_S * 1e3, (tpot_ms or for_each_ms or 0.0) / 2)
    times = None if late else latency_ms["itl"]["p50"], tpot_ms, for_each_ms
    came = delivery(counted["tokens_per_event"], *times, counted["unread"]["share"])
    return counted | {"delivery": came}


def _servers(
    requests: Requests,
    m: Measured,
    manifest: Manifest,
    client: dict[str, Any],
    unrecorded: int | None,
    pools: Mapping[str, int],
) -> dict[str, Any]:
    """The replicas, how even they were, and what limits the run; ``unrecorded`` is None of a selection,
    ``pools`` is the number of servers with each role."""
    found = deployment(requests, m, manifest, unrecorded)
    causes = found["fairness"].causes
    limit = bottleneck(m, client, causes, pools.get(PREFILL, 0), of_selection=unrecorded is None)
    return {**found, "bottleneck": limit}


def _sessions(requests: Requests, m: Measured, manifest: Manifest, question: Question) -> dict[str, Any]:
    """``sessions``, ``inputs`` and ``images`` of requests that have some; ``agents`` of trajectories."""
    header = manifest.options.get("session_header")
    header = header if isinstance(header, str) else None
    found: dict[str, Any] = {"sessions": sessions(requests, m.c, m.window, header)}
    ok = m.population(np.arange(len(m.c))).ok
    given = {"inputs": inputs(m.c, ok, m.credits), "images": images(m.c, ok, m.credits, m.values["ttft"])}
    found |= {key: part for key, part in given.items() if part is not None}
    if manifest.trajectories is None:
        return found
    gpus = question.prices_of(manifest).gpus
    return found | {"agents": agents(requests, m.c, m.window, manifest.trajectories, gpus)}


def _client(
    m: Measured, p: Population, manifest: Manifest, latency_ms: dict[str, Any], law: dict[str, Any]
) -> dict[str, Any]:
    medians_ms = {metric: latency_ms[metric]["p50"] for metric in ("itl", "ttft", "e2el")}
    return client_validity(m.c, p.judged, manifest, Scale.of(m.window, medians_ms), m.judgement, law)


def _scraped(series: ServerSeries | None, m: Measured, found: dict[str, Any]) -> dict[str, Any]:
    """What the servers' own metrics say; nothing where none were scraped."""
    if not series:
        return {"server": {}, "energy": {}}
    return {"server": servers(series, m.c, m.window), "energy": energy(series, found)}


def _stages(
    requests: Requests, m: Measured, manifest: Manifest, question: Question, counts: tuple[int, int] | None
) -> dict[str, Any]:
    """``stages`` of a run that has some, and what is of them.

    Args:
        counts: requests that the run has, and those without a record; None of a selection, which has nothing.
    """
    if counts is None or not manifest.stages:
        return {}
    rows, unrecorded = counts
    found: dict[str, Any] = {"stages": stages(requests, manifest, question, rows)}
    kept = [stage for stage in found["stages"] if stage["repeated_as"] is None]
    asked_for = {
        "repeats": repeats(kept),
        "outside_stages": outside(m.c, manifest),
        "search": search(requests, manifest, question),
        **_curves(kept, manifest),
        "spike": spike(m, manifest, kept, unrecorded),
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


def _of_users(requests: Requests, m: Measured, manifest: Manifest, silences: Silences) -> dict[str, Any]:
    """The time of the users of a closed loop, and what users that are not ours sent."""
    found = _other_requests(manifest)
    if manifest.is_sweep or manifest.open_loop:
        return found
    times = user_time(requests, m, silences)
    return found if times is None else {"user_time": times, **found}


def _other_requests(manifest: Manifest) -> dict[str, Any]:
    """What the workers counted of other users' requests, over the whole run."""
    found = [
        {
            "method": each.method,
            "name": each.name,
            "requests": each.requests,
            "failures": each.failures,
            "p50_ms": each.percentile_ms(50),
            "p95_ms": each.percentile_ms(95),
        }
        for each in together(each for worker in manifest.workers for each in worker.others)
    ]
    return {"other_requests": found} if found else {}


def _run(manifest: Manifest) -> dict[str, Any]:
    return {
        "id": manifest.id,
        "name": manifest.name,
        "started": iso(manifest.started_ns),
        "host": manifest.host,
        "model": manifest.model,
        "scenario": manifest.scenario,
        "seed": manifest.seed,
        "versions": dict(manifest.versions),
        "stop_reason": manifest.stop_reason or None,
        "task_exceptions": [to_builtins(each) for each in manifest.task_exceptions],
        **({"skipped_lines": dict(manifest.skipped_lines)} if manifest.skipped_lines else {}),
        **({"insecure": True} if manifest.options.get("insecure") is True else {}),
        **({"is_sweep": True} if manifest.is_sweep else {}),
    }


def _window(m: Measured, manifest: Manifest, question: Question) -> dict[str, Any]:
    of_run = run_window(m.c, manifest, question.warmup_of(manifest))
    steady = question.window_of(manifest) == "steady"
    return {
        "start": iso(m.window.start_ns),
        "end": iso(m.window.end_ns),
        "seconds": m.window.seconds,
        "rule": m.window.rule,
        "left_out": left_out(m.c, of_run, m.window, m.judgement) if steady else None,
        "why_empty": why_empty(m.c, m.window, question.warmup_of(manifest)),
    }
