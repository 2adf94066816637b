"""Recorded workloads: times, lengths and common prefixes of requests, in the formats of their files.

============ ======================================================================================
``azure``    Azure LLM inference, CSV: ``TIMESTAMP,ContextTokens,GeneratedTokens``
``mooncake`` JSON lines: ``timestamp`` in ms, ``input_length``, ``output_length``, ``hash_ids`` of 512 tokens
``bailian``  the same with ``chat_id``, ``parent_chat_id`` or ``turn``: in s, ``hash_ids`` of 16 tokens
``burstgpt`` CSV: ``Timestamp`` in s, ``Request tokens``, ``Response tokens``; ``Session ID`` if there
``sessions`` JSON lines of this project's own, see below
============ ======================================================================================

Files, also gzip-compressed ones, are read on demand, and are never held in memory as a whole. Every error
names the file and the line.
"""

import csv
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from llm_locust.core.files import FileReading, InputError, input_lines, text_lines
from llm_locust.core.record import MAX_TOKENS
from llm_locust.core.texts import plain_number
from llm_locust.figures.text import plural
from llm_locust.wire.foreign_text import one_line

# --- One recorded request: as in a file, and for replay


#: Prompt tokens that one of a Mooncake trace's hash ids stands for, and one of Bailian's (Qwen).
MOONCAKE_BLOCK_TOKENS, BAILIAN_BLOCK_TOKENS = 512, 16


class TraceError(ValueError):
    """A trace, or a line of it, that cannot be read; one line: where, the value, and what is expected."""

    def __init__(self, what: str) -> None:
        super().__init__(one_line(what))


class TraceRow(NamedTuple):
    """One line of a trace. Rows order by time, then by line.

    ``at_ns`` is the recorded time in nanoseconds, of whatever epoch the format has. ``blocks`` is the number
    of hash ids in the file, of which ``hash_ids`` are those that the prompt's length has room for.
    """

    at_ns: int
    line: int
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    session: str | None = None
    id: str | None = None
    after: tuple[str, ...] = ()
    gap_s: float = 0.0
    turn: int | None = None
    blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEntry:
    """One request of a trace.

    Attributes:
        k: its index among the slice's requests in order of time, from 0.
        at_s: seconds after the slice's start, scaled.
        input_tokens, output_tokens: as recorded. 0 is possible, for requests that failed then.
        hash_ids: one id for each ``block_tokens`` tokens of the prompt, from its start; prompts with the same
            leading ids have the same leading tokens.
        session: what keeps requests on one worker, ``None`` for a single one.
        id: its name within the trace, for references.
        after: ids of the requests of its session that must end before it starts.
        gap_s: idle time after the last of these, scaled.
        turn: its depth in its session, from 0, if the trace has dependencies.
        line: its line in the file.
    """

    k: int
    at_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    session: str | None = None
    id: str | None = None
    after: tuple[str, ...] = ()
    gap_s: float = 0.0
    turn: int | None = None
    line: int = 0

    def due_s(self, ended_s: Iterable[float]) -> float:
        """Time at which it may start: ``at_s``, but not before ``gap_s`` after the last of ``ended_s``.

        ``ended_s`` are the end times of the requests in ``after``. They blocked it for ``due_s - at_s`` of
        its delay; only the time after ``due_s`` is the sender's.
        """
        last_s = max(ended_s, default=None)
        return self.at_s if last_s is None else max(self.at_s, last_s + self.gap_s)


