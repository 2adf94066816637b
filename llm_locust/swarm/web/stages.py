"""The stages of a run on the page of charts: ended ones as the report has them, the others live."""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gevent

from llm_locust.core.manifest import StageFacts
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.over_load import DRAWN, LoadPoint, by_lengths, load_points
from llm_locust.figures.parts import LATENCY_COLUMNS, rate_cells
from llm_locust.figures.search import answer
from llm_locust.figures.section import Column, Line, TableRow, Tone
from llm_locust.figures.stages import LOADS, NO_FIGURES, Stage, of_stages, stage_label
from llm_locust.figures.summary import Summary, read_summary
from llm_locust.figures.text import clean, count, number, percent, seconds
from llm_locust.live.state import Figures, LiveStages, State, state_of
from llm_locust.live.store import LiveStore, figures_since, snapshot
from llm_locust.report.console import load_of, place_of
from llm_locust.report.csv_tables import stages_csv
from llm_locust.store import SUMMARY_FILE
from llm_locust.swarm.process.event_loop import off_the_hub
from llm_locust.swarm.run.finishing import read_figures
from llm_locust.swarm.web.numbers import RECENT_S, Fresh, at_rest

logger = logging.getLogger(__name__)

#: Most stages that the page lists: the last ones.
MOST_ROWS = 100

#: Shortest time between two readings, each of which is a process.
READ_INTERVAL_S = 5.0

_RESULT_TONES = {"ok": Tone.PLAIN, "suspect": Tone.WARN, "invalid": Tone.BAD}


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

    def told(self) -> dict[str, Any] | None:
        """The table, its lines and the charts' points; None for a run without stages."""
        return self._fresh()

    def csv(self) -> str | None:
        """``stages.csv`` of the stages that have been read; None without any."""
        shown = self._shown()
        return None if shown is None else off_the_hub(stages_csv, _ordered(shown.figures))

    def _shown(self) -> LiveStages | None:
        shown = self._store.stages
        return shown if shown is not None and shown.run == self._store.run.id else None

    def _told(self) -> dict[str, Any] | None:
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


def columns() -> list[dict[str, Any]]:
    """Heads of the table's columns; that of why a search chose the load comes behind them."""
    report = of_stages([]).table
    assert report is not None
    first, *others = report.columns
    told = [first, Column("state", left=True), *others, Column("chosen because", left=True)]
    return [{"head": column.head, "over": column.over, "left": column.left} for column in told]


def _read(shown: LiveStages, facts: list[StageFacts], numbers: list[int]) -> None:
    begun = facts[: max(numbers) + 1]
    found = read_figures(shown.path, begun, numbers, () if shown.is_sweep else numbers)
    shown.figures |= {stage.number: stage for stage in found}


def _ordered(figures: dict[int, Stage]) -> list[Stage]:
    return [figures[at] for at in sorted(figures)]


def _laid_out(seen: _Seen) -> dict[str, Any]:
    listed = seen.facts[-MOST_ROWS:]
    section = of_stages(_ordered(seen.figures)) if seen.figures else None
    table = None if section is None else section.table
    read = {} if table is None else dict(zip(sorted(seen.figures), table.rows, strict=True))
    rows = [_row(seen, stage, read.get(stage.number)) for stage in listed]
    notes = [] if section is None else [note for note in section.notes if note.tone is Tone.WARN]
    return {
        "title": clean(f"Search: {seen.of_run.objective}") if seen.of_run.objective else "Stages",
        "unit": LOADS[listed[-1].kind],
        "chosen": bool(seen.of_run.objective),
        "lines": [_line(line) for line in _lines(seen)],
        "rows": rows,
        "notes": [_line(note) for note in notes[-MOST_ROWS:]],
        "hidden": len(seen.facts) - len(listed),
        "points": _points(seen.figures),
        "is_read": bool(seen.figures),
    }


def _line(line: Line) -> dict[str, str]:
    return {"text": line.text, "tone": str(line.tone)}


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


def _row(seen: _Seen, stage: StageFacts, read: TableRow | None) -> dict[str, Any]:
    """The report's row with the stage's state behind its number, and why its load was chosen at the end."""
    state = seen.states[stage.number]
    row = read or _unread(seen, stage, state)
    cells = [row.cells[0], state, *row.cells[1:]]
    if seen.of_run.objective:
        cells.append(clean(seen.of_run.whys.get(stage.number, "")))
    return {"cells": cells, "tone": str(row.tone)}


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
