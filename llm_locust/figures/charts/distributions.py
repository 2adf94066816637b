"""Distributions in charts: percentiles, single tokens, and relations between two quantities of requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from llm_locust.core.batch import Labels, RecordBatch, Requests
from llm_locust.figures.charts.course import TimeAxis
from llm_locust.metrics.catalogue import View, shown_in
from llm_locust.metrics.columns import PART_COLUMNS, Columns, Floats, Part, Rows, Whole, lengths, pieces
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.requests.rates import Spans
from llm_locust.metrics.stats.censoring import Ascending, ordered, percentile

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
