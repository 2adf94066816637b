"""Arrow and Parquet: the schema of records, arrays from and to numpy, streams and files of unknown origin."""

import struct
from array import array
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from llm_locust.core.files import FileBounds, FileReading, InputError, open_plain
from llm_locust.core.record import MAX_TEXT_CHARS

# --- The columns of a batch of requests: names, types, and which may be null


SCHEMA_VERSION = 1

_TEXT = pa.dictionary(pa.int32(), pa.string())

#: One row per request, with the fields of :class:`~llm_locust.core.record.RequestRecord` (``class`` is
#: ``slo_class``) and ``worker``.
SCHEMA = pa.schema(
    [
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("worker", _TEXT, nullable=False),
        pa.field("name", _TEXT, nullable=False),
        pa.field("class", _TEXT, nullable=False),
        pa.field("endpoint", _TEXT, nullable=False),
        pa.field("model", _TEXT, nullable=False),
        pa.field("streamed", pa.bool_(), nullable=False),
        pa.field("user", pa.int64()),
        pa.field("outcome", _TEXT, nullable=False),
        pa.field("status", pa.int16()),
        pa.field("error", _TEXT),
        pa.field("finish_reason", _TEXT),
        pa.field("scheduled_ns", pa.int64(), nullable=False),
        pa.field("started_ns", pa.int64(), nullable=False),
        pa.field("connected_ns", pa.int64()),
        pa.field("sent_ns", pa.int64()),
        pa.field("headers_ns", pa.int64()),
        pa.field("ended_ns", pa.int64(), nullable=False),
        pa.field("arrivals_ns", pa.list_(pa.field("item", pa.int64(), nullable=False)), nullable=False),
        pa.field("first_answer_ns", pa.int64()),
        pa.field("input_tokens", pa.int64()),
        pa.field("cached_tokens", pa.int64()),
        pa.field("output_tokens", pa.int64()),
        pa.field("reasoning_tokens", pa.int64()),
        pa.field("token_source", _TEXT, nullable=False),
        pa.field("asked_input_tokens", pa.int64()),
        pa.field("asked_output_tokens", pa.int64()),
        pa.field("output_chars", pa.int64()),
        pa.field("replica", _TEXT),
        pa.field("peer", _TEXT),
        pa.field("reused", pa.bool_(), nullable=False),
        pa.field("retries", pa.int16(), nullable=False),
        pa.field("kernel_stamps", pa.bool_(), nullable=False),
        pa.field("client_lag_ns", pa.int64()),
        pa.field("clock_step_ns", pa.int64()),
        pa.field("rtt_ns", pa.int64()),
        pa.field("reads", pa.int32(), nullable=False),
        pa.field("coalesced_reads", pa.int32(), nullable=False),
        pa.field("bytes_received", pa.int64(), nullable=False),
        pa.field("session", pa.string()),
        pa.field("turn", pa.int32()),
        pa.field("blocked_ns", pa.int64()),
        pa.field("abandoned", pa.bool_()),
        pa.field("rejected_by", _TEXT),
        pa.field("correct", pa.bool_()),
        pa.field("prompt_id", _TEXT),
        pa.field("answer_hash", pa.int64()),
        *(pa.field(n, pa.int64()) for n in ("first_chunk_ns", "finish_ns", "last_chunk_ns", "hidden_tokens")),
        pa.field("stage", pa.int32()),
        pa.field("arm", _TEXT),
        pa.field("local_port", pa.int32()),
        pa.field("inputs", pa.int64()),
        *(pa.field(name, _TEXT) for name in ("session_header", "answered_model")),
        *(pa.field(name, pa.int64()) for name in ("images", "pixels", "opening_tokens", "came_tokens")),
        *(pa.field(name, _TEXT) for name in ("count_fault", "unread", "doubt")),
        pa.field("end_lag_ns", pa.int64()),
        pa.field("left_open", pa.bool_()),
    ],
    metadata={b"llm_locust.schema": str(SCHEMA_VERSION).encode()},
)

#: Columns that the first files of this schema did not have.
ADDED = frozenset(SCHEMA.names[SCHEMA.names.index("session") :])


