"""Live numbers for the pages: the head, tables, series of the charts, stages of the run, and drifts."""

import copy
import csv
import io
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

import gevent
import msgspec
import numpy as np
from gevent.lock import BoundedSemaphore

from llm_locust.core.manifest import StageFacts
from llm_locust.core.record import Outcome
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.charts import DRAWN, LoadPoint, by_lengths, load_points
from llm_locust.figures.parts import LATENCY_COLUMNS, rate_cells
from llm_locust.figures.search import answer
from llm_locust.figures.stages import LOADS, NO_FIGURES, Stage, of_stages, stage_label
from llm_locust.figures.steadiness import BIN_REQUESTS, BIN_S, LONG_ENOUGH_S, MOST_BINS
from llm_locust.figures.summary import Summary, read_summary
from llm_locust.figures.text import Column, Line, TableRow, Tone, clean, count, number, percent, seconds
from llm_locust.live.counts import Counts, Ring
from llm_locust.live.state import (
    Figures,
    LiveRun,
    LiveStages,
    LoadMark,
    State,
    WorkerState,
    figures,
    rounded,
    state_of,
)
from llm_locust.live.store import (
    SPANS,
    Cell,
    Charts,
    LiveRow,
    LiveSeries,
    LiveStore,
    Snapshot,
    Span,
    figures_since,
    snapshot,
)
from llm_locust.metrics.catalogue import LIVE, LatencyMetric
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.server_series import FIGURES
from llm_locust.metrics.stats.trend import Trend, fit_trend
from llm_locust.report.console import load_of, place_of
from llm_locust.report.csv_tables import stages_csv
from llm_locust.store import SUMMARY_FILE
from llm_locust.swarm.process.event_loop import off_the_hub
from llm_locust.swarm.run.finishing import read_figures

logger = logging.getLogger(__name__)

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


class ListedWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker in the list of the page."""

    id: str
    state: str
    users: int
    in_flight: int | None
    cpu_percent: float | None
    hub_lag_ms: float | None


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
        "workers": [_listed(worker) for worker in workers[:MOST_WORKERS]],
        "servers_silent": [clean(name) for name in look.silent],
        "workers_hidden": max(0, len(workers) - MOST_WORKERS),
    }


def _listed(worker: WorkerState) -> ListedWorker:
    return ListedWorker(
        id=clean(worker.id),
        state=worker.state,
        users=worker.users,
        in_flight=worker.in_flight,
        cpu_percent=worker.cpu_percent,
        hub_lag_ms=worker.hub_lag_ms,
    )


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

TableCell = str | int | float | None


@dataclass(frozen=True, slots=True)
class _TableColumn:
    """``key`` names the column in JSON, ``title`` in the table."""

    key: str
    title: str
    cell: Callable[[Figures], TableCell]


def _share(value: float | None) -> float | None:
    return None if value is None else rounded(100 * value, 4)


def _latency(metric: LatencyMetric, place: str) -> _TableColumn:
    def cell(figures: Figures) -> TableCell:
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


def by_name(look: Look) -> list[dict[str, TableCell]]:
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


def by_replica(look: Look) -> list[dict[str, TableCell]]:
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
) -> list[dict[str, TableCell]]:
    rows: list[dict[str, TableCell]] = []
    for labels, whole, recent in pairs:
        for span, of_span in ((WHOLE, whole), (RECENT, recent)):
            figured: dict[str, TableCell] = dict.fromkeys((c.key for c in _FIGURES), None)
            if of_span is not None:
                figured = {c.key: c.cell(of_span) for c in _FIGURES}
            rows.append({"name": f"{len(rows):06d}", **labels, "span": span, **figured})
    return rows


def table_csv(table: LiveTable, rows: Iterable[Mapping[str, TableCell]]) -> str:
    keys = [key for key, _ in table.columns]
    return _csv([title for _, title in table.columns], ([row[key] for key in keys] for row in rows))


def series_csv(series: LiveSeries) -> str:
    """A row for each cell, starting with the cell's start in seconds since the Unix epoch."""
    rows = zip(series.at_s, *series.columns.values(), strict=True)
    return _csv(["at_s", *series.columns], rows)


