"""Each request measured once, part by part: the token arrivals are never all in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.core.texts import quantity
from llm_locust.metrics.catalogue import FORMULAS
from llm_locust.metrics.columns import (
    PART_COLUMNS,
    TIME_COLUMNS,
    Columns,
    Floats,
    Part,
    Rows,
    Times,
    Whole,
    groups,
    read_whole,
    slices,
)
from llm_locust.metrics.limits import Slo
from llm_locust.metrics.question import WINDOWS, Question
from llm_locust.metrics.requests.gaps import PooledGaps, on_time_ratio
from llm_locust.metrics.requests.judgement import Judgement, Limits, judge
from llm_locust.metrics.requests.latency import (
    MeasuredFrom,
    Samples,
    adjusted_gaps,
    per_request,
    with_stuck,
    with_unsent,
)
from llm_locust.metrics.requests.rates import Credits, with_estimates
from llm_locust.metrics.select import FirstTries, without_first_tries
from llm_locust.metrics.standstill import StreamHoles
from llm_locust.metrics.stats.bootstrap import order_cells, time_cells
from llm_locust.metrics.stats.censoring import Ascending, Durations
from llm_locust.metrics.steady_window import Stuck, asked_load, find_stuck, steady_window
from llm_locust.metrics.window import Population, Window, given_window, run_window, sweep_window

#: Both limits that say when each token is in time.
_PACE = {"ttft", "tpot"}


@dataclass(frozen=True, slots=True)
class Measured:
    """All requests of a run and what they are worth; every part of a summary takes its rows out of this.

    ``on_time`` is each ok request's share of tokens in time, None where the SLO does not say what
    that is. ``gaps`` are those of the ok requests that were scheduled in the window, ``cut_gaps`` those of
    the cancelled ones, each with the silence before its cut, ``holes`` the long ones of all requests.
    ``stuck`` are requests from before the window that hung in it. ``first_tries`` are in nothing else.
    """

    c: Columns
    credits: Credits
    judgement: Judgement | None
    on_time: Floats | None
    gaps: PooledGaps = field(repr=False)
    cut_gaps: PooledGaps = field(repr=False)
    holes: StreamHoles = field(repr=False)
    stuck: Stuck
    first_tries: FirstTries

    @property
    def window(self) -> Window:
        return self.credits.window

    @property
    def values(self) -> Mapping[str, Floats]:
        return per_request(self.c)

    def population(self, rows: Rows) -> Population:
        return Population.of(self.c, self.window.scheduled(self.c), rows)


def measure(requests: Requests, manifest: Manifest, question: Question) -> Measured:
    """Find the window by the times alone, then measure every part in it.

    Args:
        requests: those that ``question.where`` leaves.

    Raises:
        ValueError: the manifest's ``slo_from`` is neither ``sent`` nor ``scheduled``; no SLO; as
            :func:`find_window` raises it.
    """
    from_ = measured_from(manifest)
    requests = without_first_tries(requests)
    limits = limits_of(manifest, question.slo_of(manifest))
    span = find_window(requests, manifest, question)
    origin_ns = _origin_ns(requests, manifest)
    columns, credits = Whole(Columns, len(requests)), Whole(Credits, len(requests))
    judgements, on_time = Whole(Judgement, len(requests)), Whole(_OnTime, len(requests))
    gaps, cut_gaps, holes = PooledGaps(), PooledGaps(), StreamHoles()
    for batch in requests.parts(PART_COLUMNS):
        part = Part.from_batch(batch, origin_ns)
        population = Population.of(part, span.scheduled(part), np.arange(len(part)))
        ok = population.ok
        columns.add(part, len(part))
        credits.add(Credits.of(part, span), len(part))
        if _has_pace(limits):
            on_time.add(_OnTime.of(part, ok, limits), len(part))
        gaps.add(part, ok, time_cells(span, part, part.scheduled_s))
        cut_gaps.add(part, population.cancelled)
        cut_gaps.add_silences(part, population.cancelled)
        holes.add(part)
    c, credited = columns.value(), credits.value()
    c, output_tokens = with_estimates(c, credited.output_tokens)
    if limits:  # by the estimates too: the pace of a cut answer is that of its tokens, not of its events
        for some in slices(c):
            judgements.add(judge(some, per_request(some), limits, from_), len(some))
    return Measured(
        c,
        replace(credited, output_tokens=output_tokens),
        judgements.value() if limits else None,
        on_time.value().share if _has_pace(limits) else None,
        gaps,
        cut_gaps,
        holes,
        find_stuck(c, span, limits),
        FirstTries.of(requests, span, origin_ns),
    )


@dataclass(frozen=True, slots=True)
class _OnTime:
    share: Floats

    @classmethod
    def of(cls, c: Part, ok: Rows, limits: Limits) -> "_OnTime":
        share = np.full(len(c), np.nan)
        for label, rows in groups(c.slo_class):
            slo = limits.of(label).limits
            if slo.keys() >= _PACE:
                rows = np.intersect1d(rows, ok, assume_unique=True)
                share[rows] = on_time_ratio(c, rows, slo["ttft"], slo["tpot"])
        return cls(share)


def _has_pace(limits: Limits) -> bool:
    """Some class's SLO says when each token is in time."""
    return any(slo.limits.keys() >= _PACE for slo in (limits.slo, *limits.of_class.values()))


