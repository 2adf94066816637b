"""Frames: closed batches of records as bytes, for transport and for files.

A *frame* is one closed batch of one worker as bytes that can be appended to a file unread:

    magic ``LLB1`` | uint32 header length | uint32 payload length | uint32 CRC-32 | header | payload

(little endian). The header is JSON (:class:`FrameHeader`), the payload one Arrow IPC stream; the CRC covers
both. In a file of frames that was cut or damaged anywhere, every complete frame can still be read, before the
damage and after it.
"""

import os
import re
import struct
import sys
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow.compute as pc

from llm_locust.core.batch import BatchError, RecordBatch
from llm_locust.core.record import MOMENTS, Doubt, Outcome, TokenSource
from llm_locust.store.files import own_file
from llm_locust.wire.payload import DECODE_ERRORS
from llm_locust.wire.usage import CountFault

_MAGIC = b"LLB1"
_PREFIX = struct.Struct("<4sIII")

#: Longest header that is read; a normal one takes some 200 bytes.
_LONGEST_HEADER = 1 << 16

#: Most characters of a name in an error text, because it may come from anywhere.
_SHOWN_CHARS = 80

#: Latest valid time, in the year 2116; sums with it do not overflow.
_LAST_NS = 1 << 62

#: Columns of counts, which must not be negative, and which a float64 can hold.
_COUNTS = (
    *("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "hidden_tokens"),
    *("opening_tokens", "came_tokens"),
    *("asked_input_tokens", "asked_output_tokens", "output_chars", "bytes_received"),
    *("reads", "coalesced_reads", "retries", "turn", "stage", "images", "pixels"),
)
_MOST = 1 << 53

#: Most bytes of the texts of a batch: 6 kB for each of 5,000 records.
_MOST_TEXT_BYTES = 32 << 20

_READ_BYTES = 1 << 20
_SEARCH_BYTES = 1 << 16


# Without gc: an index may hold millions of them.
class FrameHeader(msgspec.Struct, frozen=True, gc=False):
    """Identity of a batch, (run, worker, seq), and its facts.

    ``finished`` and ``in_flight`` are the worker's counts when the batch was closed: requests with a record
    so far, including this batch, and requests in flight. ``clock_offset_ns`` is to be added to this worker's
    clock to get the run's time, with the error ``clock_error_ns``; None before the first measurement.
    """

    run: str
    worker: str
    seq: int
    rows: int
    finished: int | None = None
    in_flight: int | None = None
    clock_offset_ns: int | None = None
    clock_error_ns: int | None = None


_HEADER = msgspec.json.Decoder(FrameHeader)


@dataclass(frozen=True, slots=True)
class FrameRef:
    """Position of a complete frame's payload in its file."""

    header: FrameHeader
    path: Path
    offset: int
    length: int

    def batch(self) -> RecordBatch:
        """Read the batch; each call reads again.

        Raises:
            BatchError: the payload is not a batch of these rows, although it is complete; the text names
                frame and file.
            OSError: the file cannot be read.
        """
        with own_file(self.path).open("rb") as file:
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
    """Bytes [``start``, ``end``) of a file that are not a frame: cut, damaged or foreign."""

    path: Path
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class BadFrame:
    """A complete frame without a usable batch, and why."""

    frame: FrameRef
    why: str


@dataclass(frozen=True, slots=True)
class FrameIndex:
    """Complete frames of a file and the bytes between them, both in file order."""

    frames: tuple[FrameRef, ...] = ()
    tears: tuple[Tear, ...] = ()


def encode_frame(header: FrameHeader, payload: bytes) -> bytes:
    head = msgspec.json.encode(header)
    crc = zlib.crc32(payload, zlib.crc32(head))
    return b"".join((_PREFIX.pack(_MAGIC, len(head), len(payload), crc), head, payload))


def frame_header(frame: bytes) -> FrameHeader | None:
    """Header of bytes that are exactly one complete frame; None for other bytes."""
    if len(frame) < _PREFIX.size:
        return None
    magic, head_length, length, crc = _PREFIX.unpack_from(frame)
    if magic != _MAGIC or len(frame) != _PREFIX.size + head_length + length:
        return None
    if zlib.crc32(memoryview(frame)[_PREFIX.size :]) != crc:
        return None
    try:
        return _HEADER.decode(frame[_PREFIX.size : _PREFIX.size + head_length])
    except DECODE_ERRORS:
        return None


def index_frames(path: Path, start: int = 0) -> FrameIndex:
    """Index every complete frame of the file from the byte ``start`` on, also after damaged bytes.

    If no complete frame starts at a position, the next one is searched: the next magic at which the lengths
    fit into the file, the header is valid and the CRC is right. At most 1 MiB is in memory.

    Raises:
        StoreError: it is a link, or no regular file.
        OSError: the file cannot be read.
    """
    frames: list[FrameRef] = []
    tears: list[Tear] = []
    at = whole_until = start
    with own_file(path).open("rb") as file:
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
        header = _HEADER.decode(head)
    except DECODE_ERRORS:
        return None
    if _crc_of(file, length, zlib.crc32(head)) != crc:
        return None
    # There are few different ones: the frames of an index share them.
    run, worker = sys.intern(header.run), sys.intern(header.worker)
    return FrameRef(msgspec.structs.replace(header, run=run, worker=worker), path, offset, length)


def _crc_of(file: BinaryIO, length: int, crc: int) -> int:
    """CRC of the next ``length`` bytes, continued from that of the bytes before."""
    while length > 0 and (data := file.read(min(length, _READ_BYTES))):
        crc = zlib.crc32(data, crc)
        length -= len(data)
    return crc


def _next_magic(file: BinaryIO, at: int, size: int) -> int:
    """Position of the next magic from ``at`` on; ``size`` without one."""
    while at < size:
        file.seek(at)
        data = file.read(_SEARCH_BYTES)
        place = data.find(_MAGIC)
        if place >= 0:
            return at + place
        if len(data) < _SEARCH_BYTES:
            return size
        at += len(data) - len(_MAGIC) + 1  # it may start in the last bytes
    return size


def unique_frames(frames: Iterable[FrameRef]) -> list[FrameRef]:
    """One frame for each (worker, seq), sorted; the same list whatever the order given."""
    by_identity = {(f.header.worker, f.header.seq): f for f in frames}
    return [by_identity[key] for key in sorted(by_identity)]


def axis_offsets_ns(headers: Sequence[FrameHeader]) -> list[int]:
    """Offset of each frame's times to the run's axis.

    An offset smaller than its own error counts as 0: clocks that may be the same are treated as the same, so
    that on one machine records stay exactly as measured. Before a worker's first measurement its first one is
    used, because its clock was the same then; without any it is 0.

    Args:
        headers: ordered by (worker, seq), as those of :func:`unique_frames`.
    """
    offsets: list[int] = []
    for _, group in groupby(headers, key=lambda header: header.worker):
        measured = [_beyond_error_ns(header) for header in group]
        offset_ns = next((offset for offset in measured if offset is not None), 0)
        for offset in measured:
            offset_ns = offset_ns if offset is None else offset
            offsets.append(offset_ns)
    return offsets


def _beyond_error_ns(header: FrameHeader) -> int | None:
    if header.clock_offset_ns is None:
        return None
    return header.clock_offset_ns if abs(header.clock_offset_ns) > (header.clock_error_ns or 0) else 0


def placed_batches(
    frames: Sequence[FrameRef], bad: list[BadFrame] | None = None
) -> Iterator[tuple[FrameHeader, RecordBatch]]:
    """Each frame's header and batch, with times on the run's axis; read one by one.

    Args:
        frames: ordered by (worker, seq), as from :func:`unique_frames`.
        bad: list for frames without a valid batch, which are left out.

    Raises:
        BatchError: a frame has no valid batch, and ``bad`` is not given.
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
    """Frames that are not among the bad ones, in order."""
    left_out = {id(each.frame) for each in bad}
    return [frame for frame in frames if id(frame) not in left_out]


def _check_rows(batch: RecordBatch, header: FrameHeader) -> None:
    """Check that the batch matches its frame, and that every row has valid values (raises BatchError)."""
    if len(batch) != header.rows:
        raise BatchError(f"it has {len(batch)} records, its frame says {header.rows}")
    if batch.text_bytes > _MOST_TEXT_BYTES:
        raise BatchError(f"its texts have {batch.text_bytes:,} bytes, allowed is {_MOST_TEXT_BYTES:,}")
    check_values(batch)


def check_values(batch: RecordBatch) -> None:
    """Check that the columns that a batch has hold what a client writes (raises BatchError)."""
    present = set(batch.table.column_names)
    of_kinds = {"outcome": Outcome, "token_source": TokenSource, "count_fault": CountFault, "doubt": Doubt}
    for column in present.intersection(of_kinds):
        unknown = set(batch.labels(column).names) - set(of_kinds[column])
        if unknown:
            raise BatchError(f"{min(unknown)[:_SHOWN_CHARS]!r} is not a valid {column.replace('_', ' ')}")
    _check_range(batch, present.intersection(MOMENTS), _LAST_NS, "times out of range")
    _check_range(batch, present.intersection(_COUNTS), _MOST, "counts out of range")


def _check_range(batch: RecordBatch, columns: Iterable[str], most: int, what: str) -> None:
    for column in columns:
        span = pc.min_max(batch.table.column(column))
        if span["min"].is_valid and not 0 <= span["min"].as_py() <= span["max"].as_py() <= most:
            raise BatchError(f"{column} has {what}")


# --- Batch numbers as ranges, and as text in manifests: ``0-17 19 21-30``


_WORD = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def joined(ranges: Iterable[range]) -> list[range]:
    """The same numbers as ascending ranges that neither touch nor overlap."""
    result: list[range] = []
    for each in sorted((r for r in ranges if r), key=lambda r: r.start):
        if result and each.start <= result[-1].stop:
            result[-1] = range(result[-1].start, max(result[-1].stop, each.stop))
        else:
            result.append(each)
    return result


def seq_ranges(numbers: Iterable[int]) -> list[range]:
    """These numbers, in any order and with repetitions, as :func:`joined` ranges."""
    return joined(range(n, n + 1) for n in numbers)


def format_ranges(numbers: Iterable[int]) -> str:
    """Numbers as text: ``0-17 19 21-30``; empty for none."""
    return ranges_text(seq_ranges(numbers))


def ranges_text(ranges: Iterable[range]) -> str:
    """:func:`joined` ranges as text."""
    return " ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in ranges)


def parse_ranges(text: str) -> list[range]:
    """Parse the result of :func:`format_ranges`, as :func:`joined` ranges.

    Raises:
        ValueError: the text is not a list of numbers and ranges; names the word.
    """
    return joined(_parse_word(word, text) for word in text.split())


def _parse_word(word: str, text: str) -> range:
    match = _WORD.fullmatch(word)
    if match is None:
        raise ValueError(f"{word!r} in {text!r} is not a range of batch numbers such as 0-17 or 19")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ValueError(f"{word!r} in {text!r} ends before it starts")
    return range(first, last + 1)


def covers(outer: Sequence[range], inner: Sequence[range]) -> bool:
    """Whether all numbers of ``inner`` are in ``outer``, which is :func:`joined`."""
    return all(any(o.start <= i.start and i.stop <= o.stop for o in outer) for i in inner)


def overlap(some: Sequence[range], others: Sequence[range]) -> bool:
    """Whether a number is in both."""
    return any(s.start < o.stop and o.start < s.stop for s in some for o in others)


def minus(some: Sequence[range], others: Sequence[range]) -> list[range]:
    """Numbers of the first without those of the second; both are :func:`joined`."""
    left = list(some)
    for o in others:
        parts = ((range(s.start, min(s.stop, o.start)), range(max(s.start, o.stop), s.stop)) for s in left)
        left = [part for two in parts for part in two if part]
    return left


class Seqs:
    """Growing set of batch numbers; its memory depends on the gaps, not on the numbers."""

    __slots__ = ("_length", "_starts", "_stops")

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        # Run i is starts[i] <= n < stops[i]; runs ascend, with at least one missing number between two.
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._length = 0
        for number in numbers:
            self.add(number)

    def add(self, number: int) -> None:
        """Add a number; a repeated one changes nothing (raises ValueError below 0)."""
        if number < 0:
            raise ValueError(f"{number} is not a batch number: those start at 0")
        after = bisect_right(self._starts, number)  # the first run that starts after the number
        if after and number < self._stops[after - 1]:
            return
        self._length += 1
        extends = after > 0 and self._stops[after - 1] == number
        precedes = after < len(self._starts) and self._starts[after] == number + 1
        if extends and precedes:
            self._stops[after - 1] = self._stops.pop(after)
            del self._starts[after]
        elif extends:
            self._stops[after - 1] = number + 1
        elif precedes:
            self._starts[after] = number
        else:
            self._starts.insert(after, number)
            self._stops.insert(after, number + 1)

    def ranges(self) -> list[range]:
        """Runs of consecutive numbers, as from :func:`joined`."""
        return [range(*run) for run in zip(self._starts, self._stops, strict=True)]

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._stops[at]

    def __len__(self) -> int:
        return self._length

    def __str__(self) -> str:
        return ranges_text(self.ranges())
