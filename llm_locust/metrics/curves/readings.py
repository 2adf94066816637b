"""What a measured stage says about the limits of an objective."""

from dataclasses import replace

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest, StageFacts
from llm_locust.core.stages import finished, of_lengths
from llm_locust.metrics.columns import Floats, Rows
from llm_locust.metrics.curves.objective import Limit, Objective
from llm_locust.metrics.curves.probe import GoodRate, Probe, ProbeReading
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.parts import part_of_all
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.goodput import Limits, Missing, judge
from llm_locust.metrics.requests.goodput_intervals import ratio_worth
from llm_locust.metrics.requests.slo import Slo
from llm_locust.metrics.sections.completeness import requests_lost, requests_unsent
from llm_locust.metrics.sections.steady import asked_load
from llm_locust.metrics.sections.validity import Scale, client_validity
from llm_locust.metrics.select.selection import asked
from llm_locust.metrics.stages.figures import hung_users, touching
from llm_locust.metrics.stages.verdict import CLIENT_LIMITED, stage_verdict
from llm_locust.metrics.stats.certified import certified_share, fewest_samples
from llm_locust.metrics.stats.percentiles import PERCENTILES
from llm_locust.metrics.stats.worth import FEWEST, Worth
from llm_locust.metrics.summary_types.requests import UserTime
from llm_locust.metrics.window import stage_window


class NoReadingError(ValueError):
    """A stage that says nothing about a limit; one line says why."""


def reading(m: Measured, limit: Limit, missing: int = 0) -> ProbeReading:
    """How many of the requests scheduled in the window of ``m`` were within a limit.

    A failed request is beyond each limit, and so is one that was cut after it had exceeded it; one that was
    cut before is left out. A latency is measured from where its name says, whatever the run's ``slo_from``.

    Args:
        missing: requests that were due and have no record in the window: they are beyond each limit.

    Raises:
        NoReadingError: nothing was judged, or ``goodput`` is limited and the run has no SLO.
    """
    missing += len(m.stuck.among(np.arange(len(m.c))))
    judged, within = _judged(m, limit)
    n = len(judged) + missing
    if not n:
        raise NoReadingError("no request ended or broke a limit")
    hits = within[judged]
    worth = ratio_worth(m.c, judged, hits, missing) if len(judged) else None
    if hits.sum() / n >= limit.required and (worth is None or not worth.error.settled):
        raise NoReadingError(
            "its requests depend on each other for longer than it lasted: it was not steady, or too short"
        )
    found = ProbeReading(int(hits.sum()), n, _independent(worth, n))
    return _certified(found, limit) if limit.is_certified else found


def _certified(found: ProbeReading, limit: Limit) -> ProbeReading:
    """With the share that a certificate needs of this many requests; of too few, none is enough."""
    share = certified_share(found.n, limit.percent)
    if share is None and found.share >= limit.required:
        raise NoReadingError(
            f"{limit.text} needs {fewest_samples(limit.percent):,} requests, there are {found.n:,}: "
            "make stages longer"
        )
    return replace(found, certified=1.0 if share is None else share)


def _judged(m: Measured, limit: Limit) -> tuple[Rows, Floats]:
    """The rows that count, and for every row of the run whether it is within the limit."""
    population = m.population(np.arange(len(m.c)))
    if limit.metric == "ok":
        return population.judged, m.c.ok.astype(np.float64)
    if limit.limit_s is not None:
        judgement = judge(m.c, m.values, _only(limit.metric, limit.limit_s), "sent")
        within = judgement.held[limit.metric]
    elif m.judgement is not None:
        judgement, within = m.judgement, m.judgement.good
    else:
        raise NoReadingError("no SLO was given, so nothing is good or bad: give one by --slo")
    return population.all[judgement.judged[population.all]], within.astype(np.float64)


def _only(metric: str, limit_s: float) -> Limits:
    return Limits(Slo(**{f"{metric}_s": limit_s}))


def _independent(worth: Worth | None, n: int) -> float:
    """As many independent requests as the error allows, stretched as an interval is; at least 1."""
    if worth is None:
        return 1.0
    return min(float(n), max(1.0, worth.n_eff / worth.stretch(2 * FEWEST) ** 2))


