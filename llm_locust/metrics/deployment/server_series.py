"""What servers said of themselves: gauges and counters in equal parts of a window, in bounded memory.

A counter is taken for a line between its samples, so that what falls into a part, and what the window's edges
cut, is known without a sample at the edge; one that falls has begun anew at 0. One that a page did not have
and a later page has began at 0 (servers show a labelled counter from its first increase on).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from llm_locust.metrics.columns import Floats
from llm_locust.metrics.window import Window

#: One target, some, or all.
Targets = str | Collection[str] | None

#: Equal parts of the window that series are told in.
PARTS = 240

#: For how many usual distances between samples a state is taken to last.
HELD = 2.0

#: Names whose samples are counts since a server's start; all others are states.
COUNTERS = frozenset(
    {
        *("prefix_cache_queries", "prefix_cache_hits", "preemptions", "prompt_tokens"),
        *("prompt_tokens_computed", "prompt_tokens_received"),
        *("generation_tokens", "finished", "energy_j"),
        *("spec_drafts", "spec_draft_tokens", "spec_accepted_tokens", "kv_transfers_failed"),
    }
)
#: Counters that began before the server that tells them: a page without one says nothing of its value.
_OLDER_THAN_SERVERS = frozenset({"energy_j"})
_HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True, order=True)
class SeriesKey:
    """``labels`` is a JSON object."""

    target: str
    name: str
    labels: str

    def label(self, *names: str) -> str | None:
        """The first of these labels that there is."""
        labels = msgspec.json.decode(self.labels, type=dict[str, str])
        return next((labels[name] for name in names if name in labels), None)


#: Times and values of one series in a table.
_Series = tuple[SeriesKey, Floats, Floats]
_NEVER: Floats = np.zeros(0)


@dataclass(slots=True)
class MetricSeries:
    """One series in the window. Of a counter ``amounts`` are its increases in each part, of a state the sums
    of its samples there; ``counts`` is how many samples a part has. ``uncertain`` is a counter's increase
    between the samples on both sides of an edge of the window: how far ``total`` may be off. ``covered_s`` is
    the time in the window between its first and its last sample. ``watched_s`` has the times of the first and
    the last sample after the window's start, of each time that it was watched without a break."""

    amounts: Floats
    counts: Floats
    most: float = -np.inf
    uncertain: float = 0.0
    covered_s: float = 0.0
    watched_s: list[tuple[float, float]] = field(default_factory=list)
    _last: tuple[float, float] | None = None  # time and value of the last sample, after the window's start

    @classmethod
    def empty(cls, parts: int) -> "MetricSeries":
        return cls(np.zeros(parts), np.zeros(parts))

    @property
    def total(self) -> float:
        """Of a counter: its increase in the window."""
        return float(self.amounts.sum())

    @property
    def mean(self) -> float | None:
        """Of a state: the mean of its samples in the window."""
        n = self.counts.sum()
        return float(self.amounts.sum() / n) if n else None

    @property
    def means(self) -> Floats:
        """Of a state in each part; where that has no sample, as it was before.

        NaN before the first sample, and in parts whose middle is more than :data:`HELD` usual distances
        behind the part of the last one.
        """
        known, parts = np.flatnonzero(self.counts), np.arange(len(self.counts))
        if not len(known):
            return np.full(len(parts), np.nan)
        last = known[np.maximum(np.searchsorted(known, parts, side="right") - 1, 0)]
        held = HELD * (known[-1] - known[0]) / max(1.0, self.counts.sum() - 1) - 0.5
        age = parts - last
        lasts = (age == 0) | ((age > 0) & (age <= held))
        return np.where(lasts, self.amounts[last] / self.counts[last], np.nan)

    def add(self, at_s: Floats, values: Floats, edges_s: Floats, *, counts_up: bool) -> None:
        """Samples in ascending order of their time, later than those before."""
        joined = self._last is not None and at_s[0] >= self._last[0]
        if self._last is not None and joined:
            times, all_values = (
                np.concatenate([[self._last[0]], at_s]),
                np.concatenate([[self._last[1]], values]),
            )
        else:
            times, all_values = at_s, values
        clipped = np.clip(times, edges_s[0], edges_s[-1])
        self.covered_s += float(clipped[-1] - clipped[0])
        inside = (at_s >= edges_s[0]) & (at_s < edges_s[-1])
        if inside.any():
            self.most = max(self.most, float(values[inside].max()))
        parts = len(self.counts)
        place = np.clip(np.searchsorted(edges_s, at_s[inside], side="right") - 1, 0, parts - 1)
        self.counts += np.bincount(place, minlength=parts)
        if counts_up:
            steps = np.diff(all_values)
            increases = np.where(steps >= 0, steps, all_values[1:])
            grown = np.concatenate([[0.0], np.cumsum(increases)])
            for edge_s in (edges_s[0], edges_s[-1]):
                self.uncertain += float(increases[(times[:-1] < edge_s) & (times[1:] > edge_s)].sum())
            self.amounts += np.diff(np.interp(edges_s, times, grown))
        else:
            self.amounts += np.bincount(place, weights=values[inside], minlength=parts)
        begun_s = self.watched_s.pop()[0] if self.watched_s else float(at_s[0])
        self._last = (float(at_s[-1]), float(values[-1]))
        self.watched_s.append((begun_s, self._last[0]))

    def join(self, other: "MetricSeries") -> None:
        """Add the same series at another time; what it grew by between the two is in neither."""
        self.amounts += other.amounts
        self.counts += other.counts
        self.most = max(self.most, other.most)
        self.uncertain += other.uncertain
        self.covered_s += other.covered_s
        self.watched_s += other.watched_s


