"""Steadiness of a run: a warm-up that should be left out, a server that gets slower, or is overloaded; drift.

The run's window is cut into equal parts. Concurrency and the median TTFT of each are compared with those of
the last third: a part outside of the range of 99 % of such parts, and more than 10 % off, differs. An
unbroken sequence of such parts at the start, with slower first tokens or fewer requests in flight, is a
warm-up; one that reaches the middle of the run is a run that does not settle.

A run that gets slower to its end is neither: leaving out its beginning would leave out the good part. It is
found where the load stays on its plateau (:func:`_slower`). An open loop whose queue grows to its end is
overloaded (:func:`_overload`), and gets slower by that.

For drift the window is cut into equal bins of a minute or more and of 100 requests or more, at most 60. A
line is fitted to the values of the bins by least squares; its slope is the drift per hour. Bins of minutes
carry little of the dependence between successive requests, and the interval is widened by the correlation
that is left between them (:mod:`llm_locust.metrics.stats.trend`). Fluctuations slower than a thirtieth of the
window cannot be distinguished from a drift.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec.structs import asdict, replace

from llm_locust.core.manifest import Manifest
from llm_locust.core.texts import quantity
from llm_locust.figures.figure import Run
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
    seconds,
    sentence,
)
from llm_locust.metrics.catalogue import FORMULAS, LATENCY, ttft
from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.requests.judgement import Judgement
from llm_locust.metrics.requests.rates import Spans, prefilled_s
from llm_locust.metrics.stats.censoring import ordered, percentile
from llm_locust.metrics.stats.trend import FEWEST, PARTS, Level, QueueCount, Trend, fit_trend, grows, level_of
from llm_locust.metrics.steady_window import STEADY_TOLERANCE, LoadOverTime, Plateau, asked_load, plateau
from llm_locust.metrics.structs import SummaryPart, key
from llm_locust.metrics.window import Population, Window, run_window

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary


_WHOLE = "the whole run"
_STEADY = "see [warm-up and steady state](definitions.md#warm-up-and-steady-state)"


class SlowerFacts(SummaryPart, frozen=True):
    """A latency that rose to the end of the run at the same load."""

    metric: Annotated[str, key("the latency whose medians rose", _WHOLE)]
    from_ms: Annotated[float, key("its median in the first third, ms", _WHOLE)]
    to_ms: Annotated[float, key("its median at the end, by the line through the last half, ms", _WHOLE)]
    limit_ms: Annotated[float | None, key("the SLO's limit on it, ms", _WHOLE)]
    limit_at_s: Annotated[
        float | None, key("when that line would reach the limit, s after the start of the window", _WHOLE)
    ]


class OverloadFacts(SummaryPart, frozen=True):
    """An open loop whose queue grew to its end."""

    sent_per_s: Annotated[float, key("requests due / second, over `seconds`", _WHOLE)]
    answered_per_s: Annotated[float, key("requests ended / second, over `seconds`", _WHOLE)]
    queue_per_s: Annotated[float, key("their difference", _WHOLE)]
    seconds: Annotated[float, key("length of the span at the end of the run in which it grew, s", _WHOLE)]


class Steadiness(SummaryPart, frozen=True):
    """Whether the load was steady, and whether the run began with a warm-up."""

    settled: Annotated[bool | None, key(f"the run was like its last third by its middle: {_STEADY}", _WHOLE)]
    warmup_like: Annotated[bool | None, key("its beginning was unlike its last third", _WHOLE)]
    warmup_s_suggested: Annotated[
        float | None, key("the whole `--warmup` that would leave such a beginning out, s", _WHOLE)
    ]
    unit: Annotated[str | None, key("unit of the load that was asked for", _WHOLE)]
    plateau: Annotated[float | None, key("the load asked for that most of the run had, in `unit`", _WHOLE)]
    steady_share: Annotated[
        float | None,
        key("longest span that stays on it (what `--window steady` takes), as a share of the run", _WHOLE),
    ]
    reason: Annotated[str, key("why, in a sentence", _WHOLE)]
    slower: Annotated[
        SlowerFacts | None, key("what got slower to the end, at the same load; null where nothing did")
    ]
    overload: Annotated[OverloadFacts | None, key("rates of a queue that grew to the end; null without one")]


#: Parts of the window where there are :data:`_MANY` requests, and where there are at least :data:`_FEWEST`.
PARTS_OF_MANY, PARTS_OF_FEW = 40, 20
_MANY, _FEWEST = 400, 100

_CONFIDENCE = 0.99

#: Spans at the end of the run in which an overload is looked for, as shares of it, and the least of them.
_ENDS = (1.0, 0.5, 0.25)
_LEAST_END_S = 10.0

#: What got slower by less is not told.
_SLOWER = 1.2

#: A rise that goes on: in its last half, with this confidence, and by this share of the whole.
_STILL_RISING = 0.8
_OF_RISE = 0.25

#: A median of 0 has no logarithm.
_MOMENT_S = 1e-6

#: The load is on its plateau for this share of a run that gets slower.
_ON_PLATEAU = 0.8

#: Parts whose trend is looked at: the last half, and as many as a trend needs.
_FEWEST_OF_TREND = 12


@dataclass(frozen=True, slots=True)
class _Beginning:
    """A series in its first ``parts``, which differ from the last third, and ``later``."""

    name: str
    unit: str
    parts: int
    was: float
    later: Level

    @property
    def text(self) -> str:
        low, high = (self._not_negative(self.later.mean + sign * self.later.reach) for sign in (-1, 1))
        return (
            f"{self.name} {self._not_negative(self.was)}{self.unit} against "
            f"{self._not_negative(self.later.mean)}{self.unit} in the last third "
            f"(99 % of such parts: {low} .. {high})"
        )

    @staticmethod
    def _not_negative(value: float) -> str:
        return quantity(max(0.0, value))


def compute(run: Run) -> Steadiness:
    """Of the run, also where a part of it is judged."""
    m, manifest = run.m, run.manifest
    if manifest.is_sweep:
        return untold("the run is a sweep: each of its stages is judged on its own")
    if not isinstance(run.question.window_of(manifest), str):
        return untold("the window was given: steadiness is that of a run as a whole")
    whole = run_window(m.c, manifest, run.warmup_s)
    ok = Population.of(m.c, whole.scheduled(m.c), np.arange(len(m.c))).ok
    load = asked_load(run.requests, manifest, m.c.origin_ns)
    limits_s = {} if m.judgement is None else m.judgement.limits.slo.limits
    return steadiness(m.c, whole, ok, run.warmup_s, load, limits_s)


def steadiness(
    c: Columns,
    run: Window,
    ok: Rows,
    warmup_s: float,
    load: LoadOverTime | None,
    limits_s: Mapping[str, float] | None = None,
) -> Steadiness:
    """The steadiness of a run.

    Args:
        run: the window of the run, see :func:`~llm_locust.metrics.window.run_window`.
        ok: the requests that ended ok and were scheduled in it.
        warmup_s: what was left out before it.
        load: the requested load, None if unknown.
        limits_s: of latencies that an SLO limits, to say when one would be reached.
    """
    if not len(c) or run.seconds <= 0:
        return untold("no request was in flight")
    level = None if load is None else plateau(load, c, run)
    found = untold("")
    if load is not None and level is not None:
        found = replace(found, unit=load.unit, plateau=level.level, steady_share=level.share)
    if load is not None and load.due_s is not None and (overload := _overload(c, run)) is not None:
        rates, reason = overload
        return replace(found, settled=False, overload=rates, reason=reason)
    if len(ok) < _FEWEST:
        few = f"too few ok requests to detect a warm-up: {len(ok)}, {_FEWEST} are needed"
        return replace(found, reason=few)
    parts = PARTS_OF_MANY if len(ok) >= _MANY else PARTS_OF_FEW
    if level is not None and level.share >= _ON_PLATEAU:
        slower = _slower(c, run, ok, parts, level, limits_s or {})
        if slower is not None:
            rising, reason = slower
            return replace(found, settled=False, warmup_like=False, slower=rising, reason=reason)
    beginnings = [b for b in _beginnings(c, run, ok, parts) if b is not None and b.parts]
    return _verdict(found, beginnings, parts, run.seconds / parts, warmup_s)


def untold(reason: str) -> Steadiness:
    """A steadiness without any value, and the reason."""
    return Steadiness(
        settled=None,
        warmup_like=None,
        warmup_s_suggested=None,
        unit=None,
        plateau=None,
        steady_share=None,
        reason=reason,
        slower=None,
        overload=None,
    )


def _overload(c: Columns, run: Window) -> tuple[OverloadFacts, str] | None:
    """``overload`` and ``reason`` of an open loop whose queue grew to the end of the run; None of others."""
    due_s, ended_s = np.sort(c.scheduled_s), np.sort(c.ended_s)
    for share in _ENDS:
        span_s = run.seconds * share
        if span_s < _LEAST_END_S:
            return None
        edges = run.end_s(c) - span_s * np.arange(PARTS, -1, -1) / PARTS
        arrived, ended = np.searchsorted(due_s, edges), np.searchsorted(ended_s, edges)
        counts = [QueueCount(int(a), int(e)) for a, e in zip(arrived, ended, strict=True)]
        if not grows(counts, span_s):
            continue
        first, last = counts[0], counts[-1]
        came, went = (last.arrived - first.arrived) / span_s, (last.ended - first.ended) / span_s
        rates = OverloadFacts(sent_per_s=came, answered_per_s=went, queue_per_s=came - went, seconds=span_s)
        over = "" if share == 1.0 else f" in the last {span_s:.3g} s"
        reason = (
            f"overloaded: sent {came:.3g}/s, answered {went:.3g}/s{over}: the queue grew by "
            f"{came - went:.3g}/s to the end, when {last.backlog:,} requests were under way"
        )
        return rates, reason
    return None


def _slower(
    c: Columns, run: Window, ok: Rows, parts: int, on: Plateau, limits_s: Mapping[str, float]
) -> tuple[SlowerFacts, str] | None:
    """``slower`` and ``reason`` of a run that got slower to its end; None of others.

    It is told of the medians of TTFT (E2EL without streaming) or TPOT in the parts on the plateau. A line
    through them, through their logarithms, or through those of the last half rises beyond noise; that of the
    last half has at least a quarter of the whole rise, so that it goes on to the end; it ends more than 20 %
    above the mean of the first third, and above 99 % of parts as those were.
    """
    edges = np.linspace(run.start_s(c), run.end_s(c), parts + 1)
    middles_s = (edges[:-1] + edges[1:]) / 2 - edges[0]
    place = np.searchsorted(edges, c.scheduled_s[ok], side="right") - 1
    first, last = (round(edge * parts / on.parts) for edge in (on.first, on.last))
    for metric in ("ttft", "tpot") if c.streamed[ok].any() else ("e2el",):
        values_s = FORMULAS[metric](c)[ok]
        series = np.array([percentile(ordered(values_s[place == i]), 50.0) for i in range(parts)])
        series, at_s = series[first:last], middles_s[first:last]
        early = level_of(series[: len(series) // 3], _CONFIDENCE)
        tail = max(_FEWEST_OF_TREND, len(series) // 2)
        line = fit_trend(at_s[-tail:], series[-tail:])
        if early is None or line is None or line.interval(_STILL_RISING)[0] <= 0:
            continue
        ends_s = line.level + line.slope * float(at_s[-1])
        rise_s = ends_s - early.mean
        goes_on = line.slope * float(at_s[-1] - at_s[-tail]) >= _OF_RISE * rise_s
        lines = (line, fit_trend(at_s, series), fit_trend(at_s, np.log(np.maximum(series, _MOMENT_S))))
        rises = any(each is not None and each.interval(_CONFIDENCE)[0] > 0 for each in lines)
        if not (goes_on and rises and ends_s > max(_SLOWER * early.mean, early.mean + early.reach)):
            continue
        limit_s = limits_s.get(metric)
        reached_s = None
        if limit_s is not None and ends_s < limit_s:
            reached_s = (limit_s - line.level) / line.slope
        rising = SlowerFacts(
            metric=metric,
            from_ms=early.mean * 1e3,
            to_ms=ends_s * 1e3,
            limit_ms=None if limit_s is None else limit_s * 1e3,
            limit_at_s=reached_s,
        )
        medians = f"{LATENCY[metric].label} median {_duration(early.mean)} to {_duration(ends_s)}"
        return rising, _rising(medians, limit_s, reached_s)
    return None


def _rising(medians: str, limit_s: float | None, reached_s: float | None) -> str:
    text = f"it was getting slower at the same load: {medians}"
    if limit_s is None:
        return f"{text}; run for longer to see where that ends"
    if reached_s is None:
        return f"{text}, over the limit of {_duration(limit_s)}"
    return f"{text}; the limit of {_duration(limit_s)} would be reached after {reached_s:.0f} s"


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _beginnings(c: Columns, run: Window, ok: Rows, parts: int) -> list[_Beginning | None]:
    edges = np.linspace(run.start_s(c), run.end_s(c), parts + 1)
    return [
        _beginning("concurrency", "", Spans.of(c).means(edges), slower=-1),
        _beginning("TTFT median", " ms", _median_ttft_ms(c, ok, edges), slower=1),
    ]


def _median_ttft_ms(c: Columns, ok: Rows, edges: Floats) -> Floats:
    """Median TTFT of the requests scheduled in each part; NaN without any that has one."""
    place = np.searchsorted(edges, c.scheduled_s[ok], side="right") - 1
    values_s = ttft(c)[ok]
    return np.array([percentile(ordered(values_s[place == i]), 50.0) for i in range(len(edges) - 1)]) * 1e3


def _beginning(name: str, unit: str, series: Floats, *, slower: int) -> _Beginning | None:
    """Parts before the first one that is like the last third; None if unknown.

    Args:
        slower: 1 if more than that is unlike it, -1 if less is.
    """
    third = len(series) // 3
    later = level_of(series[-third:], _CONFIDENCE)
    if later is None:
        return None
    allowed = max(later.reach, STEADY_TOLERANCE * later.mean)
    with np.errstate(invalid="ignore"):
        unlike = slower * (series[:-third] - later.mean) > allowed
    parts = len(unlike) if unlike.all() else int(np.argmin(unlike))
    return _Beginning(name, unit, parts, float(series[:parts].mean()) if parts else math.nan, later)


def _verdict(
    found: Steadiness, beginnings: list[_Beginning], parts: int, part_s: float, warmup_s: float
) -> Steadiness:
    if not beginnings:
        reason = (
            f"concurrency and median TTFT of the first {quantity(part_s)} s are like those of the last third"
        )
        return replace(found, settled=True, warmup_like=False, reason=reason)
    what = " and ".join(b.text for b in beginnings)
    longest = max(b.parts for b in beginnings)
    if 2 * longest >= parts:
        reason = f"not settled by the middle of the run: {what}; make the run longer, or see the drift"
        return replace(found, settled=False, reason=reason)
    suggested_s = _rounded_up(warmup_s + longest * part_s)
    more = f" instead of {warmup_s:g}s" if warmup_s else ""
    reason = (
        f"the first {quantity(longest * part_s)} s were like a warm-up: {what}; "
        f"use --warmup {suggested_s:g}s{more}"
    )
    return replace(found, settled=True, warmup_like=True, warmup_s_suggested=suggested_s, reason=reason)


def _rounded_up(seconds: float) -> float:
    """Round up to whole seconds, below ten of them to tenths."""
    steps = 10 if seconds < 10 else 1
    return math.ceil(round(seconds * steps, 6)) / steps


def show(summary: "Summary") -> Section | None:
    """What the beginning of the run was like; None where it was like the rest, or nobody can tell."""
    part = summary.steadiness
    if not part.warmup_like and part.settled is not False:
        return None
    title = "Overload" if part.overload else "Slower with time" if part.slower else "Warm-up"
    return Section(title, (Line(part.reason, Tone.BAD if part.overload else Tone.WARN),), key="warmup")


# --- Drift: whether a long run gets slower, or worse, with time


_WINDOW = "the window"
_LINE = "the line through the bins: see [drift](definitions.md#drift)"


class DriftLine(SummaryPart, frozen=True):
    """The line through the bins of a measure."""

    at_start: Annotated[float, key(_LINE, _WINDOW)]
    at_end: Annotated[float, key(_LINE, _WINDOW)]
    per_hour: Annotated[float, key(_LINE, _WINDOW)]
    ci95: Annotated[tuple[float, float], key(_LINE, _WINDOW)]
    relative_per_hour: Annotated[float | None, key(_LINE, _WINDOW)]
    correlation: Annotated[float | None, key(_LINE, _WINDOW)]
    bins: Annotated[int, key(_LINE, _WINDOW)]


class MemoryLine(DriftLine, frozen=True):
    """The line through a process's memory."""

    beyond_noise: Annotated[bool, key("its 99.8 % interval excludes 0", _WINDOW)]


