"""The stages of a run for the page: ended ones as the report has them, the others live."""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gevent
import msgspec

from llm_locust.core.manifest import StageFacts
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.charts import DRAWN, LoadPoint, by_lengths, load_points
from llm_locust.figures.parts import LATENCY_COLUMNS, rate_cells
from llm_locust.figures.search import answer
from llm_locust.figures.stages import LOADS, NO_FIGURES, Stage, of_stages, stage_label
from llm_locust.figures.summary import Summary, read_summary
from llm_locust.figures.text import Column, Line, TableRow, Tone, clean, count, number, percent, seconds
from llm_locust.live.figures import Figures
from llm_locust.live.snapshot import figures_since, snapshot
from llm_locust.live.state import LiveStages, State, state_of
from llm_locust.live.store import LiveStore
from llm_locust.report.console import load_of, place_of
from llm_locust.report.csv_tables import stages_csv
from llm_locust.store import SUMMARY_FILE
from llm_locust.swarm.process.event_loop import Fresh, off_the_hub
from llm_locust.swarm.run.finishing import read_figures
from llm_locust.swarm.web.status import RECENT_S

logger = logging.getLogger(__name__)


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


class TableLine(msgspec.Struct, frozen=True):
    text: str
    tone: str


class StageRow(msgspec.Struct, frozen=True):
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
    lines: list[TableLine]
    rows: list[StageRow]
    notes: list[TableLine]
    hidden: int
    points: list[dict[str, Any]]
    is_read: bool


@dataclass(frozen=True, slots=True)
class _StagesNow:
    """The stages at one time, for a thread to lay out."""

    store: LiveStore
    facts: Sequence[StageFacts]
    states: dict[int, State]
    of_run: LiveStages
    figures: dict[int, Stage]


class StageBoard:
    """The table of the current run's stages.

    The figures of stages that have ended are read while somebody looks, in a process of low priority; those
    of a search are read by the search. Once there is a report, they are the report's.
    """

    def __init__(self, store: LiveStore) -> None:
        self._store = store
        self._fresh = Fresh(self._make)
        self._reading: gevent.Greenlet[..., None] | None = None
        self._read_s = -READ_INTERVAL_S
        self._reported = ""  # id of the last run whose report has been taken

    def table(self) -> StageTable | None:
        """The table, its lines and the charts' points; None for a run without stages."""
        return self._fresh()

    def csv(self) -> str | None:
        """``stages.csv`` of the stages that have been read; None without any."""
        stages = self._current()
        return None if stages is None else off_the_hub(stages_csv, _ordered(stages.figures))

    def _current(self) -> LiveStages | None:
        stages = self._store.stages
        return stages if stages is not None and stages.run == self._store.run.id else None

    def _make(self) -> StageTable | None:
        stages = self._current()
        if stages is None or not (facts := list(stages.facts())):
            return None
        now_ns = round(self._store.clock_s() * 1e9)
        states = {stage.number: state_of(stage, now_ns, is_sweep=stages.is_sweep) for stage in facts}
        if self._store.content.stopped_s is not None:
            states = {n: "drained" if state == "drained" else "over" for n, state in states.items()}
        self._take_report(stages)
        self._read_new(stages, facts, states)
        now = _StagesNow(self._store.at_rest(), facts, states, stages, dict(stages.figures))
        return off_the_hub(_table, now)

    def _take_report(self, stages: LiveStages) -> None:
        path = stages.path / SUMMARY_FILE
        if self._reported == stages.run or self._store.content.stopped_s is None or not path.is_file():
            return
        self._reported = stages.run
        try:
            summary: Summary = off_the_hub(lambda: read_summary(path.read_bytes()))
        except (OSError, ValueError) as e:
            logger.debug("the report's stages were not read: %s", e)
            return
        stages.figures = {stage.number: stage for stage in summary.stages or ()}
        if summary.search is not None:
            stages.answer = summary.search.answer

    def _read_new(self, stages: LiveStages, facts: list[StageFacts], states: dict[int, State]) -> None:
        """Begin to read the stages that have ended and have no figures, unless that is under way."""
        due = time.monotonic() - self._read_s >= READ_INTERVAL_S
        busy = self._reading is not None and not self._reading.ready()
        if busy or not due or self._store.content.stopped_s is not None or not stages.has_records():
            return
        ended = [n for n, state in states.items() if state in ("drained", "over") and n not in stages.figures]
        if stages.objective:  # what it has not read of earlier ones it will not read
            ended = [n for n in ended if n < facts[-1].number]
        if ended:
            self._read_s = time.monotonic()
            self._reading = gevent.spawn(_read, stages, facts, ended)