def _csv(head: Sequence[str], rows: Iterable[Iterable[TableCell]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_plain(cell) for cell in row] for row in rows)
    return text.getvalue()


def _plain(cell: TableCell) -> TableCell:
    """Escape text that a spreadsheet would run as a formula."""
    cell = cell.replace(_NO_BREAK, " ") if isinstance(cell, str) else cell
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


# --- The stages of a run: ended ones as the report has them, the others live


#: Most stages that the page lists: the last ones.
MOST_ROWS = 100

#: Shortest time between two readings, each of which is a process.
READ_INTERVAL_S = 5.0

_RESULT_TONES = {"ok": Tone.PLAIN, "suspect": Tone.WARN, "invalid": Tone.BAD}


class TableHead(msgspec.Struct, frozen=True):
    """Head of a column: ``over`` is the one above it and its neighbours."""

    head: str
    over: str
    left: bool


class ToldLine(msgspec.Struct, frozen=True):
    text: str
    tone: str


class ToldRow(msgspec.Struct, frozen=True):
    cells: list[str]
    tone: str


class StageTable(msgspec.Struct, frozen=True, kw_only=True):
    """Stages as the page shows them: the table with its lines, and the charts' ``points``.

    Attributes:
        unit: of the loads.
        chosen: a search chose the loads, and the last cell of a row says why.
        hidden: number of earlier stages that are not listed.
        is_read: some stage has its figures.
    """

    title: str
    unit: str
    chosen: bool
    lines: list[ToldLine]
    rows: list[ToldRow]
    notes: list[ToldLine]
    hidden: int
    points: list[dict[str, Any]]
    is_read: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    """The stages at one time, for a thread to lay out."""

    store: LiveStore
    facts: Sequence[StageFacts]
    states: dict[int, State]
    of_run: LiveStages
    figures: dict[int, Stage]


class StageBoard:
    """What the page is told of the stages of the current run.

    The figures of stages that have ended are read while somebody looks, in a process of low priority; those
    of a search are read by the search. Once there is a report, they are the report's.
    """

    def __init__(self, store: LiveStore) -> None:
        self._store = store
        self._fresh = Fresh(self._told)
        self._reading: gevent.Greenlet[..., None] | None = None
        self._read_s = -READ_INTERVAL_S
        self._reported = ""  # id of the last run whose report has been taken

    def told(self) -> StageTable | None:
        """The table, its lines and the charts' points; None for a run without stages."""
        return self._fresh()

    def csv(self) -> str | None:
        """``stages.csv`` of the stages that have been read; None without any."""
        shown = self._shown()
        return None if shown is None else off_the_hub(stages_csv, _ordered(shown.figures))

    def _shown(self) -> LiveStages | None:
        shown = self._store.stages
        return shown if shown is not None and shown.run == self._store.run.id else None

    def _told(self) -> StageTable | None:
        shown = self._shown()
        if shown is None or not (facts := list(shown.facts())):
            return None
        now_ns = round(self._store.clock_s() * 1e9)
        states = {stage.number: state_of(stage, now_ns, is_sweep=shown.is_sweep) for stage in facts}
        if self._store.content.stopped_s is not None:
            states = {n: "drained" if state == "drained" else "over" for n, state in states.items()}
        self._take_report(shown)
        self._read_new(shown, facts, states)
        seen = _Seen(at_rest(self._store), facts, states, shown, dict(shown.figures))
        return off_the_hub(_laid_out, seen)

    def _take_report(self, shown: LiveStages) -> None:
        path = shown.path / SUMMARY_FILE
        if self._reported == shown.run or self._store.content.stopped_s is None or not path.is_file():
            return
        self._reported = shown.run
        try:
            summary: Summary = off_the_hub(lambda: read_summary(path.read_bytes()))
        except (OSError, ValueError) as e:
            logger.debug("the report's stages were not read: %s", e)
            return
        shown.figures = {stage.number: stage for stage in summary.stages or ()}
        if summary.search is not None:
            shown.answer = summary.search.answer

    def _read_new(self, shown: LiveStages, facts: list[StageFacts], states: dict[int, State]) -> None:
        """Begin to read the stages that have ended and have no figures, unless that is under way."""
        due = time.monotonic() - self._read_s >= READ_INTERVAL_S
        busy = self._reading is not None and not self._reading.ready()
        if busy or not due or self._store.content.stopped_s is not None or not shown.has_records():
            return
        ended = [n for n, state in states.items() if state in ("drained", "over") and n not in shown.figures]
        if shown.objective:  # what it has not read of earlier ones it will not read
            ended = [n for n in ended if n < facts[-1].number]
        if ended:
            self._read_s = time.monotonic()
            self._reading = gevent.spawn(_read, shown, facts, ended)


