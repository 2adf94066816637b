"""Batches that a hostile worker sends end no process, fill no memory, and hide no record."""

import os
import random
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, strategies as st
from mutated_frames import damaged, payloads
from record_strategies import record

from llm_locust.core.arrow import SCHEMA, StreamError, read_stream
from llm_locust.core.batch import BatchError, RecordBatch
from llm_locust.metrics.columns import Part
from llm_locust.store import FRAMES_FILE, FrameHeader, encode_frame
from llm_locust.store.frames import BadFrame, index_frames, placed_batches

TESTS = Path(__file__).parent.parent
ORIGINALS = payloads()


def test_batches_with_random_damage_end_no_process_and_are_all_accounted_for(tmp_path: Path) -> None:
    script = Path(__file__).with_name("mutated_frames.py")
    words = [sys.executable, str(script), "40", str(tmp_path), *map(str, range(4))]
    path = os.pathsep.join((str(TESTS / "support"), str(TESTS.parent)))
    ended = subprocess.run(words, env=os.environ | {"PYTHONPATH": path}, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()


@given(place=st.integers(0, 1 << 20), chance=st.randoms(use_true_random=False))
@example(place=0, chance=random.Random(0))
def test_any_damage_gives_a_batch_that_can_be_used_or_a_batch_error(
    place: int, chance: random.Random
) -> None:
    data = damaged(ORIGINALS[place % len(ORIGINALS)], chance)
    with suppress(BatchError):
        RecordBatch.from_bytes(data).table.to_pylist()


@given(data=st.binary(max_size=200))
@example(data=b"\xff\xff\xff\xff\x00\x00\x00\x00")
@example(data=b"\xff\xff\xff\xff\xff\xff\xff\x7f")
@example(data=b"")
def test_any_bytes_are_no_stream(data: bytes) -> None:
    with pytest.raises(BatchError):
        RecordBatch.from_bytes(data)


def test_a_clock_that_was_set_by_years_during_a_request_does_not_end_the_report() -> None:
    step_ns = 56 * 365 * 86_400 * 10**9 + 1
    batch = RecordBatch.from_records([replace(record(1), clock_step_ns=step_ns)], "w1")
    assert batch.floats("clock_step_ns").tolist() == [float(step_ns)]
    assert Part.from_batch(batch, 0).stepped.tolist() == [True]


@pytest.mark.parametrize("count", [-1, 2**53 + 1, 2**63 - 1])
@pytest.mark.parametrize("column", ["output_tokens", "input_tokens", "bytes_received"])
def test_a_batch_with_a_count_that_nothing_has_is_left_out_and_the_others_are_reported(
    column: str, count: int, tmp_path: Path
) -> None:
    values: list[Any] = [{column: 5}, {column: count}]
    batches = [RecordBatch.from_records([replace(record(1), **each)], "w1") for each in values]
    frames = [encode_frame(FrameHeader("run", "w1", n, 1), each.to_bytes()) for n, each in enumerate(batches)]
    (tmp_path / FRAMES_FILE).write_bytes(b"".join(frames))
    bad: list[BadFrame] = []
    index = index_frames(tmp_path / FRAMES_FILE)
    ((_, good),) = placed_batches(index.frames, bad)
    assert good.floats(column).tolist() == [5]
    assert [each.why.rpartition(": ")[2] for each in bad] == [f"{column} has counts out of range"]


def bomb(column: str, size: int) -> bytes:
    """A stream whose one text unpacks to so many bytes."""
    table = RecordBatch.from_records([record(1)], "w1").table
    place = table.column_names.index(column)
    table = table.set_column(place, SCHEMA.field(column), pa.array(["x" * size], pa.string()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_a_stream_that_unpacks_to_too_much_is_refused_before_it_is_unpacked() -> None:
    data = bomb("session", 300 << 20)
    assert len(data) < 100_000
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BatchError, match=r"unpacks to 314,\d+,\d+ bytes, allowed is 268,435,456"):
        RecordBatch.from_bytes(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 50 << 10


def test_a_stream_below_the_bound_is_unpacked() -> None:
    table = read_stream(bomb("session", 1 << 20), SCHEMA)
    assert len(table.column("session")[0].as_py()) == 1 << 20
    with pytest.raises(StreamError, match=r"unpacks to 1,04\d,\d+ bytes, allowed is 1,000,000"):
        read_stream(bomb("session", 1 << 20), SCHEMA, max_unpacked_bytes=1_000_000)


def lengths_in(data: bytes, size: int) -> Iterator[int]:
    """Where a packed buffer says that it has so many bytes unpacked."""
    at = data.find(wanted := struct.pack("<q", size))
    while at >= 0:
        yield at
        at = data.find(wanted, at + 1)


@pytest.mark.parametrize("claimed", [1 << 40, 1 << 62, -2, -(1 << 62)])
def test_a_buffer_that_lies_about_its_unpacked_size_is_refused(claimed: int) -> None:
    data = bomb("session", 1 << 20)
    (*_, at) = lengths_in(data, 1 << 20)
    with pytest.raises(BatchError, match="unpack"):
        RecordBatch.from_bytes(data[:at] + struct.pack("<q", claimed) + data[at + 8 :])


def test_an_index_outside_of_its_dictionary_is_found_before_it_is_used() -> None:
    table = RecordBatch.from_records([record(1)], "w1").table
    wrong = pa.DictionaryArray.from_arrays(pa.array([7], pa.int32()), pa.array(["only"]), safe=False)
    table = table.set_column(table.column_names.index("name"), SCHEMA.field("name"), wrong)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(table)
    with pytest.raises(BatchError, match="not a whole Arrow stream"):
        RecordBatch.from_bytes(bytes(sink.getvalue()))


def test_a_batch_with_more_text_than_a_client_writes_is_left_out(tmp_path: Path) -> None:
    made = [replace(record(n), name=f"{n} " + "x" * 16_000) for n in range(2_200)]
    batch = RecordBatch.from_records(made, "w1")
    frame = encode_frame(FrameHeader("run", "w1", 0, len(batch)), batch.to_bytes())
    (tmp_path / FRAMES_FILE).write_bytes(frame)
    bad: list[BadFrame] = []
    assert not [*placed_batches(index_frames(tmp_path / FRAMES_FILE).frames, bad)]
    assert [each.why.rpartition(": ")[2] for each in bad] == [
        f"its texts have {batch.text_bytes:,} bytes, allowed is 33,554,432"
    ]
