"""Traces of sessions and agents, in this project's own format: JSON lines, one turn each.

.. code-block:: json

    {"id": "a1", "at": 0.0, "input_tokens": 900, "output_tokens": 60}
    {"id": "a2", "at": 4.5, "input_tokens": 1100, "output_tokens": 80, "after": ["a1"], "gap_s": 1.2}

============================= ==================================================================
``id``                        the turn's name, a text or a number
``at``                        when it was sent, in seconds of any epoch
``input_tokens``,             its lengths
``output_tokens``
``after``                     ids of the turns whose answers it needed; they are earlier in time
``gap_s``                     how long the client was idle after the last of them (a person who reads,
                              a tool that runs); 0 if not given
``session``                   name of its session; if not given, that of the turns before it, and the
                              own id of a turn that has none
``hash_ids``                  as in a Mooncake trace
============================= ==================================================================

All turns that depend on each other belong to one session. Any other key is an error.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from llm_locust.core.input_files import FileReading
from llm_locust.workload.traces.entry import TraceError, TraceRow
from llm_locust.workload.traces.mooncake import Tokens
from llm_locust.workload.traces.reading import MAX_SECONDS, TraceSource, json_rows, nanoseconds

#: Most turns remembered, so that later ones can refer to them.
MEMORY = 100_000


class SessionLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str | int
    at: float
    input_tokens: Tokens
    output_tokens: Tokens
    after: tuple[str | int, ...] = ()
    gap_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] = 0.0
    session: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    hash_ids: tuple[int, ...] = ()


_DECODER = msgspec.json.Decoder(SessionLine)


def rows(file: TraceSource, reading: FileReading) -> Iterator[TraceRow]:
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

    return json_rows(file, reading, _DECODER, row, expected)


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
            session = _session(path, row, before)
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


def _session(path: Path, row: TraceRow, before: Iterable[_Known]) -> str:
    """Session of a turn and of all that it waits for."""
    named = {b.session for b in before} | ({row.session} if row.session else set())
    if len(named) > 1:
        raise TraceError(
            f"{path}:{row.line}: {row.id!r} joins the sessions {', '.join(map(repr, sorted(named)))}; "
            'expected one: give all their turns the same "session"'
        )
    return named.pop()
