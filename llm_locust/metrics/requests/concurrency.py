"""Number of requests between sent and ended, and the rates that it gives by Little's law."""

import math
from dataclasses import dataclass

import numpy as np

from llm_locust.metrics.columns import Columns, Floats, Rows, Times
from llm_locust.metrics.stats.censoring import Durations
from llm_locust.metrics.window import Window

_SLICE = 1 << 20


@dataclass(frozen=True, slots=True)
class Spans:
    """Times [sent, ended) of requests, each sorted separately: all that counting needs."""

    starts_s: Floats
    ends_s: Floats

    @classmethod
    def of(cls, c: Times, rows: Rows | None = None) -> "Spans":
        """Spans of the ``rows`` (default: all) that were sent, whatever their outcome."""
        sent_s = c.sent_s if rows is None else c.sent_s[rows]
        ended_s = c.ended_s if rows is None else c.ended_s[rows]
        lasts = ended_s > sent_s  # not so without sent, nor where the clock was set back
        return cls(np.sort(sent_s[lasts]), np.sort(ended_s[lasts]))

    def means(self, edges_s: Floats) -> Floats:
        """Time-weighted mean concurrency between each edge and the next, shape (edges - 1,)."""
        time = _elapsed(self.starts_s, edges_s) - _elapsed(self.ends_s, edges_s)
        return np.diff(time) / np.diff(edges_s)

    def peak(self, start_s: float, end_s: float) -> int:
        """Maximum in [start, end). A request that ends does not overlap one sent at the same time."""
        most = 0
        for first in range(0, int(np.searchsorted(self.starts_s, end_s)), _SLICE):
            inside = self.starts_s[first : first + _SLICE]
            inside = inside[inside < end_s]
            begun = first + np.arange(1, len(inside) + 1)
            over = np.searchsorted(self.ends_s, np.maximum(inside, start_s), side="right")
            most = max(most, int((begun - over).max()))
        return most


@dataclass(frozen=True, slots=True)
class LawRate:
    """A rate per second by Little's law: in flight / mean time × mean amount of a request.

    ``error`` is its standard error by the spread of times and amounts; ``answers`` is the length of the
    window in mean times. ``rate`` is NaN where cut requests leave the mean time open.
    """

    rate: float
    error: float
    answers: float


def law_rate(c: Columns, window: Window, amounts: Floats) -> LawRate | None:
    """The rate of ``amounts``, shape (rows,), of the load in a window; None of a window with gaps, or in
    which nothing was sent.

    Unlike a count of what ended, it does not depend on where the window begins and ends: requests that are
    in flight at either edge are in the mean time of those sent inside, which end later. Times of cancelled
    requests are cut, and count by the product limit. NaN is no amount.
    """
    if window.gaps:
        return None
    start_s, end_s = window.start_s(c), window.end_s(c)
    sent = np.flatnonzero((c.sent_s >= start_s) & (c.sent_s < end_s))
    if not len(sent):
        return None
    times_s, cut = c.ended_s[sent] - c.sent_s[sent], c.cancelled[sent]
    usual_s = max(float(times_s.mean()), 1e-9)
    mean_s, spread_s = Durations.of(times_s[~cut], times_s[cut]).moments()
    given = np.nan_to_num(amounts[sent][~cut])
    if math.isnan(mean_s) or mean_s <= 0 or 2 * cut.sum() > len(sent):
        return LawRate(math.nan, math.nan, window.seconds / usual_s)
    amount = float(np.sort(given).mean())
    rate = float(Spans.of(c).means(np.array([start_s, end_s]))[0]) / mean_s * amount
    spread = math.hypot(spread_s / mean_s, float(given.std()) / amount if amount else 0.0)
    return LawRate(rate, rate * spread / math.sqrt(len(given)), window.seconds / mean_s)


def _elapsed(times_s: Floats, edges_s: Floats) -> Floats:
    """Sum of edge − time over all times before each edge."""
    before = np.searchsorted(times_s, edges_s)
    total = np.zeros(len(times_s) + 1)
    np.cumsum(times_s, out=total[1:])
    area: Floats = before * edges_s - total[before]
    return area
