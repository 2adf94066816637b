"""Spikes of the load: what they cost, and how long the deployment took to recover."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from llm_locust.core.manifest import Manifest, StageFacts
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.figure import Run
from llm_locust.figures.reliability import Recovery, recovery
from llm_locust.figures.stages import CLIENT_LIMITED, Stage, kept
from llm_locust.figures.text import (
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    count,
    number,
    percent,
    plural,
    seconds,
)
from llm_locust.metrics.columns import Floats, Mask, Rows, Whole, slices
from llm_locust.metrics.limits import Slo
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.requests.judgement import Judgement, Limits, judge
from llm_locust.metrics.requests.latency import per_request
from llm_locust.metrics.stats.censoring import ordered, percentile
from llm_locust.metrics.stats.proportions import Proportion
from llm_locust.metrics.structs import Interval, SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_SPIKE = "judged requests"


class SpikePart(SummaryPart, frozen=True):
    """One part of a spike, by the requests that were due in it."""

    requests: Annotated[int, key("judged requests", "due in the part")]
    missed: Annotated[int, key("those of them that were not good", "`requests`")]
    good: Annotated[float | None, key("share of good ones; null without a request", "`requests`")]
    ci95: Annotated[Interval, key("its 95 % interval (Wilson)", "`requests`")]
    p50_ms: Annotated[float | None, key("median of `latency`, ms; null without one", "ok, due in it")]
    p99_ms: Annotated[float | None, key("its 99th percentile, ms", "ok, due in it")]


class SpikeRecovery(SummaryPart, frozen=True):
    """How long after the peak something was back where it was before."""

    recovered_s: Annotated[
        float | None,
        key("end of the peak until it is back, s; 0: it was never away; null: not known", _SPIKE),
    ]
    at_least_s: Annotated[
        float | None,
        key("a lower bound, s, where it was not back by the end of the load after; else null", _SPIKE),
    ]
    why: Annotated[str | None, key("why neither is known; null where one is")]


class Spike(SummaryPart, frozen=True):
    """A rate that rose to a peak and fell back to where it was."""

    at_s: Annotated[float, key("when the peak began, s after the run's start", "the run")]
    seconds: Annotated[float, key("how long the peak lasted, s", "the run")]
    base: Annotated[float, key("the rate asked for before and after, requests/s", "the run")]
    peak: Annotated[float, key("the rate asked for in between", "the run")]
    stages: Annotated[list[int], key("numbers of the stages before, during and after the peak", "the run")]
    before: SpikePart
    during: SpikePart
    recovering: SpikePart
    after: SpikePart
    missed: Annotated[int, key("those not good from the beginning of the peak until both are back", _SPIKE)]
    good: SpikeRecovery
    latency: SpikeRecovery
    latency_limit_ms: Annotated[
        float | None, key("95th percentile of `latency` before: what it has to come back to, ms", "ok")
    ]


class SpikeFacts(SummaryPart, frozen=True):
    """Spikes of the load, and how long it took to recover from each."""

    spikes: list[Spike]
    judged_by: Annotated[str, key("`slo`, or `outcome` without one: good is what did not fail", "the run")]
    latency: Annotated[
        str,
        key("`ttft` from scheduled; `e2el` from scheduled where not every answer was streamed", "the run"),
    ]
    unrecorded: Annotated[
        int, key("lost and unsent requests; with some, `missed` is a lower bound", "the run")
    ]


#: The latency is back where this percentile of the requests before holds for as many again.
PERCENT = 95.0

#: Where fewer than this share of the requests before were good, there is nothing to recover to.
LEAST_GOOD = 0.5

_NOT_RECORDED = "no part of the load before it was measured: it began in the warm-up"


@dataclass(frozen=True, slots=True)
class _Found:
    """Three stages of a spike. Of several spikes on one load, ``before`` is that before the first."""

    before: StageFacts
    peak: StageFacts
    after: StageFacts


def compute(run: Run) -> SpikeFacts | None:
    theirs = kept(run)
    return spike(run.m, run.manifest, theirs, run.missing.known) if theirs else None


def spike(m: Measured, manifest: Manifest, stages: Sequence[Stage], unrecorded: int) -> SpikeFacts | None:
    """The ``spike`` of a summary: see docs/definitions.md, "Spikes".

    None in a run without a peak between two stages of one smaller rate and without pauses, and in one of
    several runs or arms.

    Args:
        stages: those of the summary.
        unrecorded: requests of the run without a record.
    """
    several = m.window.gaps or len(manifest.arms) > 1
    found = [] if several or manifest.is_sweep else list(_spikes(manifest.stages))
    if not found:
        return None
    streamed = bool(m.c.streamed[m.c.ok].all())
    run = _Run(m, manifest, "ttft" if streamed else "e2el")
    results = {stage.number: stage for stage in stages}
    return SpikeFacts(
        spikes=[_spike(run, each, _why_not(results[each.before.number])) for each in found],
        judged_by="outcome" if m.judgement is None else "slo",
        latency=run.metric,
        unrecorded=unrecorded,
    )


def _spikes(stages: Sequence[StageFacts]) -> list[_Found]:
    found: list[_Found] = []
    for before, peak, after in zip(stages, stages[1:], stages[2:], strict=False):
        if before.asked == after.asked < peak.asked:
            follows = bool(found) and found[-1].after is before
            found.append(_Found(found[-1].before if follows else before, peak, after))
    return found


def _why_not(before: Stage) -> str | None:
    """Why nothing can be back where the stage before was; None: it can."""
    if before.figures is None:
        return _NOT_RECORDED
    # A client that reads late is no reason: the head of each report says it, and it blurs both sides alike.
    reasons = [reason for reason in before.reasons if not reason.startswith(CLIENT_LIMITED)]
    return f"the load before it is not a result: {reasons[0]}" if reasons else None


class _Run:
    """Requests on one axis of time, by the SLO and by a latency.

    Attributes:
        due_s: when each request was due.
        values_s: the latency of each, from when it was due.
    """

    def __init__(self, m: Measured, manifest: Manifest, metric: Literal["ttft", "e2el"]) -> None:
        self.metric = metric
        self.due_s = m.c.scheduled_s
        self.values_s = m.values[f"{metric}_scheduled"]
        self.good = m.c.ok if m.judgement is None else m.judgement.good
        self.judged = ~m.c.cancelled if m.judgement is None else m.judgement.judged
        self._m, self._manifest = m, manifest

    def at_s(self, ns: int | None) -> float:
        """A time on the axis of ``due_s``; None is the end of the run's load."""
        ends = [each for each in (ns, self._manifest.stopped_ns) if each is not None]
        return self._m.c.after_origin_s(min(ends)) if ends else np.inf

    def run_s(self, at_s: float) -> float:
        """The same, after the run's start."""
        return at_s - self._m.c.after_origin_s(self._manifest.started_ns)

    def due(self, from_s: float, to_s: float) -> Rows:
        return np.flatnonzero((self.due_s >= from_s) & (self.due_s < to_s))

    def within(self, limit_s: float) -> tuple[Mask, Mask]:
        """Which requests were ok with a latency of up to ``limit_s``, and of which that is known."""
        limits = Limits(Slo(**{f"{self.metric}_s": limit_s}))
        found = Whole(Judgement, len(self.due_s))
        for some in slices(self._m.c):
            found.add(judge(some, per_request(some), limits, "scheduled"), len(some))
        judgement = found.value()
        return judgement.good, judgement.judged

    def ascending_s(self, rows: Rows) -> Floats:
        """The known latencies of the ok ones of these requests."""
        known = rows[self._m.c.ok[rows] & np.isfinite(self.values_s[rows])]
        return ordered(self.values_s[known])


