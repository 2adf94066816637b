"""Inter-token latencies of a run, pooled part by part: exact, or counted if there are too many."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from llm_locust.metrics.columns import Columns, Floats, Mask, Part, Rows, lengths, offsets_of, pieces
from llm_locust.metrics.stats.bootstrap import Cells, Order
from llm_locust.metrics.stats.censoring import ordered, summarise_ascending
from llm_locust.metrics.stats.intervals import Observed
from llm_locust.metrics.stats.sketch import RELATIVE_ERROR, Histogram, count_durations, merge
from llm_locust.metrics.structs import Effective, Intervals, SummaryPart, key

# --------------------
# Gaps of a run summed up in cells of its time, for the confidence intervals of ITL.
#
# Requests share the engine's steps, and so do their gaps; gaps of one request are consecutive. A request's
# gaps are in the cell in which it was scheduled; the bootstrap's blocks account for steps shared by
# neighbouring cells. Each cell counts its gaps in bins whose width grows with the gap, 256 between each
# power of two nanoseconds and the next, because the limits are known only when everything has been read.
# --------------------


#: Of a float32's bits, those below the exponent and the first 8 of the mantissa.
_DROPPED_BITS = 15

#: The bin just below 1 ns: gaps of 0 are in it, and no room is made for those in between.
_ZERO = (127 << 8) - 1

_Integers = NDArray[np.int64]


class GapCourse:
    """``table[i, cell]`` gaps in the i-th of the ``bins`` that have any, as a
    :class:`~llm_locust.metrics.stats.intervals.CellSums`.
    """

    def __init__(self, cells: int) -> None:
        self.bins = np.zeros(0, dtype=np.int64)
        self.table: _Integers = np.zeros((0, cells), dtype=np.int64)
        self._sums_ns = np.zeros(cells, dtype=np.int64)

    @property
    def counts(self) -> Floats:
        counts: Floats = self.table.sum(axis=0).astype(np.float64)
        return counts

    @property
    def sums(self) -> Floats:
        """In seconds."""
        return np.asarray(self._sums_ns * 1e-9, dtype=np.float64)

    def at_most(self, limits: Floats) -> Floats:
        """Gaps in each cell up to the edge of the limit's bin that splits them more nearly as the limit does.

        An edge with gaps on both sides is preferred.
        """
        whole = offsets_of(self.table.sum(axis=1))
        found = np.empty((len(limits), self.table.shape[1]))
        for i, limit in enumerate(limits):
            found[i] = self.table[: self._edge(limit * 1e9, whole)].sum(axis=0)
        return found

    def _edge(self, limit_ns: float, whole: _Integers) -> int:
        """Number of bins below a limit."""
        bin_ = int(_bins(np.array([limit_ns]))[0])
        lower, upper = np.searchsorted(self.bins, [bin_, bin_ + 1]).tolist()
        start, end = (_start_ns(bin_ + i) for i in (0, 1))
        wanted = whole[lower] + (whole[upper] - whole[lower]) * (limit_ns - start) / (end - start)
        parting = [edge for edge in (lower, upper) if 0 < whole[edge] < whole[-1]]
        return int(min(parting or [upper], key=lambda edge: abs(float(whole[edge] - wanted))))

    def add(self, gaps_ns: Rows, rows_gaps: Rows, cell_of: Rows) -> None:
        """Add the gaps of some requests.

        Args:
            gaps_ns: of all, request by request.
            rows_gaps: number of gaps of each request.
            cell_of: cell of each request.
        """
        if not len(gaps_ns):
            return
        bins = _bins(gaps_ns)
        first = int(bins.min())
        bins -= first
        occupied = np.flatnonzero(np.bincount(bins))
        self._cover(occupied + first)
        # A piece of a run has few of its cells, and few bins of those between its shortest and longest gap.
        low, high = int(cell_of.min()), int(cell_of.max()) + 1
        row_of = np.zeros(int(occupied[-1]) + 1, dtype=np.int64)
        row_of[occupied] = np.arange(len(occupied)) * (high - low)
        places = row_of[bins] + np.repeat(cell_of - low, rows_gaps)
        counts = np.bincount(places, minlength=len(occupied) * (high - low)).reshape(len(occupied), -1)
        self.table[np.searchsorted(self.bins, occupied + first), low:high] += counts
        sums = np.diff(np.concatenate([[0], np.cumsum(gaps_ns)])[offsets_of(rows_gaps)])
        np.add.at(self._sums_ns, cell_of, sums)

    def merge(self, other: "GapCourse") -> None:
        """Add the gaps of another course with the same number of cells."""
        self._cover(other.bins)
        self.table[np.searchsorted(self.bins, other.bins)] += other.table
        self._sums_ns += other._sums_ns

    def _cover(self, bins: _Integers) -> None:
        """Make room for gaps in ``bins``."""
        whole = np.union1d(self.bins, bins)
        if len(whole) > len(self.bins):
            table = np.zeros((len(whole), self.table.shape[1]), dtype=np.int64)
            table[np.searchsorted(whole, self.bins)] = self.table
            self.bins, self.table = whole, table


def joined(courses: Sequence[GapCourse]) -> GapCourse | None:
    """Sum of all courses; None for none."""
    if not courses:
        return None
    whole = GapCourse(len(courses[0].sums))
    whole._cover(np.concatenate([course.bins for course in courses]))
    for course in courses:
        whole.merge(course)
    return whole


def _bins(durations_ns: Rows | Floats) -> _Integers:
    bins: _Integers = (durations_ns.astype(np.float32).view(np.uint32) >> _DROPPED_BITS).astype(np.int64)
    return np.maximum(bins, _ZERO)


def _start_ns(bin_: int) -> float:
    return float(np.array([bin_ << _DROPPED_BITS], np.uint32).view(np.float32)[0])


#: Up to so many gaps are kept (160 MB), and their percentiles are exact.
EXACT_GAPS = 20_000_000

#: Pairs of a name and a class that have a course of their gaps, of some MiB each. Where there are more, no
#: interval is told of what the others are in.
MOST_COURSES = 64

#: A client that read all of a request within this read it in time.
LATE_S = 0.001

#: An answer all of whose events come within this share of the wait for the first is a burst.
_BURST = 0.01


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
    arrived earlier than its TTFT says.

    A client that was never 1 ms late with the request's reads did not merge them: its server, or a buffer on
    the way, did. So did they where the whole answer came, and was read, within 1 % of the wait for it: such a
    burst after a silence is the way's property, and moves its TTFT by no more.
    """
    little_s = _BURST * c.first_event_s
    is_burst = c.last_event_s - c.first_event_s < little_s
    return c.first_is_shared & ~(c.client_lag_s < np.fmax(LATE_S, np.where(is_burst, little_s, 0.0)))


