"""All workers' live counts in one place: totals, the recent past by key, the course of the run."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from llm_locust.core.record import Outcome
from llm_locust.figures.latency import METRICS, PLACES, LastLatency, LiveEnd
from llm_locust.figures.servers import label_of_server, role_of_label
from llm_locust.figures.user_time import HungUsers
from llm_locust.live.counts import (
    AGENTS,
    MOST_OF_REPORT,
    MOST_SUM,
    NOTHING,
    OTHERS,
    ByKey,
    Counts,
    KeyLimit,
    LiveKey,
    Ring,
    magnitudes,
    merged,
)
from llm_locust.live.messages import LiveReport, ReportError, decode_report
from llm_locust.live.state import (
    LIVE_PLACES,
    Figures,
    Gauges,
    LiveRun,
    LiveStages,
    LiveVerdict,
    LoadMark,
    MarkKind,
    Observation,
    ServerGauges,
    figures,
    hung_users,
    marks_between,
    rounded,
    slow_replicas,
    verdict,
)
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.server_series import FIGURES, ServerNow, spread
from llm_locust.metrics.stats.sketch import SKETCH_ERROR

Taken = Literal["counted", "repeated", "stale"]

#: Width of the cells of the recent past, and their numbers: those of the last 2 min have counts by key.
RECENT_WIDTH_S = 2.0
RECENT_CELLS = 150
KEYED_CELLS = 60
HOUR_WIDTH_S = 20.0
HOUR_CELLS = 180
#: Most cells of the whole run: 2 s wide at first, 4 min after a day.
RUN_CELLS = 360

MOST_MARKS = 500

#: Most records of an epoch, and most latencies: anything added to it still fits into 64 bits.
MOST_TOTAL = 2**62

#: Most servers, in order of appearance.
MOST_SERVERS = 32


@dataclass(frozen=True, slots=True)
class Cell:
    """Requests that ended in a span, and observations in it; ``servers`` by name."""

    counts: Counts
    gauges: Gauges
    servers: Mapping[str, ServerGauges] = field(default_factory=dict)

    @classmethod
    def merge(cls, a: "Cell", b: "Cell") -> "Cell":
        counts = Counts.merge(c.counts for c in (a, b) if c.counts is not NOTHING)
        return cls(counts, a.gauges + b.gauges, _added(a.servers, b.servers))


@dataclass(slots=True)
class _Sender:
    """A worker's reports of this epoch."""

    next_seq: int = 0
    finished: int = 0
    counted: int = 0


@dataclass(slots=True)
class _Content:
    """Content that a reset discards."""

    started_s: float
    stopped_s: float | None = None
    totals: ByKey = field(default_factory=dict)
    magnitudes: Floats = field(default_factory=lambda: magnitudes([]))
    keyed: Ring[ByKey] = field(default_factory=lambda: Ring(RECENT_WIDTH_S, KEYED_CELLS, merged))
    recent: Ring[Cell] = field(default_factory=lambda: Ring(RECENT_WIDTH_S, RECENT_CELLS, Cell.merge))
    hour: Ring[Cell] = field(default_factory=lambda: Ring(HOUR_WIDTH_S, HOUR_CELLS, Cell.merge))
    run: Ring[Cell] = field(default_factory=lambda: Ring(RECENT_WIDTH_S, RUN_CELLS, Cell.merge, whole=True))
    limit: KeyLimit = field(default_factory=KeyLimit)
    senders: dict[str, _Sender] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)  # sums of reports that were at their bound
    servers: dict[str, bool] = field(default_factory=dict)  # whether the last scrape found a page