#: Largest distance in seconds of recorded times from their epoch.
MAX_SECONDS = 1e11

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A file, and what its numbers mean.

    Attributes:
        unit_ns: of its times, in nanoseconds.
        block_tokens: that a hash id stands for.
        most_skipped: how many lines that cannot be read are skipped.
    """

    path: Path
    unit_ns: int
    block_tokens: int
    most_skipped: int = 0

    def most_blocks(self, tokens: int) -> int:
        """Blocks that a prompt of so many tokens has at most: more of its hash ids are of no use."""
        return -(-tokens // self.block_tokens)


def table_rows(
    file: TraceSource,
    reading: FileReading,
    names: Sequence[str],
    optional: Sequence[str],
    build: Callable[[int, list[str]], TraceRow],
) -> Iterator[TraceRow]:
    """Rows of a CSV file with a header.

    ``build`` gets the line's number and the cells of ``names`` and ``optional``, in that order whatever the
    file's is; a missing column of ``optional`` is empty. It raises ValueError for an invalid cell.
    """
    cells_of = csv.reader(text_lines(file.path, reading))

    def error(what: object) -> TraceError:
        return TraceError(f"{file.path}:{max(1, cells_of.line_num)}: {what}")

    try:
        header = next((cells for cells in cells_of if any(map(str.strip, cells))), [])
    except csv.Error as e:
        raise error(e) from None
    places = {plain(name): place for place, name in enumerate(header)}
    lacking = [name for name in names if plain(name) not in places]
    if lacking:
        raise error(
            f"no column {', '.join(map(repr, lacking))} in {_excerpt(','.join(header))}; "
            f"expected {', '.join(names)}"
        )
    # The index past the last cell stands for missing columns and is empty.
    wanted = [places.get(plain(name), len(header)) for name in (*names, *optional)]
    while True:
        try:
            cells = next(cells_of)
            if not any(map(str.strip, cells)):
                continue
            if len(cells) < len(header):
                raise ValueError(
                    f"{plural(len(cells), 'cell')} in {_excerpt(','.join(cells))}; expected {len(header)}"
                )
            cells[len(header) :] = [""]
            row = build(cells_of.line_num, [cells[place] for place in wanted])
        except StopIteration:
            return
        except InputError:
            raise
        except (ValueError, csv.Error) as e:
            reading.skip(error(e))
            continue
        yield row


def json_rows(
    file: TraceSource,
    reading: FileReading,
    decoder: msgspec.json.Decoder[S],
    build: Callable[[int, S], TraceRow],
    expected: str,
) -> Iterator[TraceRow]:
    """Rows of JSON lines; ``expected`` is the form of a line, for errors."""
    for number, raw in enumerate(input_lines(file.path, reading), 1):
        if raw.isspace():
            continue
        try:
            row = build(number, decoder.decode(raw))
        except (ValueError, RecursionError) as e:
            text = raw[:240].decode(errors="replace")
            what = f"{file.path}:{number}: {e}, in {_excerpt(text)}; expected {expected}"
            reading.skip(TraceError(what))
            continue
        yield row


def plain(name: str) -> str:
    """A column's name for comparison: ``Session ID`` and ``session_id`` are the same."""
    return name.strip().casefold().replace(" ", "").replace("_", "")


def tokens(name: str, text: str) -> int:
    """Token count in a cell of the column ``name``; ``512.0`` is valid."""
    value = plain_number(text)
    if not (value.is_integer() and 0 <= value <= MAX_TOKENS):
        raise ValueError(
            f"{name} {text[:60]!r} is not a token count; expected a whole number in 0 .. {MAX_TOKENS:,}"
        )
    return int(value)


def nanoseconds(name: str, value: str | float, unit_ns: int) -> int:
    """Nanoseconds of a time in the column or key ``name``."""
    number = plain_number(value) if isinstance(value, str) else value
    if not abs(number) * unit_ns <= MAX_SECONDS * 1e9:
        raise ValueError(f"{name} {str(value)[:60]!r} is not a time; expected a number")
    return round(number * unit_ns)


def _excerpt(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:60] + "…")


# --- Azure LLM inference traces: CSV with one request per line, times as date and time of day


AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def azure_rows(file: TraceSource, reading: FileReading) -> Iterator[TraceRow]:
    """Rows of such a file; times to the microsecond, UTC without a time zone."""
    return table_rows(file, reading, AZURE_COLUMNS, (), _row)


def _row(line: int, cells: list[str]) -> TraceRow:
    at, context, generated = cells
    return TraceRow(
        _time_ns(at), line, tokens(AZURE_COLUMNS[1], context), tokens(AZURE_COLUMNS[2], generated)
    )


def _time_ns(text: str) -> int:
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"TIMESTAMP {text[:60]!r} is not a time; expected one like 2023-11-16 18:17:03.9799600"
        ) from None
    return (at.replace(tzinfo=at.tzinfo or UTC) - _EPOCH) // _MICROSECOND * 1000


