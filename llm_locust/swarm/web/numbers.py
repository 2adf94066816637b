"""Live numbers for the pages: the tables, the head, and the charts' series in small answers."""

import copy
import csv
import io
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from gevent.lock import BoundedSemaphore

from llm_locust.core.record import Outcome
from llm_locust.figures.text import clean
from llm_locust.live.counts import Ring
from llm_locust.live.state import Figures, LiveRun, LoadMark, WorkerState, rounded
from llm_locust.live.store import SPANS, Charts, LiveRow, LiveSeries, LiveStore, Snapshot, Span, snapshot
from llm_locust.metrics.catalogue import LIVE, LatencyMetric
from llm_locust.metrics.server_series import FIGURES
from llm_locust.swarm.process.event_loop import off_the_hub

# --- Live numbers for the pages: computed off the event loop, at most once a second


T = TypeVar("T")

#: Length of the recent span of tables and tiles.
RECENT_S = 30.0

KEEP_S = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """A run at one time: its numbers since the start, and those of the last :data:`RECENT_S`. ``silent`` are
    the servers that had no page of metrics at the last scrape."""

    run: LiveRun
    whole: Snapshot
    recent: Snapshot
    marks: tuple[LoadMark, ...]
    running: bool
    silent: tuple[str, ...] = ()


class Fresh(Generic[T]):
    """A value that is computed on request, by one greenlet at a time, and cached for a while."""

    def __init__(self, make: Callable[[], T], keep_s: float = KEEP_S) -> None:
        self._make = make
        self._keep_s = keep_s
        self._lock = BoundedSemaphore(1)
        self._kept: tuple[float, T] | None = None

    def __call__(self) -> T:
        with self._lock:
            if self._kept is None or time.monotonic() - self._kept[0] >= self._keep_s:
                self._kept = None
                value = self._make()
                self._kept = time.monotonic(), value
            return self._kept[1]


def at_rest(store: LiveStore) -> LiveStore:
    """Snapshot of the store for a thread to read while the event loop goes on filling it.

    Counts, cells and keys are shared: they are immutable values.
    """
    still, content, now_s = copy.copy(store), store.content, store.clock_s()
    still.clock_s = lambda: now_s
    still.marks = deque(store.marks)
    still.content = replace(
        content,
        keyed=_copied(content.keyed),
        recent=_copied(content.recent),
        hour=_copied(content.hour),
        run=_copied(content.run),
        senders={name: copy.copy(sender) for name, sender in content.senders.items()},
        servers=dict(content.servers),
    )
    return still


def look_at(store: LiveStore) -> Look:
    """Compute the snapshots of a store that does not change; with many keys it takes tens of milliseconds."""
    running = bool(store.run.id) and store.content.stopped_s is None
    silent = tuple(sorted(name for name, up in store.content.servers.items() if not up))
    return Look(store.run, snapshot(store), snapshot(store, RECENT_S), tuple(store.marks), running, silent)


def fresh_look(store: LiveStore) -> Fresh[Look]:
    return Fresh(lambda: off_the_hub(look_at, at_rest(store)))


def _copied(ring: Ring[T]) -> Ring[T]:
    cells = list(ring.cells(float("-inf"), float("inf")))
    copied: Ring[T] = Ring(ring.width_s, len(cells) + 1, _never, whole=True)
    for at_s, value in cells:
        copied.add(at_s, value)
    return copied


def _never(a: T, b: T) -> T:
    raise AssertionError("a copy has no two values in one cell")


# --- Chart series in small answers: only what has changed since the page's last request


_Values = tuple[float | None, ...]


@dataclass(slots=True)
class _SentSpan:
    """A span as it was last sent: each point with the number of the change that it belongs to."""

    identity: tuple[object, ...] = ()
    generation: int = 0
    revision: int = 0
    width_s: float = 0.0
    names: tuple[str, ...] = ()
    points: dict[float, tuple[int, _Values]] = field(default_factory=dict)
    marks: list[LoadMark] = field(default_factory=list)
    marks_revision: int = 0