class Drift(SummaryPart, frozen=True):
    """What changed with the hours."""

    reason: Annotated[str | None, key("why there is no drift to report; null where there is", _WINDOW)]
    bins: Annotated[int | None, key("number of the bins", _WINDOW)]
    bin_s: Annotated[float | None, key("length of the bins, s", _WINDOW)]
    found: Annotated[list[str] | None, key("the measures that drift", _WINDOW)]
    measures: dict[str, DriftLine | None] | None
    client_rss_mib: Annotated[
        dict[str, MemoryLine] | None,
        key(
            "memory of each process over time, MiB: the keys of a measure, and `beyond_noise`",
            "each process's time in the run",
        ),
    ]


#: A shorter window says nothing of hours.
LONG_ENOUGH_S = 1200.0

MOST_BINS = 60
BIN_S = 60.0
BIN_REQUESTS = 100

_DRIFT_CONFIDENCE = 0.95

#: Of each of five measures, so that of 100 runs without a drift fewer than 5 have one named.
_NAMED_FROM = 0.998

_HOUR_S = 3600.0

#: Token events closer together than this came at one moment.
_DRIFT_MOMENT_S = 1e-3

MEASURES = ("ttft_p50_ms", "ttft_p99_ms", "goodput_ratio", "error_rate", "output_tokens_per_s")


