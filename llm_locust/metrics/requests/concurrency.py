"""Number of requests between sent and ended."""

from dataclasses import dataclass

import numpy as np

from llm_locust.metrics.columns import Floats, Rows, Times

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


def _elapsed(times_s: Floats, edges_s: Floats) -> Floats:
    """Sum of edge − time over all times before each edge."""
    before = np.searchsorted(times_s, edges_s)
    total = np.zeros(len(times_s) + 1)
    np.cumsum(times_s, out=total[1:])
    area: Floats = before * edges_s - total[before]
    return area