class LiveStore:
    """Merges the reports of a run's workers; bounded, however long the run is.

    A report counts once: each worker numbers its own, and its number of finished requests reveals those in
    reports that were lost (:attr:`missed`).

    Args:
        clock_s: the run's time in seconds since the Unix epoch, never set while the process lives.
        settle_s: longest time after a request's end until its report arrives; spans end that long before now.

    Attributes:
        run: the current run, or the last one.
        epoch: number of its resets.
        began_s: when it began.
        marks: changes, the oldest first; the last :data:`MOST_MARKS`.
        observation: the latest one.
        stages: those of a run, which need not be the current one.
        is_watched: a web UI shows the numbers.
    """

    def __init__(self, clock_s: Callable[[], float], settle_s: float = 4.0) -> None:
        self.clock_s = clock_s
        self._settle_s = settle_s
        self.stages: LiveStages | None = None
        self.is_watched = False
        self.begin(LiveRun(id=""))

    def begin(self, run: LiveRun) -> None:
        """Start a new run: forget the previous one."""
        self.run = run
        self.epoch = 0
        self.marks: deque[LoadMark] = deque(maxlen=MOST_MARKS)
        self.observation: Observation | None = None
        self.content = _Content(self.clock_s())
        self.began_s = self.content.started_s

    def reset(self) -> None:
        """Reset all counts within the run. The new :attr:`epoch` must be sent to the workers."""
        self.epoch += 1
        self.content = _Content(self.clock_s())
        self._mark("reset", "counted anew from here")

    def stop(self, ago_s: float = 0.0) -> None:
        """Note that the load ended ``ago_s`` ago: rates cover the time until then."""
        if self.content.stopped_s is None:
            self.content.stopped_s = max(self.content.started_s, self.clock_s() - ago_s)

    def take(self, worker: str, data: bytes) -> Taken:
        """Merge a worker's report.

        Returns:
            ``stale`` for one of another run or epoch, which is not counted: the current epoch must be sent to
                the worker.

        Raises:
            ReportError: the bytes are not a report, or they are more than :data:`MOST_TOTAL`; nothing of it
                is counted.
        """
        report = decode_report(data)
        if (report.run, report.epoch) != (self.run.id, self.epoch):
            return "stale"
        sender = self.content.senders.setdefault(worker, _Sender())
        if report.seq < sender.next_seq:
            return "repeated"
        slices = _unpacked(report)
        added = magnitudes(counts for _, by_key in slices for counts in by_key.values())
        self._check_totals(added)
        self.content.magnitudes += added
        if report.seq > sender.next_seq:
            lost = report.seq - sender.next_seq
            self._mark("missed", f"{lost} live report(s) of worker {worker} were lost")
        sender.next_seq = report.seq + 1
        sender.finished = report.finished
        for age_s, by_key in slices:
            sender.counted += sum(counts.records for counts in by_key.values())
            self.content.full.update(*(counts.full(MOST_OF_REPORT) for counts in by_key.values()))
            self._add(self.clock_s() - age_s, by_key)
        return "counted"

    def observe(self, seen: Observation) -> None:
        """Note the current load, and mark what has changed."""
        now_s = self.clock_s()
        if self.observation is not None:
            self.marks.extend(marks_between(now_s, self.observation, seen))
        self.observation = seen
        self._put(now_s, Cell(NOTHING, Gauges.of(seen)))

    def observe_servers(self, servers: Iterable[ServerNow]) -> None:
        """Note what the servers report now, and mark those that have fallen silent or come back; ignore
        servers beyond :data:`MOST_SERVERS`. A server with a role has it before its name."""
        known, told = self.content.servers, {}
        for each in servers:
            now = replace(each, name=label_of_server(each.name, each.role))
            if each.role is not None:
                known.pop(each.name, None)  # until its first page its role may not have been known
            if now.name in known or len(known) < MOST_SERVERS:
                self._mark_turn(now, known.get(now.name))
                known[now.name] = now.up
                told[now.name] = ServerGauges.of(now)
        if told and self.content.stopped_s is None:
            self._put(self.clock_s(), Cell(NOTHING, Gauges(), told))

    @property
    def missed(self) -> int:
        """Requests of this epoch that workers finished and whose reports were lost."""
        return sum(max(0, s.finished - s.counted) for s in self.content.senders.values())

    @property
    def full(self) -> tuple[str, ...]:
        """Sums of this epoch that are at their bound, and may be larger."""
        return tuple(sorted(self.content.full.union(self.total.full(MOST_SUM))))

    @property
    def total(self) -> Counts:
        """All requests of this epoch."""
        return Counts.merge(self.content.totals.values())

    @property
    def settled_s(self) -> float:
        """Time up to which the reports are in; once the load has stopped, the time of the stop."""
        stopped_s = self.content.stopped_s
        return self.clock_s() - self._settle_s if stopped_s is None else stopped_s

    @property
    def elapsed_s(self) -> float:
        """Seconds counted so far, until the stop."""
        end_s = self.clock_s() if self.content.stopped_s is None else self.content.stopped_s
        return max(0.0, end_s - self.content.started_s)

    def _check_totals(self, added: Floats) -> None:
        """Check that no number exceeds :data:`MOST_TOTAL` with a report added (raises ReportError)."""
        place = int(np.argmax(total := self.content.magnitudes + added))
        if total[place] > MOST_TOTAL:
            name = ("records", "latencies")[place]
            raise ReportError(f"{name} would be {total[place]:.3g}, more than {MOST_TOTAL:.3g}")

    def _add(self, at_s: float, by_key: ByKey) -> None:
        folded = _folded(by_key, self.content.limit)
        self.content.totals = merged(self.content.totals, folded)
        at_s = max(at_s, self.content.started_s)
        self.content.keyed.add(at_s, folded)
        self._put(at_s, Cell(Counts.merge(folded.values()), Gauges()))

    def _put(self, at_s: float, cell: Cell) -> None:
        for ring in (self.content.recent, self.content.hour, self.content.run):
            ring.add(at_s, cell)

    def note(self, text: str) -> None:
        """Mark a request to the servers besides the load."""
        self._mark("asked", text)

    def _mark_turn(self, now: ServerNow, was_up: bool | None) -> None:
        if was_up and not now.up:
            self._mark("silent", f"server {now.name} gives no metrics")
        elif was_up is False and now.up:
            self._mark("answers", f"server {now.name} is back")

    def _mark(self, kind: MarkKind, text: str) -> None:
        self.marks.append(LoadMark(self.clock_s(), kind, text))