def columns() -> list[TableHead]:
    """Heads of the table's columns; that of why a search chose the load comes behind them."""
    report = of_stages([]).table
    assert report is not None
    first, *others = report.columns
    told = [first, Column("state", left=True), *others, Column("chosen because", left=True)]
    return [TableHead(column.head, column.over, column.left) for column in told]


def _read(shown: LiveStages, facts: list[StageFacts], numbers: list[int]) -> None:
    begun = facts[: max(numbers) + 1]
    found = read_figures(shown.path, begun, numbers, () if shown.is_sweep else numbers)
    shown.figures |= {stage.number: stage for stage in found}


def _ordered(figures: dict[int, Stage]) -> list[Stage]:
    return [figures[at] for at in sorted(figures)]


def _laid_out(seen: _Seen) -> StageTable:
    listed = seen.facts[-MOST_ROWS:]
    section = of_stages(_ordered(seen.figures)) if seen.figures else None
    table = None if section is None else section.table
    read = {} if table is None else dict(zip(sorted(seen.figures), table.rows, strict=True))
    rows = [_row(seen, stage, read.get(stage.number)) for stage in listed]
    notes = [] if section is None else [note for note in section.notes if note.tone is Tone.WARN]
    return StageTable(
        title=clean(f"Search: {seen.of_run.objective}") if seen.of_run.objective else "Stages",
        unit=LOADS[listed[-1].kind],
        chosen=bool(seen.of_run.objective),
        lines=_told_lines(_lines(seen)),
        rows=rows,
        notes=_told_lines(notes[-MOST_ROWS:]),
        hidden=len(seen.facts) - len(listed),
        points=_points(seen.figures),
        is_read=bool(seen.figures),
    )


def _told_lines(lines: Iterable[Line]) -> list[ToldLine]:
    return [ToldLine(line.text, str(line.tone)) for line in lines]


def _lines(seen: _Seen) -> Iterator[Line]:
    """Where the run is, what the search tries and why; its answer once there is one."""
    shown = seen.of_run
    if shown.answer is not None:
        yield from answer(LOADS[seen.facts[-1].kind], shown.answer).lines
        return
    if shown.reading is not None:
        yield Line(f"stage {shown.reading} is being read: the next load follows from what it shows")
        return
    begun = [stage for stage in seen.facts if seen.states[stage.number] != "to come"]
    if seen.store.content.stopped_s is None and begun:
        stage, most = begun[-1], shown.planned or len(seen.facts)
        why = clean(shown.whys.get(stage.number, ""))
        place = place_of(stage, most, is_bound=bool(shown.objective))
        yield Line(f"{place}: {load_of(stage)}{', ' if why else ''}{why}")


def _row(seen: _Seen, stage: StageFacts, read: TableRow | None) -> ToldRow:
    """The report's row with the stage's state behind its number, and why its load was chosen at the end."""
    state = seen.states[stage.number]
    row = read or _unread(seen, stage, state)
    cells = [row.cells[0], state, *row.cells[1:]]
    if seen.of_run.objective:
        cells.append(clean(seen.of_run.whys.get(stage.number, "")))
    return ToldRow(cells, str(row.tone))


def _unread(seen: _Seen, stage: StageFacts, state: State) -> TableRow:
    lengths = "" if stage.lengths is None else str(stage.lengths)
    lengths = lengths if stage.prefix is None else f"{stage.prefix} shared"
    head = (stage_label(stage.number, stage.repeat), lengths, number(stage.asked), UNDEFINED)
    store = seen.store
    if state != "measuring" or stage.measured_ns is None or store.content.stopped_s is not None:
        ended = state in ("drained", "over")
        return TableRow((*head, *NO_FIGURES, "not read yet" if ended else ""))
    verdict = snapshot(store, RECENT_S, rows=False).verdict
    found = figures_since(store, stage.measured_ns * 1e-9)
    return TableRow(
        (*head, *_live(found), f"so far: client {verdict.severity}"), _RESULT_TONES[verdict.severity]
    )


