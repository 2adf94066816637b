"""Traces of hashed prompts: JSON lines with one request each, and ids of the blocks of its prompt.

Two kinds have the same names for times and lengths, and other units: Mooncake's, and those of Bailian, which
serves Qwen. What tells them apart is the identity of a chat, which only Bailian's lines have.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Annotated

import msgspec

from llm_locust.core.input_files import FileReading
from llm_locust.core.record import MAX_TOKENS
from llm_locust.workload.traces.entry import TraceRow
from llm_locust.workload.traces.reading import TraceSource, json_rows, nanoseconds

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


def rows(file: TraceSource, reading: FileReading) -> Iterator[TraceRow]:
    """Rows of a Mooncake trace."""

    def row(number: int, line: HashedLine) -> TraceRow:
        return _row(file, number, line, None)

    return json_rows(file, reading, _DECODER, row, _EXPECTED)


def chat_rows(file: TraceSource, reading: FileReading) -> Iterator[TraceRow]:
    """Rows of a Bailian trace. The turns of a chat are of one session, which has the id of the first one."""
    sessions: OrderedDict[str, str] = OrderedDict()

    def row(number: int, line: BailianLine) -> TraceRow:
        return _row(file, number, line, _session(line, sessions))

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


def _row(file: TraceSource, number: int, line: HashedLine, session: str | None) -> TraceRow:
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
