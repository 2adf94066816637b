"""Fuzzers of what a worker sends: files of frames with Arrow batches, and messages."""

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
from fuzz_target import FOLDER, Target, chance_of, check_line
from mutated_frames import payloads
from summaries import summarise

from llm_locust.core.batch import BatchError, RecordBatch
from llm_locust.core.manifest import Manifest
from llm_locust.core.record import MOMENTS
from llm_locust.metrics.columns import Part
from llm_locust.store import FrameHeader, encode_frame, frame_header
from llm_locust.store.frames import FrameRef, index_frames, placed_batches, unique_frames

_PREFIX = struct.Struct("<4sIII")
_MAGIC = b"LLB1"
_LONGEST_HEADER = 1 << 16


def frames_by_hand(data: bytes) -> list[tuple[int, int]]:
    """Begin and end of each whole frame, tried at every byte."""
    found, at = [], 0
    while at < len(data):
        end = _end_of(data, at)
        if end is not None and frame_header(data[at:end]) is not None:
            found.append((at, end))
            at = end
        else:
            at += 1
    return found


def _end_of(data: bytes, at: int) -> int | None:
    if len(data) - at < _PREFIX.size:
        return None
    magic, head, length, _ = _PREFIX.unpack_from(data, at)
    end = at + _PREFIX.size + head + length
    return end if magic == _MAGIC and head <= _LONGEST_HEADER and end <= len(data) else None


def repaired(data: bytes) -> bytes:
    """The same frames with right checksums: as a hostile worker sends them."""
    fixed, at = bytearray(data), 0
    while (at := bytes(fixed).find(_MAGIC, at)) >= 0:
        end = _end_of(bytes(fixed), at)
        if end is not None:
            crc = zlib.crc32(bytes(fixed[at + _PREFIX.size : end]))
            struct.pack_into("<I", fixed, at + 12, crc)
            at = end - 1
        at += 1
    return bytes(fixed)


def check_batch(data: bytes) -> None:
    """Bytes are a batch whose every value can be used and sent on, or a BatchError."""
    try:
        batch = RecordBatch.from_bytes(data)
    except BatchError as e:
        check_line(e)
        return
    rows = batch.table.to_pylist()
    assert len(rows) == len(batch)
    assert RecordBatch.from_bytes(batch.to_bytes()).table.to_pylist() == rows
    arrivals = batch.arrivals()
    assert arrivals.offsets[-1] == len(arrivals.values)
    batch.labels("name")


def check_file(data: bytes, path: Path) -> None:
    """Frames and tears cover the file; each frame is a batch within the bounds of time, or a BatchError."""
    path.write_bytes(data)
    index = index_frames(path)
    spans = [(_begin_of(frame), frame.offset + frame.length) for frame in index.frames]
    assert spans == frames_by_hand(data)
    covered = sorted([*spans, *((tear.start, tear.end) for tear in index.tears)])
    assert [begin for begin, _ in covered] == [0, *(end for _, end in covered)][: len(covered)]
    assert (covered[-1][1] if covered else 0) == len(data)
    bad = list[object]()
    frames = unique_frames(index.frames)
    batches = list(placed_batches(frames, bad))  # type: ignore[arg-type]
    assert len(batches) + len(bad) == len(frames)
    for header, batch in batches:
        check_usable(batch, header.rows)
    if batches and chance_of(data).random() < 0.05:
        rows = RecordBatch.concat(batch for _, batch in batches)
        ended_ns = max(rows.ints("ended_ns").tolist())
        json.dumps(summarise(rows, Manifest(id="r", name="x", started_ns=1, ended_ns=ended_ns)))


def check_usable(batch: RecordBatch, rows: int) -> None:
    """What reports make of a batch can be made."""
    assert len(batch) == rows
    for field in batch.table.schema:
        if pa.types.is_integer(field.type) and field.name not in MOMENTS:
            assert np.isfinite(batch.floats(field.name)).sum() == rows - batch.table[field.name].null_count
    for column in MOMENTS:
        batch.seconds(column, 1)
    columns = Part.from_batch(batch, 1)
    for counts in (columns.input_tokens, columns.output_tokens, columns.hidden_tokens):
        assert not (counts < 0).any()


def _begin_of(frame: FrameRef) -> int:
    data = frame.path.read_bytes()
    return next(at for at in range(frame.offset - 1, -1, -1) if _head_end(data, at) == frame.offset)


def _head_end(data: bytes, at: int) -> int | None:
    if data[at : at + 4] != _MAGIC or len(data) - at < _PREFIX.size:
        return None
    return at + _PREFIX.size + int(_PREFIX.unpack_from(data, at)[1])


def _frames(case: bytes) -> None:
    check_file(case, FOLDER / "frames")
    if (fixed := repaired(case)) != case:
        check_file(fixed, FOLDER / "frames")
    check_batch(case)


def _example(payload: bytes, seq: int, rows: int) -> bytes:
    return encode_frame(FrameHeader("r", "w", seq, rows, finished=rows, clock_offset_ns=5), payload)


_WHOLE = payloads()

FRAMES = Target(
    "frames",
    _frames,
    (
        *(_MAGIC, b"LLB", b"\xff\xff\xff\xff", bytes(4), bytes(8), b"\xff" * 8, b"ARROW1", b'{"run":"r"'),
        *((1 << n).to_bytes(8, "little") for n in (0, 3, 16, 20, 31, 40, 62)),
        *(n.to_bytes(4, "little") for n in (1, 4, 8, 16, 64, 1 << 16, 1 << 31)),
        *(
            b'"rows":',
            b'"seq":',
            b"-1",
            b"9" * 30,
            b"1e999",
            b"null",
            b'"clock_offset_ns":9223372036854775807',
        ),
        *(
            b"LLB1" + struct.pack("<III", 2, 0, zlib.crc32(b"{}")) + b"{}",
            b"\x04\x22\x4d\x18",
            b"\x28\xb5\x2f\xfd",
        ),
    ),
    (
        *_WHOLE,
        _example(_WHOLE[0], 0, 20) + _example(_WHOLE[0], 1, 20),
        _example(_WHOLE[2], 3, 20),
        _example(b"payload", 1, 1) + b"between" + _example(b"", 2, 1),
    ),
    most_bytes=1 << 15,
)
