"""Mooncake traces: JSON lines with one request each, and ids of the blocks of its prompt."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from llm_locust.workload.lengths.tokens import MAX_TOKENS
from llm_locust.workload.traces.entry import TraceRow
from llm_locust.workload.traces.reading import MAX_SECONDS, json_rows

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class MooncakeLine(msgspec.Struct, frozen=True):
    """``timestamp`` in milliseconds. Unknown keys are ignored."""

    timestamp: Annotated[float, msgspec.Meta(ge=-MAX_SECONDS * 1000, le=MAX_SECONDS * 1000)]
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[int, ...] = ()


_DECODER = msgspec.json.Decoder(MooncakeLine)


def rows(path: Path, texts: Iterable[str]) -> Iterator[TraceRow]:
    """Rows of such a file."""
    expected = '{"timestamp": MS, "input_length": N, "output_length": N, "hash_ids": [...]}'
    return json_rows(path, texts, _DECODER, _row, expected)


def _row(number: int, line: MooncakeLine) -> TraceRow:
    return TraceRow(round(line.timestamp * 1e6), number, line.input_length, line.output_length, line.hash_ids)