class Feed:
    """Incremental answers with the series of one store.

    An answer has a ``token``. A page that sends its last one gets the points that are new or have changed
    since (``full`` is False). Without a token, or with that of another run, reset or cell width, it gets
    everything. The series are computed every ``keep_s`` at most.
    """

    def __init__(self, store: LiveStore, keep_s: float = KEEP_S) -> None:
        self._store = store
        self._still = at_rest(store)
        self._charts = Charts(self._still)
        self._lock = BoundedSemaphore(1)  # one thread at a time computes the charts
        self._told = {span: _SentSpan() for span in SPANS}
        self._fresh = {span: Fresh(partial(self._bring_up, span), keep_s) for span in SPANS}

    def series(self, span: Span) -> LiveSeries:
        """All series of a span."""
        with self._lock:
            # The charts cache the cells of the store object that they were given.
            vars(self._still).update(vars(at_rest(self._store)))
            return off_the_hub(self._charts.series, span)

    def answer(self, span: Span, token: str = "") -> dict[str, Any]:
        """Changes since the answer that had ``token``."""
        told = self._fresh[span]()
        known = _revision(token, told.generation)
        points = [(at, values) for at, (changed, values) in told.points.items() if changed > known]
        answer: dict[str, Any] = {
            "token": f"{told.generation}-{told.revision}",
            "full": known < 0,
            "span": span,
            "width_s": told.width_s,
            "from_s": next(iter(told.points), None),
            "at_s": [at for at, _ in points],
            "columns": {name: [values[i] for _, values in points] for i, name in enumerate(told.names)},
        }
        if told.marks_revision > known:
            answer["marks"] = [asdict(mark) for mark in told.marks]
        return answer

    def _bring_up(self, span: Span) -> _SentSpan:
        store, told, series = self._store, self._told[span], self.series(span)
        names = tuple(series.columns)
        identity = (store.run.id, store.epoch, series.width_s, names)
        if identity != told.identity:
            generation = told.generation + 1
            told = self._told[span] = _SentSpan(identity, generation, width_s=series.width_s, names=names)
        points = dict(zip(series.at_s, zip(*series.columns.values(), strict=True), strict=False))
        changed = {at for at, values in points.items() if told.points.get(at, (0, None))[1] != values}
        if changed or series.marks != told.marks:
            told.revision += 1
        told.points = {
            at: (told.revision, values) if at in changed else told.points[at] for at, values in points.items()
        }
        if series.marks != told.marks:
            told.marks, told.marks_revision = series.marks, told.revision
        return told


def _revision(token: str, generation: int) -> int:
    """Revision of a token of this generation; -1 for any other text."""
    of, _, revision = token.partition("-")
    return int(revision) if of == str(generation) and revision.isascii() and revision.isdigit() else -1


# --- State of a run for the head of the page of charts: tiles, workers, the client's verdict


#: Most workers listed: those that are lost or gone come first, then the busiest.
MOST_WORKERS = 100


def status(look: Look, alarms: Iterable[str]) -> dict[str, Any]:
    """Data of the page besides the series. Undefined values are None."""
    whole, recent = look.whole, look.recent
    seen = recent.observation
    workers = sorted(seen.workers, key=lambda w: (not w.lost, w.here, -(w.cpu_percent or 0.0), w.id))
    return {
        "run": look.run.id,
        "model": clean(look.run.model),
        "running": look.running,
        "open_loop": look.run.open_loop,
        "of_agents": look.run.pauses_s is not None,
        "elapsed_s": round(whole.elapsed_s, 1),
        "recent_s": RECENT_S,
        "users": seen.users,
        "target": seen.target,
        "rate": rounded(seen.rate),
        "in_flight": seen.in_flight,
        # Those that hold for every class.
        "limits_ms": {name: round(limit * 1e3, 6) for name, limit in look.run.limits.slo.limits.items()},
        "whole": _figures(whole.total),
        "recent": _figures(recent.total),
        "verdict": recent.verdict.severity,
        "reasons": list(recent.verdict.reasons),
        "cause": recent.verdict.cause,
        "hung": whole.hung.text(seen.users),
        "slow": [clean(text) for text in recent.slow],
        "alarms": list(alarms),
        "missed": whole.missed,
        "relative_error": whole.relative_error,
        "workers_here": sum(w.here for w in workers),
        "workers_lost": sum(w.lost for w in workers),
        "workers": [_worker(worker) for worker in workers[:MOST_WORKERS]],
        "servers_silent": [clean(name) for name in look.silent],
        "workers_hidden": max(0, len(workers) - MOST_WORKERS),
    }


