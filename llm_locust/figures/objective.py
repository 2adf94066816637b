"""The highest load that is looked for: ``max rate under goodput>=95%``.

Every limit becomes a share of requests: ``p99_ttft<500ms`` is held where at least 99 % of all requests have
their first token within 500 ms. A failed request is not within any limit. So each limit has one reading per
stage, ``hits`` of ``n``, and one share that it must reach."""

import math
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest, StageFacts
from llm_locust.core.stages import finished, of_lengths
from llm_locust.core.texts import listed, nearest
from llm_locust.figures.client import client_validity
from llm_locust.figures.client_rules import Scale
from llm_locust.figures.parts import part_of_all
from llm_locust.figures.stages import CLIENT_LIMITED, hung_users, stage_verdict, touching
from llm_locust.figures.user_time import UserTime
from llm_locust.metrics.columns import Floats, Rows
from llm_locust.metrics.limits import EDGE, SLO_METRICS, Gate, GateError, MetricKind, Slo, parse_gates
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.judgement import Limits, Missing, judge, ratio_size
from llm_locust.metrics.select import without_first_tries
from llm_locust.metrics.stats.censoring import PERCENTILES, certified_share, fewest_samples
from llm_locust.metrics.stats.intervals import FEWEST, EffectiveSize, Ends, share_ends
from llm_locust.metrics.steady_window import asked_load
from llm_locust.metrics.window import stage_window

Axis = Literal["rate", "concurrency"]

#: Unit of each axis in texts.
UNITS: dict[Axis, str] = {"rate": "requests/s", "concurrency": "users"}

#: Other words for an axis: each user of trajectories is an agent.
_ALIASES: dict[str, Axis] = {"agents": "concurrency"}

_FORM = re.compile(r"\s*max\s+(?P<axis>\S+)\s+under\s+(?P<gates>.*)", re.DOTALL)
_ALLOWED = (
    'write "max rate under GATES" or "max concurrency under GATES", '
    'where GATES are as in "goodput>=95% p99_ttft<500ms"; or "max-goodput", "max-goodput over concurrency"'
)

#: A stage whose share of good requests is above it must show how sure that share is, to be a maximum.
_MOSTLY_GOOD = 0.5


class ObjectiveError(ValueError):
    """A text that is no objective of a search; one line that says what is wrong and what is allowed."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A gate as a share: held where more than, or at least, ``required`` of the requests are within it.

    ``metric`` is ``goodput``, ``ok`` (requests that did not fail), or a latency with the limit ``limit_s``.
    ``is_certified``: a stage must show it with the confidence of :mod:`~llm_locust.metrics.stats.censoring`.
    """

    text: str
    metric: str
    required: float
    limit_s: float | None = None
    is_certified: bool = False

    @property
    def percent(self) -> float:
        """The share that is required, in percent."""
        return round(self.required * 100, 6)


@dataclass(frozen=True, slots=True)
class Objective:
    """The highest load on ``axis`` under which all ``limits`` hold.

    ``is_maximum``: the load with the most good requests/s; its one limit says which requests are good.
    """

    text: str
    axis: Axis
    limits: tuple[Limit, ...]
    is_maximum: bool = False


def parse_objective(text: str) -> Objective:
    """
    Raises:
        ObjectiveError: the text has another form, an unknown axis, or no limit that a higher load breaks.
        GateError: one of its gates cannot be read.
    """
    if text.split()[:1] == ["max-goodput"]:
        return _maximum(text.split())
    found = _FORM.fullmatch(text)
    if found is None:
        raise ObjectiveError(f'find: "{text}" is not an objective; {_ALLOWED}')
    axis = _axis(found["axis"])
    try:
        gates = parse_gates(found["gates"])
    except GateError as e:
        raise ObjectiveError(f'find: after "under", {str(e).removeprefix("gate: ")}') from None
    if not gates:
        raise ObjectiveError(f'find: no gate after "under"; {_ALLOWED}')
    return Objective(" ".join(text.split()), axis, tuple(_limit(gate) for gate in gates))