def probes(
    requests: Requests,
    manifest: Manifest,
    question: Question,
    objective: Objective,
    lengths: str | None = None,
) -> list[Probe]:
    """A probe of each stage of a run that is on the objective's axis; without stages, one of the run.

    Args:
        lengths: of the stages of a sweep over lengths, see :func:`~llm_locust.core.stages.of_lengths`.

    Raises:
        ValueError: the run has another load than the objective, or lengths have to be said; or as
            :func:`~llm_locust.metrics.measured.measure` raises it.
    """
    if manifest.stages:
        kind = "rate" if objective.axis == "rate" else "users"
        stages = [stage for stage in finished(manifest.stages) if stage.kind == kind]
        if not stages:
            raise ValueError(f"the stages of run {manifest.id} are not of a {objective.axis}")
        stages = of_lengths(stages, lengths)
        return [stage_probe(requests, manifest, question, objective, stage) for stage in stages]
    if lengths is not None:
        raise ValueError(f"--lengths {lengths}: run {manifest.id} is no sweep over lengths")
    if manifest.open_loop != (objective.axis == "rate"):
        has = "a rate" if manifest.open_loop else "users"
        raise ValueError(f"run {manifest.id} was a load of {has}, and the objective is a {objective.axis}")
    m = measure(requests, manifest, question)
    load = _load(requests, manifest, m)
    if load is None:
        return []
    rows = len(asked(requests).stored)
    unsent = requests_unsent(manifest, question.warmup_of(manifest))
    missing = Missing(requests_lost(manifest, rows), unsent)
    return [_probe(m, objective, load, missing, _client(m, manifest, missing))]


def stage_probe(
    requests: Requests, manifest: Manifest, question: Question, objective: Objective, stage: StageFacts
) -> Probe:
    """What one stage of a run shows; raises as :func:`probes`."""
    window = stage_window(stage, manifest)
    if stage.fault or window is None:
        return Probe(stage.asked, no_result=stage.fault or "it had no measured part")
    if requests_lost(manifest, len(asked(requests).stored)):
        return Probe(stage.asked, no_result="records of the run are missing")
    theirs = touching(requests, window)
    m = measure(theirs, manifest, replace(question, window=window, where=None))
    found = stage_verdict(m, manifest, stage)
    missing = Missing(0, (stage.unsent or 0) + _unasked(m, hung_users(theirs, m, stage)))
    if found.lengths is not None and found.lengths.is_other:
        return Probe(stage.asked, no_result=found.lengths.reason)
    why = next((reason for reason in found.reasons if not reason.startswith(CLIENT_LIMITED)), "")
    if found.client == "invalid":
        client = found.reasons[-1].removeprefix(CLIENT_LIMITED)
        return _probe(m, objective, stage.asked, missing, client)
    if found.steady is False and not found.saturated:
        return Probe(stage.asked, no_result=why)
    probe = replace(_probe(m, objective, stage.asked, missing), saturated=bool(found.saturated))
    if objective.is_maximum:
        return probe
    required = tuple(limit.required for limit in objective.limits)
    if found.saturated and probe.counts and not probe.breaks(required):
        # It would break a limit if it lasted longer: that its share is still high shows nothing.
        return replace(probe, no_result=why)
    return probe


def _unasked(m: Measured, hung: UserTime | None) -> int:
    """The requests that users who hung would have sent, as often as the others did: each beyond any limit."""
    if hung is None:
        return 0
    served_s = hung.seconds - hung.hung.seconds
    judged = len(m.population(np.arange(len(m.c))).judged)
    return round(judged * hung.hung.seconds / served_s) if served_s > 0 else hung.hung.n


def _load(requests: Requests, manifest: Manifest, m: Measured) -> float | None:
    """The load that there was in the window: requests/s due, or the mean number of users in whole ones."""
    if not m.window.seconds > 0:
        return None
    if manifest.open_loop:
        return int(m.window.scheduled(m.c).sum()) / m.window.seconds or None
    load = asked_load(requests, manifest, m.c.origin_ns)
    if load is None:
        return None
    edges = np.array([m.window.start_s(m.c), m.window.end_s(m.c)])
    return float(round(float(load.levels(edges)[0]))) or None


def _probe(m: Measured, objective: Objective, load: float, missing: Missing, client: str = "") -> Probe:
    if missing.lost is None or missing.unsent is None:
        return Probe(load, no_result="it is unknown how many of its requests are missing")
    try:
        found = tuple(reading(m, limit, missing.known) for limit in objective.limits)
    except NoReadingError as e:
        return Probe(load, no_result=str(e))
    is_users = objective.axis == "concurrency"
    per_s = found[0].n / m.window.seconds if is_users else load
    return Probe(load, found, client=client, good=GoodRate.of(found[0], per_s, is_counted=is_users))


def _client(m: Measured, manifest: Manifest, missing: Missing) -> str:
    """Why the client is invalid in the window; empty where it is not."""
    latency_ms = part_of_all(m, PERCENTILES, missing)["latency_ms"]
    medians_ms = {metric: latency_ms[metric]["p50"] for metric in ("itl", "ttft", "e2el")}
    judged = m.population(np.arange(len(m.c))).judged
    found = client_validity(m.c, judged, manifest, Scale.of(m.window, medians_ms), m.judgement)
    return found["reasons"][0] if found["verdict"] == "invalid" else ""
