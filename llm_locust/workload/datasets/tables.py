"""Prompts from a CSV file with a header.

The prompt is in the first column that there is of :data:`~llm_locust.workload.datasets.row.TEXT_KEYS`. Other
known
columns: ``id``, ``name``,
``class``, ``expected``, ``input_tokens``, ``output_tokens``, ``weight``. Unknown columns are ignored. A
``.tsv`` file uses tabs instead of commas.
"""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llm_locust.core.input_files import DATASET, FileReading, plain_name, text_lines
from llm_locust.workload.datasets.row import TEXT_KEYS, DatasetError, DatasetRow
from llm_locust.workload.lengths.file import plain_number
from llm_locust.workload.text.prompts import Prompt

_EXPECTED = f"expected a header with a column named {', '.join(TEXT_KEYS[:-1])} or {TEXT_KEYS[-1]}"


def table_rows(path: Path, expected_field: str, reading: FileReading) -> Iterator[DatasetRow]:
    """Rows of a CSV file.

    Raises:
        DatasetError: no column of prompts, an incomplete row, an empty prompt, or an invalid number; with
            file and line.
        InputError: the file cannot be read, or is out of its bounds.
    """
    delimiter = "\t" if plain_name(path).suffix.lower() == ".tsv" else ","
    with _long_cells():
        reader = csv.reader(text_lines(path, reading), delimiter=delimiter, strict=True)
        header = [name.strip().lower() for name in _next(path, reader) or ()]
        column = next((name for name in TEXT_KEYS if name in header), None)
        if column is None:
            shown = ", ".join(repr(name[:40]) for name in header[:8]) or "nothing"
            raise DatasetError(f"{path}:1: the header is {shown}; {_EXPECTED}")
        while True:
            line = reader.line_num + 1
            try:
                cells = _next(path, reader)
                if cells is None:
                    return
                if any(cell.strip() for cell in cells):
                    yield _row(f"{path}:{line}", line, header, column, cells, expected_field.lower())
            except DatasetError as e:
                reading.skip(e)


def _next(path: Path, reader: Any) -> list[str] | None:
    """Cells of the next row; None at the end (raises DatasetError)."""
    try:
        found: list[str] | None = next(reader, None)
        return found
    except csv.Error as e:
        raise DatasetError(f"{path}:{reader.line_num}: {e}; {_EXPECTED}") from e


@contextmanager
def _long_cells() -> Iterator[None]:
    before = csv.field_size_limit(DATASET.line_bytes)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _row(
    where: str, line: int, header: list[str], column: str, cells: list[str], expected_field: str
) -> DatasetRow:
    if len(cells) != len(header):
        raise DatasetError(f"{where}: {len(cells)} columns, {len(header)} in the header")
    row = dict(zip(header, cells, strict=True))
    if not row[column].strip():
        raise DatasetError(f"{where}: column {column!r} is empty")

    def text(name: str) -> str | None:
        return row.get(name, "").strip() or None

    prompt = Prompt(
        text=row[column],
        asked_input_tokens=_count(where, "input_tokens", text("input_tokens")),
        asked_output_tokens=_count(where, "output_tokens", text("output_tokens")),
        expected=text(expected_field),
        id=text("id"),
        name=text("name"),
        slo_class=text("class"),
    )
    return DatasetRow(prompt, line, _weight(where, text("weight")))


def _count(where: str, name: str, cell: str | None) -> int | None:
    if cell is None:
        return None
    value = plain_number(cell)
    if value is None or not value.is_integer() or value < 1:
        raise DatasetError(f"{where}: {name} must be a positive integer, got {cell[:40]!r}")
    return int(value)


def _weight(where: str, cell: str | None) -> float | None:
    value = None if cell is None else plain_number(cell)
    if cell is not None and (value is None or not 0 < value <= 1e12):
        raise DatasetError(f"{where}: weight must be a number above 0, got {cell[:40]!r}")
    return value