def _added(a: Mapping[str, ServerGauges], b: Mapping[str, ServerGauges]) -> Mapping[str, ServerGauges]:
    if not (a and b):
        return a or b
    return {**a, **{name: a[name] + gauges if name in a else gauges for name, gauges in b.items()}}


def _folded(by_key: ByKey, limit: KeyLimit) -> ByKey:
    """Map to the store's own keys: each worker's are bounded, but all workers' could be many."""
    folded: ByKey = {}
    for key, counts in by_key.items():
        folded = merged(folded, {limit.fold(key): counts})
    return folded


def _unpacked(report: LiveReport) -> list[tuple[float, ByKey]]:
    try:
        return [(s.age_s, {packed.key: packed.unpacked() for packed in s.counts}) for s in report.slices]
    except (ValueError, OverflowError) as e:
        raise ReportError(f"report {report.seq} holds no live counts: {e}") from e


# --- Last live figures of a run, stored for the report, which compares them with the records


def live_end(store: LiveStore) -> LiveEnd:
    """Counts of a store, once all reports are in."""
    total = store.total
    return LiveEnd(
        run=store.run.id,
        resets=store.epoch,
        missed=store.missed,
        ok=total.ok,
        failed=total.failed,
        cancelled=total.cancelled,
        relative_error=SKETCH_ERROR,
        latency_ms={metric: _figures(total, metric) for metric in METRICS},
        agents={name: total[name] for name in AGENTS} if total["turns"] else None,
    )


def _figures(total: Counts, metric: str) -> LastLatency:
    sketch = total.sketch(metric)
    n = len(sketch)
    return LastLatency(n=n, **{key: sketch.percentile(p) * 1e3 for key, p in PLACES.items() if n})


# --- A store's numbers for tables: since the start, or for the last seconds


#: Longest span with counts by key.
MOST_SECONDS = RECENT_WIDTH_S * KEYED_CELLS

