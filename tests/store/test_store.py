"""The run directory: what is whole stays whole, and what is not is said."""

import json
import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st
from process_limits import files_limited_to
from record_strategies import record

from llm_locust.core.batch import BatchError, RecordBatch
from llm_locust.core.manifest import MANIFEST_SCHEMA, Manifest, NodeHealth, WorkerFacts
from llm_locust.store import (
    FRAMES_FILE,
    MANIFEST_FILE,
    REQUESTS_FILE,
    FrameHeader,
    FrameIndex,
    FrameLog,
    StoreError,
    Tear,
    compact,
    create_run_dir,
    encode_frame,
    holds_a_run,
    index_frames,
    read_manifest,
    read_requests,
    unique_frames,
    write_json,
    write_manifest,
    write_requests,
    write_text,
)
from llm_locust.store.frames import axis_offsets_ns

payloads = st.lists(st.binary(max_size=30), max_size=6)


def frame(seq: int, numbers: range = range(1), worker: str = "w1") -> bytes:
    """A frame with the records of these numbers."""
    batch = RecordBatch.from_records([record(number) for number in numbers], worker)
    return encode_frame(FrameHeader("run", worker, seq, len(numbers)), batch.to_bytes())


def frames_of(each: list[bytes]) -> list[bytes]:
    return [encode_frame(FrameHeader("run", "w", seq, 1), payload) for seq, payload in enumerate(each)]


def read_back(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return [data[f.offset : f.offset + f.length] for f in index_frames(path).frames]


# -- frames ---------------------------------------------------------------------------------


@given(payloads)
def test_frames_come_back_in_order_with_their_headers(
    tmp_path_factory: pytest.TempPathFactory, each: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("frames") / FRAMES_FILE
    path.write_bytes(b"".join(frames_of(each)))
    index = index_frames(path)
    assert read_back(path) == each
    assert [f.header for f in index.frames] == [FrameHeader("run", "w", seq, 1) for seq in range(len(each))]
    assert index.tears == ()


def test_a_file_cut_at_any_byte_gives_every_whole_frame_before_it(tmp_path: Path) -> None:
    each = [b"first", b"", b"the third"]
    frames = frames_of(each)
    whole = b"".join(frames)
    ends = [0, len(frames[0]), len(frames[0]) + len(frames[1]), len(whole)]
    path = tmp_path / FRAMES_FILE
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        count = sum(end <= cut for end in ends[1:])
        assert read_back(path) == each[:count]
        torn = [] if cut in ends else [Tear(path, ends[count], cut)]
        assert list(index_frames(path).tears) == torn


def test_a_byte_changed_anywhere_costs_its_frame_and_no_other(tmp_path: Path) -> None:
    each = [b"first", b"second", b"third"]
    frames = frames_of(each)
    whole = b"".join(frames)
    starts = [0, len(frames[0]), len(frames[0]) + len(frames[1]), len(whole)]
    path = tmp_path / FRAMES_FILE
    for place in range(len(whole)):
        spoiled = bytearray(whole)
        spoiled[place] ^= 0x10
        path.write_bytes(spoiled)
        hit = sum(start <= place for start in starts) - 1
        assert read_back(path) == each[:hit] + each[hit + 1 :]
        assert index_frames(path).tears == (Tear(path, starts[hit], starts[hit + 1]),)


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40)), max_size=5), st.binary(max_size=40)
)
def test_whatever_lies_between_frames_is_named_and_every_frame_found(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[bytes, bytes]], last: bytes
) -> None:
    path = tmp_path_factory.mktemp("frames") / FRAMES_FILE
    data, tears = b"", []
    for seq, (foreign, payload) in enumerate(pieces):
        if foreign:
            tears.append(Tear(path, len(data), len(data) + len(foreign)))
        data += foreign + encode_frame(FrameHeader("run", "w", seq, 1), payload)
    if last:
        tears.append(Tear(path, len(data), len(data) + len(last)))
    path.write_bytes(data + last)
    assert read_back(path) == [payload for _, payload in pieces]
    assert list(index_frames(path).tears) == tears


