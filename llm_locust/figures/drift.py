"""Drift: whether a long run gets slower, or worse, with time.

The window is cut into equal bins of a minute or more and of 100 requests or more, at most 60. A line is
fitted to the values of the bins by least squares; its slope is the drift per hour. Bins of minutes carry
little of the dependence between successive requests, and the interval is widened by the correlation that
is left between them (:mod:`llm_locust.metrics.stats.trend`). Fluctuations slower than a thirtieth of the
window cannot be distinguished from a drift.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec.structs import asdict

from llm_locust.core.manifest import Manifest
from llm_locust.core.texts import quantity
from llm_locust.figures.figure import Run
from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.text import clean, count, number, seconds, sentence
from llm_locust.metrics.catalogue import ttft
from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.requests.judgement import Judgement
from llm_locust.metrics.requests.rates import prefilled_s
from llm_locust.metrics.stats.censoring import ordered, percentile
from llm_locust.metrics.stats.trend import FEWEST, Trend, fit_trend
from llm_locust.metrics.structs import SummaryPart, key
from llm_locust.metrics.window import Population, Window

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

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


def compute(run: Run) -> Drift:
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
            m: None if trend is None else _told(trend, window.seconds / _HOUR_S, series[m])
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
            line = asdict(_told(trend, hours, mib))
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


def _told(trend: Trend, hours: float, series: Floats) -> DriftLine:
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


def show(summary: "Summary") -> Section | None:
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
        _drift_row(f"memory of {names.get(node, clean(node))}, MiB", told, 1.0, told.beyond_noise)
        for node, told in memory.items()
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
