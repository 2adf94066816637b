"""How one quantity of a request goes with another: a sample of points, medians of groups, a line."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from llm_locust.metrics.charts.fits import MOST_POINTS, FittedLine, theil_sen
from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.requests.concurrency import Spans
from llm_locust.metrics.stats.percentiles import ordered, percentile

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
