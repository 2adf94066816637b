"""Forged files of columns: tables with columns of other types, values and sizes, and changed bytes."""

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

Value = TypeVar("Value")


class Choices:
    """Choices that the bytes of a case make, in order; the first of each once they have run out."""

    def __init__(self, case: bytes) -> None:
        self._bytes = iter(case)

    def below(self, bound: int) -> int:
        return (next(self._bytes, 0) << 8 | next(self._bytes, 0)) % bound

    def one(self, of: Sequence[Value]) -> Value:
        return of[self.below(len(of))]


_NUMBERS = (
    0,
    1,
    -1,
    2**15,
    2**31,
    2**53,
    2**53 + 1,
    -(2**53),
    2**62,
    2**62 + 1,
    -(2**62),
    2**63 - 1,
    -(2**63),
)
_TEXTS = (
    "",
    "x",
    "ok",
    "w1",
    "<script>forged()</script>",
    "[red]x",
    "\x1b[31m\n\0y",
    "../../x",
    "a" * 20_000,
    "é\u2028",
)
_TYPES = (pa.int8(), pa.int32(), pa.int64(), pa.uint64(), pa.float64(), pa.string(), pa.binary(), pa.bool_(),
          pa.null(), pa.list_(pa.int64()), pa.dictionary(pa.int32(), pa.string()), pa.timestamp("ns"),
          pa.struct([("a", pa.int64())]))  # fmt: skip


def forged_table(table: pa.Table, choices: Choices) -> pa.Table:
    """The table with a change; as it is where the change cannot be made."""
    place = choices.below(table.num_columns)
    name, column = table.column_names[place], table.column(place)
    type_, rows = column.type, len(table)
    with suppress(pa.ArrowException, OverflowError, ValueError, TypeError):
        match choices.below(10):
            case 0:
                return table.remove_column(place)
            case 1:
                return table.rename_columns(
                    [*table.column_names[:place], choices.one(_TEXTS), *table.column_names[place + 1 :]]
                )
            case 2:
                return table.append_column(choices.one((name, "new")), column)
            case 3:
                return table.set_column(place, pa.field(name, type_), pa.nulls(rows, type_))
            case 4:
                other = choices.one(_TYPES)
                return table.set_column(place, name, pa.nulls(rows, other))
            case 5:
                return table.set_column(place, name, column.cast(choices.one(_TYPES)))
            case 6 if pa.types.is_integer(type_):
                return table.set_column(place, name, _some(column, choices, choices.one(_NUMBERS)))
            case 7:
                return table.take(pa.array([choices.below(max(rows, 1))] * choices.one((0, 1, 3_000))))
            case 8:
                return pa.concat_tables([table] * choices.one((2, 30)))
    return table.set_column(place, name, _of_type(type_, rows, column, choices))


def _some(column: pa.ChunkedArray, choices: Choices, value: Any) -> pa.Array:
    """The column with a value in one row, or in all."""
    values = column.to_pylist()
    if choices.below(2) and values:
        values[choices.below(len(values))] = value
        return pa.array(values, column.type)
    return pa.array([value] * len(values), column.type)


def _of_type(type_: pa.DataType, rows: int, column: pa.ChunkedArray, choices: Choices) -> Any:
    if pa.types.is_dictionary(type_) or pa.types.is_string(type_):
        return _some(column.cast(pa.string()), choices, choices.one(_TEXTS)).cast(type_)
    if pa.types.is_list(type_):
        lists = [[choices.one(_NUMBERS)] * choices.one((0, 1, 3, 5_000))] * rows
        return pa.array(lists, type_)
    if pa.types.is_floating(type_):
        return _some(column, choices, choices.one((float("nan"), float("inf"), -1.0, 1e308, 5e-324)))
    return column


def forged_parquet(path: Path, choices: Choices) -> None:
    """Forge a Parquet file: its table, or its bytes."""
    if choices.below(3):
        table = pq.read_table(path)
        for _ in range(choices.one((1, 1, 2, 3))):
            table = forged_table(table, choices)
        with suppress(pa.ArrowException, ValueError):  # of what the format cannot hold
            sink = io.BytesIO()
            pq.write_table(table, sink, row_group_size=choices.one((1_000_000, 7)), compression="zstd")
            path.write_bytes(sink.getvalue())
            return
    forged_bytes(path, choices)


def forged_bytes(path: Path, choices: Choices, mend: Callable[[bytes], bytes] = lambda data: data) -> None:
    """Change bytes of a file; ``mend`` makes checksums right again."""
    data = bytearray(path.read_bytes())
    for _ in range(choices.one((1, 1, 2, 8))):
        at = (choices.below(1 << 16) << 8 | choices.below(256)) % max(len(data), 1)
        if choices.below(2):  # the end, where the index is
            at = max(0, len(data) - choices.below(4_096))
        match choices.below(7):
            case 0:
                del data[at:]
            case 1:
                del data[at : at + choices.one((1, 4, 100))]
            case 2:
                data[at:at] = data[at : at + choices.one((1, 8, 500))] * choices.one((1, 3, 50))
            case 3:
                data[at : at + 4] = choices.one(
                    (b"\xff\xff\xff\x7f", b"\0\0\0\x80", bytes(4), b"PAR1", b"LLB1")
                )
            case 4:
                data[at : at + 8] = choices.one((b"\xff" * 8, b"\xff" * 7 + b"\x7f", bytes(8), b"\x80" * 8))
            case _ if at < len(data):
                data[at] ^= 1 << choices.below(8)
    path.write_bytes(mend(bytes(data)))