# --- BurstGPT traces: CSV with one request per line, times in seconds


BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


def burstgpt_rows(file: TraceSource, reading: FileReading) -> Iterator[TraceRow]:
    """Rows of such a file. Some have failed requests, with 0 response tokens."""

    def row(line: int, cells: list[str]) -> TraceRow:
        at, request, response, session = cells
        return TraceRow(
            nanoseconds(BURSTGPT_COLUMNS[0], at, file.unit_ns),
            line,
            tokens(BURSTGPT_COLUMNS[1], request),
            tokens(BURSTGPT_COLUMNS[2], response),
            session=session.strip() or None,
        )

    return table_rows(file, reading, BURSTGPT_COLUMNS, ("Session ID",), row)


# --- Traces of hashed prompts: JSON lines with one request each, and ids of the blocks of its prompt
#
# Two kinds have the same names for times and lengths, and other units: Mooncake's, and those of Bailian,
# which serves Qwen. What tells them apart is the identity of a chat, which only Bailian's lines have.


#: Keys that only Bailian's lines have.
BAILIAN_KEYS = frozenset({"chat_id", "parent_chat_id", "turn"})

#: Most chats that are remembered, so that later turns of them have their session.
MEMORY = 100_000

#: A token count: a whole number, also one that is written as ``512.0``.
Tokens = Annotated[float, msgspec.Meta(ge=0, le=MAX_TOKENS, multiple_of=1)]

_EXPECTED = '{"timestamp": MS, "input_length": N, "output_length": N, "hash_ids": [...]}'
_EXPECTED_OF_CHAT = (
    '{"chat_id": ID, "parent_chat_id": ID, "timestamp": SECONDS, "input_length": N, "output_length": N, '
    '"hash_ids": [...]}'
)


class HashedLine(msgspec.Struct, frozen=True):
    """Unknown keys are ignored."""

    timestamp: float
    input_length: Tokens
    output_length: Tokens
    hash_ids: tuple[int, ...] | None = None


class BailianLine(HashedLine, frozen=True):
    """A line of Bailian's. The first turn of a chat has the parent -1."""

    chat_id: int | str | None = None
    parent_chat_id: int | str | None = None


_DECODER = msgspec.json.Decoder(HashedLine)
_CHAT_DECODER = msgspec.json.Decoder(BailianLine)


def mooncake_rows(file: TraceSource, reading: FileReading) -> Iterator[TraceRow]:
    """Rows of a Mooncake trace."""

    def row(number: int, line: HashedLine) -> TraceRow:
        return _mooncake_row(file, number, line, None)

    return json_rows(file, reading, _DECODER, row, _EXPECTED)


def chat_rows(file: TraceSource, reading: FileReading) -> Iterator[TraceRow]:
    """Rows of a Bailian trace. The turns of a chat are of one session, which has the id of the first one."""
    sessions: OrderedDict[str, str] = OrderedDict()

    def row(number: int, line: BailianLine) -> TraceRow:
        return _mooncake_row(file, number, line, _session(line, sessions))

    return json_rows(file, reading, _CHAT_DECODER, row, _EXPECTED_OF_CHAT)


def _session(line: BailianLine, sessions: OrderedDict[str, str]) -> str | None:
    if line.chat_id is None:
        return None
    chat = str(line.chat_id)
    session = sessions.get(str(line.parent_chat_id), chat)
    sessions[chat] = session
    if len(sessions) > MEMORY:
        sessions.popitem(last=False)
    return session


def _mooncake_row(file: TraceSource, number: int, line: HashedLine, session: str | None) -> TraceRow:
    tokens, ids = int(line.input_length), line.hash_ids or ()
    return TraceRow(
        nanoseconds("timestamp", line.timestamp, file.unit_ns),
        number,
        tokens,
        int(line.output_length),
        ids[: file.most_blocks(tokens)],
        session=session,
        blocks=len(ids),
    )


