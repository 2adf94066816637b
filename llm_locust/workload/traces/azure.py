"""Azure LLM inference traces: CSV with one request per line, times as date and time of day."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from llm_locust.core.input_files import FileReading
from llm_locust.workload.traces.entry import TraceRow
from llm_locust.workload.traces.reading import TraceSource, table_rows, tokens

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def rows(file: TraceSource, reading: FileReading) -> Iterator[TraceRow]:
    """Rows of such a file; times to the microsecond, UTC without a time zone."""
    return table_rows(file, reading, COLUMNS, (), _row)


def _row(line: int, cells: list[str]) -> TraceRow:
    at, context, generated = cells
    return TraceRow(_time_ns(at), line, tokens(COLUMNS[1], context), tokens(COLUMNS[2], generated))


def _time_ns(text: str) -> int:
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"TIMESTAMP {text[:60]!r} is not a time; expected one like 2023-11-16 18:17:03.9799600"
        ) from None
    return (at.replace(tzinfo=at.tzinfo or UTC) - _EPOCH) // _MICROSECOND * 1000