def _spike(run: _Run, found: _Found, why: str | None) -> Spike:
    measured_ns = found.before.begun_ns if found.before.measured_ns is None else found.before.measured_ns
    before = run.due(run.at_s(measured_ns), run.at_s(found.before.ended_ns))
    peak_s, over_s = run.at_s(found.peak.begun_ns), run.at_s(found.peak.ended_ns)
    end_s = run.at_s(found.after.ended_ns)
    share = _share(before, run.good, run.judged)
    if why is None and share.n and share.hits < LEAST_GOOD * share.n:
        why = f"{share.hits:,} of the {share.n:,} requests before it were good, fewer than half"
    limit_s, of_good, of_latency = None, Recovery(why=why), Recovery(why=why)
    if why is None:
        of_good = _recovery(run, (run.good, run.judged), before, (over_s, end_s))
        values_s = run.ascending_s(before)
        limit_s = max(percentile(values_s, PERCENT), 1e-9) if len(values_s) else None
    if limit_s is not None:
        of_latency = _recovery(run, run.within(limit_s), before, (over_s, end_s))
    elif why is None:
        of_latency = Recovery(why="no request before it had a latency")
    back_s = _back_s(over_s, end_s, of_good, of_latency)
    parts = [run.due(peak_s, over_s), run.due(over_s, back_s), run.due(back_s, end_s)]
    return Spike(
        at_s=run.run_s(peak_s),
        seconds=over_s - peak_s,
        base=found.before.asked,
        peak=found.peak.asked,
        stages=[found.before.number, found.peak.number, found.after.number],
        before=_part(run, before),
        during=_part(run, parts[0]),
        recovering=_part(run, parts[1]),
        after=_part(run, parts[2]),
        missed=sum(part.n - part.hits for part in (_share(each, run.good, run.judged) for each in parts[:2])),
        good=_recovery_figures(of_good),
        latency=_recovery_figures(of_latency),
        latency_limit_ms=None if limit_s is None else limit_s * 1e3,
    )


def _share(rows: Rows, good: Mask, judged: Mask) -> Proportion:
    return Proportion(int(good[rows].sum()), int(judged[rows].sum()))