# --------------------
# Conversion between Python values, numpy arrays and Arrow arrays, through their buffers.
#
# ``pa.array``, ``to_numpy`` and, in older versions of pyarrow, ``to_pandas_dtype`` import pandas wherever
# it is installed: half a second and 54 MiB in each worker, which does not need it.
# --------------------


#: Type code of :mod:`array` for each type of numbers. An integer one refuses floats and values out of range.
_CODES = {pa.int16(): "h", pa.int32(): "i", pa.int64(): "q", pa.float64(): "d"}

_DTYPES = {
    pa.bool_(): np.bool_,
    pa.float64(): np.float64,
    **{getattr(pa, name)(): getattr(np, name) for name in ("int8", "int16", "int32", "int64")},
    **{getattr(pa, name)(): getattr(np, name) for name in ("uint8", "uint16", "uint32", "uint64")},
}


def from_values(
    values: Sequence[Any], type_: pa.DataType, most_chars: int | None = MAX_TEXT_CHARS
) -> pa.Array:
    """Make an array of numbers, booleans or texts, of which long ones are cut off; None is null.

    Unlike ``pyarrow.array`` it does not import pandas.

    Raises:
        OverflowError, TypeError: the type cannot hold a value.
    """
    nulls = values.count(None)
    if nulls == len(values):
        return pa.nulls(nulls, type_)
    valid = _bits([v is not None for v in values]) if nulls else None
    if type_ == pa.string():
        texts = [b"" if v is None else v[:most_chars].encode() for v in values]
        ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)
        content = [pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
    elif type_ == pa.bool_():
        content = [_bits(values)]
    else:
        numbers = [0 if v is None else v for v in values] if nulls else values
        content = [pa.py_buffer(array(_CODES[type_], numbers))]
    return pa.Array.from_buffers(type_, len(values), [valid, *content], nulls)


def from_labels(texts: Sequence[str | None]) -> pa.Array:
    """Make an array of texts as codes; each text is there once, in the order of the first occurrences.

    It takes half the time of Arrow's ``dictionary_encode`` of the texts.
    """
    code_of: dict[str, int] = {}
    if any(text is not None and len(text) > MAX_TEXT_CHARS for text in {*texts}):
        texts = [text and text[:MAX_TEXT_CHARS] for text in texts]
    codes = [None if text is None else code_of.setdefault(text, len(code_of)) for text in texts]
    return pa.DictionaryArray.from_arrays(
        from_values(codes, pa.int32()), from_values([*code_of], pa.string())
    )


def from_lists(lists: Sequence[NDArray[np.int64] | None], type_: pa.ListType) -> pa.Array:
    """Make an array of lists of integers; None is null."""
    lengths = [0 if own is None else len(own) for own in lists]
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    values = np.concatenate([np.empty(0, np.int64), *(own for own in lists if own is not None)])
    known = [own is not None for own in lists]
    child = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
    valid = None if all(known) else _bits(known)
    return pa.Array.from_buffers(
        type_, len(lists), [valid, pa.py_buffer(ends)], len(lists) - sum(known), children=[child]
    )


def from_numpy(values: NDArray[Any]) -> pa.Array:
    """Make an array of booleans or of 64-bit integers, without nulls."""
    if values.dtype == np.bool_:
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])
    whole = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(whole), [None, pa.py_buffer(whole)])


def values_of(column: pa.Array) -> NDArray[Any]:
    """Numbers or booleans of an array; undefined where it is null."""
    buffer, start, stop = column.buffers()[1], column.offset, column.offset + len(column)
    dtype = _DTYPES.get(column.type) or column.type.to_pandas_dtype()
    if buffer is None or start == stop:
        return np.empty(0, dtype=dtype)
    if pa.types.is_boolean(column.type):
        return _truths(buffer, start, stop)
    return np.frombuffer(buffer, dtype=dtype)[start:stop]


def known_of(column: pa.Array) -> NDArray[np.bool_] | None:
    """Mask of the values that are not null; None if there is no null."""
    if not column.null_count:
        return None
    return _truths(column.buffers()[0], column.offset, column.offset + len(column))


def _bits(truths: Sequence[bool | None] | NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.asarray(truths, dtype=np.bool_), bitorder="little"))


