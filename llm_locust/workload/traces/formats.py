"""Formats of traces: Azure, BurstGPT, Mooncake, and sessions in this project's own format."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from llm_locust.core.files import FileReading
from llm_locust.core.record import MAX_TOKENS
from llm_locust.workload.traces.reading import (
    MAX_SECONDS,
    TraceError,
    TraceRow,
    TraceSource,
    json_rows,
    nanoseconds,
    table_rows,
    tokens,
)

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


# --------------------
# Traces of hashed prompts: JSON lines with one request each, and ids of the blocks of its prompt.
#
# Two kinds have the same names for times and lengths, and other units: Mooncake's, and those of Bailian,
# which serves Qwen. What tells them apart is the identity of a chat, which only Bailian's lines have.
# --------------------


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


# --------------------
# Traces of sessions and agents, in this project's own format: JSON lines, one turn each.
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
# --------------------


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
