"""Prompts from a CSV file, from plain text, and from a Parquet file."""

import csv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from llm_locust.core.files import (
    DATASET,
    FileReading,
    folder_files,
    input_lines,
    plain_name,
    read_input,
    text_lines,
)
from llm_locust.core.parquet_input import parquet_batches, parquet_input
from llm_locust.workload.datasets.row import EXPECTED, TEXT_KEYS, DatasetError, DatasetRow, where_not_utf8
from llm_locust.workload.lengths import plain_number
from llm_locust.workload.text.prompts import Prompt

# --------------------
# Prompts from a CSV file with a header.
#
# The prompt is in the first column that there is of :data:`~llm_locust.workload.datasets.row.TEXT_KEYS`.
# Other known columns: ``id``, ``name``, ``class``, ``expected``, ``input_tokens``, ``output_tokens``,
# ``weight``. Unknown columns are ignored. A ``.tsv`` file uses tabs instead of commas.
# --------------------


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


# --- Prompts from plain text: one per line, or one per file of a folder


def text_line_rows(path: Path, reading: FileReading) -> Iterator[DatasetRow]:
    """Each line that is not blank, without its end (raises DatasetError with file and line, InputError)."""
    for number, line in enumerate(input_lines(path, reading), 1):
        text = _decoded(f"{path}:{number}", line, reading).rstrip("\r\n")
        if text.strip():
            yield DatasetRow(Prompt(text=text), number)


def folder_rows(path: Path, reading: FileReading) -> Iterator[DatasetRow]:
    """Whole text of each file, in the order of their names, which become the prompts' ids.

    Hidden files, subfolders and empty files are left out. A row's line is its file's number.

    Raises:
        DatasetError: a file is not text in UTF-8.
        InputError: the folder or a file cannot be read, or they are too many or too large.
    """
    for number, file in enumerate(folder_files(path, DATASET.name), 1):
        reading.add_row(0)
        text = _decoded(str(file), read_input(file, DATASET, reading), reading)
        if text.strip():
            yield DatasetRow(Prompt(text=text, id=file.name), number)


def _decoded(where: str, raw: bytes, reading: FileReading) -> str:
    """Text of a line or a file; empty if it is skipped."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        reading.skip(DatasetError(f"{where}: {where_not_utf8(raw)}; expected plain text"))
        return ""


# --- Prompts from a Parquet file: each row is an object of its columns, read as a JSON object is


#: Rows that are decoded at a time: a row may be long.
_BATCH_ROWS = 64

T = TypeVar("T")


def parquet_values(path: Path, read: Callable[[Any, int], T | None], reading: FileReading) -> Iterator[T]:
    """Results of ``read`` for each row and its number from 1, without the Nones. Columns that are null in a
    row are left out of it.

    Raises:
        DatasetError: ``read`` raised a ValueError; with file and row.
        InputError: the file cannot be read, is no Parquet file, or is out of its bounds.
    """
    with parquet_input(path, DATASET) as file:
        number = 0
        for batch in parquet_batches(file, reading, _BATCH_ROWS):
            for row in batch.to_pylist():
                number += 1
                try:
                    found = read(_without_nulls(row), number)
                except ValueError as e:
                    columns = ", ".join(map(repr, file.schema_arrow.names[:8]))
                    reading.skip(DatasetError(f"{path}: row {number}: {e}, of columns {columns}; {EXPECTED}"))
                    continue
                if found is not None:
                    yield found


def _without_nulls(value: Any) -> Any:
    """A row in which what is null in a struct is left out: each of its fields is there in every row."""
    if isinstance(value, dict):
        return {key: _without_nulls(v) for key, v in value.items() if v is not None or key == "content"}
    if isinstance(value, list):
        return [*map(_without_nulls, value)]
    return value