def _maximum(words: list[str]) -> Objective:
    text = " ".join(words)
    if len(words) not in (1, 3) or words[1:2] not in ([], ["over"]):
        raise ObjectiveError(f'find: "{text}" is not an objective; {_ALLOWED}')
    axis = _axis(words[2]) if len(words) == 3 else "rate"
    return Objective(text, axis, (Limit("goodput", "goodput", _MOSTLY_GOOD),), is_maximum=True)


def _axis(word: str) -> Axis:
    if word in _ALIASES:
        return _ALIASES[word]
    for axis in UNITS:
        if word == axis:
            return axis
    raise ObjectiveError(
        f'find: "{word}" is not a load; {nearest(word, UNITS)}write one of {listed((*UNITS, *_ALIASES))}'
    )


def _limit(gate: Gate) -> Limit:
    if gate.kind is MetricKind.LATENCY:
        return _latency_limit(gate)
    if gate.metric == "goodput":
        if gate.op not in (">", ">=") or not gate.limit > 0:
            raise _refused(gate, "a higher load does not break it: write a lower limit, as goodput>=95%")
        return _share(gate, "goodput", gate.limit)
    if gate.metric == "error_rate":
        if gate.op not in ("<", "<=") or not gate.limit < 1:
            raise _refused(gate, "a higher load does not break it: write an upper limit, as error_rate<1%")
        return _share(gate, "ok", 1 - gate.limit)
    if gate.metric == EDGE:
        raise _refused(gate, 'it is what is looked for; give it as a gate: --gate "edge>=30"')
    raise _refused(gate, f"{gate.metric} grows with the load; limit goodput, error_rate or a latency")


def _share(gate: Gate, metric: str, required: float) -> Limit:
    if not required < 1:
        raise _refused(gate, "no number of requests can show a share of exactly 100 %; allow 0.1 %")
    return Limit(gate.text, metric, required)


def _latency_limit(gate: Gate) -> Limit:
    if gate.op not in ("<", "<="):
        raise _refused(gate, "a higher load does not break it: write an upper limit, with <")
    if not gate.limit > 0:
        raise _refused(gate, "no request takes 0 ms; write a limit above 0")
    if gate.latency not in SLO_METRICS:
        raise _refused(gate, f"{gate.latency} is not a latency of one request; limit {listed(SLO_METRICS)}")
    if gate.statistic not in PERCENTILES:
        raise _refused(
            gate, "neither a mean nor a maximum can include requests that failed; limit a percentile, as p99"
        )
    required = PERCENTILES[gate.statistic] / 100
    return Limit(gate.text, gate.latency, required, gate.limit / 1e3, gate.is_certified)


def _refused(gate: Gate, why: str) -> ObjectiveError:
    return ObjectiveError(f'find: "{gate.text}" cannot be searched: {why}')


# --- One stage of a search: its load, and how many of its requests were within each limit


#: 95 %, two-sided.
_Z = 1.959963984540054


class Shown(StrEnum):
    """What a stage shows about a limit, by the 95 % interval of its share."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True, slots=True)
class ProbeReading:
    """``hits`` of ``n`` requests were within a limit; they are worth ``n_eff`` independent ones.

    ``certified`` is the share of ``n`` that a certificate needs; None of a limit without one.
    """

    hits: int
    n: int
    n_eff: float
    certified: float | None = None

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: the counts contradict each other.
        """
        if not (0 <= self.hits <= self.n and self.n >= 1 and 0 < self.n_eff <= self.n):
            raise ValueError(f"{self.hits} of {self.n} requests, worth {self.n_eff}: that is not a share")

    @property
    def share(self) -> float:
        return self.hits / self.n

    @property
    def ends(self) -> Ends:
        """Wilson's 95 % interval of the share, with the correction for continuity."""
        return share_ends(self.share, self.n_eff, _Z)

    def is_within(self, required: float) -> bool:
        """Whether the share is as required, by what was counted alone; a certificate has its own."""
        return self.share >= (required if self.certified is None else self.certified)

    def beside(self, required: float) -> float:
        """The share, less what a certificate needs beyond ``required``."""
        return self.share if self.certified is None else max(0.0, self.share - (self.certified - required))

    def shows(self, required: float) -> Shown:
        low, high = self.ends
        if self.is_within(required) if self.certified is not None else low >= required:
            return Shown.HOLDS
        return Shown.BROKEN if high < required else Shown.UNRESOLVED