def _worker(worker: WorkerState) -> dict[str, Any]:
    told = ("state", "users", "in_flight", "cpu_percent", "hub_lag_ms")
    return {"id": clean(worker.id)} | {name: getattr(worker, name) for name in told}


def _figures(told: Figures) -> dict[str, Any]:
    return {
        "requests": told.requests,
        "failures": told.failures,
        "requests_per_s": rounded(told.requests_per_s),
        "input_tokens_per_s": rounded(told.input_tokens_per_s, 5),
        "output_tokens_per_s": rounded(told.output_tokens_per_s, 5),
        "inputs_per_s": rounded(told.inputs_per_s, 5),
        "agents": None if told.agents is None else asdict(told.agents),
        "images_per_s": rounded(told.images_per_s, 5),
        "goodput": rounded(told.goodput),
        "good_requests_per_s": rounded(told.good_requests_per_s),
        **{
            f"{metric.key}_{place}_ms": rounded(told.latencies[metric.key].at_ms(place))
            for metric in LIVE
            if metric.live and metric.live.tile
            for place in ("p50", "p99")
        },
    }


def catalogue() -> dict[str, Any]:
    """What the page has charts and tiles of: latencies, outcomes but ``ok``, figures of servers."""
    return {
        "latencies": [
            {
                "key": metric.key,
                "label": metric.label,
                "unit": metric.unit,
                "chart": metric.live.chart,
                "tile": metric.live.tile,
            }
            for metric in LIVE
            if metric.live
        ],
        "outcomes": [outcome for outcome in Outcome if outcome not in (Outcome.OK, Outcome.RESENT)],
        "servers": FIGURES,
    }


# --- Tables of Locust's page and of their CSV files: by name and class, and by replica


_NO_BREAK = "\N{NO-BREAK SPACE}"

WHOLE, RECENT = (text.replace(" ", _NO_BREAK) for text in ("since start", f"last {RECENT_S:g} s"))
TOTAL = "Total"

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class _TableColumn:
    """``key`` names the column in JSON, ``title`` in the table."""

    key: str
    title: str
    cell: Callable[[Figures], Cell]


def _share(value: float | None) -> float | None:
    return None if value is None else rounded(100 * value, 4)


def _latency(metric: LatencyMetric, place: str) -> _TableColumn:
    def cell(figures: Figures) -> Cell:
        return rounded(figures.latencies[metric.key].at_ms(place))

    return _TableColumn(f"{metric.key}_{place}", f"{metric.label} {place} ms", cell)


_LATENCIES = (_latency(metric, place) for metric in LIVE if metric.live for place in metric.live.places)
_FIGURES = (
    _TableColumn("requests", "Requests", lambda f: f.requests),
    _TableColumn("failures", "Failures", lambda f: f.failures),
    _TableColumn("goodput", "Goodput %", lambda f: _share(f.goodput)),
    *_LATENCIES,
    _TableColumn("input_tokens", "Input tokens/s", lambda f: rounded(f.input_tokens_per_s, 5)),
    _TableColumn("output_tokens", "Output tokens/s", lambda f: rounded(f.output_tokens_per_s, 5)),
    _TableColumn("inputs", "Inputs/s", lambda f: rounded(f.inputs_per_s, 5)),
    _TableColumn("jobs", "Jobs", lambda f: None if f.agents is None else f.agents.jobs),
    _TableColumn("jobs_failed", "Failed jobs", lambda f: None if f.agents is None else f.agents.jobs_failed),
    _TableColumn("images", "Images/s", lambda f: rounded(f.images_per_s, 5)),
    _TableColumn("concurrency", "Concurrency", lambda f: rounded(f.concurrency, 3)),
)


