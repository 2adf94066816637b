"""Parquet files that a person gives, read within bounds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from llm_locust.core.input_files import FileBounds, FileReading, InputError, open_plain

MAGIC = b"PAR1"


@contextmanager
def parquet_input(path: Path, bounds: FileBounds) -> Iterator[pq.ParquetFile]:
    """An open Parquet file whose own figures are within the bounds.

    Raises:
        InputError: it cannot be opened or read, is no Parquet file, or is out of the bounds.
    """
    try:
        with open_plain(path, bounds.name) as plain, pq.ParquetFile(plain) as file:
            reading, rows = FileReading(bounds, path), file.metadata
            if rows.num_rows > bounds.lines:
                raise reading.error(f"{rows.num_rows:,} rows; at most {bounds.lines:,} are allowed")
            reading.add(sum(rows.row_group(i).total_byte_size for i in range(rows.num_row_groups)))
            yield file
    except (pa.ArrowException, OSError) as e:
        text = str(e).partition("\n")[0][:300]
        raise InputError.of(bounds.name, path, 0, f"not a Parquet file that can be read: {text}") from e


def parquet_batches(file: pq.ParquetFile, reading: FileReading, rows: int) -> Iterator[pa.RecordBatch]:
    """The file in batches of so many rows, counted as they are read (raises InputError, ArrowException)."""
    for batch in file.iter_batches(batch_size=rows, use_threads=False):
        reading.add(batch.nbytes)
        for _ in range(batch.num_rows):
            reading.add_row(0)
        yield batch
