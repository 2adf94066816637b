"""Conversations as a whole, and their turns by number.

A request is a turn if its record names a session. A session's name may contain its planned number of turns
(:func:`session_name`): only then can a session that the run's end cut between two turns be distinguished from
a finished one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from re import compile as compile_pattern
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.batch import Labels, RecordBatch, Requests
from llm_locust.core.record import SessionHeaderEcho
from llm_locust.figures.figure import Run
from llm_locust.figures.parts import LATENCY_COLUMNS
from llm_locust.figures.text import (
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    count,
    estimate,
    mark,
    meaning,
    meaning_in,
    number,
    percent,
    plural,
    seconds,
    sentence,
)
from llm_locust.metrics.catalogue import e2el, tpot, ttft
from llm_locust.metrics.columns import Columns, Floats, Mask, Rows
from llm_locust.metrics.stats.censoring import ordered, summarise_ascending
from llm_locust.metrics.stats.intervals import in_order
from llm_locust.metrics.structs import Amounts, Effective, Intervals, SummaryPart, key
from llm_locust.metrics.window import Population, Window

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_TURNS = "turns scheduled in the window"


class SessionTimes(SummaryPart, frozen=True):
    """Times of sessions or their turns."""

    n: Annotated[int, key("number of values")]
    mean: Annotated[float | None, key("mean and percentiles")]
    p50: Annotated[float | None, key("mean and percentiles")]
    p95: Annotated[float | None, key("mean and percentiles")]
    p99: Annotated[float | None, key("mean and percentiles")]
    ci95: Intervals
    n_effective: Effective


class TurnPart(SummaryPart, frozen=True):
    """The requests of one turn of sessions."""

    turn: Annotated[int, key("number of the turn, from 0", _TURNS)]
    from_here_on: Annotated[bool, key("all later turns are in it, too", _TURNS)]
    requests: Annotated[int, key("number of requests", _TURNS)]
    ok: Annotated[int, key("number that ended ok", _TURNS)]
    failed: Annotated[int, key("number that failed", _TURNS)]
    abandoned: Annotated[int, key("number whose user left", _TURNS)]
    left_out: Annotated[
        int, key("number that were cut, abandoned or timed out, and are in no latency here", _TURNS)
    ]
    ttft_ms: Annotated[SessionTimes, key("latency, ms", "ok turns")]
    tpot_ms: Annotated[SessionTimes, key("latency, ms", "ok turns")]
    e2el_ms: Annotated[SessionTimes, key("latency, ms", "ok turns")]
    input_tokens: Annotated[Amounts, key("prompt tokens", "ok turns, known")]
    cached_share: Annotated[float | None, key("cached / all prompt tokens", "ok turns, known")]


_BEGAN = "first turn scheduled in the window"


_FOLLOWING = "turns after a session's first, scheduled in the window and sent"
_PLACED = "turns that gave the header back, with a known replica, as the turn before"


class SessionHeaderPart(SummaryPart, frozen=True):
    """The header that a session's next request gives back."""

    name: Annotated[str, key("`--session-header`", "the run")]
    echoed: Annotated[int, key("number of turns that gave it back", _FOLLOWING)]
    missing: Annotated[int, key("number of turns that had none: no answer before had one", _FOLLOWING)]
    refused: Annotated[int, key("number of turns whose value could not be sent", _FOLLOWING)]
    placed: Annotated[int, key("number of turns", _PLACED)]
    same_replica: Annotated[float | None, key("share at the replica of the turn before", _PLACED)]


class Sessions(SummaryPart, frozen=True):
    """Sessions that began in the window."""

    n: Annotated[int, key("number of sessions", _BEGAN)]
    completed: Annotated[int, key("number of sessions that came through", _BEGAN)]
    abandoned: Annotated[int, key("number of sessions whose user left", _BEGAN)]
    failed: Annotated[int, key("number of sessions with a turn that failed", _BEGAN)]
    cut: Annotated[int, key("number of sessions that the run's end cut", _BEGAN)]
    turns: Annotated[Amounts, key("turns a session", "sessions that were not cut")]
    output_tokens: Annotated[Amounts, key("output tokens a session", "sessions that were not cut")]
    duration_s: Annotated[SessionTimes, key("duration, s", "completed sessions")]
    by_turn: list[TurnPart]
    header: SessionHeaderPart | None = None


#: Turns with a row of their own; later ones share one.
TURNS_APART = 10

_COLUMNS = ("session", "turn", "cached_tokens", "session_header")
_ECHOES = tuple(SessionHeaderEcho)
_PLANNED = compile_pattern(r"-of([0-9]{1,9})$")
_FIGURES = {"p50": 50.0, "p95": 95.0, "p99": 99.0}