@dataclass(frozen=True, slots=True)
class ServerSeries:
    """All series of a run in a window of ``seconds``. ``edges_s`` are those of the parts, after the window's
    start; ``failure`` is why the series are not those of the whole run, empty where they are."""

    edges_s: Floats
    by_key: Mapping[SeriesKey, MetricSeries]
    seconds: float
    failure: str = ""

    @property
    def targets(self) -> list[str]:
        return sorted({key.target for key in self.by_key})

    def named(self, name: str, of: Targets = None) -> dict[SeriesKey, MetricSeries]:
        """The series of a name, of one target, of some or of all, by key."""
        targets = {of} if isinstance(of, str) else of
        found = (
            key for key in self.by_key if key.name == name and (targets is None or key.target in targets)
        )
        return {key: self.by_key[key] for key in sorted(found)}


def read_server_series(
    tables: Iterable[pa.Table], window: Window, parts: int = PARTS, failure: str = ""
) -> ServerSeries:
    """Every series of ``tables``, which have the columns at_ns, target, name, labels and value, and come in
    the order of their writing. The window is cut into ``parts``; what lies in its gaps is in none of them."""
    edges_s = np.linspace(0.0, max(0.0, (window.end_ns - window.start_ns) * 1e-9), parts + 1)
    spans = [
        np.clip(edges_s, (span.start_ns - window.start_ns) * 1e-9, (span.end_ns - window.start_ns) * 1e-9)
        for span in window.spans
    ]
    found: dict[SeriesKey, list[MetricSeries]] = {}
    if window.seconds > 0:
        pages_s: dict[str, Floats] = {}
        for table in tables:
            of_table = list(_series_of(table, window.start_ns))
            _note_pages(pages_s, of_table)
            for key, at_s, values in of_table:
                if key not in found and is_counter(key.name) and key.name not in _OLDER_THAN_SERVERS:
                    at_s, values = _from_0(at_s, values, pages_s.get(key.target, _NEVER))
                of_spans = found.setdefault(key, [MetricSeries.empty(parts) for _ in spans])
                for series, edges in zip(of_spans, spans, strict=True):
                    near = _near(at_s, edges)
                    series.add(at_s[near], values[near], edges, counts_up=is_counter(key.name))
    by_key = {key: _together(of_spans) for key, of_spans in found.items()}
    return ServerSeries(edges_s, by_key, max(0.0, window.seconds), failure)


def _note_pages(pages_s: dict[str, Floats], of_table: Sequence[_Series]) -> None:
    """Add the times of each target's pages in a table; of earlier tables the last two remain, as the last one
    may go on in this table."""
    for key, at_s, values in of_table:
        if key.name == "up":
            before = pages_s.get(key.target, _NEVER)[-2:]
            pages_s[key.target] = np.concatenate([before, at_s[values > 0]])


def _from_0(at_s: Floats, values: Floats, pages_s: Floats) -> tuple[Floats, Floats]:
    """The first samples of a counter, with a 0 at the last page before them, if there was one."""
    earlier = pages_s[pages_s < at_s[0]][-1:]
    return np.concatenate([earlier, at_s]), np.concatenate([np.zeros(len(earlier)), values])


def joined(parts: Sequence[ServerSeries]) -> ServerSeries:
    """The series of several runs of one deployment, one after the other, in the same window: at least one.

    What a counter grew by between the last sample of one run and the first of the next is in no figure.
    """
    found: dict[SeriesKey, list[MetricSeries]] = {}
    for part in parts:
        for key, series in part.by_key.items():
            found.setdefault(key, []).append(series)
    failure = "; ".join(dict.fromkeys(part.failure for part in parts if part.failure))
    by_key = {key: _together(some) for key, some in found.items()}
    return ServerSeries(parts[0].edges_s, by_key, parts[0].seconds, failure)


def _together(some: Sequence[MetricSeries]) -> MetricSeries:
    first, *others = some
    for other in others:
        first.join(other)
    return first


def _near(at_s: Floats, edges_s: Floats) -> slice:
    """The samples in a span, and the nearest one on each side of it."""
    first, end = np.searchsorted(at_s, (edges_s[0], edges_s[-1]))
    return slice(max(0, int(first) - 1), int(end) + 1)


def is_counter(name: str) -> bool:
    """Whether samples of a name are counts since a start: histograms' parts are, too."""
    return name in COUNTERS or name.endswith(_HISTOGRAM_PARTS)


def _series_of(part: pa.Table, start_ns: int) -> Iterator[_Series]:
    columns = [part.column(name).combine_chunks() for name in ("target", "name", "labels")]
    encoded = [c if isinstance(c, pa.DictionaryArray) else c.dictionary_encode() for c in columns]
    codes = np.zeros(len(part), dtype=np.int64)
    for column in encoded:
        codes = codes * (len(column.dictionary) + 1) + column.indices.to_numpy(zero_copy_only=False)
    at_ns = part.column("at_ns").to_numpy()
    order = np.lexsort((at_ns, codes))
    ends = np.flatnonzero(np.diff(codes[order], append=-1)) + 1
    values = part.column("value").to_numpy()
    for rows in np.split(order, ends[:-1]) if len(order) else ():
        texts = (column.dictionary[column.indices[int(rows[0])].as_py()].as_py() for column in encoded)
        yield SeriesKey(*texts), (at_ns[rows] - start_ns) * 1e-9, values[rows].astype(np.float64)
