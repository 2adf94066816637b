"""The run directory: what is whole stays whole, and what is not is said."""

import json
import os
import stat
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st
from metrics_cases import manifest, ns, request
from process_limits import files_limited_to
from record_strategies import record

from llm_locust.core.batch import BatchError, RecordBatch
from llm_locust.core.manifest import MANIFEST_SCHEMA, Manifest, NodeHealth, WorkerFacts
from llm_locust.store import (
    FRAMES_FILE,
    MANIFEST_FILE,
    REQUESTS_FILE,
    WORKER_FILE,
    FrameHeader,
    FrameIndex,
    FrameLog,
    Spool,
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
from llm_locust.store.facts import course_of, next_part, parts_of
from llm_locust.store.files import growth_of, size_of, size_text
from llm_locust.store.frames import (
    Seqs,
    axis_offsets_ns,
    covers,
    format_ranges,
    joined,
    overlap,
    parse_ranges,
    ranges_text,
    seq_ranges,
)

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


def test_more_frames_than_one_system_call_takes_are_written_in_order(tmp_path: Path) -> None:
    frames = [bytes([n % 256]) * (n % 5) for n in range(5000)]
    log = FrameLog(tmp_path / "log")
    log.append(*frames)
    log.append()
    log.append(b"end")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"".join(frames) + b"end"


@given(frames=st.lists(st.binary(max_size=9)), most=st.integers(1, 20))
def test_a_kernel_that_takes_a_part_at_a_time_gets_the_rest_after_it(
    frames: list[bytes], most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"

    def pwritev(file: int, buffers: list[memoryview], at: int) -> int:
        return os.pwrite(file, b"".join(buffers)[:most], at)

    log = FrameLog(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwritev", pwritev)
        log.append(*frames)
    log.close()
    assert path.read_bytes() == b"".join(frames)


def test_of_frames_that_the_disk_took_in_part_none_is_in_the_log(tmp_path: Path) -> None:
    log = FrameLog(tmp_path / "log")
    log.append(b"whole")
    with files_limited_to(1_000_000), pytest.raises(OSError, match="File too large"):
        log.append(b"x" * 800_000, b"y" * 800_000)
    log.append(b"next")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"wholenext"


def growing_batch(rows: int, tokens: int) -> RecordBatch:
    """Requests with irregular arrivals, and random ids, which do not compress."""
    rng = np.random.default_rng(tokens)
    records = []
    for i in range(rows):
        arrivals = int(1.8e18) + i * 10**7 + np.cumsum(rng.normal(2e7, 2e6, tokens)).astype(int)
        records.append(request(request_id=rng.bytes(16).hex(), arrivals_ns=arrivals))
    return RecordBatch.from_records(records, "a worker's name of 27 chars")


@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (1, 2000), (60, 20), (256, 128), (256, 600)])
def test_frames_take_about_what_is_announced(rows: int, tokens: int) -> None:
    taken = len(growing_batch(rows, tokens).to_bytes())
    assert 0.6 * taken < growth_of(rows, tokens, 1).frames < 2.5 * taken


@pytest.mark.parametrize(("rows", "tokens"), [(5000, 20), (2000, 128), (500, 1000)])
def test_so_does_the_file_that_is_made_of_them(rows: int, tokens: int, tmp_path: Path) -> None:
    write_requests(tmp_path / "x.parquet", [growing_batch(rows, tokens)])
    taken = (tmp_path / "x.parquet").stat().st_size
    assert 0.9 * taken < growth_of(rows, tokens, 1).kept < 2.5 * taken


def test_growth_adds_up_and_many_small_batches_take_more() -> None:
    one = growth_of(1000, 100, 10)
    assert growth_of(2000, 100, 20).frames == pytest.approx(2 * one.frames)
    assert growth_of(1000, 100, 1000).frames > 5 * one.frames
    assert growth_of(0, 100, 10).peak == 0
    # No batch is without a request.
    assert growth_of(10, 100, 10).frames == growth_of(10, 100, 1e9).frames


def test_sizes_are_texts_for_a_person() -> None:
    sizes = [size_text(each) for each in (0, 2048, 5 << 20, 1.25 * (1 << 30), 3 << 40)]
    assert sizes == ["0 KiB", "2 KiB", "5.0 MiB", "1.2 GiB", "3.0 TiB"]


def test_the_size_of_a_folder_is_that_of_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_bytes(b"1234")
    (tmp_path / "b").write_bytes(b"56")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert size_of(tmp_path) == 6


def part(folder: Path, number: int, **facts: object) -> Path:
    path = folder / f"part-{number}"
    path.mkdir(parents=True)
    write_manifest(path, manifest(None, **facts))
    return path


def test_a_new_directory_begins_with_part_1_and_has_all_its_time(tmp_path: Path) -> None:
    course = course_of(tmp_path / "day")
    assert (course.parts, course.over) == ((), "")
    assert course.left_s(60.0, ns(0.0)) == 60.0
    assert next_part(tmp_path / "day").name == "part-1"


def test_parts_are_ordered_by_number_and_the_next_one_is_above_all(tmp_path: Path) -> None:
    for number in (10, 2, 9):
        part(tmp_path, number)
    (tmp_path / "part-11").mkdir()  # a master that died before its first manifest
    (tmp_path / "part-x").mkdir()
    assert [path.name for path in parts_of(tmp_path)] == ["part-2", "part-9", "part-10"]
    assert next_part(tmp_path).name == "part-12"


@pytest.mark.parametrize(
    ("last", "over"),
    [
        ({"ended_ns": None, "stopped_ns": None}, False),  # killed
        ({"ended_ns": 5, "stopped_ns": 4, "cut_short": True}, False),  # SIGTERM, no worker left
        ({"ended_ns": 5, "stopped_ns": 4, "cut_short": True, "ended_in_order": True}, True),  # a stop rule
        ({"ended_ns": 5, "stopped_ns": 4, "cut_short": False}, True),  # a person, its time
        ({"ended_ns": None, "stopped_ns": 4}, True),  # killed while the report was made
    ],
)
def test_a_part_follows_unless_the_load_was_ended_in_order(
    tmp_path: Path, last: dict[str, object], over: bool
) -> None:
    part(tmp_path, 1, cut_short=True, ended_ns=3)
    part(tmp_path, 2, **last)
    assert bool(course_of(tmp_path).over) is over


def test_the_time_of_the_whole_counts_from_the_first_part(tmp_path: Path) -> None:
    part(tmp_path, 1, started_ns=ns(0.0))
    part(tmp_path, 2, started_ns=ns(50.0))
    course = course_of(tmp_path)
    assert course.left_s(3600.0, ns(600.0)) == pytest.approx(3000.0)
    assert course.left_s(3600.0, ns(4000.0)) == 0.0
    assert course.left_s(3600.0, ns(-50.0)) == 3600.0  # a clock that was set back makes no time


def test_a_run_that_was_not_restartable_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest(None))
    with pytest.raises(StoreError, match="was not restartable"):
        course_of(tmp_path)


