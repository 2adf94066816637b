"""The run cut into equal spans of time, few enough to be drawn and wide enough to hold requests."""

import math
from dataclasses import dataclass

import numpy as np

from llm_locust.metrics.columns import Columns, Floats, Rows

MOST_BINS = 240
_FEWEST_BINS = 20

#: A percentile of fewer requests than these, on average, would be drawn noise.
_REQUESTS_A_BIN = 30

_WIDTHS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """``bins`` spans of ``width_s`` from ``start_s`` on, which is on the axis of the columns (seconds)."""

    start_s: float
    width_s: float
    bins: int

    @classmethod
    def of(cls, c: Columns, started_s: float, kept_from_s: float | None = None) -> "TimeAxis":
        """From the run's start (or the first scheduled request, where that is earlier) to the last end.

        The whole run: warm-up and drain too, but for what was dropped, which ended before ``kept_from_s``. At
        most :data:`MOST_BINS`, of a round width.
        """
        if not len(c):
            return cls(started_s, 1.0, 1)
        start_s = min(started_s, float(c.scheduled_s.min())) if kept_from_s is None else kept_from_s
        span_s = float(c.ended_s.max()) - start_s
        bins = min(max(len(c) // _REQUESTS_A_BIN, _FEWEST_BINS), MOST_BINS)
        width_s = _round_width(span_s / bins)
        return cls(start_s, width_s, max(1, math.floor(span_s / width_s) + 1))

    @property
    def edges_s(self) -> Floats:
        """Shape (bins + 1,), on the axis of the columns."""
        edges: Floats = self.start_s + self.width_s * np.arange(self.bins + 1, dtype=np.float64)
        return edges

    @property
    def middles_s(self) -> Floats:
        """The middle of each bin in seconds after the axis' own start."""
        middles: Floats = self.width_s * (np.arange(self.bins, dtype=np.float64) + 0.5)
        return middles

    def after_start_s(self, at_s: float) -> float:
        return at_s - self.start_s

    def index(self, times_s: Floats) -> Rows:
        """The bin of each time; -1 for one that is not known or not on the axis."""
        place = times_s - self.start_s
        place /= self.width_s
        np.floor(place, out=place)
        place[~((place >= 0) & (place < self.bins))] = -1
        return place.astype(np.int64)

    def sums(self, times_s: Floats, amounts: Floats | None = None) -> Floats:
        """The sum of the known ``amounts`` (the number of times, without them) in each bin."""
        weights = None if amounts is None else np.nan_to_num(amounts)
        places = self.index(times_s) + 1
        return np.bincount(places, weights, minlength=self.bins + 1)[1:].astype(np.float64)


def _round_width(least_s: float) -> float:
    for width_s in _WIDTHS_S:
        if width_s >= least_s:
            return width_s
    return 3600.0 * math.ceil(least_s / 3600)
