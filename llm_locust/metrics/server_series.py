"""What servers said of themselves: gauges and counters in equal parts of a window, in bounded memory.

A counter is taken for a line between its samples, so that what falls into a part, and what the window's edges
cut, is known without a sample at the edge; one that falls has begun anew at 0. One that a page did not have
and a later page has began at 0 (servers show a labelled counter from its first increase on)."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

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


# --- What each server says of itself now: the newest scrape, and what has come since the one before it


#: Servers that are told of; memory is bounded.
MOST_SERVERS = 256

_NS_A_SECOND = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerNow:
    """One target's newest values; None is what it does not tell, or what is not defined.

    States are of the last scrape: ``running``, ``waiting`` and ``power_w`` added up over the target's
    engines and GPUs, ``kv_cache_usage`` and ``gpu_utilisation`` (0 to 1) their mean. Between the last two
    scrapes: ``prefix_hits``, the share of looked-up prompt tokens that were found in the prefix cache,
    ``generation_tokens_per_s``, ``ttft_ms``, the mean of the first tokens that it counted, and
    ``acceptance_length``, the tokens a step of speculative decoding. Of a target that gave no page (``up`` is
    False) nothing else is known but its ``role`` in disaggregated serving, None where it has none.
    """

    name: str
    up: bool
    role: str | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    prefix_hits: float | None = None
    generation_tokens_per_s: float | None = None
    ttft_ms: float | None = None
    acceptance_length: float | None = None
    gpu_utilisation: float | None = None
    power_w: float | None = None


#: The values of a :class:`ServerNow`, with the titles of their charts. One in per cent is a share.
FIGURES = {
    "running": "Running requests, by server",
    "waiting": "Waiting requests, by server",
    "kv_cache_usage": "KV cache in use, by server, %",
    "prefix_hits": "Prefix cache hits, by server, %",
    "generation_tokens_per_s": "Tokens generated per second, by server",
    "ttft_ms": "Mean TTFT as the servers measure it, ms",
    "acceptance_length": "Tokens a step of speculative decoding, by server",
    "gpu_utilisation": "GPU utilisation, by server, %",
    "power_w": "GPU power, by server, W",
}


def spread(values: Iterable[float | None]) -> dict[str, float | None]:
    """The ``highest``, ``median`` and ``lowest`` of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return dict.fromkeys(("highest", "median", "lowest"))
    return {"highest": max(known), "median": median(known), "lowest": min(known)}


@dataclass(frozen=True, slots=True)
class _Scrape:
    """Sums by name over a target's series, and how many those are."""

    at_ns: int
    sums: dict[str, float]
    series: dict[str, int]

    def total(self, name: str) -> float | None:
        return self.sums.get(name)

    def mean(self, name: str) -> float | None:
        return self.sums[name] / self.series[name] if name in self.sums else None


@dataclass(slots=True)
class Newest:
    """The last two scrapes of each target, at most :data:`MOST_SERVERS` targets."""

    _last: dict[str, tuple[_Scrape | None, _Scrape]] = field(default_factory=dict)
    _roles: dict[str, str] = field(default_factory=dict)

    def add(
        self, target: str, at_ns: int, values: Iterable[tuple[str, float]], role: str | None = None
    ) -> None:
        """One scrape: each series' name and value, and the role that it tells."""
        if target not in self._last and len(self._last) >= MOST_SERVERS:
            return
        sums: dict[str, float] = defaultdict(float)
        series: dict[str, int] = defaultdict(int)
        for name, value in values:
            sums[name] += value
            series[name] += 1
        if role is not None:
            self._roles[target] = role
        _, before = self._last.get(target, (None, None))
        self._last[target] = before, _Scrape(at_ns, dict(sums), dict(series))

    def servers(self) -> list[ServerNow]:
        """Every target that was ever scraped, by name."""
        return [
            replace(_now(name, *scrapes), role=self._roles.get(name))
            for name, scrapes in sorted(self._last.items())
        ]


def _now(name: str, before: _Scrape | None, last: _Scrape) -> ServerNow:
    if not last.sums.get("up"):
        return ServerNow(name=name, up=False)
    ttft_s = _ratio(before, last, "ttft_s_sum", "ttft_s_count")
    hits = _ratio(before, last, "prefix_cache_hits", "prefix_cache_queries")
    accepted = _ratio(before, last, "spec_accepted_tokens", "spec_drafts")
    return ServerNow(
        name=name,
        up=True,
        running=last.total("running"),
        waiting=last.total("waiting"),
        kv_cache_usage=last.mean("kv_cache_usage"),
        prefix_hits=last.mean("prefix_cache_hit_rate") if hits is None else hits,
        generation_tokens_per_s=_per_s(before, last, "generation_tokens"),
        ttft_ms=None if ttft_s is None else ttft_s * 1e3,
        acceptance_length=last.mean("spec_accept_length") if accepted is None else 1 + accepted,
        gpu_utilisation=last.mean("gpu_utilisation"),
        power_w=last.total("power_w"),
    )


def _increase(before: _Scrape | None, last: _Scrape, name: str) -> float | None:
    """Of a counter; one that has fallen began anew at 0."""
    assert is_counter(name), name
    if before is None or name not in before.sums or name not in last.sums:
        return None
    grown = last.sums[name] - before.sums[name]
    return grown if grown >= 0 else last.sums[name]


def _ratio(before: _Scrape | None, last: _Scrape, part: str, whole: str) -> float | None:
    parts, wholes = _increase(before, last, part), _increase(before, last, whole)
    return parts / wholes if parts is not None and wholes else None


def _per_s(before: _Scrape | None, last: _Scrape, name: str) -> float | None:
    grown = _increase(before, last, name)
    seconds = 0.0 if before is None else (last.at_ns - before.at_ns) / _NS_A_SECOND
    return grown / seconds if grown is not None and seconds > 0 else None
