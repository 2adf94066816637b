"""Steadiness of the load: a warm-up that should be left out, a server that gets slower, or is overloaded.

The run's window is cut into equal parts. Concurrency and the median TTFT of each are compared with those of
the last third: a part outside of the range of 99 % of such parts, and more than 10 % off, differs. An
unbroken sequence of such parts at the start, with slower first tokens or fewer requests in flight, is a
warm-up; one that reaches the middle of the run is a run that does not settle.

A run that gets slower to its end is neither: leaving out its beginning would leave out the good part. It is
found where the load stays on its plateau (:func:`_slower`). An open loop whose queue grows to its end is
overloaded (:func:`_overload`), and gets slower by that.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec.structs import replace

from llm_locust.core.texts import quantity
from llm_locust.figures.figure import Run
from llm_locust.figures.section import Line, Section, Tone
from llm_locust.metrics.catalogue import FORMULAS, LATENCY, ttft
from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.requests.rates import Spans
from llm_locust.metrics.stats.censoring import ordered, percentile
from llm_locust.metrics.stats.trend import PARTS, Level, QueueCount, fit_trend, grows, level_of
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
        low, high = (self._shown(self.later.mean + sign * self.later.reach) for sign in (-1, 1))
        return (
            f"{self.name} {self._shown(self.was)}{self.unit} against "
            f"{self._shown(self.later.mean)}{self.unit} in the last third "
            f"(99 % of such parts: {low} .. {high})"
        )

    @staticmethod
    def _shown(value: float) -> str:
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