NUMBERS = st.lists(st.integers(0, 40))


def test_numbers_are_written_as_ranges_with_both_ends() -> None:
    assert format_ranges([*range(18), 19, *range(21, 31)]) == "0-17 19 21-30"
    assert format_ranges([3, 1, 2, 3]) == "1-3"
    assert format_ranges([]) == ""


def test_a_text_in_any_order_is_put_in_order() -> None:
    assert parse_ranges("21-30 5 0-3 4 2-7") == [range(8), range(21, 31)]


@pytest.mark.parametrize("word", ["x", "3-", "-3", "1--2", "1,2", "3-2", "1.5", "٣", "1-2-3", "9" * 19])
def test_a_text_that_is_no_list_of_ranges_is_an_error_that_names_the_word(word: str) -> None:
    with pytest.raises(ValueError, match=f"^'{word}'"):
        parse_ranges(f"0-1 {word}")


@given(numbers=NUMBERS)
def test_the_text_says_exactly_the_numbers(numbers: list[int]) -> None:
    assert sorted(n for r in parse_ranges(format_ranges(numbers)) for n in r) == sorted(set(numbers))


@given(some=NUMBERS, others=NUMBERS)
def test_ranges_compare_as_the_sets_that_they_are(some: list[int], others: list[int]) -> None:
    a, b = seq_ranges(some), seq_ranges(others)
    assert covers(a, b) == (set(some) >= set(others))
    assert overlap(a, b) == bool(set(some) & set(others))


@given(numbers=NUMBERS)
def test_a_set_that_grows_is_the_set_of_what_was_put_in(numbers: list[int]) -> None:
    seqs, plain = Seqs(), set[int]()
    for number in numbers:
        seqs.add(number)
        plain.add(number)
        assert len(seqs) == len(plain)
        assert [n in seqs for n in range(42)] == [n in plain for n in range(42)]
    assert seqs.ranges() == joined(seqs.ranges()) == seq_ranges(numbers)
    assert str(seqs) == ranges_text(seq_ranges(numbers))