_NOBODY = Observation(users=0, target=0)


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A table's row. In a row by name the key has no replica, in one by replica it has only that."""

    key: LiveKey
    figures: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Numbers of a span that ended at ``end_s``, a little before now because reports may be in transit.

    ``names`` has a row for each name and class, ``replicas`` one for each known replica, both in alphabetical
    order. ``missed`` is the number of finished requests that are not counted, because their report was lost.
    ``hung`` are the users that hang now, ``slow`` replicas that are slower than the others, in words.
    ``full`` are sums that are larger than can be told, see :attr:`~llm_locust.live.store.LiveStore.full`.
    """

    end_s: float
    elapsed_s: float
    total: Figures
    names: tuple[LiveRow, ...]
    replicas: tuple[LiveRow, ...]
    observation: Observation
    verdict: LiveVerdict
    missed: int
    hung: HungUsers
    slow: tuple[str, ...] = ()
    full: tuple[str, ...] = ()
    relative_error: float = SKETCH_ERROR


def snapshot(store: LiveStore, seconds: float | None = None, *, rows: bool = True) -> Snapshot:
    """The store's numbers since the start (or the last reset), or of the last ``seconds``.

    A recent span consists of whole cells of 2 s, and is :data:`MOST_SECONDS` at most; its real length is in
    the figures.

    Args:
        rows: make those by name and by replica, which take most of the time; else there are none.
    """
    if seconds is None:
        span_s, by_key = store.elapsed_s, store.content.totals
        end_s = store.content.started_s + span_s
    else:
        by_key, end_s, span_s = _recent(store, seconds)
    total = Counts.merge(by_key.values())
    seen = store.observation or _NOBODY
    limits = store.run.limits

    by_replica = _by(lambda key: LiveKey("", "", key.replica), by_key)
    replicas = {key.replica: counts for key, counts in by_replica.items() if key.replica not in ("", OTHERS)}

    def table(kind: Callable[[LiveKey], LiveKey]) -> tuple[LiveRow, ...]:
        if not rows:
            return ()
        return tuple(LiveRow(key, figures(c, span_s, limits)) for key, c in sorted(_by(kind, by_key).items()))

    return Snapshot(
        end_s=end_s,
        elapsed_s=store.elapsed_s,
        total=figures(total, span_s, limits),
        names=table(lambda key: key._replace(replica="")),
        replicas=tuple(row for row in table(lambda key: LiveKey("", "", key.replica)) if row.key.replica),
        observation=seen,
        verdict=verdict(total, seen.workers, open_loop=store.run.open_loop, seconds=span_s),
        missed=store.missed,
        hung=hung_users(store.content.totals, seen, store.began_s + store.run.warmup_s),
        slow=slow_replicas(replicas) if rows else (),
        full=store.full,
    )


def figures_since(store: LiveStore, since_s: float) -> Figures:
    """Live figures of the requests that ended since a time, in whole cells of the finest width there is."""
    content, end_s = store.content, store.settled_s
    begin_s, cells = since_s, []
    for ring in (content.recent, content.hour, content.run):
        cells, width_s = list(ring.cells(-math.inf, end_s)), ring.width_s
        begin_s = math.ceil(since_s / width_s) * width_s
        if cells and cells[0][0] <= since_s:
            break  # an older cell is there: none since then has been forgotten
    ours = [(at_s, cell.counts) for at_s, cell in cells if at_s >= begin_s]
    seconds = ours[-1][0] + width_s - begin_s if ours else 0.0
    counts = Counts.merge(counts for _, counts in ours if counts is not NOTHING)
    return figures(counts, seconds, store.run.limits)


def _recent(store: LiveStore, seconds: float) -> tuple[ByKey, float, float]:
    ring, content = store.content.keyed, store.content
    end_s = store.settled_s // ring.width_s * ring.width_s
    if content.stopped_s is not None:
        end_s += ring.width_s  # no more will arrive: the last cell is complete
    begin_s = end_s - max(ring.width_s, min(seconds, MOST_SECONDS) // ring.width_s * ring.width_s)
    by_key: ByKey = {}
    for _, counts in ring.cells(begin_s, end_s):
        by_key = merged(by_key, counts)
    end_s = min(end_s, store.settled_s)
    return by_key, end_s, max(0.0, end_s - max(begin_s, content.started_s))


def _by(kind: Callable[[LiveKey], LiveKey], by_key: ByKey) -> ByKey:
    groups: dict[LiveKey, list[Counts]] = {}
    for key, counts in by_key.items():
        groups.setdefault(kind(key), []).append(counts)
    return {key: Counts.merge(some) for key, some in groups.items()}


# --- A store's numbers over time, as columns for charts


#: The last 5 minutes, the last hour, the whole run.
Span = Literal["5m", "1h", "run"]
SPANS: tuple[Span, ...] = ("5m", "1h", "run")

_OUTCOME_RATES = frozenset(f"{outcome}_per_s" for outcome in Outcome)

_OF_FIGURES = (
    *("requests_per_s", "failures_per_s", "input_tokens_per_s", "output_tokens_per_s"),
    *("good_output_tokens_per_s", "inputs_per_s", "images_per_s", "goodput"),
)
#: ``<jobs>_per_min`` of a run with agents, beside ``output_tokens_per_s_p25``.
_JOBS = ("jobs", "jobs_failed")

#: Most servers with a line of their own in a chart.
MOST_LINES = 8

Point = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class LiveSeries:
    """Columns of equal length, with a value for each cell of ``width_s``; None if undefined.

    ``at_s`` are the starts of the cells, in seconds since the Unix epoch. Cells without an event are left
    out, as are those whose reports may still arrive. Each live latency has ``<latency>_p50_ms``, ``_p95_ms``
    and ``_p99_ms``. There is ``attainment_<limit>`` for each limit of the SLO, and ``<outcome>_per_s`` for
    each outcome that occurs in the span. A run with agents has ``jobs_per_min``, ``jobs_failed_per_min`` and
    ``output_tokens_per_s_p25``. ``server:<figure>:<name>`` is a figure that a server reports; with
    more than :data:`MOST_LINES` servers the name is ``highest``, ``median`` or ``lowest``, of each role.
    """

    span: Span
    width_s: float
    at_s: list[float]
    columns: dict[str, list[float | None]]
    marks: list[LoadMark]


class Charts:
    """Series of one store. A cell's figures are computed once and cached."""

    def __init__(self, store: LiveStore) -> None:
        self._store = store
        self._told: dict[Span, dict[float, tuple[Cell, tuple[float, bool], Point]]] = {}

    def series(self, span: Span) -> LiveSeries:
        store, content = self._store, self._store.content
        ring: Ring[Cell] = {"5m": content.recent, "1h": content.hour, "run": content.run}[span]
        end_s = store.settled_s
        if content.stopped_s is not None:
            end_s += ring.width_s  # no more will arrive: the last cell is complete
        told, before = {}, self._told.get(span, {})
        look = ring.width_s, len(content.servers) <= MOST_LINES
        for at_s, cell in ring.cells(float("-inf"), end_s):
            known = before.get(at_s)
            # A cell that was changed is another object.
            if known is None or known[0] is not cell or known[1] != look:
                known = cell, look, self._point(cell, at_s, *look)
            told[at_s] = known
        self._told[span] = told
        at = list(told)
        # The first of them, of a start or a reset, are older than the first cell.
        since_s = max(content.started_s, ring.since_s)
        marks = [m for m in store.marks if at and m.at_s >= since_s]
        return LiveSeries(span, ring.width_s, at, _columns([point for _, _, point in told.values()]), marks)

    def _point(self, cell: Cell, at_s: float, width_s: float, few_servers: bool) -> Point:
        content = self._store.content
        end_s = at_s + width_s if content.stopped_s is None else min(at_s + width_s, content.stopped_s)
        seconds = max(0.0, end_s - max(at_s, content.started_s))
        told = figures(cell.counts, seconds, self._store.run.limits)
        values = *_series_figures(told, cell.gauges, seconds), *_servers(cell.servers, few_servers)
        return {name: rounded(value) for name, value in values}