def _live(found: Figures) -> Iterator[str]:
    yield seconds(found.seconds)
    yield count(found.requests)
    yield percent(found.failures / found.requests if found.requests else None)
    for key, place in LATENCY_COLUMNS:
        yield number(found.latencies[key].at_ms(place))
    yield from rate_cells(found.output_tokens_per_s, found.inputs_per_s)
    yield percent(found.goodput)


def _points(figures: dict[int, Stage]) -> list[dict[str, Any]]:
    """The stages that are a result, by rising load, as the report's charts have them, for each pair of
    lengths (``""``: the run's own)."""
    groups = by_lengths(load_points(_ordered(figures), None))
    return [{"lengths": lengths, **_drawn(points)} for lengths, points in groups.items()]


def _drawn(points: Sequence[LoadPoint]) -> dict[str, list[float | None]]:
    return {
        "load": [p.load for p in points],
        **{f"{key}_{place}_ms": [p.latencies_ms[key, place][0] for p in points] for key, place in DRAWN},
        "output_tokens_per_s": [p.output_tps for p in points],
        "inputs_per_s": [p.inputs_per_s for p in points],
        "goodput": [p.goodput[0] for p in points],
    }


# --------------------
# Detection of drift in a soak, with a line in the log and on the page.
#
# The rules are those of llm_locust.figures.steadiness, applied to the cells of the live store: bins of a
# minute or more, of 100 requests or more, at most 60; a line through them; a slope beyond noise that is also
# large enough, found in several looks in a row. Only the time since the number of users last changed counts.
# --------------------


LOOK_INTERVAL_S = 60.0

#: Number of looks in a row that must find a drift, because a soak is checked many times.
LOOKS = 3

_NAMED_FROM = 0.998
_HOUR_S = 3600.0
_MEMORY_CELLS = 360


@dataclass(frozen=True, slots=True)
class _Measure:
    """A measure that may drift. ``sign`` is 1 if more is worse, -1 if less is. ``least`` is the smallest
    change over the whole span that is reported, as a share of the level if ``relative``."""

    name: str
    unit: str
    sign: int
    least: float
    relative: bool
    scale: float = 1.0


_TTFT = _Measure("TTFT p99", "ms", 1, 0.1, relative=True)
_GOODPUT = _Measure("goodput", "%", -1, 0.01, relative=False, scale=100.0)
_ERRORS = _Measure("error rate", "%", 1, 0.01, relative=False, scale=100.0)
_MEMORY = _Measure("memory of a client process", "MiB", 1, 0.1, relative=True)


class DriftWatch:
    """Checks a store once a minute; ``alarms`` are the current drifts, in words.

    Args:
        memory_mib: resident memory of the largest process that makes load, now; None if unknown.
    """

    def __init__(self, store: LiveStore, memory_mib: Callable[[], float | None]) -> None:
        self.alarms: tuple[str, ...] = ()
        self._store = store
        self._memory_mib = memory_mib
        self._seen: dict[str, int] = {}
        self._begin()

    def watch(self) -> NoReturn:
        while True:
            gevent.sleep(LOOK_INTERVAL_S)
            self.look()

    def look(self) -> None:
        """Sample the memory, and update the drifts."""
        store = self._store
        if (store.run.id, store.epoch) != self._of:
            self._begin()
        if not store.run.id or store.content.stopped_s is not None:
            return
        memory = self._memory_mib()
        if memory is not None:
            self._memory.add(store.clock_s(), memory)
        samples = list(self._memory.cells(store.content.started_s - self._memory.width_s, math.inf))
        self._tell(off_the_hub(drifts, at_rest(store), samples))

    def _begin(self) -> None:
        self._of = self._store.run.id, self._store.epoch
        self._memory: Ring[float] = Ring(LOOK_INTERVAL_S, _MEMORY_CELLS, max, whole=True)
        self._seen.clear()
        self.alarms = ()

    def _tell(self, found: Mapping[str, str]) -> None:
        before = {name for name, looks in self._seen.items() if looks >= LOOKS}
        self._seen = {name: self._seen.get(name, 0) + 1 for name in found}
        named = [name for name, looks in self._seen.items() if looks >= LOOKS]
        for name in named:
            if name not in before:
                logger.warning("drift: %s", found[name])
        for name in sorted(before - set(named)):
            logger.info("drift: that of %s is no longer beyond noise", name)
        self.alarms = tuple(found[name] for name in named)