# --- Traces of sessions and agents, in this project's own format: JSON lines, one turn each
#
# .. code-block:: json
#
#     {"id": "a1", "at": 0.0, "input_tokens": 900, "output_tokens": 60}
#     {"id": "a2", "at": 4.5, "input_tokens": 1100, "output_tokens": 80, "after": ["a1"], "gap_s": 1.2}
#
# ============================= ==================================================================
# ``id``                        the turn's name, a text or a number
# ``at``                        when it was sent, in seconds of any epoch
# ``input_tokens``,             its lengths
# ``output_tokens``
# ``after``                     ids of the turns whose answers it needed; they are earlier in time
# ``gap_s``                     how long the client was idle after the last of them (a person who reads,
#                               a tool that runs); 0 if not given
# ``session``                   name of its session; if not given, that of the turns before it, and the
#                               own id of a turn that has none
# ``hash_ids``                  as in a Mooncake trace
# ============================= ==================================================================
#
# All turns that depend on each other belong to one session. Any other key is an error.


class SessionLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str | int
    at: float
    input_tokens: Tokens
    output_tokens: Tokens
    after: tuple[str | int, ...] = ()
    gap_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] = 0.0
    session: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    hash_ids: tuple[int, ...] = ()


_SESSIONS_DECODER = msgspec.json.Decoder(SessionLine)


def session_rows(file: TraceSource, reading: FileReading) -> Iterator[TraceRow]:
    """Rows of such a file, independently of each other: see :func:`linked`."""
    expected = (
        '{"id": ID, "at": SECONDS, "input_tokens": N, "output_tokens": N, "after": [ID, ...], "gap_s": S}'
    )

    def row(number: int, line: SessionLine) -> TraceRow:
        input_tokens = int(line.input_tokens)
        return TraceRow(
            nanoseconds("at", line.at, file.unit_ns),
            number,
            input_tokens,
            int(line.output_tokens),
            line.hash_ids[: file.most_blocks(input_tokens)],
            session=line.session,
            id=str(line.id),
            after=tuple(dict.fromkeys(map(str, line.after))) if line.after else (),
            gap_s=line.gap_s,
            blocks=len(line.hash_ids),
        )

    return json_rows(file, reading, _SESSIONS_DECODER, row, expected)


class _Known(NamedTuple):
    """Facts of a turn for later turns."""

    line: int
    at_ns: int
    session: str
    turn: int


def linked(path: Path, ordered: Iterable[TraceRow], start_s: float) -> Iterator[TraceRow]:
    """Rows in order of time, each with its session and its turn, with checked references.

    Turns do not wait for one before ``start_s``, counted from the first row: it is not part of the replay.

    Raises:
        TraceError: a repeated id, a reference to none of the last :data:`MEMORY` turns, or turns of several
            sessions that depend on each other.
    """
    known: OrderedDict[str, _Known] = OrderedDict()
    start_ns: int | None = None
    for row in ordered:
        assert row.id is not None  # every line of the format has one
        if start_ns is None:
            start_ns = row.at_ns + round(start_s * 1e9)
        if row.id in known:
            raise TraceError(f"{path}:{row.line}: id {row.id!r} is that of line {known[row.id].line} too")
        session, turn, after = row.session or row.id, 0, row.after
        if after:
            before = [_turn_before(path, row, id_, known) for id_ in after]
            session = _sessions_session(path, row, before)
            turn = 1 + max([b.turn for b in before])
            after = tuple([id_ for id_, b in zip(after, before, strict=True) if b.at_ns >= start_ns])
        known[row.id] = _Known(row.line, row.at_ns, session, turn)
        if len(known) > MEMORY:
            known.popitem(last=False)
        yield row._replace(session=session, after=after, turn=turn)


def _turn_before(path: Path, row: TraceRow, id_: str, known: Mapping[str, _Known]) -> _Known:
    if id_ not in known:
        raise TraceError(
            f"{path}:{row.line}: after {id_!r}: no such turn earlier in time among the last {MEMORY:,}; "
            'expected the "id" of one'
        )
    return known[id_]


def _sessions_session(path: Path, row: TraceRow, before: Iterable[_Known]) -> str:
    """Session of a turn and of all that it waits for."""
    named = {b.session for b in before} | ({row.session} if row.session else set())
    if len(named) > 1:
        raise TraceError(
            f"{path}:{row.line}: {row.id!r} joins the sessions {', '.join(map(repr, sorted(named)))}; "
            'expected one: give all their turns the same "session"'
        )
    return named.pop()
