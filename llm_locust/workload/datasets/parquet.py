"""Prompts from a Parquet file: each row is an object of its columns, read as a JSON object is."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from llm_locust.core.arrow.parquet_input import parquet_batches, parquet_input
from llm_locust.core.input_files import DATASET, FileReading
from llm_locust.workload.datasets.row import EXPECTED, DatasetError

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