def _truths(buffer: pa.Buffer, start: int, stop: int) -> NDArray[np.bool_]:
    first = start // 8
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8)[first : (stop + 7) // 8], bitorder="little")
    return bits[start - 8 * first : stop - 8 * first].view(np.bool_)


# --------------------
# Arrow IPC streams of unknown origin, checked before use.
#
# Arrow trusts a stream: a buffer declares its own unpacked size, and an index, an offset or a length that
# points outside of its data is detected only by a full validation, or by a crash. So the unpacked sizes are
# added up first, and each table is validated before anything uses it.
# --------------------


#: Most unpacked bytes of one stream. A worker's batch of 3 s has a few MB.
MAX_UNPACKED_BYTES = 256 << 20

# Field numbers of the flatbuffers tables in Arrow's format/Message.fbs.
_HEADER_TYPE, _HEADER = 1, 2
_DICTIONARY_DATA = 1
_BUFFERS, _COMPRESSION = 2, 3
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3

# As a writer does (RecordBatch.to_bytes): waiting for Arrow's threads takes several times as long.
_IN_THIS_THREAD = pa.ipc.IpcReadOptions(use_threads=False)

_DAMAGE = (pa.ArrowException, OSError, EOFError, LookupError, ValueError, struct.error, MemoryError)

_NOT_PACKED = -1  # in place of the unpacked length, for a buffer that is stored unpacked


class StreamError(ValueError):
    """Bytes that are not a usable stream; the text says why."""


def read_stream(data: bytes, schema: pa.Schema, max_unpacked_bytes: int = MAX_UNPACKED_BYTES) -> pa.Table:
    """Read a whole stream as a table whose values are all valid.

    Args:
        schema: columns of these names must have these types, and no nulls in fields that are not nullable;
            other columns are not checked.

    Raises:
        StreamError: not a whole stream, too large when unpacked, or damaged inside.
    """
    try:
        size = sum(_unpacked_bytes(message) for message in _messages(data))
        if size > max_unpacked_bytes:
            raise StreamError(f"it unpacks to {size:,} bytes, allowed is {max_unpacked_bytes:,}")
        with pa.ipc.open_stream(data, options=_IN_THIS_THREAD) as reader:
            _check_types(reader.schema, schema)
            table = reader.read_all()
        table.validate(full=True)
        _check_nulls(table, schema)
    except StreamError:
        raise
    except _DAMAGE as e:
        raise StreamError(f"not a whole Arrow stream: {next(iter(str(e).splitlines()), repr(e))}") from e
    return table


def whole_batches(file: BinaryIO) -> Iterator[pa.RecordBatch]:
    """The batches of a file that was written as a stream, up to one that is cut off, damaged or too large
    when unpacked. Their values are not checked."""
    whole = -1  # the first message is the schema
    with suppress(*_DAMAGE):
        for message in _messages(file):
            if _unpacked_bytes(message) > MAX_UNPACKED_BYTES:
                break
            whole += 1
    file.seek(0)
    with suppress(StopIteration, *_DAMAGE), pa.ipc.open_stream(file, options=_IN_THIS_THREAD) as reader:
        for _ in range(whole):
            yield reader.read_next_batch()


def _messages(data: bytes | BinaryIO) -> Iterator[pa.ipc.Message]:
    reader = pa.ipc.MessageReader.open_stream(data)
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _unpacked_bytes(message: pa.ipc.Message) -> int:
    """Sum of the unpacked sizes that the buffers of a message declare."""
    flat = bytes(message.metadata)
    root = _u32(flat, 0)
    kind = _field(flat, root, _HEADER_TYPE)
    header = _field(flat, root, _HEADER)
    if kind is None or header is None or flat[kind] not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return 0
    batch = header + _u32(flat, header)
    if flat[kind] == _DICTIONARY_BATCH:
        data = _field(flat, batch, _DICTIONARY_DATA)
        if data is None:
            return 0
        batch = data + _u32(flat, data)
    buffers = _field(flat, batch, _BUFFERS)
    if buffers is None:
        return 0
    packed = _field(flat, batch, _COMPRESSION) is not None
    return sum(_buffer_bytes(message.body, *place, packed=packed) for place in _places(flat, buffers))


def _places(flat: bytes, field: int) -> Iterator[tuple[int, int]]:
    """Offset and length of each buffer in the body."""
    vector = field + _u32(flat, field)
    for number in range(_u32(flat, vector)):
        yield struct.unpack_from("<qq", flat, vector + 4 + 16 * number)


def _buffer_bytes(body: pa.Buffer, offset: int, length: int, *, packed: bool) -> int:
    if length == 0:
        return 0
    if not 0 <= offset <= offset + length <= body.size:
        raise StreamError(f"a buffer of {length} bytes at {offset} does not lie in its {body.size} bytes")
    if not packed:
        return length
    if length < 8:
        raise StreamError(f"a packed buffer of {length} bytes does not declare its unpacked size")
    unpacked = int.from_bytes(bytes(body[offset : offset + 8]), "little", signed=True)
    if unpacked < _NOT_PACKED:
        raise StreamError(f"a packed buffer declares {unpacked} unpacked bytes")
    return length - 8 if unpacked == _NOT_PACKED else unpacked


def _field(flat: bytes, table: int, number: int) -> int | None:
    """Position of a field in a flatbuffers table; None if the table does not have it."""
    vtable = table - struct.unpack_from("<i", flat, table)[0]
    if vtable < 0:  # pragma: no cover - Arrow verifies the metadata before it gives a message
        raise StreamError("the metadata of a message points outside of itself")
    entry = 4 + 2 * number
    if entry + 2 > struct.unpack_from("<H", flat, vtable)[0]:
        return None
    (offset,) = struct.unpack_from("<H", flat, vtable + entry)
    return table + offset if offset else None


def _u32(flat: bytes, at: int) -> int:
    (value,) = struct.unpack_from("<I", flat, at)
    return int(value)


def _check_types(found: pa.Schema, schema: pa.Schema) -> None:
    if found.equals(schema):
        return
    if len(set(found.names)) != len(found.names):
        raise StreamError("a column appears twice")
    wanted = {field.name: field.type for field in schema}
    for field in found:
        if field.type != wanted.get(field.name, field.type):
            raise StreamError(f"column {field.name!r} is of type {field.type}, not {wanted[field.name]}")


def _check_nulls(table: pa.Table, schema: pa.Schema) -> None:
    known = set(schema.names)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name not in known:
            continue
        field = schema.field(name)
        nulls = 0 if field.nullable else column.null_count
        for chunk in column.chunks:
            if pa.types.is_dictionary(field.type):
                nulls += chunk.dictionary.null_count
            elif pa.types.is_list(field.type):
                nulls += chunk.flatten().null_count
        if nulls:
            raise StreamError(f"column {name!r} has {nulls} nulls, where none is allowed")


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


def check_group(
    file: BinaryIO, group: pq.RowGroupMetaData, most_values: int, columns: Collection[str] | None = None
) -> None:
    """Check before it is decoded what a row group unpacks to.

    Args:
        most_values: of one column, which is more than its rows where it has lists.
        columns: the names of those that are decoded; None: all.

    Raises:
        PagesError: it is out of the bounds, or a page has no valid header.
        OSError: the file cannot be read.
    """
    total = 0
    for number in range(group.num_columns):
        column = group.column(number)
        if columns is not None and column.path_in_schema.partition(".")[0] not in columns:
            continue
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
def open_parquet(file: BinaryIO) -> Iterator[pq.ParquetFile]:
    """The Parquet file that is open as ``file``, which Arrow reads by its descriptor (raises ArrowException).

    A file object of Python would be read, and let go, by threads of Arrow: one that does so while the
    interpreter ends aborts the process.
    """
    with pa.OSFile(f"/dev/fd/{file.fileno()}") as native, pq.ParquetFile(native) as parquet:
        yield parquet


@contextmanager
def parquet_input(path: Path, bounds: FileBounds) -> Iterator[pq.ParquetFile]:
    """An open Parquet file whose own figures are within the bounds.

    Raises:
        InputError: it cannot be opened or read, is no Parquet file, or is out of the bounds.
    """
    try:
        with open_plain(path, bounds.name) as plain, open_parquet(plain) as file:
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