@dataclass(frozen=True, slots=True)
class LiveTable:
    """A tab of Locust's page. ``labels`` are the columns before the figures: key and title."""

    key: str
    title: str
    labels: tuple[tuple[str, str], ...]

    @property
    def columns(self) -> list[tuple[str, str]]:
        return [*self.labels, ("span", "Span"), *((c.key, c.title) for c in _FIGURES)]

    @property
    def structure(self) -> dict[str, Any]:
        """Structure for ``extended_tables`` of Locust's page."""
        return {
            "key": self.key,
            "structure": [{"key": key, "title": title} for key, title in self.columns],
        }


NAMES = LiveTable("llm", "LLM", (("request", "Name"), ("slo_class", "Class")))
REPLICAS = LiveTable("llm-replicas", "Replicas", (("replica", "Replica"),))


def by_name(look: Look) -> list[dict[str, Cell]]:
    """Two rows, for the whole run and the recent past, for each name and class, and for all together.

    ``name`` is the key by which Locust's page sorts the rows, as text.
    """
    label = {
        row.key: {"request": clean(row.key.name), "slo_class": clean(row.key.slo_class)}
        for row in look.whole.names
    }
    pairs = [(label[row.key], row.figures, recent) for row, recent in _pairs(look, lambda s: s.names)]
    total = {"request": TOTAL, "slo_class": ""}
    return _rows([*pairs, (total, look.whole.total, look.recent.total)])


def by_replica(look: Look) -> list[dict[str, Cell]]:
    """As :func:`by_name`, for each known replica."""
    return _rows(
        ({"replica": clean(row.key.replica)}, row.figures, recent)
        for row, recent in _pairs(look, lambda s: s.replicas)
    )


def _pairs(
    look: Look, rows_of: Callable[[Snapshot], Sequence[LiveRow]]
) -> Iterator[tuple[LiveRow, Figures | None]]:
    recent = {row.key: row.figures for row in rows_of(look.recent)}
    for row in rows_of(look.whole):
        yield row, recent.get(row.key)


def _rows(
    pairs: Iterable[tuple[Mapping[str, str], Figures, Figures | None]],
) -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = []
    for labels, whole, recent in pairs:
        for span, figures in ((WHOLE, whole), (RECENT, recent)):
            figured: dict[str, Cell] = dict.fromkeys((c.key for c in _FIGURES), None)
            if figures is not None:
                figured = {c.key: c.cell(figures) for c in _FIGURES}
            rows.append({"name": f"{len(rows):06d}", **labels, "span": span, **figured})
    return rows


def table_csv(table: LiveTable, rows: Iterable[Mapping[str, Cell]]) -> str:
    keys = [key for key, _ in table.columns]
    return _csv([title for _, title in table.columns], ([row[key] for key in keys] for row in rows))


def series_csv(series: LiveSeries) -> str:
    """A row for each cell, starting with the cell's start in seconds since the Unix epoch."""
    rows = zip(series.at_s, *series.columns.values(), strict=True)
    return _csv(["at_s", *series.columns], rows)


def _csv(head: Sequence[str], rows: Iterable[Iterable[Cell]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_plain(cell) for cell in row] for row in rows)
    return text.getvalue()


def _plain(cell: Cell) -> Cell:
    """Escape text that a spreadsheet would run as a formula."""
    cell = cell.replace(_NO_BREAK, " ") if isinstance(cell, str) else cell
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