def columns() -> list[TableHead]:
    """Heads of the table's columns; that of why a search chose the load comes behind them."""
    report = of_stages([]).table
    assert report is not None
    first, *others = report.columns
    heads = [first, Column("state", left=True), *others, Column("chosen because", left=True)]
    return [TableHead(column.head, column.over, column.left) for column in heads]


def _read(stages: LiveStages, facts: list[StageFacts], numbers: list[int]) -> None:
    begun = facts[: max(numbers) + 1]
    figures = read_figures(stages.path, begun, numbers, () if stages.is_sweep else numbers)
    stages.figures |= {stage.number: stage for stage in figures}


def _ordered(figures: dict[int, Stage]) -> list[Stage]:
    return [figures[at] for at in sorted(figures)]


def _table(now: _StagesNow) -> StageTable:
    listed = now.facts[-MOST_ROWS:]
    section = of_stages(_ordered(now.figures)) if now.figures else None
    table = None if section is None else section.table
    read = {} if table is None else dict(zip(sorted(now.figures), table.rows, strict=True))
    rows = [_row(now, stage, read.get(stage.number)) for stage in listed]
    notes = [] if section is None else [note for note in section.notes if note.tone is Tone.WARN]
    return StageTable(
        title=clean(f"Search: {now.of_run.objective}") if now.of_run.objective else "Stages",
        unit=LOADS[listed[-1].kind],
        chosen=bool(now.of_run.objective),
        lines=_table_lines(_lines(now)),
        rows=rows,
        notes=_table_lines(notes[-MOST_ROWS:]),
        hidden=len(now.facts) - len(listed),
        points=_points(now.figures),
        is_read=bool(now.figures),
    )


def _table_lines(lines: Iterable[Line]) -> list[TableLine]:
    return [TableLine(line.text, str(line.tone)) for line in lines]


def _lines(now: _StagesNow) -> Iterator[Line]:
    """Where the run is, what the search tries and why; its answer once there is one."""
    stages = now.of_run
    if stages.answer is not None:
        yield from answer(LOADS[now.facts[-1].kind], stages.answer).lines
        return
    if stages.reading is not None:
        yield Line(f"stage {stages.reading} is being read: the next load follows from what it shows")
        return
    begun = [stage for stage in now.facts if now.states[stage.number] != "to come"]
    if now.store.content.stopped_s is None and begun:
        stage, most = begun[-1], stages.planned or len(now.facts)
        why = clean(stages.whys.get(stage.number, ""))
        place = place_of(stage, most, is_bound=bool(stages.objective))
        yield Line(f"{place}: {load_of(stage)}{', ' if why else ''}{why}")


def _row(now: _StagesNow, stage: StageFacts, read: TableRow | None) -> StageRow:
    """The report's row with the stage's state behind its number, and why its load was chosen at the end."""
    state = now.states[stage.number]
    row = read or _unread(now, stage, state)
    cells = [row.cells[0], state, *row.cells[1:]]
    if now.of_run.objective:
        cells.append(clean(now.of_run.whys.get(stage.number, "")))
    return StageRow(cells, str(row.tone))


def _unread(now: _StagesNow, stage: StageFacts, state: State) -> TableRow:
    lengths = "" if stage.lengths is None else str(stage.lengths)
    lengths = lengths if stage.prefix is None else f"{stage.prefix} shared"
    head = (stage_label(stage.number, stage.repeat), lengths, number(stage.asked), UNDEFINED)
    store = now.store
    if state != "measuring" or stage.measured_ns is None or store.content.stopped_s is not None:
        ended = state in ("drained", "over")
        return TableRow((*head, *NO_FIGURES, "not read yet" if ended else ""))
    severity = snapshot(store, RECENT_S, rows=False).validity.severity
    so_far = figures_since(store, stage.measured_ns * 1e-9)
    return TableRow((*head, *_live(so_far), f"so far: client {severity}"), _RESULT_TONES[severity])


def _live(so_far: Figures) -> Iterator[str]:
    yield seconds(so_far.seconds)
    yield count(so_far.requests)
    yield percent(so_far.failures / so_far.requests if so_far.requests else None)
    for key, place in LATENCY_COLUMNS:
        yield number(so_far.latencies[key].at_ms(place))
    yield from rate_cells(so_far.output_tokens_per_s, so_far.inputs_per_s)
    yield percent(so_far.goodput)


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