def _recovery(run: _Run, by: tuple[Mask, Mask], before: Rows, span_s: tuple[float, float]) -> Recovery:
    """The recovery in [from, to), of a judgement: which requests are good, and which are judged."""
    good, judged = by
    theirs = run.due(*span_s)
    theirs = theirs[judged[theirs]]
    return recovery(run.due_s[theirs], good[theirs], _share(before, good, judged), span_s[0])


def _back_s(over_s: float, end_s: float, *found: Recovery) -> float:
    """When both were back; the end where one was not, or where neither is known."""
    if any(each.at_least_s is not None for each in found):
        return end_s
    known = [each.seconds for each in found if each.seconds is not None]
    return over_s + max(known) if known else end_s


def _part(run: _Run, rows: Rows) -> SpikePart:
    share, values_s = _share(rows, run.good, run.judged), run.ascending_s(rows)
    ends = share.interval()
    return SpikePart(
        requests=share.n,
        missed=share.n - share.hits,
        good=share.ratio,
        ci95=ends,
        p50_ms=percentile(values_s, 50.0) * 1e3 if len(values_s) else None,
        p99_ms=percentile(values_s, 99.0) * 1e3 if len(values_s) else None,
    )


def _recovery_figures(found: Recovery) -> SpikeRecovery:
    return SpikeRecovery(recovered_s=found.seconds, at_least_s=found.at_least_s, why=found.why)


# --- Spikes of the load: what they cost, and how long it took until all was as before


#: Spikes that are shown; summary.json has all.
MOST = 10

_NAMES = {"ttft": "TTFT", "e2el": "E2EL"}


def show(summary: "Summary") -> Iterator[Section]:
    """A table of the parts of each spike, with the time to recover; nothing in a run without one."""
    found = summary.spike
    if found is None:
        return
    for i, each in enumerate(found.spikes[:MOST]):
        yield _spike_section(found, each, key=f"spike{i}" if i else "")


def _spike_section(found: SpikeFacts, each: Spike, key: str) -> Section:
    name = _NAMES.get(found.latency, clean(found.latency))
    over = f"{name} ms"
    columns = (
        *(Column("Spike", left=True), Column("requests"), Column("missed"), Column("good")),
        *(Column("p50", over=over), Column("p99", over=over)),
    )
    rows = (
        _spike_row(f"before, {number(each.base)} requests/s", each.before),
        _spike_row(f"peak, {number(each.peak)} for {seconds(each.seconds)}", each.during),
        _spike_row("until all was back", each.recovering),
        _spike_row("after that", each.after),
    )
    return Section(
        f"Spike at {seconds(each.at_s)}",
        tuple(_spike_lines(found, each, name)),
        Table(columns, rows),
        tuple(_notes(found, each)),
        stacked=True,
        key=key,
    )


def _spike_row(name: str, part: SpikePart) -> TableRow:
    latencies = (number(part.p50_ms), number(part.p99_ms))
    return TableRow((name, count(part.requests), count(part.missed), percent(part.good), *latencies))


def _spike_lines(found: SpikeFacts, each: Spike, name: str) -> Iterator[Line]:
    if each.good.why is not None and each.good.why == each.latency.why:
        yield Line(f"no time to recover: {clean(each.good.why)}", Tone.WARN)
        return
    what = "the share of good requests" if found.judged_by == "slo" else "the share of requests that succeed"
    yield _line(what, each.good)
    limit = "" if each.latency_limit_ms is None else f" ({number(each.latency_limit_ms)} ms, its p95 before)"
    yield _line(f"{name} from scheduled{limit}", each.latency)


def _line(what: str, found: SpikeRecovery) -> Line:
    if found.recovered_s == 0:
        return Line(f"{what} never fell after the peak", Tone.GOOD)
    if found.recovered_s is not None:
        return Line(f"{what} was back {seconds(found.recovered_s)} after the peak")
    if found.at_least_s is not None:
        return Line(
            f"{what} was NOT back by the end of the load: it takes at least {seconds(found.at_least_s)}, a "
            "lower bound",
            Tone.BAD,
        )
    return Line(f"{what}: no time to recover: {clean(found.why or UNDEFINED)}", Tone.WARN)


def _notes(found: SpikeFacts, each: Spike) -> Iterator[Line]:
    both = each.during.requests + each.recovering.requests
    yield Line(
        f"{count(each.missed)} of {count(both)} requests missed from the beginning of the peak "
        "until all was back"
    )
    if found.judged_by == "outcome":
        yield Line("no SLO: good requests are all that did not fail", Tone.FAINT)
    if found.unrecorded:
        missing = plural(found.unrecorded, "request")
        yield Line(f"{missing} without a record: missed is a lower bound, and so is the time", Tone.WARN)
    if (more := len(found.spikes) - MOST) > 0 and each is found.spikes[MOST - 1]:
        yield Line(f"{plural(more, 'spike')} more in summary.json", Tone.FAINT)