@pytest.mark.parametrize("foreign", [(1 << 16) - 3, (1 << 16) - 1, (1 << 16) + 1, 200_000])
def test_a_frame_far_behind_foreign_bytes_is_found(tmp_path: Path, foreign: int) -> None:
    path = tmp_path / FRAMES_FILE
    path.write_bytes(b"LLB" * (foreign // 3 + 1) + frames_of([b"x" * 3_000_000])[0])
    assert read_back(path) == [b"x" * 3_000_000]
    assert index_frames(path).tears == (Tear(path, 0, foreign // 3 * 3 + 3),)


def test_a_frame_that_says_it_is_longer_than_the_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / FRAMES_FILE
    path.write_bytes(b"LLB1" + b"\xff" * 12 + b"x" * 40)
    assert index_frames(path) == FrameIndex((), (Tear(path, 0, 56),))


def test_a_large_file_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / FRAMES_FILE
    path.write_bytes(frames_of([bytes(40_000_000)])[0] + bytes(20_000_000))
    tracemalloc.start()
    try:
        assert len(index_frames(path).frames) == 1
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


def test_duplicates_in_any_order_give_the_same_frames(tmp_path: Path) -> None:
    mixed = [frame(1, worker="b"), frame(0, worker="b"), frame(0, worker="a"), frame(1, worker="b")]
    orders = []
    for number, order in enumerate((mixed, mixed[::-1], mixed + mixed)):
        path = tmp_path / str(number)
        path.write_bytes(b"".join(order))
        unique = unique_frames(index_frames(path).frames)
        orders.append([(f.header.worker, f.header.seq) for f in unique])
    assert orders == [[("a", 0), ("b", 0), ("b", 1)]] * 3


# -- places on the run's axis ---------------------------------------------------------------


def placed(*clocks: tuple[int | None, int | None], worker: str = "w") -> list[int]:
    """The offsets of a worker's frames whose headers have these offsets and errors."""
    return axis_offsets_ns(
        [FrameHeader("run", worker, seq, 1, None, None, *clock) for seq, clock in enumerate(clocks)]
    )


def test_an_offset_within_its_own_error_is_none() -> None:
    assert placed((500, 499), (500, 500), (-500, 499), (-500, 500)) == [500, 0, -500, 0]
    assert placed((500, None), (0, None)) == [500, 0]


def test_before_the_first_measurement_the_first_one_holds_and_without_any_times_stay() -> None:
    assert placed((None, None), (None, None), (70, 5), (None, None), (80, 5)) == [70, 70, 70, 70, 80]
    assert placed((None, None), (3, 5), (80, 5)) == [0, 0, 80]
    assert placed((None, None), (None, None)) == [0, 0]


def test_each_worker_has_its_own_clock() -> None:
    headers = [
        FrameHeader("run", "a", 0, 1),
        FrameHeader("run", "b", 0, 1),
        FrameHeader("run", "b", 1, 1, None, None, 90, 1),
    ]
    assert axis_offsets_ns(headers) == [0, 90, 90]
    assert axis_offsets_ns([]) == []


# -- the log of frames ----------------------------------------------------------------------


def test_a_log_holds_what_was_appended(tmp_path: Path) -> None:
    log = FrameLog(tmp_path / FRAMES_FILE)
    for data in frames_of([b"one", b"two"]):
        log.append(data)
    log.close()
    assert read_back(tmp_path / FRAMES_FILE) == [b"one", b"two"]


def test_a_write_that_fails_midway_leaves_only_whole_frames(tmp_path: Path) -> None:
    """The kernel takes a part of the bytes, then says that the file is too large."""
    path = tmp_path / FRAMES_FILE
    log = FrameLog(path)
    small, large, last = frames_of([b"small", b"x" * 3_000_000, b"last"])
    log.append(small)
    with files_limited_to(2_000_000), pytest.raises(OSError, match="File too large"):
        log.append(large)
    assert path.stat().st_size > len(small)
    with files_limited_to(1_000_000), pytest.raises(OSError, match="File too large"):
        log.append(large)
    log.append(last)
    log.close()
    assert path.read_bytes() == small + last


def test_what_a_failed_write_left_is_cut_off_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / FRAMES_FILE
    log = FrameLog(path)
    small, large = frames_of([b"small", b"x" * 3_000_000])
    log.append(small)
    with files_limited_to(2_000_000), pytest.raises(OSError, match="File too large"):
        log.append(large)
    log.close()
    assert path.read_bytes() == small


def test_a_log_never_goes_over_an_older_one(tmp_path: Path) -> None:
    (tmp_path / FRAMES_FILE).write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        FrameLog(tmp_path / FRAMES_FILE)
    assert (tmp_path / FRAMES_FILE).read_bytes() == b"precious"


# -- compaction -----------------------------------------------------------------------------


def test_compaction_keeps_each_batch_once_and_removes_the_frames(tmp_path: Path) -> None:
    parts = [frame(1, range(10, 13)), frame(0, range(10)), frame(1, range(10, 13)), frame(0, range(20), "w2")]
    (tmp_path / FRAMES_FILE).write_bytes(b"".join(parts))
    assert compact(tmp_path) == 33
    assert read_requests(tmp_path).ints("reads").tolist() == [*range(13), *range(20)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [REQUESTS_FILE]


def test_a_run_without_frames_has_no_requests(tmp_path: Path) -> None:
    assert compact(tmp_path) == 0
    assert len(read_requests(tmp_path)) == 0


def test_a_torn_file_gives_what_is_whole_and_stays(tmp_path: Path) -> None:
    (tmp_path / FRAMES_FILE).write_bytes(frame(0, range(5)) + frame(1, range(5, 9))[:-1])
    assert compact(tmp_path) == 5
    assert (tmp_path / FRAMES_FILE).exists()


def test_compaction_places_each_batch_by_its_workers_clock(tmp_path: Path) -> None:
    parts = []
    for seq, clock in enumerate([(None, None), (1_000, 10), (2_000, 10), (5, 10)]):
        batch = RecordBatch.from_records([replace(record(7), sent_ns=8)], "w")
        parts.append(encode_frame(FrameHeader("run", "w", seq, 1, None, None, *clock), batch.to_bytes()))
    (tmp_path / FRAMES_FILE).write_bytes(b"".join(parts))
    compact(tmp_path)
    requests = read_requests(tmp_path)
    assert requests.ints("scheduled_ns").tolist() == [1_007, 1_007, 2_007, 7]
    assert (requests.ints("sent_ns") - requests.ints("scheduled_ns")).tolist() == [1] * 4


def damaged(run: Path, announced: int) -> Manifest:
    """What the manifest says after the second of three batches has been damaged in the master's file."""
    parts = [frame(0, range(5)), frame(1, range(5, 9)), frame(2, range(9, 11))]
    (run / FRAMES_FILE).write_bytes(parts[0] + parts[1][:-1] + b"?" + parts[2])
    facts = WorkerFacts(id="w1", index=0, announced=announced, received=11, received_seqs="0-2")
    write_manifest(run, Manifest(id="run", name="x", started_ns=1, ended_ns=9, workers=[facts]))
    assert compact(run) == 7
    return read_manifest(run)


def test_compaction_tells_in_the_manifest_what_a_damaged_file_has_left(tmp_path: Path) -> None:
    manifest = damaged(tmp_path, announced=11)
    (worker,) = manifest.workers
    assert (worker.received, worker.received_seqs, worker.missing) == (7, "0 2", 4)
    start, length = len(frame(0, range(5))), len(frame(1, range(5, 9)))
    assert manifest.torn == [f"batches.frames: bytes {start} to {start + length} are not a frame"]
    assert not manifest.complete
    assert (tmp_path / FRAMES_FILE).exists()


def test_damage_that_took_nothing_leaves_the_run_complete(tmp_path: Path) -> None:
    manifest = damaged(tmp_path, announced=7)
    assert manifest.torn == []
    assert manifest.complete


def test_a_batch_that_cannot_be_read_keeps_the_frames_and_leaves_no_half_file(tmp_path: Path) -> None:
    good, bad = frame(0), encode_frame(FrameHeader("run", "w", 1, 1), b"no batch")
    (tmp_path / FRAMES_FILE).write_bytes(good + bad)
    with pytest.raises(BatchError, match=r"batch 1 of worker w in '.*batches\.frames' cannot be read"):
        compact(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FRAMES_FILE]


def with_a_bad_frame(run: Path, header: FrameHeader, payload: bytes) -> Manifest:
    """The manifest after a run of three frames was compacted, the middle one of which is this."""
    (run / FRAMES_FILE).write_bytes(
        frame(0, range(5)) + encode_frame(header, payload) + frame(2, range(9, 11))
    )
    facts = WorkerFacts(id="w1", index=0, announced=11, received=11, received_seqs="0-2")
    write_manifest(run, Manifest(id="run", name="x", started_ns=1, ended_ns=9, workers=[facts]))
    compact(run)
    return read_manifest(run)


def batch_of(count: int, **of: Any) -> RecordBatch:
    return RecordBatch.from_records([replace(record(n), **of) for n in range(count)], "w1")


@pytest.mark.parametrize(
    ("payload", "rows"),
    [
        (b"no batch", 4),
        (batch_of(4).to_bytes()[:-40], 4),
        (batch_of(3).to_bytes(), 4),
        (batch_of(4, outcome="splendid").to_bytes(), 4),
        (batch_of(4, ended_ns=-5).to_bytes(), 4),
    ],
)
def test_a_frame_without_a_usable_batch_is_left_out_named_and_counted_as_missing(
    payload: bytes, rows: int, tmp_path: Path
) -> None:
    manifest = with_a_bad_frame(tmp_path, FrameHeader("run", "w1", 1, rows), payload)
    assert len(read_requests(tmp_path)) == 7
    (worker,) = manifest.workers
    assert (worker.received, worker.received_seqs, worker.missing) == (7, "0 2", 4)
    (line,) = manifest.torn
    assert line.startswith("batches.frames: bytes ")
    assert line.endswith("hold no batch that can be read, number 1 of worker w1 with 4 records")
    assert not manifest.complete
    assert (tmp_path / FRAMES_FILE).exists()


def test_many_batches_become_row_groups_without_loss(tmp_path: Path) -> None:
    batch = RecordBatch.from_records([record(number) for number in range(5_000)], "w1")
    assert write_requests(tmp_path / REQUESTS_FILE, [batch] * 15) == 75_000
    assert pq.ParquetFile(tmp_path / REQUESTS_FILE).num_row_groups == 2
    assert len(read_requests(tmp_path)) == 75_000


# -- reading --------------------------------------------------------------------------------


def test_a_directory_named_like_a_column_changes_nothing(tmp_path: Path) -> None:
    run = create_run_dir(tmp_path / "model=llama" / "reads=9")
    write_requests(run / REQUESTS_FILE, [RecordBatch.from_records([record(3)], "w1")])
    assert read_requests(run).ints("reads").tolist() == [3]


@pytest.mark.parametrize("read", [read_manifest, read_requests])
def test_a_directory_that_is_none_or_holds_no_run_is_said(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="nowhere' is not a directory: name a run directory"):
        read(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="is it a run directory whose run has ended"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all", b"\0" * 100])
def test_requests_that_are_no_parquet_are_said_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / REQUESTS_FILE).write_bytes(content)
    with pytest.raises(StoreError, match=r"requests\.parquet' cannot be read as requests: .") as error:
        read_requests(tmp_path)
    assert "\n" not in str(error.value)


def test_a_parquet_file_cut_anywhere_is_said(tmp_path: Path) -> None:
    path = tmp_path / REQUESTS_FILE
    write_requests(path, [RecordBatch.from_records([record(1)], "w1")])
    whole = path.read_bytes()
    for cut in range(0, len(whole), 97):
        path.write_bytes(whole[:cut])
        with pytest.raises(StoreError, match="cannot be read as requests"):
            read_requests(tmp_path)


def test_parquet_of_something_else_is_said(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / REQUESTS_FILE)
    with pytest.raises(StoreError, match="columns are missing: request_id, worker"):
        read_requests(tmp_path)


MANIFEST = Manifest(
    id="a",
    name="first",
    started_ns=1,
    command=["locust", "-H", "http://x"],
    options={"slo": "ttft=1s", "num_users": 3, "replica_header": ["x"]},
    workers=[
        WorkerFacts(id="w", index=0, announced=None, received=3, health=NodeHealth(cpu_percent_max=1.5))
    ],
)


def test_a_manifest_comes_back(tmp_path: Path) -> None:
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST


def test_a_manifest_of_an_older_program_lacks_fields_and_of_this_one_may_have_more(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_FILE).write_text('{"id": "a", "name": "b", "started_ns": 1, "more": [1]}')
    assert read_manifest(tmp_path) == Manifest(id="a", name="b", started_ns=1)


def test_a_manifest_of_a_later_schema_says_what_to_do(tmp_path: Path) -> None:
    write_manifest(tmp_path, replace(MANIFEST, schema=MANIFEST_SCHEMA + 1))
    with pytest.raises(
        StoreError, match=r"has schema 2, this version reads up to 1: use the llm-locust that"
    ):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"id": 1}', b"\xff\xfe", b'{"schema": "two"}', b'{"id": "a"}']
)
def test_what_is_no_manifest_is_said(content: bytes, tmp_path: Path) -> None:
    (tmp_path / MANIFEST_FILE).write_bytes(content)
    with pytest.raises(StoreError, match=r"manifest\.json' is not a manifest: "):
        read_manifest(tmp_path)


# -- writing --------------------------------------------------------------------------------


def test_a_directory_with_any_part_of_a_run_holds_one(tmp_path: Path) -> None:
    for name in (MANIFEST_FILE, REQUESTS_FILE, FRAMES_FILE):
        run = create_run_dir(tmp_path / name)
        assert not holds_a_run(run)
        (run / name).touch()
        assert holds_a_run(run)


def test_a_directory_is_made_with_those_above_it_and_left_empty(tmp_path: Path) -> None:
    run = create_run_dir(tmp_path / "a" / "b")
    assert list(run.iterdir()) == []
    assert create_run_dir(run) == run


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file/run' cannot be written: Not a directory"):
        create_run_dir(tmp_path / "file" / "run")


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    write_text(path, "old")
    with files_limited_to(1_000_000), pytest.raises(OSError, match="File too large"):
        write_text(path, "new" * 1_000_000)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.md"]
    write_text(path, "new")
    assert path.read_text() == "new"


def test_json_is_pretty_and_nan_is_null(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": [1, None], "b": float("nan")})
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text) == {"a": [1, None], "b": None}
    assert text.startswith('{\n  "a": [')
    assert text.endswith("}\n")


def test_a_manifest_that_memory_could_not_hold_is_refused_undecoded(tmp_path: Path) -> None:
    write_manifest(tmp_path, Manifest(id="a", name="a", started_ns=1))
    path = tmp_path / MANIFEST_FILE
    usual = path.read_text()
    path.write_text(usual.replace('"options": {}', '"options": {"a": [' + "[]," * 700_000 + "1]}"))
    with pytest.raises(StoreError, match="its options are larger than 2 MiB"):
        read_manifest(tmp_path)
    path.write_text(usual + " " * (17 << 20))
    with pytest.raises(StoreError, match="is larger than 16 MiB: it is no file of a run"):
        read_manifest(tmp_path)


def test_long_json_is_written_without_spaces(tmp_path: Path) -> None:
    write_json(tmp_path / "short", {"a": 1})
    assert (tmp_path / "short").read_text() == '{\n  "a": 1\n}\n'
    write_json(tmp_path / "long", {"a": ["b"] * 300_000})
    assert (tmp_path / "long").read_text().startswith('{"a":["b","b"')