def limits_of(manifest: Manifest, slo: Slo) -> Limits:
    """The SLO, and those that classes of the run have instead."""
    return Limits(slo, {label: _slo(of_class) for label, of_class in manifest.class_slos.items()})


def _slo(limits_s: Mapping[str, float]) -> Slo:
    return Slo(**{f"{metric}_s": limit_s for metric, limit_s in limits_s.items()})


def _origin_ns(requests: Requests, manifest: Manifest) -> int:
    """The first scheduled request: seconds stay small, and so exact, whatever clock ran."""
    parts = (batch.ints("scheduled_ns") for batch in requests.parts(["scheduled_ns"]))
    return min((int(part.min()) for part in parts if len(part)), default=manifest.started_ns)


def find_window(requests: Requests, manifest: Manifest, question: Question) -> Window:
    """The window that is asked for: ``steady`` by the times and the load that was asked for.

    Raises:
        ValueError: an unknown one, one after the run's end, or a warm-up that is negative.
    """
    window, warmup_s = question.window_of(manifest), question.warmup_of(manifest)
    if isinstance(window, Window):
        return window
    if isinstance(window, str) and window not in WINDOWS:
        raise ValueError(f'unknown window "{window}": write one of {", ".join(WINDOWS)}')
    swept = sweep_window(manifest) if manifest.is_sweep else None
    if swept is not None and window == "run":
        return swept
    if manifest.is_sweep and window == "steady":
        raise ValueError("--window steady: a sweep has several loads; each stage has its own measured part")
    requests = without_first_tries(requests)
    origin_ns = _origin_ns(requests, manifest)
    times = read_whole(Times, requests, TIME_COLUMNS, lambda batch: Times.of(batch, origin_ns))
    if not isinstance(window, str):
        _refuse_dropped(manifest, window[0])
        return given_window(run_window(times, manifest, 0.0), manifest.started_ns, *window)
    span = run_window(times, manifest, warmup_s)
    if window == "run":
        return span
    unsent = manifest.requests_unsent(warmup_s)
    return steady_window(asked_load(requests, manifest, origin_ns), times, span, unsent)


def _refuse_dropped(manifest: Manifest, from_s: float) -> None:
    """Refuse a window that begins in what was dropped (raises ValueError)."""
    if manifest.dropped is not None and manifest.kept_from_ns is not None:
        kept_s = (manifest.kept_from_ns - manifest.started_ns) * 1e-9
        if from_s < kept_s:
            raise ValueError(
                f"the window begins at {from_s:g} s, and requests until {quantity(kept_s)} s were dropped "
                f"(--keep): merge the run with its copy in {manifest.dropped.to}, or begin later"
            )


def measured_from(manifest: Manifest) -> MeasuredFrom:
    """Where the limits on ttft, ttfo and e2el begin: as the run was told, else as its load was made.

    Raises:
        ValueError: the manifest says neither ``sent`` nor ``scheduled``.
    """
    chosen = manifest.options.get("slo_from") or ("scheduled" if manifest.open_loop else "sent")
    if chosen == "scheduled":
        return "scheduled"
    if chosen == "sent":
        return "sent"
    raise ValueError(f'slo_from is "{chosen}": write sent or scheduled')


# --- The durations that a figure of all requests is computed from


def durations_of(
    m: Measured,
    population: Population,
    latency: str,
    *,
    adjusted: bool,
    unsent: int,
    gaps: Floats | Ascending | None = None,
) -> Durations:
    """One latency of all requests, as :func:`~llm_locust.metrics.requests.latency.latency_tables` has it.

    Args:
        population: that of all requests of ``m``.
        adjusted: failed requests count as without end.
        unsent: requests that were due and never sent.
        gaps: those of ``m``, ascending, where they are there.
    """
    if latency not in FORMULAS:
        found = Durations(m.gaps.ascending() if gaps is None else gaps, course=m.gaps.course())
        failed_over_time = time_cells(m.window, m.c, m.c.scheduled_s[population.failed]).sums()
        return adjusted_gaps(found, population, failed_over_time) if adjusted else found
    samples, order = Samples.of(m.c, m.values, latency), order_cells(m.c, population.all)
    found = samples.durations(population, order)
    if adjusted:
        found = samples.adjusted(population, found, order)
    found = with_stuck(found, m.stuck.bounds_s(np.arange(len(m.c)), latency))
    return with_unsent(found, latency, unsent)