def compute_drift(run: Run) -> Drift:
    m = run.m
    return drift(m.c, run.population, m.judgement, m.window, memory_of(run.manifest))


def drift(
    c: Columns,
    population: Population,
    judgement: Judgement | None,
    window: Window,
    rss_mib: Mapping[str, Sequence[Sequence[float]]] | None = None,
) -> Drift:
    """The drift of a window.

    ``measures`` has for each of :data:`MEASURES` the line's value at the window's start and end
    (``at_start``, ``at_end``), its slope ``per_hour`` with the 95 % interval ``ci95``, the slope as a share
    of ``at_start`` (``relative_per_hour``), the ``correlation`` of successive bins beside the line, and how
    many ``bins`` had a value. ``found`` names those whose 99.8 % interval excludes 0.

    ``client_rss_mib`` has the same of each process's memory, over all of its time in the run; None if no
    process has reported it often enough.

    Args:
        rss_mib: of each process, pairs of seconds and MiB.

    Returns:
        If the window is too short or has too few requests, ``reason`` says so and all else is None.
    """
    judged = population.judged
    bins = min(MOST_BINS, int(window.seconds // BIN_S), len(judged) // BIN_REQUESTS)
    reason = _why_not(window, bins, len(judged))
    if reason:
        return Drift(reason=reason, bins=None, bin_s=None, found=None, measures=None, client_rss_mib=None)
    edges = np.linspace(window.start_s(c), window.end_s(c), bins + 1)
    middles_h = (edges[:-1] + edges[1:] - 2 * edges[0]) / 2 / _HOUR_S
    series = _series(c, population, judgement, edges)
    trends = {measure: fit_trend(middles_h, series[measure]) for measure in MEASURES}
    return Drift(
        reason=None,
        bins=bins,
        bin_s=window.seconds / bins,
        found=[m for m, trend in trends.items() if trend and trend.is_beyond_noise(_NAMED_FROM)],
        measures={
            m: None if trend is None else _drift_line(trend, window.seconds / _HOUR_S, series[m])
            for m, trend in trends.items()
        },
        client_rss_mib=_memory(rss_mib or {}),
    )


def memory_of(manifest: Manifest) -> dict[str, list[list[float]]]:
    """Memory of each process of a run over time: the master's, and the workers' by id."""
    nodes = {"master": manifest.master, **{worker.id: worker.health for worker in manifest.workers}}
    return {name: health.rss_mib for name, health in nodes.items() if health.rss_mib}


def _memory(rss_mib: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, MemoryLine] | None:
    found = {}
    for name, points in rss_mib.items():
        at_s, mib = np.array(points, dtype=np.float64).reshape(-1, 2).T
        trend = fit_trend((at_s - at_s[:1]) / _HOUR_S, mib)
        if trend is not None:
            hours = float(at_s[-1] - at_s[0]) / _HOUR_S
            line = asdict(_drift_line(trend, hours, mib))
            found[name] = MemoryLine(**line, beyond_noise=trend.is_beyond_noise(_NAMED_FROM))
    return found or None


def _why_not(window: Window, bins: int, requests: int) -> str | None:
    if window.gaps:
        return "the window has gaps: it is that of several runs or stages"
    if window.seconds < LONG_ENOUGH_S:
        length = quantity(window.seconds)
        return f"the window is {length} s long: drift needs at least {LONG_ENOUGH_S / 60:g} min"
    if bins < FEWEST:
        return f"too few requests: {requests}, {FEWEST * BIN_REQUESTS} are needed"
    return None


def _drift_line(trend: Trend, hours: float, series: Floats) -> DriftLine:
    return DriftLine(
        at_start=trend.level,
        at_end=trend.level + trend.slope * hours,
        per_hour=trend.slope,
        ci95=trend.interval(_DRIFT_CONFIDENCE),
        relative_per_hour=trend.slope / trend.level if trend.level > 0 else None,
        correlation=trend.correlation,
        bins=int((~np.isnan(series)).sum()),
    )


def _series(
    c: Columns, population: Population, judgement: Judgement | None, edges: Floats
) -> dict[str, Floats]:
    """Each measure in every bin, for the requests scheduled in it; NaN if undefined."""
    ok, judged, scheduled = population.ok, population.judged, population.all
    asked = _counts(c, judged, edges)
    failed = _counts(c, population.failed, edges)
    good = np.full(len(edges) - 1, np.nan)
    if judgement is not None:
        judged = scheduled[judgement.judged[scheduled]]
        good = _counts(c, judged[judgement.good[judged]], edges)
    with np.errstate(invalid="ignore"):
        shares = {"goodput_ratio": good / _counts(c, judged, edges), "error_rate": failed / asked}
    place, ttfts_s = _place(c, ok, edges), ttft(c)[ok]
    ascending = [ordered(ttfts_s[place == i]) for i in range(len(edges) - 1)]
    return {
        "ttft_p50_ms": np.array([percentile(values, 50.0) for values in ascending]) * 1e3,
        "ttft_p99_ms": np.array([percentile(values, 99.0) for values in ascending]) * 1e3,
        **shares,
        "output_tokens_per_s": _tokens_per_s(c, edges, np.diff(edges)),
    }


def _place(c: Columns, rows: Rows, edges: Floats) -> Rows:
    return np.searchsorted(edges, c.scheduled_s[rows], side="right") - 1


def _counts(c: Columns, rows: Rows, edges: Floats) -> Floats:
    return np.bincount(_place(c, rows, edges), minlength=len(edges) - 1).astype(np.float64)


def _tokens_per_s(c: Columns, edges: Floats, seconds: Floats) -> Floats:
    """Output tokens per second of each bin.

    The tokens of an answer are spread evenly from its first event to its last. For bins of minutes that is as
    accurate as each event at its own time, of which only one part of the run is in memory at a time.
    """
    begun = prefilled_s(c)
    over = np.where(c.events > 0, c.sent_s + c.last_event_s, c.ended_s)
    came = np.flatnonzero(~np.isnan(c.output_tokens) & ~np.isnan(begun))
    if not len(came):
        return np.full(len(seconds), np.nan)
    # In one order, whichever that of the workers was: sums of floats depend on it.
    came = came[np.lexsort((c.output_tokens[came], over[came], begun[came]))]
    begun, over, tokens = begun[came], over[came], c.output_tokens[came]
    spread = np.maximum(over - begun, _DRIFT_MOMENT_S)
    arrived = [float(np.sum(tokens * np.clip((edge - begun) / spread, 0.0, 1.0))) for edge in edges]
    return np.diff(np.array(arrived)) / seconds


_MEASURES = (
    ("ttft_p50_ms", "TTFT p50, ms"),
    ("ttft_p99_ms", "TTFT p99, ms"),
    ("goodput_ratio", "goodput, %"),
    ("error_rate", "errors, %"),
    ("output_tokens_per_s", "output tokens/s"),
)
_RATIOS = {"goodput_ratio", "error_rate"}


def show_drift(summary: "Summary") -> Section | None:
    """What changed per hour; None where the run is too short to tell."""
    part = summary.drift
    measures = part.measures
    if not measures:
        return None
    columns = (
        Column("Line", left=True),
        Column("at start"),
        Column("at end", wide=True),
        Column("an hour"),
        Column("95 %"),
        Column("of start"),
    )
    found, memory, names = set(part.found or ()), part.client_rss_mib or {}, summary.completeness.names
    rows = tuple(
        _drift_row(label, line, 100.0 if key in _RATIOS else 1.0, key in found)
        for key, label in _MEASURES
        if (line := measures[key])
    ) + tuple(
        _drift_row(f"memory of {names.get(node, clean(node))}, MiB", series, 1.0, series.beyond_noise)
        for node, series in memory.items()
    )
    return Section("Drift", (_headline(part),), Table(columns, rows), tuple(_how(summary, part)))


def _headline(part: Drift) -> Line:
    named = [label for key, label in _MEASURES if key in (part.found or ())]
    grows = [told.beyond_noise for told in (part.client_rss_mib or {}).values()]
    if any(grows):
        named.append("client memory")
    if not named:
        return Line("none beyond noise", Tone.GOOD)
    return Line(f"beyond noise: {sentence([label.partition(',')[0] for label in named], ', ')}", Tone.WARN)


def _drift_row(label: str, measure: DriftLine, scale: float, found: bool) -> TableRow:
    start, end, slope = (scale * value for value in (measure.at_start, measure.at_end, measure.per_hour))
    low, high = (scale * value for value in measure.ci95)
    relative = measure.relative_per_hour
    return TableRow(
        (
            label,
            number(start),
            number(end),
            _signed(slope),
            f"{_signed(low)} .. {_signed(high)}",
            "" if relative is None or scale != 1 else f"{_signed(100 * relative)} %",
        ),
        Tone.WARN if found else Tone.PLAIN,
    )


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{number(value)}"


def _how(summary: "Summary", part: Drift) -> Iterator[Line]:
    yield Line(
        f"a line through {count(part.bins)} bins of {seconds(part.bin_s)}, by least squares; "
        "intervals widened for bins that resemble their neighbours",
        Tone.FAINT,
    )
    requests = summary.requests
    given_up = requests.cancelled + requests.by_outcome["timeout"]
    if given_up:
        text = f"TTFT is over successful requests ({count(given_up)} unfinished ones excluded)"
        yield Line(text, Tone.WARN)
    workers = summary.completeness.workers
    most = [worker.rss_mib_max for worker in workers if worker.rss_mib_max is not None]
    if most:
        yield Line(f"memory of a worker: at most {number(max(most))} MiB; not recorded over time", Tone.FAINT)
