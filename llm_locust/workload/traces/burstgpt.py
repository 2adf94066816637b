"""BurstGPT traces: CSV with one request per line, times in seconds."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from llm_locust.workload.traces.entry import TraceRow
from llm_locust.workload.traces.reading import nanoseconds, table_rows, tokens

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


def rows(path: Path, texts: Iterable[str]) -> Iterator[TraceRow]:
    """Rows of such a file. Some have failed requests, with 0 response tokens."""
    return table_rows(path, texts, COLUMNS, ("Session ID",), _row)


def _row(line: int, cells: list[str]) -> TraceRow:
    at, request, response, session = cells
    return TraceRow(
        nanoseconds(COLUMNS[0], at),
        line,
        tokens(COLUMNS[1], request),
        tokens(COLUMNS[2], response),
        session=session.strip() or None,
    )
