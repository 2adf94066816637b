"""Arrow IPC streams of unknown origin, checked before use.

Arrow trusts a stream: a buffer declares its own unpacked size, and an index, an offset or a length that
points outside of its data is detected only by a full validation, or by a crash. So the unpacked sizes are
added up first, and each table is validated before anything uses it.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

import pyarrow as pa

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
