"""Inter-token latencies of a run, pooled part by part: exact, or counted if there are too many."""

from collections.abc import Iterator

import numpy as np

from llm_locust.metrics.columns import Columns, Floats, Mask, Part, Rows
from llm_locust.metrics.ragged import lengths, pieces
from llm_locust.metrics.requests.gap_course import GapCourse, joined
from llm_locust.metrics.stats.cells import Cells
from llm_locust.metrics.stats.histogram import RELATIVE_ERROR, Histogram, count_durations, merge

#: Up to so many gaps are kept (160 MB), and their percentiles are exact.
EXACT_GAPS = 20_000_000

#: Pairs of a name and a class that have a course of their gaps, of some MiB each. Where there are more, no
#: interval is told of what the others are in.
MOST_COURSES = 64

#: A client that read all of a request within this read it in time.
LATE_S = 0.001


class PooledGaps:
    """Gaps of the requests of each (name, class), and of any combination of these.

    Up to ``exact`` gaps in total each one is kept; beyond that all are in histograms. The choice depends only
    on their number, not on the parts in which they were added.
    """

    def __init__(self, exact: int | None = None) -> None:
        self._exact = EXACT_GAPS if exact is None else exact
        self._n = 0
        self._keys: dict[tuple[str, str], None] = {}
        self._courses: dict[tuple[str, str], GapCourse] = {}
        self._kept: dict[tuple[str, str], list[Rows]] = {}
        self._counted: dict[tuple[str, str], Histogram] = {}

    @property
    def relative_error(self) -> float:
        """Greatest relative error of a percentile; 0 if every gap was kept. Mean, std and ends are exact."""
        return RELATIVE_ERROR if self._n > self._exact else 0.0

    def add(self, c: Part, rows: Rows, cells: Cells | None = None) -> None:
        """Add those of ``rows`` that have gaps; ``cells`` are those of all of ``c``, for their course."""
        having = rows[c.streamed[rows] & (c.events[rows] > 1)]
        width = len(c.slo_class.names)
        pairs = c.name.codes[having].astype(np.int64) * width + c.slo_class.codes[having]
        for pair in np.unique(pairs):
            name, slo_class = divmod(int(pair), width)
            key = c.name.names[name], c.slo_class.names[slo_class]
            course = self._course(key, cells)
            for part, gaps_ns, counts in gaps_of(c, having[pairs == pair]):
                if cells is not None and course is not None:
                    course.add(gaps_ns, counts, cells.of[part])
                self._put(key, gaps_ns)

    def add_silences(self, c: Part, rows: Rows) -> None:
        """Add the time from the last token event of each of ``rows`` to its end, a gap that was cut."""
        begun = rows[c.streamed[rows] & (c.events[rows] > 0)]
        silent_s = c.ended_s[begun] - c.sent_s[begun] - c.last_event_s[begun]
        gaps_ns = np.rint(np.maximum(silent_s, 0.0) * 1e9).astype(np.int64)
        for name in np.unique(c.name.codes[begun]).tolist():
            key = c.name.names[name], ""
            self._keys.setdefault(key)
            self._put(key, gaps_ns[c.name.codes[begun] == name])

    def ascending(self, name: str | None = None, slo_class: str | None = None) -> Floats | Histogram:
        """Gaps in seconds, optionally of one name or one class, in ascending order."""

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

    def course(self, name: str | None = None, slo_class: str | None = None) -> GapCourse | None:
        """Course of the same gaps; None if there is none, or without cells."""
        keys = [key for key in self._keys if name in (None, key[0]) and slo_class in (None, key[1])]
        if not all(key in self._courses for key in keys):
            return None
        return joined([self._courses[key] for key in keys])

    def _course(self, key: tuple[str, str], cells: Cells | None) -> GapCourse | None:
        self._keys.setdefault(key)
        if cells is None:
            return None
        if key not in self._courses and len(self._courses) >= MOST_COURSES:
            return None
        return self._courses.setdefault(key, GapCourse(cells.count))

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


def gaps_of(c: Part, rows: Rows) -> Iterator[tuple[Rows, Rows, Rows]]:
    """Gaps of ``rows``, each with at least two events, some MiB at a time.

    Yields:
        Consecutive rows, their gaps in nanoseconds, and the number of gaps of each.
    """
    for part, lists in pieces(c.arrivals, rows):
        # Between events of one list, selected from those between all neighbours.
        yield part, np.delete(np.diff(lists.values), lists.offsets[1:-1] - 1), lengths(lists) - 1


def program_stamped(c: Columns) -> Mask:
    """Whether a request has times of reads that are the program's. One without an answer has no read."""
    return ~c.kernel_stamps & ((c.status >= 0) | (c.events > 0) | c.ok)


def first_token_wide(c: Columns) -> Mask:
    """Whether one read, which may have been late, brought the first token with later ones: it may have
    arrived
    earlier than its TTFT says.

    A client that was never 1 ms late with the request's reads did not merge them: its server, or a buffer on
    the way, did.
    """
    return c.first_is_shared & ~(c.client_lag_s < LATE_S)