def test_a_set_of_consecutive_numbers_takes_one_range_whatever_its_length() -> None:
    assert Seqs(range(100_000)).ranges() == [range(100_000)]
    assert Seqs([*range(0, 1000, 2), *range(1, 1000, 2)]).ranges() == [range(1000)]


def test_a_number_below_0_is_no_batch() -> None:
    with pytest.raises(ValueError, match="-1 is not a batch number"):
        Seqs([-1])


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write everywhere; nobody may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "runs" / "demo"
    root.mkdir(parents=True)
    return root


@pytest.fixture
def spool(root: Path) -> Spool:
    return Spool(root / "spool" / "w1", root)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nothing_is_made_before_the_first_write(spool: Spool, root: Path) -> None:
    assert names(root) == []
    assert spool.close()
    assert names(root) == []


def test_a_frame_is_a_file_of_its_own_named_by_its_number(spool: Spool) -> None:
    spool.write(17, b"frame")
    assert names(spool.folder) == ["00000017.frame"]
    assert spool.read(17) == b"frame"


def test_a_frame_is_never_written_over_another(spool: Spool) -> None:
    spool.write(1, b"first")
    with pytest.raises(FileExistsError):
        spool.write(1, b"second")
    assert spool.read(1) == b"first"


def test_of_a_write_that_fails_midway_nothing_stays(spool: Spool) -> None:
    spool.write(0, b"x")
    with files_limited_to(100_000), pytest.raises(OSError, match="File too large"):
        spool.write(1, b"x" * 300_000)
    assert names(spool.folder) == ["00000000.frame"]
    spool.write(1, b"again")
    assert spool.read(1) == b"again"


def test_a_folder_that_was_removed_is_made_again(spool: Spool) -> None:
    spool.write(0, b"x")
    spool.drop(0)
    spool.folder.rmdir()
    spool.write(1, b"y")
    assert spool.read(1) == b"y"


def test_a_spool_where_a_file_is_cannot_be_written(root: Path) -> None:
    (root / "spool").write_text("a file")
    with pytest.raises(NotADirectoryError):
        Spool(root / "spool" / "w1", root).write(0, b"x")


def test_a_read_only_folder_cannot_be_written(spool: Spool, root: Path) -> None:
    root.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with without_privileges(), pytest.raises(PermissionError):
        spool.write(0, b"x")
    root.chmod(stat.S_IRWXU)
    spool.write(0, b"x")
    assert spool.read(0) == b"x"


def test_dropping_a_frame_that_is_not_there_is_no_error(spool: Spool) -> None:
    spool.drop(3)
    spool.write(3, b"x")
    spool.drop(3)
    spool.drop(3)
    assert names(spool.folder) == []


def test_closing_removes_the_facts_the_folder_and_what_is_empty_above_it_up_to_the_root(
    spool: Spool, root: Path
) -> None:
    spool.write_facts(MANIFEST_FILE, {"id": "run"})
    spool.write_facts(WORKER_FILE, {"id": "w1"})
    spool.write(0, b"x")
    spool.drop(0)
    assert spool.close()
    assert root.is_dir()
    assert names(root) == []


@pytest.mark.parametrize("name", ["00000007.frame", "notes.txt"])
def test_closing_leaves_a_folder_that_holds_a_frame_or_a_file_of_somebody_else(
    spool: Spool, name: str
) -> None:
    spool.write_facts(MANIFEST_FILE, {"id": "run"})
    (spool.folder / name).write_bytes(b"precious")
    assert not spool.close()
    assert (spool.folder / name).read_bytes() == b"precious"


def test_a_folder_that_keeps_a_frame_keeps_its_facts(spool: Spool) -> None:
    spool.write_facts(MANIFEST_FILE, {"id": "run"})
    spool.write(0, b"x")
    assert not spool.close()
    assert names(spool.folder) == ["00000000.frame", MANIFEST_FILE]


def test_closing_leaves_the_spool_of_another_worker(spool: Spool, root: Path) -> None:
    other = Spool(root / "spool" / "w2", root)
    spool.write(0, b"x")
    other.write(0, b"y")
    spool.drop(0)
    assert spool.close()
    assert names(root / "spool") == ["w2"]
    other.drop(0)
    assert other.close()
    assert names(root) == []


def test_a_spool_must_lie_under_its_root(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not below"):
        Spool(tmp_path / "a", tmp_path / "b")
