"""The gates of a run: what they are judged by, and their table.

Of a request without a record nobody knows the arm, nor whether it meets a condition. A gate must not hold
because it is left out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from llm_locust.core.manifest import Manifest
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.figure import Run
from llm_locust.figures.gate_rules import CutPaces, GateEvidence, GateOutcome, Ramp, evaluate
from llm_locust.figures.parts import PartFigures, part_of_all
from llm_locust.figures.text import (
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    count,
    mark,
    meaning_in,
    number,
    percent,
    plural,
    sentence,
)
from llm_locust.figures.tokens import faults
from llm_locust.figures.user_time import UserTime, user_time
from llm_locust.metrics.catalogue import FORMULAS, LATENCY
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.limits import Gate, MetricKind, parse_gates
from llm_locust.metrics.measured import Measured, durations_of
from llm_locust.metrics.requests.judgement import Missing
from llm_locust.metrics.requests.latency import cut_pace_s
from llm_locust.metrics.requests.rates import LawRate, law_rate
from llm_locust.metrics.select import parse_where
from llm_locust.metrics.standstill import Silences
from llm_locust.metrics.stats.censoring import Durations
from llm_locust.metrics.steady_window import LoadOverTime, asked_load, plateau
from llm_locust.metrics.window import Population

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary


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
    part: "Summary | PartFigures",
    m: Measured,
    percentiles: Mapping[str, float],
    missing: Unrecorded,
    times: UserTime | None,
    ramp: Ramp | None = None,
    done: float | None = None,
) -> list[GateOutcome]:
    """Each gate on all requests of ``m``, as :func:`~llm_locust.figures.gate_rules.evaluate` has it.

    A gate that would not hold if every missing request belonged to them cannot tell, and fails.

    Args:
        part: the figures of ``m``, with the missing requests that are known to belong there.
        percentiles: of the latencies, key to percent.
        times, ramp, done: as :class:`~llm_locust.figures.gate_rules.GateEvidence` has them.
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


def gates_of(summary: "Summary", run: Run, missing: Unrecorded) -> list[GateOutcome]:
    requests, m, manifest, question = run.requests, run.m, run.manifest, run.question
    gates, times = question.gates_of(manifest), summary.user_time
    if run.of_selection:
        if not manifest.open_loop and not m.window.gaps:
            times = user_time(requests, m, are_all=False)
        return judged(gates, summary, m, question.places, missing, times)
    load = None if manifest.is_sweep else asked_load(requests, manifest, m.c.origin_ns)
    return judged(gates, summary, m, question.places, missing, times, _ramp(load, m), _done(manifest, m))


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


def show(summary: "Summary") -> Section | None:
    """Each gate with the value it was held against, broken ones first; None where none was given."""
    outcomes = summary.gates
    if not outcomes:
        return None
    undecided = sum(gate.undecided for gate in outcomes)
    broken = sum(not gate.passed for gate in outcomes) - undecided
    if not broken and not undecided:
        headline = Line(f"{plural(len(outcomes), 'gate')} passed", Tone.GOOD)
    else:
        words = [f"{count(broken)} of {plural(len(outcomes), 'gate')} failed"] if broken else []
        words += [f"{count(undecided)} of {plural(len(outcomes), 'gate')} cannot tell"] if undecided else []
        headline = Line(sentence(words), Tone.BAD if broken else Tone.WARN)
    columns = (
        Column("Result", left=True),
        Column("Gate", left=True, verbatim=True),
        Column("Measured"),
        Column("", left=True, wraps=True),
    )
    in_order = sorted(outcomes, key=lambda gate: (gate.passed, gate.undecided))
    table = Table(columns, tuple(_gate_row(gate, summary) for gate in in_order)).without_empty()
    return Section("Gates", (headline,), table, tuple(meaning_in(table)))


def _gate_row(gate: GateOutcome, summary: "Summary") -> TableRow:
    reason = clean(gate.reason or "")
    # Where the figure itself is over the limit, the columns before have said so.
    explains = (
        gate.value is None
        or gate.undecided
        or "counted" in reason
        or "users' time" in reason
        or "hung" in reason
    )
    note = clean(gate.note or "") if "failed" not in reason else ""
    why = sentence([reason if explains else "", note])
    word, tone = ("pass", Tone.GOOD) if gate.passed else ("FAIL", Tone.BAD)
    if gate.undecided:
        word, tone = "UNKNOWN", Tone.WARN
    return TableRow((word, clean(gate.shown), _gate_measured(gate, summary), why), tone)


def _gate_measured(outcome: GateOutcome, summary: "Summary") -> str:
    """The value in the unit of the gate's metric, which its text names, with the mark of its percentile."""
    value, bound = outcome.value, outcome.at_least
    if value is None:
        return UNDEFINED if bound is None else f"> {number(bound)} ms"
    (gate,) = parse_gates(outcome.text)
    if gate.kind is MetricKind.SHARE:
        return percent(value)
    return (
        f"{_mark_of(gate, _judged(outcome, summary))}{number(value)} ms"
        if gate.kind is MetricKind.LATENCY
        else number(value)
    )


def _judged(outcome: GateOutcome, summary: "Summary") -> "Summary | PartFigures":
    """What a gate was judged by: the whole run, or one of its arms."""
    named = (arm.figures for arm in summary.arms or () if arm.name == outcome.arm)
    return next(named, summary)


def _mark_of(gate: Gate, summary: "Summary | PartFigures") -> str:
    tables = summary.latency_ms_adjusted if gate.is_adjusted else summary.latency_ms
    return "" if gate.latency is None or gate.is_certified else mark(tables[gate.latency], gate.statistic)