def drifts(store: LiveStore, memory_mib: Sequence[tuple[float, float]]) -> dict[str, str]:
    """Measures that got worse beyond noise: name of the measure -> description.

    Args:
        store: a copy that does not change.
        memory_mib: times and values of the memory.
    """
    cells = _steady_cells(store)
    if not cells or len(cells) * store.content.run.width_s < LONG_ENOUGH_S:
        return {}
    begin_s = cells[0][0]
    at_h, told = _binned(store, cells)
    series: dict[_Measure, Floats] = {
        _TTFT: _values([f.latencies["ttft"].p99_ms for f in told]),
        _GOODPUT: _values([f.goodput for f in told]),
        _ERRORS: _values([f.failures / f.requests if f.requests else None for f in told]),
    }
    found = {measure.name: _drift(measure, at_h, values) for measure, values in series.items()}
    later = [((at_s - begin_s) / _HOUR_S, mib) for at_s, mib in memory_mib if at_s >= begin_s]
    found[_MEMORY.name] = _drift(
        _MEMORY, _values([at for at, _ in later]), _values([mib for _, mib in later])
    )
    return {name: words for name, words in found.items() if words is not None}


def _steady_cells(store: LiveStore) -> list[tuple[float, Cell]]:
    """The last complete cells of the run since the number of users changed."""
    cells = list(store.content.run.cells(store.content.started_s, store.settled_s))
    users = cells[-1][1].gauges.users_mean if cells else None
    changed = [i for i, (_, cell) in enumerate(cells) if cell.gauges.users_mean != users]
    return cells[changed[-1] + 1 :] if changed else cells


def _binned(store: LiveStore, cells: Sequence[tuple[float, Cell]]) -> tuple[Floats, list[Figures]]:
    """Midpoints of bins in hours since the first cell, and the figures of each."""
    width_s = store.content.run.width_s
    ended = sum(cell.counts.ended for _, cell in cells)
    most = max(1, min(MOST_BINS, ended // BIN_REQUESTS))
    per_bin = max(1, math.ceil(BIN_S / width_s), math.ceil(len(cells) / most))
    groups = [cells[i : i + per_bin] for i in range(0, len(cells) - per_bin + 1, per_bin)]
    at_h = [(g[0][0] + per_bin * width_s / 2 - cells[0][0]) / _HOUR_S for g in groups]
    told = [
        figures(Counts.merge(cell.counts for _, cell in group), per_bin * width_s, store.run.limits)
        for group in groups
    ]
    return _values(at_h), told


def _values(values: Sequence[float | None]) -> Floats:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _drift(measure: _Measure, at_h: Floats, values: Floats) -> str | None:
    """Description of a drift, if the measure got worse beyond noise and by enough."""
    trend = fit_trend(at_h, values)
    if trend is None or not trend.is_beyond_noise(_NAMED_FROM) or trend.slope * measure.sign <= 0:
        return None
    hours = float(at_h[-1] - at_h[0])
    level = trend.level + trend.slope * float(at_h[0])
    enough = measure.least * abs(level) if measure.relative else measure.least
    return _words(measure, trend, level, hours) if abs(trend.slope) * hours >= enough else None


def _words(measure: _Measure, trend: Trend, level: float, hours: float) -> str:
    def shown(value: float) -> str:
        return number(value * measure.scale)

    low, high = trend.interval(0.95)
    verb = "rises" if trend.slope > 0 else "falls"
    return (
        f"{measure.name} {verb}: {shown(level)} to {shown(level + trend.slope * hours)} {measure.unit} in "
        f"{hours * 60:.0f} min, {shown(trend.slope)} {measure.unit} an hour "
        f"(95 % interval {shown(low)} to {shown(high)})"
    )