def session_name(unique: str, turns: int) -> str:
    """Name of a session with a planned number of turns; ``unique`` is different for each session."""
    return f"{unique}-of{turns}"


def planned_turns(session: str) -> int | None:
    """Planned number of turns, if the session's name has it."""
    found = _PLANNED.search(session)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Turns:
    """Requests that are turns, shape (turns,), each some 33 bytes: no text is kept.

    ``row`` is a request's index in the run, ``session`` a number shared by all turns of one session,
    ``number`` the turn's own from 0, -1 without one, ``planned`` -1 if unknown. ``echo`` is an index into the
    members of :class:`SessionHeaderEcho`, -1 for a turn that is no follow-up.
    """

    row: Rows
    session: NDArray[np.int64]
    number: NDArray[np.int32]
    planned: NDArray[np.int32]
    cached_tokens: Floats
    echo: NDArray[np.int8]

    @classmethod
    def of(cls, requests: Requests) -> "Turns":
        """Read part by part."""
        parts, at = [_turns(RecordBatch.empty(), 0)], 0
        for batch in requests.parts(_COLUMNS):
            parts.append(_turns(batch, at))
            at += len(batch)
        return cls(
            row=np.concatenate([part.row for part in parts]),
            session=np.concatenate([part.session for part in parts]),
            number=np.concatenate([part.number for part in parts]),
            planned=np.concatenate([part.planned for part in parts]),
            cached_tokens=np.concatenate([part.cached_tokens for part in parts]),
            echo=np.concatenate([part.echo for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.row)


def _turns(batch: RecordBatch, at: int) -> Turns:
    labels = _session_labels(batch)
    rows = np.flatnonzero(labels.codes >= 0)
    codes = labels.codes[rows]
    # 64 bits of Python's hash stand for the name: of ten million names two collide once in 400,000 runs.
    hashes = np.array([hash(name) for name in labels.names], dtype=np.int64)
    planned = [planned_turns(name) for name in labels.names]
    known = np.array([-1 if turns is None else turns for turns in planned], dtype=np.int32)
    numbers = np.nan_to_num(batch.floats("turn")[rows], nan=-1)
    return Turns(
        row=rows + at,
        session=hashes[codes],
        number=numbers.astype(np.int32),
        planned=known[codes],
        cached_tokens=batch.floats("cached_tokens")[rows],
        echo=_echoes(batch.labels("session_header"))[rows],
    )


def _echoes(labels: Labels) -> NDArray[np.int8]:
    places = [_ECHOES.index(name) if name in _ECHOES else -1 for name in labels.names]
    return np.array([*places, -1], dtype=np.int8)[labels.codes]


def _session_labels(batch: RecordBatch) -> Labels:
    table = batch.table
    encoded = table.column("session").dictionary_encode()
    place = table.column_names.index("session")
    return RecordBatch(table.set_column(place, "session", encoded)).labels("session")


def compute(run: Run) -> Sessions | None:
    header = run.manifest.options.get("session_header")
    return sessions(run.requests, run.m.c, run.m.window, header if isinstance(header, str) else None)


def sessions(requests: Requests, c: Columns, window: Window, header: str | None = None) -> Sessions | None:
    """Figures of the sessions that started in the window, and by turn of the requests scheduled in it.

    ``completed`` + ``abandoned`` + ``failed`` + ``cut`` = ``n``. ``turns`` and ``output_tokens`` are of the
    sessions that ended by themselves (all but ``cut``), ``duration_s`` is of completed ones.

    Args:
        header: that the session's next request gives back, as the run's options name it.

    Returns:
        None if no request is a turn.
    """
    turns = Turns.of(requests)
    if not len(turns):
        return None
    found = _Sessions.of(c, turns, window)
    completed = found.inside & ~found.failed & ~found.abandoned & ~found.cut
    ended = found.inside & (completed | found.failed | found.abandoned)
    return Sessions(
        n=int(found.inside.sum()),
        completed=int(completed.sum()),
        abandoned=int((found.inside & found.abandoned & ~found.failed).sum()),
        failed=int((found.inside & found.failed).sum()),
        cut=int((found.inside & ~ended).sum()),
        turns=_amounts(found.done[ended]),
        output_tokens=_amounts(found.output_tokens[ended]),
        duration_s=_times(found.duration_s[completed], found.begun_s[completed], 1.0),
        by_turn=_by_turn(c, turns, window),
        header=None if header is None else _header(header, c, turns, window),
    )


def _header(name: str, c: Columns, turns: Turns, window: Window) -> SessionHeaderPart:
    """What follow-up turns had of the header, and how many that had it stayed at the session's replica.

    Of turns that were sent. ``same_replica`` is the share of the ``placed`` ones: those that gave it back,
    and whose replica is known, as is that of the turn before.
    """
    inside = window.scheduled(c)[turns.row] & ~np.isnan(c.sent_s[turns.row])
    counts = {echo.value: int((inside & (turns.echo == place)).sum()) for place, echo in enumerate(_ECHOES)}
    order = np.lexsort((c.sent_s[turns.row], turns.session))
    replica, session = c.replica.codes[turns.row[order]], turns.session[order]
    placed = (session[1:] == session[:-1]) & (replica[1:] >= 0) & (replica[:-1] >= 0)
    placed &= (inside & (turns.echo == _ECHOES.index(SessionHeaderEcho.ECHOED)))[order[1:]]
    same = placed & (replica[1:] == replica[:-1])
    n = int(placed.sum())
    return SessionHeaderPart(name=name, **counts, placed=n, same_replica=int(same.sum()) / n if n else None)


@dataclass(frozen=True, slots=True)
class _Sessions:
    """One value per session. ``inside``: its first turn was scheduled in the window; ``done``: ok turns."""

    inside: Mask
    failed: Mask
    abandoned: Mask
    cut: Mask
    done: Floats
    output_tokens: Floats
    begun_s: Floats
    duration_s: Floats

    @classmethod
    def of(cls, c: Columns, turns: Turns, window: Window) -> "_Sessions":
        _, session = np.unique(turns.session, return_inverse=True)
        n, rows = int(session.max()) + 1, turns.row
        begun, ended = np.full(n, np.inf), np.full(n, -np.inf)
        np.minimum.at(begun, session, c.scheduled_s[rows])
        np.maximum.at(ended, session, c.ended_s[rows])
        planned = np.full(n, -1, dtype=np.int32)
        np.maximum.at(planned, session, turns.planned)

        def count(which: Mask) -> Rows:
            return np.bincount(session[which], minlength=n)

        ok, cancelled, abandoned = c.ok[rows], c.cancelled[rows], c.abandoned[rows]
        done = count(ok)
        tokens = c.output_tokens[rows]
        unknown = count(ok & np.isnan(tokens)) > 0
        total = np.bincount(session, weights=np.nan_to_num(tokens), minlength=n)
        return cls(
            inside=window.inside(c, begun),
            failed=count(~ok & ~cancelled) > 0,
            abandoned=count(abandoned) > 0,
            cut=(count(cancelled & ~abandoned) > 0) | (done < planned),
            done=done.astype(np.float64),
            output_tokens=np.where(unknown, np.nan, total),
            begun_s=begun,
            duration_s=ended - begun,
        )


def _by_turn(c: Columns, turns: Turns, window: Window) -> list[TurnPart]:
    """One entry per turn's number that occurs; ``from_here_on`` in the one of all later turns."""
    scheduled = window.scheduled(c)
    apart = np.minimum(turns.number, TURNS_APART)
    entries = []
    for turn in range(TURNS_APART + 1):
        chosen = np.flatnonzero((apart == turn) & scheduled[turns.row])
        if len(chosen):
            entries.append(_turn(turn, c, turns, chosen, scheduled))
    return entries


def _turn(turn: int, c: Columns, turns: Turns, chosen: Rows, scheduled: Mask) -> TurnPart:
    rows = turns.row[chosen]
    population = Population.of(c, scheduled, rows)
    ok, begun_s = population.ok, c.scheduled_s[population.ok]
    return TurnPart(
        turn=turn,
        from_here_on=turn == TURNS_APART,
        requests=len(rows),
        ok=len(ok),
        failed=len(population.failed),
        abandoned=int(c.abandoned[population.cancelled].sum()),
        left_out=len(population.given_up(c)),
        ttft_ms=_times(ttft(c)[ok], begun_s, 1e3),
        tpot_ms=_times(tpot(c)[ok], begun_s, 1e3),
        e2el_ms=_times(e2el(c)[ok], begun_s, 1e3),
        input_tokens=_amounts(c.input_tokens[ok]),
        cached_share=_cached_share(c, turns, chosen),
    )


def _cached_share(c: Columns, turns: Turns, chosen: Rows) -> float | None:
    """Cached prompt tokens / prompt tokens, over the ok turns whose usage has both."""
    rows, cached = turns.row[chosen], turns.cached_tokens[chosen]
    inputs = c.input_tokens[rows]
    known = c.ok[rows] & ~np.isnan(cached) & ~np.isnan(inputs)
    asked = float(inputs[known].sum())
    return float(cached[known].sum()) / asked if asked else None


def _times(values_s: Floats, begun_s: Floats, scale: float) -> SessionTimes:
    """Figures of times, whose course follows the starts ``begun_s``."""
    course = in_order(values_s[np.lexsort((values_s, begun_s))])
    figures = summarise_ascending(ordered(values_s), scale=scale, places=_FIGURES, course=course)
    return SessionTimes(**{key: figures[key] for key in ("n", "mean", *_FIGURES, "ci95", "n_effective")})


def _amounts(values: Floats) -> Amounts:
    figures = summarise_ascending(ordered(values), places={"p50": 50.0})
    return Amounts(**{key: figures[key] for key in ("n", "mean", "p50", "max")})


# --- Conversations: how they ended, how long they were, and what a turn's number did to its latency


_DURATIONS = ("p50", "p95", "p99")


def show(summary: "Summary") -> Section | None:
    """How the sessions of the window ended; None where no request was a turn of one."""
    part = summary.sessions
    if part is None:
        return None
    ends = [
        plural(part.n, "session"),
        f"{count(part.completed)} completed",
        f"{count(part.abandoned)} abandoned" if part.abandoned else "",
        f"{count(part.failed)} failed" if part.failed else "",
        f"{count(part.cut)} cut by the end" if part.cut else "",
    ]
    tone = Tone.WARN if part.failed or part.abandoned else Tone.PLAIN
    few = meaning(*(mark(part.duration_s, key) for key in _DURATIONS))
    return Section(
        "Sessions",
        (Line(sentence(ends), tone), *_lengths(part), *_header_remark(part), *_left(summary)),
        notes=tuple(few),
    )


def _header_remark(part: Sessions) -> Iterator[Line]:
    """Follow-up turns with and without the header that they should give back."""
    header = part.header
    if header is None:
        return
    following = header.echoed + header.missing + header.refused
    facts = [
        f"{clean(header.name)}: {count(header.echoed)} of {plural(following, 'follow-up turn')} gave it back",
        f"{count(header.missing)} had none" if header.missing else "",
        f"{count(header.refused)} had one that cannot be sent" if header.refused else "",
    ]
    if header.placed:
        facts.append(f"{percent(header.same_replica)} of them stayed at their replica")
    tone = Tone.PLAIN if header.echoed == following else Tone.WARN
    yield Line(sentence(facts), tone, verbatim=True)


def _lengths(part: Sessions) -> Iterator[Line]:
    turns, lasted = part.turns, part.duration_s
    if turns.n:
        facts = [
            f"turns {number(turns.mean)} mean, {number(turns.p50)} median, {count(turns.max)} max",
            f"output tokens {number(part.output_tokens.mean)} mean",
        ]
        yield Line(sentence(facts))
    if lasted.n:
        figures = [f"{mark(lasted, key)}{seconds(lasted.figure(key))} {key}" for key in _DURATIONS]
        yield Line(f"completed in {', '.join(figures)}")


def _left(summary: "Summary") -> Iterator[Line]:
    if abandoned := summary.requests.abandoned:
        text = (
            f"{plural(abandoned, 'request')} abandoned before the first token: lower bounds in TTFT and E2EL"
        )
        yield Line(text, Tone.WARN)


def by_turn(summary: "Summary") -> Section | None:
    """The figures by turn; None where no session had a second one."""
    turns = summary.sessions.by_turn if summary.sessions else ()
    if len(turns) < 2:
        return None
    columns = (
        Column("Turn", left=True),
        Column("requests"),
        Column("abandoned"),
        LATENCY_COLUMNS["ttft", "p50"],
        Column("p95", over="TTFT ms", wide=True),
        LATENCY_COLUMNS["ttft", "p99"],
        *(LATENCY_COLUMNS[key, place] for key in ("tpot", "e2el") for place in ("p50", "p99")),
        Column("mean", over="input"),
        Column("cached"),
    )
    table = Table(columns, tuple(map(_row_of_turn, turns)))
    return Section("By turn", table=table, notes=(*_left_out(turns), *meaning_in(table)), key="by_turn")


def _left_out(turns: Sequence[TurnPart]) -> Iterator[Line]:
    """How many turns that were long are in no latency of the table."""
    if left_out := sum(turn.left_out for turn in turns):
        yield Line(
            f"latencies cover {count(sum(turn.ok for turn in turns))} ok turns and are too low: "
            f"{count(left_out)} unfinished ones excluded",
            Tone.WARN,
        )


def _row_of_turn(turn: TurnPart) -> TableRow:
    ttft, tpot, e2el = turn.ttft_ms, turn.tpot_ms, turn.e2el_ms
    first = count(turn.turn)
    return TableRow(
        (
            f"{first} and later" if turn.from_here_on else first,
            count(turn.requests),
            count(turn.abandoned),
            estimate(ttft, "p50"),
            estimate(ttft, "p95"),
            estimate(ttft, "p99"),
            estimate(tpot, "p50"),
            estimate(tpot, "p99"),
            estimate(e2el, "p50"),
            estimate(e2el, "p99"),
            number(turn.input_tokens.mean),
            percent(turn.cached_share),
        )
    )