# --- Share of tokens that arrived in time for a person who reads along


#: A token further behind its deadline than this (24 min) is no later for it: it keeps the
#: arithmetic of one piece inside 64 bits.
_LATEST_NS = 1 << 40

#: What is due later than this (146 years) never comes: the number of tokens in a damaged file may be any.
_NEVER_NS = float(1 << 62)


def on_time_ratio(c: Part, rows: Rows, ttft_limit_s: float, tpot_limit_s: float) -> Floats:
    """Share of each request's tokens that arrived by their deadline, shape (len(rows),).

    Token k is due at sent + TTFT limit + k × TPOT limit. If one is late, later deadlines count from its
    arrival. With more tokens than events, the n tokens are spread evenly over the events, and only the first
    of an event can be late: the others are due later and arrived with it. NaN if no token event is known.
    """
    out = np.full(len(rows), np.nan)
    usable = c.streamed & (c.events > 0) & (c.event_tokens > 0)
    index = np.flatnonzero(usable[rows])
    filled = 0
    for part, lists in pieces(c.arrivals, rows[index]):
        counts = lengths(lists)
        n = c.event_tokens[part]
        # In place from here on: these are as many values as there are tokens.
        event = np.arange(len(lists.values)) - np.repeat(lists.offsets[:-1], counts)
        due_ns = np.repeat(n / counts, counts)
        due_ns *= event
        due_ns *= tpot_limit_s
        due_ns += ttft_limit_s
        due_ns *= 1e9
        np.clip(due_ns, 0, _NEVER_NS, out=due_ns)
        slack = lists.values - np.rint(due_ns, out=due_ns).astype(np.int64)
        np.clip(slack, 0, _LATEST_NS, out=slack)
        # Each request gets a range of its own above the one before, so that one running maximum
        # over the piece is a running maximum within each request.
        floor = np.repeat(np.arange(len(part)) * (_LATEST_NS + 1), counts)
        slack += floor
        np.maximum(floor[1:], np.maximum.accumulate(slack)[:-1], out=floor[1:])
        late = slack > floor
        missed = np.add.reduceat(late, lists.offsets[:-1], dtype=np.int64)
        out[index[filled : filled + len(part)]] = 1 - missed * np.minimum(1.0, n / counts) / n
        filled += len(part)
    return out


#: The jerky end of a distribution of shares is its low one.
_PLACES = {"p1": 1.0, "p5": 5.0, "p50": 50.0}


class OnTime(SummaryPart, frozen=True):
    """The distribution of the share of tokens that came by their deadline."""

    n: Annotated[int, key("number of requests", "ok requests whose SLO has `ttft` and `tpot`")]
    mean: Annotated[float | None, key("as `goodput.on_time_ratio`", "the same")]
    p1: Annotated[float | None, key("percentiles of that share", "the same")]
    p5: Annotated[float | None, key("percentiles of that share", "the same")]
    p50: Annotated[float | None, key("percentiles of that share", "the same")]
    ci95: Intervals
    n_effective: Effective


def summarise_on_time(shares: Floats | None, order: Order | None = None) -> OnTime:
    """The distribution of the requests' shares.

    Args:
        shares: of :func:`on_time_ratio`, NaN where not defined; None where the SLO has no such limits.
        order: of the shares.
    """
    shares = np.empty(0) if shares is None else shares
    course = None if order is None else Observed(order, shares)
    figures = summarise_ascending(ordered(shares), places=_PLACES, course=course)
    return OnTime(**{name: figures[name] for name in OnTime.__struct_fields__})
