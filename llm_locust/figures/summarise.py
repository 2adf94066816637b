"""``summary.json``: every number of a run, computed once, from its records.

Its keys are a contract. What is not defined is None."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from msgspec import structs

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.figures.arms import arms
from llm_locust.figures.figure import Run
from llm_locust.figures.gates import CutPaces, GateEvidence, GateOutcome, Ramp, evaluate
from llm_locust.figures.latency import LiveEnd
from llm_locust.figures.parts import StageFigures, part_of_all
from llm_locust.figures.summary import FIGURES, SUMMARY_SCHEMA, Summary
from llm_locust.figures.tokens import faults
from llm_locust.figures.user_time import UserTime, user_time
from llm_locust.metrics.answers import Answers
from llm_locust.metrics.catalogue import FORMULAS, LATENCY
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.limits import Gate
from llm_locust.metrics.measured import Measured, durations_of, measure
from llm_locust.metrics.question import PLAIN, Question
from llm_locust.metrics.requests.judgement import Missing
from llm_locust.metrics.requests.latency import cut_pace_s
from llm_locust.metrics.requests.rates import LawRate, law_rate
from llm_locust.metrics.select import parse_where, without_first_tries
from llm_locust.metrics.server_series import ServerSeries
from llm_locust.metrics.standstill import Silences
from llm_locust.metrics.stats.censoring import Durations
from llm_locust.metrics.steady_window import LoadOverTime, asked_load, plateau
from llm_locust.metrics.window import Population

# --- Gates, where requests were lost or never sent
#
# Of a request without a record nobody knows the arm, nor whether it meets a condition. A gate must not hold
# because it is left out.


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """Requests without a record that may belong to those that figures are of.

    ``placed`` are known to belong there, ``most`` is how many there are if all do that may. ``doubt`` is what
    is not known of the others, in words.
    """

    placed: Missing
    most: Missing
    doubt: str = ""

    @classmethod
    def of_run(cls, run: Missing) -> "Unrecorded":
        """Those of a whole run all belong to it."""
        return cls(run, run)

    @classmethod
    def of_selection(cls, run: Missing, manifest: Manifest, where: str | None) -> "Unrecorded":
        """Any of the run's may meet a condition. A stage of a sweep knows its unsent ones.

        Those that workers count and no stage does, because the run ended during it, may be of any stage.
        """
        stage = None if where is None or not manifest.is_sweep else parse_where(where).stage
        of_stage = [each.unsent for each in manifest.stages if each.number == stage]
        placed, most = run.of_part, run
        if of_stage:
            counted = sum(each.unsent for each in manifest.stages)
            uncounted = max(0, sum(worker.unsent for worker in manifest.workers) - counted)
            placed, most = (
                replace(placed, unsent=of_stage[0]),
                replace(most, unsent=of_stage[0] + uncounted),
            )
        return cls(placed, most, "whether they are among the selected requests")

    def of_arm(self) -> "Unrecorded":
        """Of one of several arms: any of these may belong to it."""
        return Unrecorded(self.most.of_part, self.most, "to which arm they belong")

    def why_open(self, gate: Gate) -> str | None:
        """Why the figure of a gate may be another one; None if none of the others can change it."""
        of_all = gate.metric == "goodput"
        of_unsent = of_all or (gate.latency is not None and LATENCY[gate.latency].is_from_scheduled)
        unsent = (self.most.unsent or 0) - (self.placed.unsent or 0) if of_unsent else 0
        lost = (self.most.lost or 0) - (self.placed.lost or 0) if of_all else 0
        causes = [_were(n, what) for n, what in ((unsent, "never sent"), (lost, "lost")) if n]
        return f"cannot tell: {' and '.join(causes)}, and it is not known {self.doubt}" if causes else None


def _were(n: int, what: str) -> str:
    return f"1 request was {what}" if n == 1 else f"{n:,} requests were {what}"


def judged(
    gates: tuple[Gate, ...],
    part: "Summary | StageFigures",
    m: Measured,
    percentiles: Mapping[str, float],
    missing: Unrecorded,
    times: UserTime | None,
    ramp: Ramp | None = None,
    done: float | None = None,
) -> list[GateOutcome]:
    """Each gate on all requests of ``m``, as :func:`~llm_locust.figures.gates.evaluate` has it.

    A gate that would not hold if every missing request belonged to them cannot tell, and fails.

    Args:
        part: the figures of ``m``, with the missing requests that are known to belong there.
        percentiles: of the latencies, key to percent.
        times, ramp, done: as :class:`~llm_locust.figures.gates.GateEvidence` has them.
    """
    population = m.population(np.arange(len(m.c)))
    of = partial(_durations, m, population)
    evidence = GateEvidence(
        partial(of, missing.placed),
        partial(_cut, m, population),
        partial(_rate, m),
        ramp,
        done,
        m.window.seconds,
        faults(m.c, population.ok).not_used,
        times,
        partial(_hung, m),
    )
    outcomes = evaluate(gates, part, evidence)
    whys = [
        missing.why_open(gate) if each.passed else None for gate, each in zip(gates, outcomes, strict=True)
    ]
    open_gates = tuple(gate for gate, why in zip(gates, whys, strict=True) if why is not None)
    if not open_gates:
        return outcomes
    most = structs.asdict(part_of_all(m, percentiles, missing.most))
    with_all = structs.replace(part, **{key: figure for key, figure in most.items() if figure is not None})
    holds = iter(evaluate(open_gates, with_all, replace(evidence, durations_of=partial(of, missing.most))))
    return [
        each if why is None or next(holds).passed else structs.replace(each, passed=False, reason=why)
        for each, why in zip(outcomes, whys, strict=True)
    ]


def _cut(m: Measured, population: Population, latency: str) -> CutPaces:
    c, rows = m.c, population.cancelled
    begun = rows[c.streamed[rows] & (c.events[rows] > 0)]
    if latency not in FORMULAS:
        gaps_s = m.cut_gaps.ascending()
        if isinstance(gaps_s, np.ndarray):
            return CutPaces(gaps_s, 0)
        return CutPaces(np.empty(0), len(begun))
    paces_s = cut_pace_s(c)[begun]
    known = ~np.isnan(paces_s)
    return CutPaces(np.sort(paces_s[known]), int((~known).sum()))


def _hung(m: Measured, metric: str) -> int:
    """The requests that hung, and are not in a gate's metric: goodput has those that had broken a limit."""
    if not m.c.cancelled.any():
        return 0
    rows = Silences.of(m.c, m.holes, m.window, m.judgement).hung()
    if metric == "goodput" and m.judgement is not None:
        return int((~m.judgement.judged[rows]).sum())
    return len(rows)


