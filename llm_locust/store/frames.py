"""Frames: closed batches of records as bytes on their way.

A *frame* is one closed batch of one worker as bytes that can be appended to a file unread:

    magic ``LLB1`` | uint32 header length | uint32 payload length | uint32 CRC-32 | header | payload

(little endian). The header is JSON (:class:`FrameHeader`), the payload one Arrow IPC stream;
the CRC covers both. A file of frames that was cut or damaged anywhere still gives every frame
that is whole, before the damage and behind it.
"""

import os
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow.compute as pc

from llm_locust.core.batch import BatchError, RecordBatch
from llm_locust.core.record import MOMENTS, Outcome, TokenSource
from llm_locust.wire.payload import DECODE_ERRORS

_MAGIC = b"LLB1"
_PREFIX = struct.Struct("<4sIII")

#: Headers take some 200 bytes. What says that it has a longer one is no frame: its length need not be read.
_LONGEST_HEADER = 1 << 16

#: Of a name in an error text, which may come from anywhere.
_SHOWN_CHARS = 80

#: A time behind this, in the year 2200 or so, is none; what is added to it does not overflow.
_LAST_NS = 1 << 62

#: Numbers of things, which are not negative; no run has more of anything than a float64 counts.
_COUNTS = (
    *("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "hidden_tokens"),
    *("asked_input_tokens", "asked_output_tokens", "output_chars", "bytes_received"),
    *("reads", "coalesced_reads", "retries", "turn"),
)
_MOST = 1 << 53

_READ_BYTES = 1 << 20
_SEARCH_BYTES = 1 << 16


# Without gc: an index may hold millions of them.
class FrameHeader(msgspec.Struct, frozen=True, gc=False):
    """Whose batch this is: the identity is (run, worker, seq).

    ``finished`` and ``in_flight`` are the worker's counts when the batch was closed: requests that
    have a record so far, this batch's included, and requests under way. ``clock_offset_ns`` is what
    has to be added to this worker's clock to get the run's time, known to ``clock_error_ns``; None
    where it was not measured yet.
    """

    run: str
    worker: str
    seq: int
    rows: int
    finished: int | None = None
    in_flight: int | None = None
    clock_offset_ns: int | None = None
    clock_error_ns: int | None = None


@dataclass(frozen=True, slots=True)
class FrameRef:
    """Where a whole frame's payload lies in its file."""

    header: FrameHeader
    path: Path
    offset: int
    length: int

    def batch(self) -> RecordBatch:
        """The batch, read anew at each call.

        Raises:
            BatchError: the payload is no batch of these rows, though it is whole; the text names frame and
                file.
            OSError: the file cannot be read.
        """
        with self.path.open("rb") as file:
            file.seek(self.offset)
            payload = file.read(self.length)
        try:
            batch = RecordBatch.from_bytes(payload)
            _check_rows(batch, self.header)
            return batch
        except BatchError as e:
            whose = f"batch {self.header.seq} of worker {self.header.worker[:_SHOWN_CHARS]}"
            raise BatchError(f"{whose} in {str(self.path)!r} cannot be read: {e}") from e


@dataclass(frozen=True, slots=True)
class Tear:
    """Bytes [``start``, ``end``) of a file that are no frame: cut, damaged or foreign."""

    path: Path
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class BadFrame:
    """A whole frame that holds no batch that can be used, and why."""

    frame: FrameRef
    why: str


@dataclass(frozen=True, slots=True)
class FrameIndex:
    """The whole frames of a file and what lies between them, both in file order."""

    frames: tuple[FrameRef, ...] = ()
    tears: tuple[Tear, ...] = ()


def encode_frame(header: FrameHeader, payload: bytes) -> bytes:
    head = msgspec.json.encode(header)
    crc = zlib.crc32(payload, zlib.crc32(head))
    return b"".join((_PREFIX.pack(_MAGIC, len(head), len(payload), crc), head, payload))


def frame_header(frame: bytes) -> FrameHeader | None:
    """The header of bytes that are one whole frame and nothing else; None for other bytes."""
    if len(frame) < _PREFIX.size:
        return None
    magic, head_length, length, crc = _PREFIX.unpack_from(frame)
    if magic != _MAGIC or len(frame) != _PREFIX.size + head_length + length:
        return None
    if zlib.crc32(memoryview(frame)[_PREFIX.size :]) != crc:
        return None
    try:
        return msgspec.json.decode(frame[_PREFIX.size : _PREFIX.size + head_length], type=FrameHeader)
    except DECODE_ERRORS:
        return None


#: What one call of writev takes at most (IOV_MAX of Linux and macOS).
_BUFFERS_A_WRITE = 1024


class FrameLog:
    """A new file that frames are appended to, each call's whole or not at all.

    Raises:
        OSError: the file cannot be made, or is there already.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("xb", buffering=0)
        self._size = 0  # of what is whole; bytes behind it are left of a write that failed

    def append(self, *frames: bytes) -> None:
        """Write frames behind the last whole ones, over what a failed write has left; without a copy.

        Raises:
            OSError: they could not be written.
        """
        rest, at = [memoryview(frame) for frame in frames if frame], self._size
        while rest:
            done = os.pwritev(self._file.fileno(), rest[:_BUFFERS_A_WRITE], at)
            rest, at = _behind(rest, done), at + done
        self._size = at

    def close(self) -> None:
        """Cut off what a failed write has left and close the file (raises OSError)."""
        with self._file:
            self._file.truncate(self._size)


def _behind(buffers: list[memoryview], done: int) -> list[memoryview]:
    """What is left of the buffers when their first ``done`` bytes are written."""
    whole = 0
    while whole < len(buffers) and len(buffers[whole]) <= done:
        done -= len(buffers[whole])
        whole += 1
    rest = buffers[whole:]
    return [rest[0][done:], *rest[1:]] if done else rest


def index_frames(path: Path, start: int = 0) -> FrameIndex:
    """Every whole frame of the file from the byte ``start`` on, behind damaged bytes too.

    Where no whole frame begins, the next one is looked for: the next magic at which the lengths
    fit into the file, the header is one and the CRC is right. No more than 1 MiB is in memory.

    Raises:
        OSError: the file cannot be read.
    """
    frames: list[FrameRef] = []
    tears: list[Tear] = []
    at = whole_until = start
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while at < size:
            frame = _frame_at(file, path, at, size)
            if frame is None:
                at = _next_magic(file, at + 1, size)
                continue
            if at > whole_until:
                tears.append(Tear(path, whole_until, at))
            frames.append(frame)
            at = whole_until = frame.offset + frame.length
    if size > whole_until:
        tears.append(Tear(path, whole_until, size))
    return FrameIndex(tuple(frames), tuple(tears))


def _frame_at(file: BinaryIO, path: Path, at: int, size: int) -> FrameRef | None:
    file.seek(at)
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        return None
    magic, head_length, length, crc = _PREFIX.unpack(prefix)
    offset = at + _PREFIX.size + head_length
    if magic != _MAGIC or head_length > _LONGEST_HEADER or offset + length > size:
        return None
    head = file.read(head_length)
    try:
        header = msgspec.json.decode(head, type=FrameHeader)
    except DECODE_ERRORS:
        return None
    if _crc_of(file, length, zlib.crc32(head)) != crc:
        return None
    # Few different ones: the frames of an index share them.
    run, worker = sys.intern(header.run), sys.intern(header.worker)
    return FrameRef(msgspec.structs.replace(header, run=run, worker=worker), path, offset, length)


def _crc_of(file: BinaryIO, length: int, crc: int) -> int:
    """The CRC of the next ``length`` bytes, carried on from that of the bytes before."""
    while length > 0 and (data := file.read(min(length, _READ_BYTES))):
        crc = zlib.crc32(data, crc)
        length -= len(data)
    return crc


def _next_magic(file: BinaryIO, at: int, size: int) -> int:
    """Where the next magic begins from ``at`` on; without any, ``size``."""
    while at < size:
        file.seek(at)
        data = file.read(_SEARCH_BYTES)
        place = data.find(_MAGIC)
        if place >= 0:
            return at + place
        if len(data) < _SEARCH_BYTES:
            return size
        at += len(data) - len(_MAGIC) + 1  # it may begin in the last bytes
    return size


def unique_frames(frames: Iterable[FrameRef]) -> list[FrameRef]:
    """One frame for each (worker, seq), ordered by it: the same list in whatever order they came."""
    by_identity = {(f.header.worker, f.header.seq): f for f in frames}
    return [by_identity[key] for key in sorted(by_identity)]


def axis_offsets_ns(headers: Sequence[FrameHeader]) -> list[int]:
    """What to add to the times of each frame to place them on the run's axis.

    An offset that is within its own error is no offset: clocks that may be the same are taken for the
    same, so that on one machine records stay exactly as they were measured. Before a worker's first
    measurement its first one holds, for its clock was the same then; without any it is 0.

    Args:
        headers: ordered by (worker, seq), as those of :func:`unique_frames`.
    """
    offsets: list[int] = []
    for _, group in groupby(headers, key=lambda header: header.worker):
        measured = [_beyond_error_ns(header) for header in group]
        offset_ns = next((known for known in measured if known is not None), 0)
        for known in measured:
            offset_ns = offset_ns if known is None else known
            offsets.append(offset_ns)
    return offsets


def _beyond_error_ns(header: FrameHeader) -> int | None:
    if header.clock_offset_ns is None:
        return None
    return header.clock_offset_ns if abs(header.clock_offset_ns) > (header.clock_error_ns or 0) else 0


def placed_batches(
    frames: Sequence[FrameRef], bad: list[BadFrame] | None = None
) -> Iterator[tuple[FrameHeader, RecordBatch]]:
    """Each frame's header and batch, its times placed on the run's axis; read one by one.

    Args:
        frames: ordered by (worker, seq), as :func:`unique_frames` gives them.
        bad: gets those that hold no batch, which are left out.

    Raises:
        BatchError: a frame holds no batch, and there is no ``bad``.
    """
    for frame, offset_ns in zip(frames, axis_offsets_ns([f.header for f in frames]), strict=True):
        try:
            batch = frame.batch().shifted(offset_ns)
        except BatchError as e:
            if bad is None:
                raise
            bad.append(BadFrame(frame, str(e)))
        else:
            yield frame.header, batch


def without(frames: Sequence[FrameRef], bad: Sequence[BadFrame]) -> list[FrameRef]:
    """The frames that are not among the bad ones, in their order."""
    left_out = {id(each.frame) for each in bad}
    return [frame for frame in frames if id(frame) not in left_out]


def _check_rows(batch: RecordBatch, header: FrameHeader) -> None:
    """See that the batch is what its frame says, and that every row can be judged (raises BatchError)."""
    if len(batch) != header.rows:
        raise BatchError(f"it has {len(batch)} records, its frame says {header.rows}")
    for column, known in (("outcome", Outcome), ("token_source", TokenSource)):
        unknown = set(batch.labels(column).names) - set(known)
        if unknown:
            raise BatchError(f"{min(unknown)[:_SHOWN_CHARS]!r} is no {column.replace('_', ' ')}")
    _check_range(batch, MOMENTS, _LAST_NS, "times that no clock shows")
    _check_range(batch, _COUNTS, _MOST, "numbers that no count has")


def _check_range(batch: RecordBatch, columns: Iterable[str], most: int, what: str) -> None:
    for column in columns:
        span = pc.min_max(batch.table.column(column))
        if span["min"].is_valid and not 0 <= span["min"].as_py() <= span["max"].as_py() <= most:
            raise BatchError(f"{column} has {what}")
