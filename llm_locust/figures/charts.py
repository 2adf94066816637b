"""What a report's charts are drawn from: a run of any size reduced to a few thousand numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from llm_locust.core.batch import Labels, RecordBatch, Requests
from llm_locust.core.manifest import Manifest
from llm_locust.figures.course import (
    TimeAxis,
    failures_over_time,
    percentiles_over_time,
    rates_over_time,
)
from llm_locust.figures.goodput import Goodput
from llm_locust.figures.routing import ReplicaFigures, replicas
from llm_locust.figures.stages import Stage
from llm_locust.metrics.catalogue import LATENCY, View, from_scheduled, shown_in
from llm_locust.metrics.columns import (
    OUTCOMES,
    PART_COLUMNS,
    Columns,
    Floats,
    Mask,
    Part,
    Rows,
    Whole,
    lengths,
    pieces,
)
from llm_locust.metrics.measured import Measured, measured_from
from llm_locust.metrics.requests.judgement import Judgement
from llm_locust.metrics.requests.latency import MeasuredFrom, at_least
from llm_locust.metrics.requests.rates import Spans, Throughput
from llm_locust.metrics.stats.censoring import Ascending, ordered, percentile

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

# --- Whole distributions as percentiles at fixed levels, dense where the tail is


_BODY = np.arange(0.0, 99.0, 0.5)
#: Shares above a level from 1 % down to 0.001 %, ten levels a decade.
_TAIL = 100 - 10.0 ** (-np.arange(0, 31) / 10)

#: Percent, ascending, from the least sample to the greatest.
LEVELS: Floats = np.concatenate([_BODY, _TAIL, [100.0]])


def distributions(m: Measured, ok: Rows, open_loop: bool) -> dict[str, Floats]:
    """The :data:`LEVELS` of each latency that is drawn, of the requests ``ok``, in seconds.

    Of an open loop those from scheduled too. A metric without a sample is left out.
    """
    values: Mapping[str, Floats] = m.values
    found = {
        metric.key: levels_of(
            m.gaps.ascending() if metric.formula is None else ordered(values[metric.key][ok])
        )
        for metric in shown_in(View.DISTRIBUTIONS)
        if open_loop or not metric.is_from_scheduled
    }
    return {metric: levels for metric, levels in found.items() if not np.isnan(levels).all()}


def levels_of(ascending: Floats | Ascending) -> Floats:
    """Percentiles at :data:`LEVELS`; NaN at levels that no single sample stands for, but for the last."""
    n = len(ascending)
    # Half a sample of room: 100 − 99.9 is a little below 0.1.
    held = [n > 0 and (level == 100 or n * (100 - level) > 99.5) for level in LEVELS]
    return np.array(
        [percentile(ascending, float(level)) if h else np.nan for level, h in zip(LEVELS, held, strict=True)]
    )


# --- What is told of single tokens and gaps, and by one pass over the records: arrivals are never all in
# memory


#: Gaps are counted in bins of equal ratio, from 0.1 ms to 100 s; what is below (events that came
#: together) or above is in the first or the last.
LEAST_GAP_S, _DECADES, _A_DECADE = 1e-4, 6, 15
GAP_BINS = _DECADES * _A_DECADE

_TAGS = ("request_id", "worker", "headers_ns")


@dataclass(frozen=True, slots=True)
class RequestDetails:
    """What is known of a single request beside its columns. Times are seconds on the columns' axis.

    ``longest_gap_s`` is the longest wait between two of its token events, NaN where there are not two.
    """

    request_id: str
    headers_s: float
    longest_gap_s: float


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """``gaps[g, t]`` counts the gaps of ok requests of size g that ended in span t of the axis.

    ``output_tokens[t]`` arrived in span t, whatever became of their request: its n tokens are spread
    evenly over its events; an answer without events counts as a whole at its end.
    """

    output_tokens: Floats
    gaps: Rows
    worker: Labels
    details: dict[int, RequestDetails]


def gap_edges_s() -> Floats:
    """The edges of the gap bins, shape (GAP_BINS + 1,)."""
    return LEAST_GAP_S * 10.0 ** (np.arange(GAP_BINS + 1) / _A_DECADE)


def read_tokens(requests: Requests, origin_ns: int, axis: TimeAxis, chosen: Rows) -> TokenFacts:
    """One pass over all records.

    Args:
        origin_ns: the origin of the columns that ``axis`` is on.
        chosen: the rows whose details are wanted.
    """
    output_tokens = np.zeros(axis.bins)
    gaps = np.zeros(GAP_BINS * axis.bins, np.int64)
    workers = Whole(_Workers, len(requests))
    details: dict[int, RequestDetails] = {}
    at = 0
    for batch in requests.parts((*PART_COLUMNS, *_TAGS)):
        part = Part.from_batch(batch, origin_ns)
        workers.add(_Workers(batch.labels("worker")), len(batch))
        _count(part, axis, output_tokens, gaps)
        for row in chosen[(chosen >= at) & (chosen < at + len(batch))].tolist():
            details[row] = _details(batch, part, row - at)
        at += len(batch)
    return TokenFacts(output_tokens, gaps.reshape(GAP_BINS, axis.bins), workers.value().worker, details)


@dataclass(frozen=True, slots=True)
class _Workers:
    worker: Labels


def _count(c: Part, axis: TimeAxis, output_tokens: Floats, gaps: Rows) -> None:
    """Add what a part has to both sums, in place."""
    whole = c.events == 0
    output_tokens += axis.sums(c.ended_s[whole], c.output_tokens[whole])
    for rows, arrivals in pieces(c.arrivals, np.flatnonzero(~whole & ~np.isnan(c.sent_s))):
        counts = lengths(arrivals)
        bins = axis.index(np.repeat(c.sent_s[rows], counts) + arrivals.values * 1e-9)
        each = np.nan_to_num(c.output_tokens[rows] / counts)
        output_tokens += np.bincount(bins + 1, np.repeat(each, counts), minlength=axis.bins + 1)[1:]
        known = bins >= 0
        # The first event of a request has no gap before it.
        known[arrivals.offsets[:-1]] = False
        known &= np.repeat(c.ok[rows] & c.streamed[rows], counts)
        sizes = _gap_bins(np.diff(arrivals.values, prepend=0)[known])
        gaps += np.bincount(sizes * axis.bins + bins[known], minlength=len(gaps))


def _gap_bins(gaps_ns: Rows) -> Rows:
    with np.errstate(divide="ignore"):
        decades = np.log10(gaps_ns.astype(np.float32)) - np.float32(np.log10(LEAST_GAP_S * 1e9))
    return np.clip(np.floor(decades * _A_DECADE), 0, GAP_BINS - 1).astype(np.int64)


def _details(batch: RecordBatch, c: Part, row: int) -> RequestDetails:
    one = batch.table.slice(row, 1)
    headers_ns = one.column("headers_ns")[0].as_py()
    own = c.arrivals.values[c.arrivals.offsets[row] : c.arrivals.offsets[row + 1]]
    return RequestDetails(
        request_id=one.column("request_id")[0].as_py(),
        headers_s=np.nan if headers_ns is None else c.after_origin_s(headers_ns),
        longest_gap_s=float(np.diff(own).max()) * 1e-9 if len(own) > 1 else np.nan,
    )


# --- A line through points that outliers cannot pull, with an interval that assumes no distribution


#: Fewer points say nothing of a slope; of more, their pairs would be too many.
FEWEST_POINTS, MOST_POINTS = 20, 1_000

_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class FittedLine:
    """y = ``intercept`` + ``slope`` · x through ``n`` points; the slope's 95 % interval [low, high]."""

    slope: float
    intercept: float
    low: float
    high: float
    n: int

    @property
    def is_flat(self) -> bool:
        """Whether the slope is not beyond noise: its interval has 0 inside."""
        return self.low <= 0 <= self.high


