"""Frames: closed batches of records as bytes on their way.

A *frame* is one closed batch of one worker as bytes that can be appended to a file unread:

    magic ``LLB1`` | uint32 header length | uint32 payload length | uint32 CRC-32 | header | payload

(little endian). The header is JSON (:class:`FrameHeader`), the payload one Arrow IPC stream;
the CRC covers both. A file of frames that was cut anywhere still gives every whole frame before
the cut.
"""

import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from llm_locust.batch import RecordBatch

_MAGIC = b"LLB1"
_PREFIX = struct.Struct("<4sIII")


class FrameHeader(msgspec.Struct, frozen=True):
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
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return RecordBatch.from_bytes(file.read(self.length))


@dataclass(frozen=True, slots=True)
class FrameIndex:
    """The whole frames of a file, and where its first torn or foreign byte is (None: nowhere)."""

    frames: tuple[FrameRef, ...]
    torn_at: int | None


def encode_frame(header: FrameHeader, payload: bytes) -> bytes:
    head = msgspec.json.encode(header)
    crc = zlib.crc32(payload, zlib.crc32(head))
    return b"".join((_PREFIX.pack(_MAGIC, len(head), len(payload), crc), head, payload))


class FrameLog:
    """A new file that frames are appended to, each call's whole or not at all.

    Raises:
        OSError: the file cannot be made, or is there already.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("xb", buffering=0)
        self._size = 0  # of what is whole; bytes behind it are left of a write that failed

    def append(self, frames: bytes) -> None:
        """Write frames behind the last whole ones, over what a failed write has left.

        Raises:
            OSError: they could not be written.
        """
        view, at = memoryview(frames), self._size
        while view:
            done = os.pwrite(self._file.fileno(), view, at)
            view, at = view[done:], at + done
        self._size = at

    def close(self) -> None:
        """Cut off what a failed write has left and close the file (raises OSError)."""
        with self._file:
            self._file.truncate(self._size)


def index_frames(path: Path) -> FrameIndex:
    """Every whole frame of the file, in file order; it stops at the first one that is not whole."""
    frames: list[FrameRef] = []
    size = path.stat().st_size
    with path.open("rb") as file:
        at = 0
        while at < size:
            ref = _read_frame(file, path, at, size)
            if ref is None:
                return FrameIndex(tuple(frames), at)
            frames.append(ref)
            at = ref.offset + ref.length
    return FrameIndex(tuple(frames), None)


def _read_frame(file: BinaryIO, path: Path, at: int, size: int) -> FrameRef | None:
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        return None
    magic, head_length, length, crc = _PREFIX.unpack(prefix)
    if magic != _MAGIC or at + _PREFIX.size + head_length + length > size:
        return None
    head, payload = file.read(head_length), file.read(length)
    if zlib.crc32(payload, zlib.crc32(head)) != crc:
        return None
    try:
        header = msgspec.json.decode(head, type=FrameHeader)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return FrameRef(header, path, at + _PREFIX.size + head_length, length)


def unique_frames(frames: Iterable[FrameRef]) -> list[FrameRef]:
    """One frame for each (worker, seq), ordered by it: the same list in whatever order they came."""
    by_identity = {(f.header.worker, f.header.seq): f for f in frames}
    return [by_identity[key] for key in sorted(by_identity)]
