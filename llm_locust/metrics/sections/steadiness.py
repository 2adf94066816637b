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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_locust.core.manifest import Manifest
from llm_locust.core.texts import quantity
from llm_locust.metrics.catalogue import FORMULAS, LATENCY, ttft
from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.requests.goodput import Judgement
from llm_locust.metrics.requests.throughput import Spans, prefilled_s
from llm_locust.metrics.sections.steady import STEADY_TOLERANCE, LoadOverTime, Plateau, plateau
from llm_locust.metrics.stats.censoring import ordered, percentile
from llm_locust.metrics.stats.trend import FEWEST, PARTS, Level, QueueCount, Trend, fit_trend, grows, level_of
from llm_locust.metrics.window import Population, Window

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


def steadiness(
    c: Columns,
    run: Window,
    ok: Rows,
    warmup_s: float,
    load: LoadOverTime | None,
    limits_s: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The ``steadiness`` of a summary.

    ``plateau`` is the requested load that most of the run had, in ``unit``, ``steady_share`` the share of the
    run of the longest span that stays on it (what ``--window steady`` takes). ``settled`` is whether the run
    was like its last third by its middle, ``warmup_like`` whether its start was not, ``warmup_s_suggested``
    the whole ``--warmup`` that would leave that out, ``slower`` what got slower to the end, ``overload`` the
    rates of a queue that grew to it, ``reason`` the reason, in a sentence.

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
    found: dict[str, Any] = {}
    if load is not None and level is not None:
        found = {"unit": load.unit, "plateau": level.level, "steady_share": level.share}
    if load is not None and load.due_s is not None and (overload := _overload(c, run)) is not None:
        return untold("") | found | {"settled": False, **overload}
    if len(ok) < _FEWEST:
        few = f"too few ok requests to detect a warm-up: {len(ok)}, {_FEWEST} are needed"
        return untold(few) | found
    parts = PARTS_OF_MANY if len(ok) >= _MANY else PARTS_OF_FEW
    if level is not None and level.share >= _ON_PLATEAU:
        slower = _slower(c, run, ok, parts, level, limits_s or {})
        if slower is not None:
            return untold("") | found | {"settled": False, "warmup_like": False, **slower}
    beginnings = [b for b in _beginnings(c, run, ok, parts) if b is not None and b.parts]
    verdict = _verdict(beginnings, parts, run.seconds / parts, warmup_s)
    return untold("") | found | verdict


def untold(reason: str) -> dict[str, Any]:
    """A ``steadiness`` without any value, and the reason."""
    keys = ("settled", "warmup_like", "warmup_s_suggested", "unit", "plateau", "steady_share")
    return {**dict.fromkeys(keys), "reason": reason, "slower": None, "overload": None}


def _overload(c: Columns, run: Window) -> dict[str, Any] | None:
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
        rates = {"sent_per_s": came, "answered_per_s": went, "queue_per_s": came - went, "seconds": span_s}
        over = "" if share == 1.0 else f" in the last {span_s:.3g} s"
        reason = (
            f"overloaded: sent {came:.3g}/s, answered {went:.3g}/s{over}: the queue grew by "
            f"{came - went:.3g}/s to the end, when {last.backlog:,} requests were under way"
        )
        return {"overload": rates, "reason": reason}
    return None


def _slower(
    c: Columns, run: Window, ok: Rows, parts: int, on: Plateau, limits_s: Mapping[str, float]
) -> dict[str, Any] | None:
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
        rising = {
            "metric": metric,
            "from_ms": early.mean * 1e3,
            "to_ms": ends_s * 1e3,
            "limit_ms": None if limit_s is None else limit_s * 1e3,
            "limit_at_s": reached_s,
        }
        medians = f"{LATENCY[metric].label} median {_duration(early.mean)} to {_duration(ends_s)}"
        return {"slower": rising, "reason": _rising(medians, limit_s, reached_s)}
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


def _verdict(beginnings: list[_Beginning], parts: int, part_s: float, warmup_s: float) -> dict[str, Any]:
    if not beginnings:
        return {
            "settled": True,
            "warmup_like": False,
            "reason": f"concurrency and median TTFT of the first {quantity(part_s)} s "
            "are like those of the last third",
        }
    what = " and ".join(b.text for b in beginnings)
    longest = max(b.parts for b in beginnings)
    if 2 * longest >= parts:
        return {
            "settled": False,
            "reason": f"not settled by the middle of the run: {what}; make the run longer, or see the drift",
        }
    suggested_s = _rounded_up(warmup_s + longest * part_s)
    more = f" instead of {warmup_s:g}s" if warmup_s else ""
    return {
        "settled": True,
        "warmup_like": True,
        "warmup_s_suggested": suggested_s,
        "reason": f"the first {quantity(longest * part_s)} s were like a warm-up: {what}; "
        f"use --warmup {suggested_s:g}s{more}",
    }


def _rounded_up(seconds: float) -> float:
    """Round up to whole seconds, below ten of them to tenths."""
    steps = 10 if seconds < 10 else 1
    return math.ceil(round(seconds * steps, 6)) / steps


# --------------------
# Drift: whether a long run gets slower, or worse, with time.
#
# The window is cut into equal bins of a minute or more and of 100 requests or more, at most 60. A line is
# fitted to the values of the bins by least squares; its slope is the drift per hour. Bins of minutes carry
# little of the dependence between successive requests, and the interval is widened by the correlation that
# is left between them (:mod:`llm_locust.metrics.stats.trend`). Fluctuations slower than a thirtieth of the
# window cannot be distinguished from a drift.
# --------------------


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


def drift(
    c: Columns,
    population: Population,
    judgement: Judgement | None,
    window: Window,
    rss_mib: Mapping[str, Sequence[Sequence[float]]] | None = None,
) -> dict[str, Any]:
    """The ``drift`` of a summary.

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
        nothing: dict[str, Any] = dict.fromkeys(("bins", "bin_s", "found", "measures", "client_rss_mib"))
        return {"reason": reason, **nothing}
    edges = np.linspace(window.start_s(c), window.end_s(c), bins + 1)
    middles_h = (edges[:-1] + edges[1:] - 2 * edges[0]) / 2 / _HOUR_S
    series = _series(c, population, judgement, edges)
    trends = {measure: fit_trend(middles_h, series[measure]) for measure in MEASURES}
    return {
        "reason": None,
        "bins": bins,
        "bin_s": window.seconds / bins,
        "found": [m for m, trend in trends.items() if trend and trend.is_beyond_noise(_NAMED_FROM)],
        "measures": {
            m: trend and _told(trend, window.seconds / _HOUR_S, series[m]) for m, trend in trends.items()
        },
        "client_rss_mib": _memory(rss_mib or {}),
    }


def memory_of(manifest: Manifest) -> dict[str, list[list[float]]]:
    """Memory of each process of a run over time: the master's, and the workers' by id."""
    nodes = {"master": manifest.master, **{worker.id: worker.health for worker in manifest.workers}}
    return {name: health.rss_mib for name, health in nodes.items() if health.rss_mib}


def _memory(rss_mib: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any] | None:
    found = {}
    for name, points in rss_mib.items():
        at_s, mib = np.array(points, dtype=np.float64).reshape(-1, 2).T
        trend = fit_trend((at_s - at_s[:1]) / _HOUR_S, mib)
        if trend is not None:
            hours = float(at_s[-1] - at_s[0]) / _HOUR_S
            found[name] = _told(trend, hours, mib) | {"beyond_noise": trend.is_beyond_noise(_NAMED_FROM)}
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


def _told(trend: Trend, hours: float, series: Floats) -> dict[str, Any]:
    return {
        "at_start": trend.level,
        "at_end": trend.level + trend.slope * hours,
        "per_hour": trend.slope,
        "ci95": list(trend.interval(_DRIFT_CONFIDENCE)),
        "relative_per_hour": trend.slope / trend.level if trend.level > 0 else None,
        "correlation": trend.correlation,
        "bins": int((~np.isnan(series)).sum()),
    }


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