def theil_sen(x: Floats, y: Floats) -> FittedLine | None:
    """The median of the slopes of all pairs, and of the residuals at that slope.

    The interval is Sen's: the slopes of ranks (N ∓ C) / 2 with C = 1.96 · √Var(S) of Kendall's S,
    Var(S) = (n(n − 1)(2n + 5) − Σ t(t − 1)(2t + 5)) / 18, over groups of t points with the same x.

    Returns:
        None for fewer than :data:`FEWEST_POINTS` points, and where all x are equal.
    """
    n = len(x)
    if n < FEWEST_POINTS:
        return None
    first, second = np.triu_indices(n, 1)
    dx, dy = x[second] - x[first], y[second] - y[first]
    slopes = np.sort(dy[dx != 0] / dx[dx != 0])
    if not len(slopes):
        return None
    slope = float(np.median(slopes))
    low, high = _interval(slopes, x)
    return FittedLine(slope, float(np.median(y - slope * x)), low, high, n)


def _interval(slopes: Floats, x: Floats) -> tuple[float, float]:
    n, ties = len(x), np.unique(x, return_counts=True)[1]
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    reach = _Z * float(np.sqrt(variance))
    low = max(0, int(np.floor((len(slopes) - reach) / 2)))
    high = min(len(slopes) - 1, int(np.ceil((len(slopes) + reach) / 2)))
    return float(slopes[low]), float(slopes[high])