def _rate(m: Measured, metric: str) -> LawRate | None:
    """Little's rate of a gate's metric."""
    c = m.c
    amounts: dict[str, Callable[[], Floats]] = {
        "rps": lambda: c.ok.astype(np.float64),
        "goodput_rps": lambda: (
            np.zeros(len(c)) if m.judgement is None else m.judgement.good.astype(np.float64)
        ),
        "input_tps": lambda: c.input_tokens,
        "output_tps": lambda: c.output_tokens,
        "total_tps": lambda: np.nan_to_num(c.input_tokens) + np.nan_to_num(c.output_tokens),
        "inputs_per_s": lambda: c.inputs,
        "images_per_s": lambda: c.images,
    }
    return law_rate(c, m.window, amounts[metric]())


def _durations(m: Measured, population: Population, missing: Missing, gate: Gate) -> Durations:
    assert gate.latency is not None
    return durations_of(m, population, gate.latency, adjusted=gate.is_adjusted, unsent=missing.unsent or 0)


# --- The summary


def summarise(
    requests: Requests,
    manifest: Manifest,
    question: Question = PLAIN,
    *,
    rows_of_run: int | None = None,
    measured: Measured | None = None,
    server: ServerSeries | None = None,
    live: LiveEnd | None = None,
) -> Summary:
    """The summary of requests, with None for what is not defined.

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
    run = Run(
        requests=requests,
        m=m,
        manifest=manifest,
        question=question,
        rows=rows,
        of_selection=of_selection,
        server=None if of_selection else server,
        live=live,
        answers=Answers.of(requests),
        missing=missing.placed,
        whole=part_of_all(m, question.places, missing.placed),
    )
    values = {name: run.figure(each.compute) for name, each in FIGURES.items() if each.compute is not None}
    summary = Summary(schema=SUMMARY_SCHEMA, gates=[], **values)
    if manifest.arms:
        return _with_arms(summary, run, missing)
    return structs.replace(summary, gates=_gates(summary, run, missing))


def _missing(manifest: Manifest, rows: int, question: Question, *, of_selection: bool) -> Unrecorded:
    """The requests without a record that figures may be of; ``rows`` are all that the run has."""
    unsent = manifest.requests_unsent(question.warmup_of(manifest))
    of_run = Missing(manifest.requests_lost(rows), unsent)
    if of_selection:
        return Unrecorded.of_selection(of_run, manifest, question.where)
    return Unrecorded.of_run(of_run)


def _gates(summary: Summary, run: Run, missing: Unrecorded) -> list[GateOutcome]:
    requests, m, manifest, question = run.requests, run.m, run.manifest, run.question
    gates, times = question.gates_of(manifest), summary.user_time
    if run.of_selection:
        if not manifest.open_loop and not m.window.gaps:
            times = user_time(requests, m, are_all=False)
        return judged(gates, summary, m, question.places, missing, times)
    load = None if manifest.is_sweep else asked_load(requests, manifest, m.c.origin_ns)
    return judged(gates, summary, m, question.places, missing, times, _ramp(load, m), _done(manifest, m))


def _with_arms(summary: Summary, run: Run, missing: Unrecorded) -> Summary:
    """With ``arms``, and each gate on each of them."""
    manifest, question = run.manifest, run.question

    def gates(part: StageFigures, m: Measured, times: UserTime | None) -> list[GateOutcome]:
        asked_for = question.gates_of(manifest)
        return judged(asked_for, part, m, question.places, missing.of_arm(), times)

    of = (run.requests, manifest, question, run.m.window, missing.most)
    found, outcomes = arms(*of, of_selection=run.of_selection, gates=gates)
    return structs.replace(summary, arms=found, gates=outcomes)


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
