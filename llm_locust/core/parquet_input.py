"""Parquet files of unknown origin, read within bounds: of what their pages unpack to."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from llm_locust.core.files import FileBounds, FileReading, InputError, open_plain

# --------------------
# What the pages of a Parquet file unpack to, read from the pages' own headers.
#
# A Parquet file of 30 kB can hold a text of gigabytes, or as many equal numbers. The figures at its end are
# only what its writer says; Arrow allocates what the header of each page says. So these are added up before
# a row group is decoded. A header is a Thrift struct in the compact protocol (``parquet.thrift`` of the
# format).
# --------------------


#: Most unpacked bytes of the pages of a row group, all columns together. Those of a run have up to 100 MiB.
MOST_GROUP_BYTES = 256 << 20

#: Most unpacked bytes of one page: most writers begin a new one after 1 MiB.
MOST_PAGE_BYTES = 64 << 20

#: Most bytes of a page's header: a few numbers, and the smallest and largest value.
_HEADER_BYTES = 1 << 16

#: Most structs, one in another, of a page's header; the format has three.
_MOST_DEPTH = 8

# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)

# Fields of a page's header, and that of the number of values in those of its kinds.
_UNPACKED, _PACKED = 2, 3
_KINDS = (5, 7, 8)  # data, dictionary, data of the second version
_DICTIONARY = 7
_VALUES = 1


class PagesError(ValueError):
    """Pages that are not what a file can have; the text says why."""


@dataclass(frozen=True, slots=True)
class PageSize:
    """Its bytes in the file with the header, and unpacked, and its values: 0 for a dictionary."""

    length: int
    unpacked: int
    values: int


def check_group(file: BinaryIO, group: pq.RowGroupMetaData, most_values: int) -> None:
    """Check before it is decoded what a row group unpacks to.

    Args:
        most_values: of one column, which is more than its rows where it has lists.

    Raises:
        PagesError: it is out of the bounds, or a page has no valid header.
        OSError: the file cannot be read.
    """
    total = 0
    for number in range(group.num_columns):
        column = group.column(number)
        name = column.path_in_schema[:80]
        if column.num_values > most_values:
            raise PagesError(f"{name} has {column.num_values:,} values in {group.num_rows:,} rows")
        values = 0
        for page in _pages(file, column):
            total += page.unpacked
            values += page.values
            if page.unpacked > MOST_PAGE_BYTES or total > MOST_GROUP_BYTES:
                raise PagesError(
                    f"the pages of a row group unpack to {total:,} bytes at least, one of {name} to "
                    f"{page.unpacked:,}: at most {MOST_GROUP_BYTES:,} and {MOST_PAGE_BYTES:,} are allowed"
                )
            if values > column.num_values:
                raise PagesError(f"{name} has {values:,} values, its file says {column.num_values:,}")


def _pages(file: BinaryIO, column: pq.ColumnChunkMetaData) -> Iterator[PageSize]:
    """The pages that are read of a column: up to its last value."""
    at = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < at:
        at = column.dictionary_page_offset
    end = at + column.total_compressed_size
    values = 0
    while at < end and values < column.num_values:
        file.seek(at)
        page = read_header(file.read(_HEADER_BYTES))
        yield page
        at += page.length
        values += page.values


def read_header(data: bytes) -> PageSize:
    """The page whose header begins with these bytes (raises PagesError)."""
    header = _Struct(data)
    try:
        header.read()
    except IndexError:
        raise PagesError("a page has no valid header") from None
    found = header.numbers
    unpacked, packed = found.get((_UNPACKED,), -1), found.get((_PACKED,), -1)
    values = next((found[kind, _VALUES] for kind in _KINDS if (kind, _VALUES) in found), 0)
    if unpacked < 0 or packed < 0 or values < 0:
        raise PagesError("a page has no valid header")
    return PageSize(header.end + packed, unpacked, 0 if (_DICTIONARY, _VALUES) in found else values)


class _Struct:
    """A struct in the compact protocol.

    Attributes:
        numbers: its whole numbers by their place: the number of the field, after those of the fields that
            it is in.
        end: where it ends in the bytes, once it has been read.
    """

    def __init__(self, data: bytes) -> None:
        self.numbers: dict[tuple[int, ...], int] = {}
        self.end = 0
        self._data = data

    def read(self, place: tuple[int, ...] = ()) -> None:
        """Read the fields of the struct at this place (raises IndexError: they do not end, or are none)."""
        if len(place) > _MOST_DEPTH:
            raise IndexError(place)
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._number()
            if head & 15 not in (_TRUE, _FALSE):  # their value is in the head
                self._value(head & 15, (*place, field))

    def _value(self, kind: int, place: tuple[int, ...]) -> None:
        match kind:
            case _ if kind in (_TRUE, _FALSE, _BYTE):
                self._skip(1)
            case _ if kind in (_I16, _I32, _I64):
                self.numbers[place] = self._number()
            case _ if kind == _DOUBLE:
                self._skip(8)
            case _ if kind == _BINARY:
                self._skip(self._size())
            case _ if kind in (_LIST, _SET):
                head = self._byte()
                size = head >> 4 if head >> 4 < 15 else self._size()
                self._values([head & 15], size, place)
            case _ if kind == _MAP:
                if size := self._size():
                    kinds = self._byte()
                    self._values([kinds >> 4, kinds & 15], size, place)
            case _ if kind == _STRUCT:
                self.read(place)
            case _:
                raise IndexError(kind)

    def _values(self, kinds: list[int], size: int, place: tuple[int, ...]) -> None:
        for _ in range(size):  # each takes a byte at least
            for kind in kinds:
                self._value(kind, (*place, -1))

    def _byte(self) -> int:
        self._skip(1)
        return self._data[self.end - 1]

    def _skip(self, count: int) -> None:
        self.end += count
        if self.end > len(self._data):
            raise IndexError(self.end)

    def _size(self) -> int:
        """An unsigned number of seven bits a byte, the lowest first."""
        value = 0
        for shift in range(0, 64, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise IndexError(value)

    def _number(self) -> int:
        """A signed number, of which the lowest bit is the sign."""
        value = self._size()
        return value >> 1 ^ -(value & 1)


# --- Parquet files that a person gives, read within bounds


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
