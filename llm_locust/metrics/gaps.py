"""The inter-token latencies of a run, pooled part by part: as they are, or counted where too many."""

from collections.abc import Iterator

import numpy as np

from llm_locust.metrics.columns import Floats, Part, Rows
from llm_locust.metrics.histogram import RELATIVE_ERROR, Histogram, count_durations, merge
from llm_locust.metrics.ragged import pieces

#: Up to so many gaps are kept (160 MB), and their percentiles are exact.
EXACT_GAPS = 20_000_000


class PooledGaps:
    """The gaps of the requests of each (name, class), and of any of these together.

    Up to ``exact`` gaps in all each one is kept; beyond it all are in histograms. Which of the two
    depends on their number alone, not on the parts in which they came.
    """

    def __init__(self, exact: int | None = None) -> None:
        self._exact = EXACT_GAPS if exact is None else exact
        self._n = 0
        self._kept: dict[tuple[str, str], list[Rows]] = {}
        self._counted: dict[tuple[str, str], Histogram] = {}

    @property
    def relative_error(self) -> float:
        """Of a percentile at most; 0 where every gap was kept. Mean, std, min and max are exact."""
        return RELATIVE_ERROR if self._n > self._exact else 0.0

    def add(self, c: Part, rows: Rows) -> None:
        """Those of ``rows`` that have gaps."""
        having = rows[c.streamed[rows] & (c.events[rows] > 1)]
        width = len(c.slo_class.names)
        pairs = c.name.codes[having].astype(np.int64) * width + c.slo_class.codes[having]
        for pair in np.unique(pairs):
            name, slo_class = divmod(int(pair), width)
            key = c.name.names[name], c.slo_class.names[slo_class]
            for gaps_ns in gap_pieces(c, having[pairs == pair]):
                self._put(key, gaps_ns)

    def ascending(self, name: str | None = None, slo_class: str | None = None) -> Floats | Histogram:
        """The gaps in seconds, of one name or one class where given, in ascending order."""

        def asked(key: tuple[str, str]) -> bool:
            return name in (None, key[0]) and slo_class in (None, key[1])

        if self._n > self._exact:
            return merge([histogram for key, histogram in self._counted.items() if asked(key)])
        kept = [gaps_ns for key, some in self._kept.items() if asked(key) for gaps_ns in some]
        # Sorted in place: a copy of all gaps would be the run's largest array.
        gaps_ns = np.concatenate([np.empty(0, np.int64), *kept])
        gaps_ns.sort()
        return gaps_ns * 1e-9

    def ascending_with(self, others_s: Floats) -> Floats | Histogram:
        """All gaps and ``others_s`` (seconds), in ascending order."""
        gaps = self.ascending()
        if not isinstance(gaps, np.ndarray):
            return merge([gaps, count_durations(np.rint(others_s * 1e9).astype(np.int64))])
        return np.sort(np.concatenate([gaps, others_s]))

    def _put(self, key: tuple[str, str], gaps_ns: Rows) -> None:
        self._n += len(gaps_ns)
        if self._n <= self._exact:
            self._kept.setdefault(key, []).append(gaps_ns)
            return
        for known, some in self._kept.items():
            self._counted[known] = merge([count_durations(g) for g in some])
        self._kept.clear()
        before = [self._counted[key]] if key in self._counted else []
        self._counted[key] = merge([*before, count_durations(gaps_ns)])


def gap_pieces(c: Part, rows: Rows) -> Iterator[Rows]:
    """The gaps of ``rows``, each of two events at least, in nanoseconds, some MiB at a time."""
    for _, part in pieces(c.arrivals, rows):
        yield np.delete(np.diff(part.values), part.offsets[1:-1] - 1)