# --- How one quantity of a request goes with another: a sample of points, medians of groups, a line


#: Points that are drawn; the medians are of all.
MOST_DRAWN = 1_500

_SLICE = 1 << 20  # requests whose load is looked up at a time: several arrays of so many are needed

_MOST_GROUPS, _FEWEST_A_GROUP = 20, 25
_LEAST_SPREAD = 0.1
_SEED = 0


@dataclass(frozen=True, slots=True)
class Relation:
    """y against x of ``n`` requests.

    ``x`` and ``y`` are a sample of them. Groups are of about as many requests each, by x:
    ``group_x`` their median x, ``group_p50`` and ``group_p95`` percentiles of their y. ``low_x`` and
    ``high_x`` are the 5th and 95th percentile of x: the range that the run says something about.
    """

    n: int
    x: Floats
    y: Floats
    group_n: Rows
    group_x: Floats
    group_p50: Floats
    group_p95: Floats
    low_x: float
    high_x: float
    line: FittedLine | None

    @property
    def is_narrow(self) -> bool:
        """Whether x was so much the same all through that a line would say nothing."""
        return not self.high_x - self.low_x > _LEAST_SPREAD * abs(self.high_x)


def relation(x: Floats, y: Floats) -> Relation:
    """Of the requests whose x and y are both known; the sample is the same each time."""
    known = ~np.isnan(x) & ~np.isnan(y)
    x, y = x[known], y[known]
    sample = _sample(len(x), MOST_DRAWN)
    fitted = sample[:MOST_POINTS]
    order = np.argsort(x, kind="stable")
    groups = [order[start:stop] for start, stop in _groups(x[order])]
    return Relation(
        n=len(x),
        x=x[sample],
        y=y[sample],
        group_n=np.array([len(g) for g in groups], dtype=np.int64),
        group_x=np.array([percentile(x[g], 50) for g in groups]),
        group_p50=np.array([percentile(ordered(y[g]), 50) for g in groups]),
        group_p95=np.array([percentile(ordered(y[g]), 95) for g in groups]),
        low_x=percentile(x[order], 5),
        high_x=percentile(x[order], 95),
        line=theil_sen(x[fitted], y[fitted]),
    )


def ttft_by_input(c: Columns, values: Mapping[str, Floats], ok: Rows) -> Relation:
    """TTFT in seconds against input tokens."""
    return relation(c.input_tokens[ok], values["ttft"][ok])


def tpot_by_load(c: Columns, values: Mapping[str, Floats], ok: Rows) -> Relation:
    """TPOT in seconds against the mean concurrency between the request's first and last token event."""
    return relation(load_while_streaming(c)[ok], values["tpot"][ok])


def load_while_streaming(c: Columns) -> Floats:
    """Time-weighted mean concurrency between first and last token event, itself included; NaN without."""
    spans, means = Spans.of(c), np.full(len(c), np.nan)
    for first in range(0, len(c), _SLICE):
        rows = slice(first, first + _SLICE)
        sent_s = c.sent_s[rows]
        ends = np.column_stack([sent_s + c.first_event_s[rows], sent_s + c.last_event_s[rows]]).ravel()
        with np.errstate(divide="ignore", invalid="ignore"):
            # Every other span is between one request's last event and the next one's first: not wanted.
            means[rows] = spans.means(ends)[::2]
    means[~np.isfinite(means)] = np.nan
    return means


