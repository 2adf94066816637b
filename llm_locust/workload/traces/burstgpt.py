"""BurstGPT traces: CSV with one request per line, times in seconds."""

from collections.abc import Iterator

from llm_locust.core.input_files import FileReading
from llm_locust.workload.traces.entry import TraceRow
from llm_locust.workload.traces.reading import TraceSource, nanoseconds, table_rows, tokens

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


def rows(file: TraceSource, reading: FileReading) -> Iterator[TraceRow]:
    """Rows of such a file. Some have failed requests, with 0 response tokens."""

    def row(line: int, cells: list[str]) -> TraceRow:
        at, request, response, session = cells
        return TraceRow(
            nanoseconds(COLUMNS[0], at, file.unit_ns),
            line,
            tokens(COLUMNS[1], request),
            tokens(COLUMNS[2], response),
            session=session.strip() or None,
        )

    return table_rows(file, reading, COLUMNS, ("Session ID",), row)