@dataclass(frozen=True, slots=True)
class GoodRate:
    """Good requests/s of a stage and their standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, found: ProbeReading, per_s: float, *, is_counted: bool) -> "GoodRate":
        """By the share of good requests.

        Args:
            per_s: requests/s that the share is of.
            is_counted: they are as many as the server let through, with the error of a count; not asked for.
        """
        low, high = found.ends
        of_count = found.share / math.sqrt(found.n) if is_counted else 0.0
        return cls(found.share * per_s, per_s * math.hypot((high - low) / 2 / _Z, of_count))


@dataclass(frozen=True, slots=True)
class Probe:
    """A stage at one ``load``, with a reading for each limit of the objective.

    ``saturated``: requests were due faster than they ended; ``good`` then falls the longer it lasts.

    ``no_result`` says why the stage shows nothing of the server (too few requests, not steady, not run); its
    readings are not used. ``client`` says in what the client was the limit: a server is not judged by what
    its client could not do.
    """

    load: float
    readings: tuple[ProbeReading, ...] = ()
    no_result: str = ""
    client: str = ""
    good: GoodRate | None = None
    saturated: bool = False

    @property
    def counts(self) -> bool:
        """Whether the search may use its readings."""
        return bool(self.readings) and not self.no_result and not self.client

    def breaks(self, required: tuple[float, ...]) -> bool:
        """Whether a share is below what is required, by what was counted alone."""
        return not all(r.is_within(share) for r, share in zip(self.readings, required, strict=True))

    def shows(self, required: tuple[float, ...]) -> Shown:
        """Broken if any limit is, holds if all do."""
        found = [reading.shows(share) for reading, share in zip(self.readings, required, strict=True)]
        if Shown.BROKEN in found:
            return Shown.BROKEN
        return Shown.UNRESOLVED if Shown.UNRESOLVED in found else Shown.HOLDS


# --- What a measured stage says about the limits of an objective


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
    worth = ratio_size(m.c, judged, hits, missing) if len(judged) else None
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


def _independent(worth: EffectiveSize | None, n: int) -> float:
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
    rows = len(without_first_tries(requests).stored)
    unsent = manifest.requests_unsent(question.warmup_of(manifest))
    missing = Missing(manifest.requests_lost(rows), unsent)
    return [_probe(m, objective, load, missing, _client(m, manifest, missing))]


def stage_probe(
    requests: Requests, manifest: Manifest, question: Question, objective: Objective, stage: StageFacts
) -> Probe:
    """What one stage of a run shows; raises as :func:`probes`."""
    window = stage_window(stage, manifest)
    if stage.fault or window is None:
        return Probe(stage.asked, no_result=stage.fault or "it had no measured part")
    if manifest.requests_lost(len(without_first_tries(requests).stored)):
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
    latency_ms = part_of_all(m, PERCENTILES, missing).latency_ms
    medians_ms = {metric: latency_ms[metric]["p50"] for metric in ("itl", "ttft", "e2el")}
    judged = m.population(np.arange(len(m.c))).judged
    found = client_validity(m.c, judged, manifest, Scale.of(m.window, medians_ms), m.judgement)
    return found.reasons[0] if found.verdict == "invalid" else ""