def _sample(n: int, most: int) -> Rows:
    """Rows in a random order that is the same each time, so that each beginning is a sample too."""
    return np.random.default_rng(_SEED).permutation(n)[:most].astype(np.int64)


def _groups(ascending: Floats) -> list[tuple[int, int]]:
    """Consecutive [start, stop) of about equal size; equal values are never parted."""
    wanted = min(_MOST_GROUPS, len(ascending) // _FEWEST_A_GROUP)
    if not wanted:
        return []
    cuts = np.linspace(0, len(ascending), wanted + 1).round().astype(np.int64)[1:-1]
    starts = np.unique(np.searchsorted(ascending, ascending[cuts])) if len(cuts) else cuts
    bounds = np.unique(np.concatenate([[0], starts, [len(ascending)]])).tolist()
    return list(pairwise(bounds))


# --- Goodput as a function of the limits: what another SLO would have said of the same run


#: Metrics that have a curve. The surface is of TTFT and TPOT.
CURVES = tuple(metric.key for metric in shown_in(View.CURVES))

_CURVE_POINTS, _SURFACE_POINTS = 100, 40

#: Times are whole nanoseconds: below that a difference is one of floats.
_HALF_A_NANOSECOND = 0.5e-9


@dataclass(frozen=True, slots=True)
class LimitCurve:
    """The share of a population that is good at each limit of one metric, all other limits as they are.

    ``alone`` is the share that holds this limit and ended ok, of those that can be judged by it; ``good``
    holds all other limits of its SLO too, which are of the metrics ``others``. ``limit_s`` is the SLO's own,
    which is among ``limits_s``; None where there is none, or not the same for all requests.
    """

    metric: str
    limits_s: Floats
    alone: Floats
    good: Floats
    limit_s: float | None
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LimitSurface:
    """``good[j, i]``: the share with TTFT ≤ ``ttft_s[i]`` and TPOT ≤ ``tpot_s[j]``, and every other
    limit held, which are of the metrics ``others``. The SLO's own two are as of a :class:`LimitCurve`."""

    ttft_s: Floats
    tpot_s: Floats
    good: Floats
    ttft_limit_s: float | None
    tpot_limit_s: float | None
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LimitedRun:
    """A population to be held against limits: ``n`` requests that ended ok, failed or have no record, of
    which ``ok`` ended ok, and ``cancelled`` ones, which count where they had broken a limit."""

    c: Columns
    values: Mapping[str, Floats]
    judgement: Judgement | None
    measured_from: MeasuredFrom
    ok: Rows
    n: int
    cancelled: Rows

    def measured(self, metric: str) -> Floats:
        """The metric of the ok requests as an SLO has it.

        It is +∞ where it breaks any limit by not being defined, and −∞ where it breaks none: an answer of one
        token has no pace, nor has one of unknown pace that is judged by its other limits.
        """
        late = from_scheduled(LATENCY[metric]) if self.measured_from == "scheduled" else None
        measured = self.values[late.key if late else metric][self.ok]
        measured = np.where(np.isnan(measured), np.inf, measured)
        if metric == "tpot":
            return np.where(self._paceless | (self.unpaced & self._has_others(metric)), -np.inf, measured)
        return measured

    @property
    def unpaced(self) -> Mask:
        """The ok requests whose pace is not known: more than one token, all at one time."""
        return np.isnan(self.values["tpot"][self.ok]) & ~self._paceless

    @property
    def _paceless(self) -> Mask:
        return np.less(self.c.gap_tokens[self.ok], 1)

    def _has_others(self, *metrics: str) -> Mask:
        """The ok requests that have a limit other than those of ``metrics``."""
        found = np.zeros(len(self.ok), np.bool_)
        if self.judgement is not None:
            for metric in self.others(*metrics):
                found |= self.judgement.limited[metric][self.ok]
        return found

    def held_beside(self, *metrics: str) -> Mask:
        """The ok requests that hold every limit that they have but those of ``metrics``."""
        held = np.ones(len(self.ok), np.bool_)
        for metric in self.others(*metrics):
            held &= self._held[metric][self.ok]
        return held

    def bounds(self, metric: str) -> Floats:
        """What the metric of the cancelled requests is at least; −∞ where nothing is known of it."""
        bounds = at_least(self.c, metric, self.measured_from)[self.cancelled]
        return np.where(np.isnan(bounds), -np.inf, bounds)

    def broken_beside(self, *metrics: str) -> Mask:
        """The cancelled requests that had broken a limit other than those of ``metrics``."""
        broken = np.zeros(len(self.cancelled), np.bool_)
        if self.judgement is not None:
            for metric in self.others(*metrics):
                broken |= self.judgement.limited[metric][self.cancelled]
        return broken

    def others(self, *metrics: str) -> tuple[str, ...]:
        """The metrics that have a limit, but for ``metrics``."""
        return tuple(metric for metric in self._held if metric not in metrics)

    @property
    def _held(self) -> Mapping[str, Mask]:
        return self.judgement.held if self.judgement else {}

    def limit_s(self, metric: str) -> float | None:
        """The limit of all ok requests; None where they have none, or not all the same."""
        if self.judgement is None:
            return None
        found = np.unique(self.judgement.limits.per_request(self.c.slo_class, metric)[self.ok])
        return float(found[0]) if len(found) == 1 and np.isfinite(found[0]) else None


def limit_curve(run: LimitedRun, metric: str) -> LimitCurve | None:
    """None where no ok request has the metric."""
    measured, limit_s = run.measured(metric), run.limit_s(metric)
    limits_s = _grid(measured, limit_s, _CURVE_POINTS)
    if not len(limits_s) or not run.n:
        return None
    held, bounds = run.held_beside(metric), run.bounds(metric)
    may_hold = bounds[~run.broken_beside(metric)]
    most = run.n + len(bounds)
    known = ~run.unpaced if metric == "tpot" else np.ones(len(measured), np.bool_)
    known_most = most - np.count_nonzero(~known)
    return LimitCurve(
        metric=metric,
        limits_s=limits_s,
        alone=_within(measured[known], limits_s) / (known_most - _within(bounds, limits_s)),
        good=_within(measured[held], limits_s) / (most - _within(may_hold, limits_s)),
        limit_s=limit_s,
        others=run.others(metric),
    )


def limit_surface(run: LimitedRun) -> LimitSurface | None:
    """None where no ok request has both metrics."""
    ttft, tpot = run.measured("ttft"), np.where(run.unpaced, -np.inf, run.measured("tpot"))
    limits = run.limit_s("ttft"), run.limit_s("tpot")
    columns, rows = (_grid(m, own, _SURFACE_POINTS) for m, own in zip((ttft, tpot), limits, strict=True))
    if not len(columns) or not len(rows) or not run.n:
        return None
    held, broken = run.held_beside("ttft", "tpot"), run.broken_beside("ttft", "tpot")
    may_hold = [run.bounds(metric)[~broken] for metric in ("ttft", "tpot")]
    judged = run.n + len(run.cancelled) - _within_both((columns, rows), *may_hold)
    good = _within_both((columns, rows), ttft[held], tpot[held]) / judged
    return LimitSurface(columns, rows, good, *limits, run.others("ttft", "tpot"))


def _grid(measured: Floats, limit_s: float | None, points: int) -> Floats:
    """Limits of equal ratio from the least to the greatest measured, the SLO's own among them."""
    finite = measured[np.isfinite(measured) & (measured > 0)]
    if not len(finite):
        return np.empty(0)
    ends = [float(finite.min()), float(finite.max()), *([] if limit_s is None else [limit_s])]
    grid = np.geomspace(min(ends), max(ends), points)
    return np.unique([*grid, *([] if limit_s is None else [limit_s])])


def _within(measured: Floats, limits_s: Floats) -> Floats:
    """How many are at or below each limit."""
    return np.searchsorted(np.sort(measured), limits_s + _HALF_A_NANOSECOND, side="right").astype(np.float64)


def _within_both(limits_s: tuple[Floats, Floats], first: Floats, second: Floats) -> Floats:
    """How many are at or below both limits, shape (second limits, first limits)."""
    # The first limit of each axis that is held: from there on all are.
    i, j = (_first_held(each, measured) for each, measured in zip(limits_s, (first, second), strict=True))
    shape = len(limits_s[1]) + 1, len(limits_s[0]) + 1
    counts = np.bincount(j * shape[1] + i, minlength=shape[0] * shape[1]).reshape(shape)
    return counts.cumsum(axis=0).cumsum(axis=1)[:-1, :-1].astype(np.float64)


def _first_held(limits_s: Floats, measured: Floats) -> Rows:
    return np.searchsorted(limits_s + _HALF_A_NANOSECOND, measured, side="left")


# --- Figures of stages along their load, and operating points that no other is better than


#: A figure and the ends of its interval; None is not known.
Estimate = tuple[float | None, float | None, float | None]

#: Latencies and percentiles that are drawn over the load; ``e2el`` of a load that generates nothing.
DRAWN = tuple((metric, place) for metric in ("ttft", "tpot", "e2el") for place in ("p50", "p99"))


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """A stage that is a result. ``user_tps`` is 1 / median TPOT: the tokens/s that one user sees.

    ``gpu_tps`` is output tokens/s per GPU; None where the number of GPUs is not known. ``lengths`` are those
    of a sweep over lengths, ``128:32``, else empty. ``hits`` is the share of prompts found in prefix caches,
    of an experiment that sets it.
    """

    stage: int
    load: float
    lengths: str
    offered: float | None
    output_tps: float | None
    user_tps: float | None
    gpu_tps: float | None
    inputs_per_s: float | None
    goodput: Estimate
    latencies_ms: dict[tuple[str, str], Estimate]
    hits: float | None = None


def load_points(stages: Iterable[Stage], gpus: float | None) -> list[LoadPoint]:
    """The stages that are a result, by rising load; those without a success have a goodput of 0 alone."""
    valid = (stage for stage in stages if stage.figures is not None and (stage.is_result or stage.all_failed))
    found = [_point(stage, gpus) for stage in valid]
    return sorted(found, key=lambda point: (point.load, point.stage))


def by_lengths(points: Iterable[LoadPoint]) -> dict[str, list[LoadPoint]]:
    """The points of each pair of lengths in the order of their stages: no line goes through several."""
    found: dict[str, list[LoadPoint]] = {}
    for point in sorted(points, key=lambda point: point.stage):
        found.setdefault(point.lengths, []).append(point)
    return {lengths: sorted(of, key=lambda p: (p.load, p.stage)) for lengths, of in found.items()}


def _point(stage: Stage, gpus: float | None) -> LoadPoint:
    part = stage.figures
    assert part is not None
    latencies: dict[tuple[str, str], Estimate] = {}
    for metric, place in DRAWN:
        stats = part.latency_ms[metric]
        low, high = stats.intervals().get(place) or (None, None)
        latencies[metric, place] = stats.figure(place), low, high
    return LoadPoint(
        stage=stage.number,
        load=stage.asked,
        lengths=stage.pair,
        offered=stage.offered,
        output_tps=part.throughput.output_tokens_per_s,
        user_tps=user_tps(latencies["tpot", "p50"][0]),
        gpu_tps=per_gpu(part.throughput, gpus),
        inputs_per_s=part.throughput.inputs_per_s,
        goodput=_goodput(part.goodput),
        latencies_ms=latencies,
        hits=None if stage.prefix is None else stage.prefix.achieved,
    )


def _goodput(part: Goodput) -> Estimate:
    low, high = part.intervals().get("ratio") or (None, None)
    return part.ratio, low, high


def user_tps(tpot_p50_ms: float | None) -> float | None:
    """Tokens/s that the median user sees, from the median TPOT."""
    return 1e3 / tpot_p50_ms if tpot_p50_ms else None


def per_gpu(part: Throughput, gpus: float | None) -> float | None:
    """Output tokens/s of each GPU."""
    return part.output_tokens_per_s / gpus if gpus and part.output_tokens_per_s is not None else None


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """What one load gave a user and a GPU. ``stage`` and ``load`` are None of a run of one load.

    ``is_best``: no other point of the same ``lengths`` gives as much of both, and more of one.
    """

    run: str
    stage: int | None
    load: str
    user_tps: float
    gpu_tps: float
    goodput: float | None
    lengths: str = ""
    is_best: bool = False


def operating_points(run: str, summary: "Summary", gpus: float) -> tuple[list[OperatingPoint], int]:
    """The points of a run: its stages that are a result, or the whole run; and how many have none.

    A point without a pace or a rate is left out and counted, as is a stage that is not a result.
    """
    if summary.stages:
        points = load_points(summary.stages, gpus)
        found = [
            OperatingPoint(run, p.stage, f"{p.load:g}", p.user_tps, p.gpu_tps, p.goodput[0], p.lengths)
            for p in points
            if p.user_tps is not None and p.gpu_tps is not None
        ]
        return found, len(summary.stages) - len(found)
    user, gpu = user_tps(summary.latency_ms["tpot"].figure("p50")), per_gpu(summary.throughput, gpus)
    if user is None or gpu is None or summary.is_of_parts:
        return [], 1
    return [OperatingPoint(run, None, "", user, gpu, summary.goodput.ratio)], 0


def front(points: Sequence[OperatingPoint]) -> list[int]:
    """Places of the points of one pair of lengths that no other is better than, by rising ``user_tps``
    (the Pareto front).

    A point is better if it has at least as much of both rates, and more of one.
    """
    order = sorted(range(len(points)), key=lambda i: (-points[i].user_tps, -points[i].gpu_tps))
    found: list[int] = []
    for i in order:
        last = points[found[-1]] if found else None
        same = last is not None and (last.user_tps, last.gpu_tps) == (points[i].user_tps, points[i].gpu_tps)
        if last is None or same or points[i].gpu_tps > last.gpu_tps:
            found.append(i)
    return found[::-1]


# --- The requests that took longest, each with what its time went to


MOST_SHOWN = 20

#: What a request's time goes to, in order; each ends where the next one begins.
PHASES = ("queue", "connect", "first byte", "first token", "tokens", "end")


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """One request; times are in seconds. ``phases`` has :data:`PHASES`, which add up to ``total_s``."""

    request_id: str
    name: str
    slo_class: str
    replica: str
    worker: str
    outcome: str
    scheduled_s: float  # on the axis of the columns
    total_s: float
    phases: dict[str, float]
    longest_gap_s: float
    input_tokens: float
    output_tokens: float


def slowest(c: Columns, judged: Rows) -> Rows:
    """Those of ``judged`` with the longest time from scheduled to ended, longest first."""
    total_s = c.ended_s[judged] - c.scheduled_s[judged]
    return judged[np.argsort(-total_s, kind="stable")[:MOST_SHOWN]]


def slow_request(c: Columns, row: int, details: RequestDetails, worker: str) -> SlowRequest:
    return SlowRequest(
        request_id=details.request_id,
        name=_text(c.name.names, c.name.codes[row]),
        slo_class=_text(c.slo_class.names, c.slo_class.codes[row]),
        replica=_text(c.replica.names, c.replica.codes[row]),
        worker=worker,
        outcome=OUTCOMES[c.outcome[row]].value,
        scheduled_s=float(c.scheduled_s[row]),
        total_s=float(c.ended_s[row] - c.scheduled_s[row]),
        phases=dict(zip(PHASES, _phases(c, row, details).tolist(), strict=True)),
        longest_gap_s=details.longest_gap_s,
        input_tokens=float(c.input_tokens[row]),
        output_tokens=float(c.output_tokens[row]),
    )


def _phases(c: Columns, row: int, details: RequestDetails) -> Floats:
    """What was waited for in vain has all the time to the end; what is not known, that to the next moment."""
    sent_s = c.sent_s[row]
    moments = [
        c.scheduled_s[row],
        c.started_s[row],
        sent_s,
        details.headers_s,
        sent_s + c.first_event_s[row],
        sent_s + c.last_event_s[row],
    ]
    # From the end backwards: none is later than the one after it.
    reached = np.fmin.accumulate(np.append(moments, c.ended_s[row])[::-1])[::-1]
    phases: Floats = np.diff(reached.astype(np.float64))
    return np.round(phases, 9)  # whole nanoseconds, without what floats add


def _text(names: tuple[str, ...], code: int) -> str:
    return names[code] if code >= 0 else ""


@dataclass(frozen=True, slots=True)
class RunCharts:
    """Durations are seconds, times seconds after the start of ``axis``, shares 0 .. 1, unknown NaN.

    ``windows_s`` are the spans that the run is judged over; what is over time is of the whole run,
    everything else of the requests scheduled in the window. ``requests`` is the number of records.
    """

    axis: TimeAxis
    windows_s: tuple[tuple[float, float], ...]
    requests: int
    measured_from: str
    percentiles: dict[str, dict[str, Floats]]
    rates: dict[str, Floats]
    failures: dict[str, Floats]
    given_up: int  # cut, left or timed out: in no latency over time
    distributions: dict[str, Floats]
    itl_relative_error: float
    gaps: Rows
    ttft_by_input: Relation
    tpot_by_load: Relation
    curves: tuple[LimitCurve, ...]
    surface: LimitSurface | None
    slowest: tuple[SlowRequest, ...]
    workers: tuple[ReplicaFigures, ...]


def run_charts(requests: Requests, manifest: Manifest, m: Measured, missing: int = 0) -> RunCharts:
    """Beside what ``m`` takes, memory grows by some 10 bytes a request, however many tokens each had.

    Args:
        requests: what was measured.
        missing: requests without a record that belong to them, lost and unsent ones, and stuck ones.

    Raises:
        ValueError: the manifest's ``slo_from`` is neither ``sent`` nor ``scheduled``.
    """
    c, values = m.c, m.values
    kept_from_ns = manifest.kept_from_ns
    kept_from_s = None if kept_from_ns is None else c.after_origin_s(kept_from_ns)
    axis = TimeAxis.of(c, c.after_origin_s(manifest.started_ns), kept_from_s)
    population = m.population(np.arange(len(c)))
    ok, judged = population.ok, population.judged
    slow = slowest(c, judged)
    tokens = read_tokens(requests, c.origin_ns, axis, slow)
    limited = LimitedRun(
        c, values, m.judgement, measured_from(manifest), ok, len(judged) + missing, population.cancelled
    )
    curves = (limit_curve(limited, metric) for metric in CURVES)
    return RunCharts(
        axis=axis,
        windows_s=_windows(m, axis),
        requests=len(c),
        measured_from=limited.measured_from,
        percentiles={
            metric.key: percentiles_over_time(axis, c, values[metric.key])
            for metric in shown_in(View.OVER_TIME)
        },
        rates=rates_over_time(axis, c, tokens.output_tokens),
        failures=failures_over_time(axis, c),
        given_up=int(c.given_up.sum()),
        distributions=distributions(m, ok, manifest.open_loop),
        itl_relative_error=m.gaps.relative_error,
        gaps=tokens.gaps,
        ttft_by_input=ttft_by_input(c, values, ok),
        tpot_by_load=tpot_by_load(c, values, ok),
        curves=tuple(curve for curve in curves if curve is not None),
        surface=limit_surface(limited),
        slowest=_slow_requests(m, axis, slow, tokens),
        workers=tuple(_by_worker(m, tokens.worker)),
    )


def _windows(m: Measured, axis: TimeAxis) -> tuple[tuple[float, float], ...]:
    spans = [(span.start_s(m.c), span.end_s(m.c)) for span in m.window.spans]
    return tuple((axis.after_start_s(start_s), axis.after_start_s(end_s)) for start_s, end_s in spans)


def _slow_requests(m: Measured, axis: TimeAxis, rows: Rows, tokens: TokenFacts) -> tuple[SlowRequest, ...]:
    found = []
    for row in rows.tolist():
        code = tokens.worker.codes[row]
        request = slow_request(m.c, row, tokens.details[row], tokens.worker.names[code])
        found.append(replace(request, scheduled_s=axis.after_start_s(request.scheduled_s)))
    return tuple(found)


def _by_worker(m: Measured, worker: Labels) -> list[ReplicaFigures]:
    """What a summary tells of each replica, told of each worker."""
    return replicas(replace(m.c, replica=worker), m.credits, m.judgement, m.stuck)
