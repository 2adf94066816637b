"""Token lengths from a file: rows of one length, or of an input and an output length.

CSV (a first row without a number is its header), also gzip-compressed, or Parquet of one or two columns of
integers.
"""

import csv
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from llm_locust.core.arrow.parquet_input import MAGIC, parquet_batches, parquet_input
from llm_locust.core.input_files import LENGTHS, FileReading, InputError, first_bytes, text_lines
from llm_locust.core.record import MAX_TOKENS

_BATCH_ROWS = 1 << 16
_COLUMNS = "expected one column of lengths, or two: input,output"


class LengthError(ValueError):
    """A text that is not a distribution of lengths; has the value and what is allowed."""


def read_lengths(path: Path) -> NDArray[np.int64]:
    """Rows of the file, shape (n, 1) or (n, 2), n > 0.

    Raises:
        LengthError: the file cannot be read, is neither CSV nor Parquet, has no row, or a row that is not of
            lengths in 1 .. :data:`MAX_TOKENS`.
    """
    try:
        parquet = first_bytes(path, LENGTHS.name, len(MAGIC)) == MAGIC or path.suffix == ".parquet"
        rows = _of_parquet(path) if parquet else _of_csv(path)
    except LengthError:
        raise
    except InputError as e:
        raise LengthError(str(e)) from e
    except (ValueError, csv.Error) as e:
        raise LengthError(f"{str(path)!r} is not a CSV file: {e}") from e
    if not len(rows):
        raise LengthError(f"{str(path)!r} has no row; expected one or two lengths a row")
    return rows


def plain_number(word: str) -> float | None:
    """Parse a plain decimal number: ``float`` would accept ``nan`` and ``1_0`` too."""
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in word else None


def _of_csv(path: Path) -> NDArray[np.int64]:
    rows: list[list[int]] = []
    reader = csv.reader(text_lines(path, FileReading(LENGTHS, path)))
    filled = (cells for cells in reader if any(cell.strip() for cell in cells))
    for i, cells in enumerate(filled):
        if i == 0 and all(plain_number(cell) is None for cell in cells):
            continue
        where = f"{path}:{reader.line_num}"
        rows.append(_row(where, cells))
        if len(rows[-1]) != len(rows[0]):
            raise LengthError(f"{where}: {len(cells)} columns, {len(rows[0])} in the rows before")
    return np.array(rows, dtype=np.int64)


def _row(where: str, cells: list[str]) -> list[int]:
    if len(cells) > 2:
        raise LengthError(f"{where}: {len(cells)} columns; expected an input length, or input,output")
    lengths = []
    for cell in cells:
        value = plain_number(cell)
        if value is None or not value.is_integer() or not 1 <= value <= MAX_TOKENS:
            raise _no_length(where, cell.strip()[:60])
        lengths.append(int(value))
    return lengths


def _of_parquet(path: Path) -> NDArray[np.int64]:
    with parquet_input(path, LENGTHS) as file:
        names = file.schema_arrow.names
        if len(names) not in (1, 2):
            shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            raise LengthError(f"{path}: {len(names)} columns ({shown}); {_COLUMNS}")
        for name in names:
            _check_type(path, name, file.schema_arrow.field(name).type)
        batches = list(parquet_batches(file, FileReading(LENGTHS, path), _BATCH_ROWS))
        table = pa.Table.from_batches(batches, file.schema_arrow)
    return np.column_stack([_column(path, name, table.column(name)) for name in names])


def _check_type(path: Path, name: str, kind: pa.DataType) -> None:
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise LengthError(f"{path}: column {name!r} is of type {kind}; {_COLUMNS}")


def _column(path: Path, name: str, column: pa.ChunkedArray) -> NDArray[np.int64]:
    values = np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    wrong = ~((values >= 1) & (values <= MAX_TOKENS) & (values == np.rint(values)))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise _no_length(f"{path}: row {row + 1} of column {name!r}", str(column[row].as_py()))
    return values.astype(np.int64)


def _no_length(where: str, value: str) -> LengthError:
    return LengthError(f"{where}: {value!r} is not a length; expected a whole number in 1 .. {MAX_TOKENS:,}")