def _series_figures(told: Figures, gauges: Gauges, seconds: float) -> Iterator[tuple[str, float | None]]:
    for name, latency in told.latencies.items():
        yield from ((f"{name}_{place}_ms", latency.at_ms(place)) for place in LIVE_PLACES)
    yield from ((name, getattr(told, name)) for name in _OF_FIGURES)
    if told.agents is not None:
        yield "output_tokens_per_s_p25", told.agents.output_tokens_per_s_p25
        yield from (
            (f"{name}_per_min", getattr(told.agents, name) / seconds * 60) for name in _JOBS if seconds
        )
    for limit, share in told.attainment.items():
        yield f"attainment_{limit}", share
    for outcome, count in told.outcomes.items():
        if count and seconds:
            yield f"{outcome}_per_s", count / seconds
    yield "users", gauges.users_mean
    yield "workers", gauges.workers_mean
    yield "concurrency", gauges.in_flight_mean
    yield "concurrency_max", gauges.in_flight_max
    yield "cpu_percent_max", gauges.cpu_percent_max
    yield "hub_lag_ms_max", gauges.hub_lag_ms_max


def _servers(servers: Mapping[str, ServerGauges], few: bool) -> Iterator[tuple[str, float | None]]:
    means = {name: gauges.means for name, gauges in sorted(servers.items())}
    for figure in FIGURES:
        told = {name: figures[figure] for name, figures in means.items()}
        for name, value in (told if few else _spread_by_role(told)).items():
            if value is not None:
                yield f"server:{figure}:{name}", value


def _spread_by_role(told: Mapping[str, float | None]) -> dict[str, float | None]:
    """Extremes and median of the servers of each role: those of two kinds are not compared."""
    roles = dict.fromkeys(role_of_label(name) for name in told)
    found: dict[str, float | None] = {}
    for role in roles:
        of_role = spread(value for label, value in told.items() if role_of_label(label) == role)
        found |= {label_of_server(name, role): value for name, value in of_role.items()}
    return found


def _columns(points: list[Point]) -> dict[str, list[float | None]]:
    names = dict.fromkeys(name for point in points for name in point)
    # An outcome that did not occur has a true rate of 0; everything else that a point lacks is unknown.
    return {
        name: [point.get(name, 0.0 if name in _OUTCOME_RATES else None) for point in points] for name in names
    }
