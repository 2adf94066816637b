"""One report of the parts of a restartable run, whose old records ``--keep`` drops."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from metrics_cases import manifest, ns, request, stage

from llm_locust.core import EXIT_INCOMPLETE
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import StageFacts, WorkerFacts
from llm_locust.core.record import RequestRecord
from llm_locust.deployment.server_metrics import SERVER_METRICS_FILE, SampleWriter, ServerSample
from llm_locust.figures.summary import as_json, read_summary
from llm_locust.metrics.question import PLAIN, Question
from llm_locust.report import dropping
from llm_locust.report.analysis import analyse, build_report
from llm_locust.report.commands import main
from llm_locust.report.dropping import drop
from llm_locust.report.finish import _settled, finish_run, join_parts
from llm_locust.report.inputs import Source, open_source
from llm_locust.report.so_far import write_so_far
from llm_locust.store import (
    FRAMES_FILE,
    FrameHeader,
    FrameLog,
    SegmentLog,
    StoreError,
    encode_frame,
    index_frames,
    merge,
    open_requests,
    read_manifest,
    write_manifest,
)
from llm_locust.store.frame_log import Segment, base_of, segment_name, segments_of
from llm_locust.store.upload import Stored, UploadError, open_destination, read_index, upload_run, write_index

pytestmark = pytest.mark.usefixtures("without_page")


def part(folder: Path, number: int, begin_s: int, end_s: int, **facts: object) -> Path:
    """A part with a request a second, as its master leaves it when it dies."""
    path, worker = folder / f"part-{number}", f"w{number}"
    path.mkdir(parents=True)
    records: list[RequestRecord] = [
        request(float(at), (0.1, 0.2), request_id=f"{number}-{at}") for at in range(begin_s, end_s)
    ]
    told = WorkerFacts(id=worker, index=0, announced=len(records), received=len(records), left=True)
    known: dict[str, object] = {
        "id": f"run-{number}",
        "started_ns": ns(float(begin_s)),
        "workers": [told],
        "ended_ns": None,
        "stopped_ns": None,
    }
    write_manifest(path, manifest(None, **{**known, **facts}))
    log = FrameLog(path / FRAMES_FILE)
    header = FrameHeader(f"run-{number}", worker, 0, len(records), finished=len(records), in_flight=0)
    log.append(encode_frame(header, RecordBatch.from_records(records, worker).to_bytes()))
    log.close()
    return path


def test_gaps_between_parts_are_named_and_in_no_rate(tmp_path: Path) -> None:
    day = tmp_path / "day"
    part(day, 1, 0, 100)
    part(day, 2, 130, 200)
    part(day, 3, 205, 300, ended_ns=ns(300.5), stopped_ns=ns(300.0))
    before = sorted(path.name for path in day.iterdir())
    report = join_parts(day)
    parts = report.summary.parts
    assert parts is not None
    assert [each.requests for each in parts.parts] == [100, 70, 95]
    assert [each.name for each in parts.parts] == ["part-1", "part-2", "part-3"]
    assert [(gap.after, round(gap.seconds)) for gap in parts.gaps] == [("part-1", 31), ("part-2", 6)]
    assert parts.down_s == pytest.approx(37.0, abs=0.01)
    assert parts.down_share == pytest.approx(37 / 300, abs=1e-4)
    # 265 requests in 99 + 69 + 95 s of load
    assert report.summary.window.seconds == pytest.approx(263.0, abs=0.01)
    assert report.summary.run.name == "day"
    assert report.summary.completeness.complete
    made = {path.name for path in day.iterdir()} - set(before)
    assert made == {"summary.json", "report.md", "report.html", "timeseries.csv"}
    assert read_summary((day / "summary.json").read_bytes()) == report.summary


def scraped(path: Path, begin_s: int, end_s: int, finished: int) -> None:
    """Samples of a server that finishes 10 requests a second."""
    samples = [
        ServerSample(ns(float(at_s)), "gpu-0", name, "{}", value)
        for i, at_s in enumerate(range(begin_s, end_s + 1))
        for name, value in (("up", 1.0), ("finished", finished + 10.0 * i), ("running", 4.0))
    ]
    with SampleWriter(path / SERVER_METRICS_FILE) as writer:
        writer.write(samples)


def test_what_servers_reported_is_joined_over_the_parts_without_the_gaps(tmp_path: Path) -> None:
    day = tmp_path / "day"
    scraped(part(day, 1, 0, 100), 0, 101, finished=0)
    scraped(part(day, 2, 130, 200, ended_ns=ns(200.5), stopped_ns=ns(200.0)), 129, 201, finished=5_000)
    summary = join_parts(day).summary
    assert summary.server is not None
    (server,) = summary.server.targets
    assert server.finished == pytest.approx(10 * (99 + 70), abs=0.1)  # the gap's 4,000 are in none
    assert server.covered == pytest.approx(1.0, abs=1e-3)
    assert server.running_mean == 4.0
    assert summary.server.failure is None
    assert "gpu-0" in (day / "report.md").read_text()


def test_a_part_without_samples_of_the_servers_is_named(tmp_path: Path) -> None:
    scraped(part(tmp_path, 1, 0, 100), 0, 101, finished=0)
    part(tmp_path, 2, 130, 200)
    summary = join_parts(tmp_path).summary
    assert summary.server is not None
    assert summary.server.failure == "part-2: nothing was scraped"
    (server,) = summary.server.targets
    assert server.covered == pytest.approx(99 / 168, abs=0.01)


def test_a_last_part_whose_master_died_cuts_the_run_short(tmp_path: Path) -> None:
    part(tmp_path, 1, 0, 50, ended_ns=ns(50.5), stopped_ns=ns(50.0), cut_short=True, stop_reason="SIGTERM")
    part(tmp_path, 2, 60, 100)
    report = join_parts(tmp_path)
    assert report.verdict is not None
    assert report.verdict.code == 4
    assert report.summary.parts is not None
    assert report.summary.parts.gaps[0].why == "SIGTERM"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_part_without_a_record_is_named_and_the_others_are_joined(number: int, tmp_path: Path) -> None:
    """Its master died in its first seconds; the last part's is still to be said to have ended."""
    whole: dict[str, object] = {"ended_ns": ns(120.5), "stopped_ns": ns(120.0)}
    for i, (begin_s, end_s) in enumerate([(0, 50), (60, 80), (90, 120)], 1):
        part(tmp_path, i, begin_s, end_s, **(whole if i == 3 else {}))
    (tmp_path / f"part-{number}" / FRAMES_FILE).write_bytes(b"")
    report = join_parts(tmp_path)
    assert report.verdict is not None
    assert report.verdict.code == EXIT_INCOMPLETE
    (torn,) = report.summary.completeness.torn
    assert torn.startswith(f"part-{number}: its master died before it had a record")
    assert report.summary.requests.scheduled == 100 - (50, 20, 30)[number - 1]
    assert report.summary.parts is not None
    left = {f"part-{n}" for n in (1, 2, 3)} - {f"part-{number}"}
    assert {each.name for each in report.summary.parts.parts} == left


def test_one_part_has_no_gap(tmp_path: Path) -> None:
    part(tmp_path, 1, 0, 50, ended_ns=ns(50.5), stopped_ns=ns(50.0))
    parts = join_parts(tmp_path).summary.parts
    assert parts is not None
    assert (parts.gaps, parts.down_s) == ([], 0.0)
    assert "gap of" not in (tmp_path / "report.md").read_text()


def test_a_directory_without_parts_is_said_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StoreError, match="no part"):
        join_parts(tmp_path)
    assert main(["join", str(tmp_path)]) == 1
    assert "holds no part" in json.loads(capfd.readouterr().out)["error"]


@pytest.mark.parametrize(
    ("before", "is_complete"),
    [
        ([stage(0, 1, 20, made={"w1": 20}), stage(1, 21, 40, made={"w1": 40})], True),
        ([stage(0, 1, 20, made={"w1": 20, "w2": 30}), stage(1, 21, 40, made={"w1": 40})], False),  # w2 left
        ([stage(0, 1, 20, made={"w1": 20}), stage(1, 21, 40, made={"w1": 42})], False),
        # w1 has records that it made after its count: they do not hide that one of w2 is lost.
        ([stage(1, 21, 40, made={"w1": 38, "w2": 1})], False),
        ([stage(0, 1, 20, drained_ns=None, fault="lost"), stage(1, 21, 40, made={"w1": 40})], False),
        ([stage(0, 1, 20)], False),  # of another version: not known
        ([], True),
    ],
)
def test_only_what_the_interrupted_stage_had_under_way_is_no_loss(
    tmp_path: Path, before: list[StageFacts], is_complete: bool
) -> None:
    under_way = stage(2, 41, 60, measured_ns=None, ended_ns=None, drained_ns=None)
    told = WorkerFacts(id="w1", index=0, announced=70, received=60, in_flight=3)
    path = part(tmp_path, 1, 0, 60, stages=[*before, under_way], workers=[told])
    with open_source([path], beside=tmp_path) as source:
        (run,) = source.runs
        assert not run.manifest.complete
        assert _settled(run).manifest.complete is is_complete


def test_what_is_merged_for_a_report_lies_beside_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = part(tmp_path, 1, 0, 50)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))  # a small /tmp of a pod
    with open_source([path]) as source:
        assert len(source.requests) == 50
        assert list(tmp_path.glob(".llm-locust-*"))
    assert list(tmp_path.iterdir()) == [path]


ROWS = 20
BATCHES = 12


@cache
def frames(run: str = "r", at_s: float = 0.0) -> list[bytes]:
    """Twelve batches of 20 requests, of two workers in turn: a request every half second."""
    made = []
    for number in range(BATCHES):
        worker, seq = f"w{number % 2}", number // 2
        records = [
            request(at_s + (number * ROWS + i) / 2, (0.1, 0.2), request_id=f"{run}{number}-{i}")
            for i in range(ROWS)
        ]
        header = FrameHeader(run, worker, seq, ROWS, finished=(seq + 1) * ROWS, in_flight=0)
        made.append(encode_frame(header, RecordBatch.from_records(records, worker).to_bytes()))
    return made


def begin(run: Path, run_id: str = "r", at_s: float = 0.0) -> None:
    run.mkdir()
    told = [
        WorkerFacts(
            id=f"w{i}",
            index=i,
            announced=ROWS * BATCHES // 2,
            received=ROWS * BATCHES // 2,
            left=True,
            received_seqs="0-5",
            batches=6,
        )
        for i in range(2)
    ]
    stop_ns = ns(at_s + ROWS * BATCHES / 2)
    times = {"started_ns": ns(at_s), "stopped_ns": stop_ns, "ended_ns": stop_ns + 10**9}
    write_manifest(run, manifest(None, id=run_id, workers=told, **times))


def segmented(run: Path, run_id: str = "r", at_s: float = 0.0) -> None:
    """Six segments of two batches."""
    begin(run, run_id, at_s)
    now = iter(range(1000))
    log = SegmentLog(run, 3.0, lambda: float(next(now)))
    for frame in frames(run_id, at_s):
        log.append(frame)
    log.close()
    assert len(segments_of(run)) > 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Summary of the same records in a run without ``--keep``."""
    run = tmp_path_factory.mktemp("whole") / "run"
    begin(run)
    log = FrameLog(run / "batches.frames")
    log.append(*frames())
    log.close()
    finish_run(run)
    return figures(run)


def figures(run: Path) -> dict[str, object]:
    made = as_json(analyse(Source.of(run), PLAIN).summary)
    found: dict[str, object] = json.loads(json.dumps(made, default=str))
    return found


def dropped_now(run: Path, to: Path) -> dropping.DroppedRecords:
    return drop(run, str(to), 0.0, ended=False, now_s=4e9)


def test_what_was_dropped_and_what_was_not_are_the_whole_run(
    tmp_path: Path, whole: dict[str, object]
) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    segmented(run)
    upload_run(run, str(to))
    done = dropped_now(run, to)
    assert done.failure == ""
    assert len(segments_of(run)) == 1
    report = finish_run(run).summary
    kept = len(open_requests(run))
    assert done.records + kept == ROWS * BATCHES
    assert report.completeness.complete
    assert report.completeness.records_lost == 0
    assert report.dropped is not None
    assert report.dropped.records == done.records
    assert report.since_start is not None
    assert report.since_start.requests == ROWS * BATCHES
    assert report.requests.scheduled == kept  # of the window, which begins after what was dropped
    assert report.window.seconds == pytest.approx(kept / 2, abs=0.6)
    assert "merge" in (run / "report.md").read_text()
    upload_run(run, str(to))
    assert (to / "r" / "batches" / f"{0:015d}.frames").exists()  # an upload keeps what only it has
    merge([run, to], tmp_path / "merged")
    assert figures(tmp_path / "merged") == whole


def test_the_warm_up_is_not_taken_again_of_what_was_not_dropped(tmp_path: Path) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    segmented(run)
    write_manifest(run, replace(read_manifest(run), warmup_s=5.0))
    upload_run(run, str(to))
    done = dropped_now(run, to)
    report = finish_run(run).summary
    assert report.requests.scheduled == ROWS * BATCHES - done.records
    assert report.since_start is not None
    assert report.since_start.requests == ROWS * BATCHES - 10  # two a second


def test_a_window_in_what_was_dropped_is_refused(tmp_path: Path) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    segmented(run)
    upload_run(run, str(to))
    dropped_now(run, to)
    finish_run(run)
    with pytest.raises(ValueError, match="were dropped"):
        build_report(run, Question(window=(0.0, 90.0)))


def test_a_rolling_summary_counts_what_was_dropped_before_it(tmp_path: Path) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    segmented(run)
    upload_run(run, str(to))
    dropped_now(run, to)
    write_so_far(run)
    told = json.loads((run / "so-far" / "summary.json").read_text())
    assert told["since_start"]["requests"] == ROWS * BATCHES


def _lost(file: Path) -> None:
    file.unlink()


def _changed(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("spoil", [_lost, _changed, _cut])
def test_a_destination_that_lies_keeps_the_records_here(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    segmented(run)
    upload_run(run, str(to))
    before = [segment.path for segment in segments_of(run)]
    spoil(to / "r" / "batches" / before[1].name)
    done = dropped_now(run, to)
    assert done.records in (2 * ROWS, 3 * ROWS)
    assert before[1].name in done.failure
    assert [segment.path for segment in segments_of(run)] == before[1:]
    upload_run(run, str(to))  # sends it again
    assert dropped_now(run, to).failure == ""
    merge([run, to], tmp_path / "merged")
    assert len(open_requests(tmp_path / "merged")) == ROWS * BATCHES


class CrashError(Exception):
    """The process dies here."""


def crashing(step: Callable[..., object], is_after: bool, at: int) -> Callable[..., object]:
    """The step, of which one call dies, before or after it."""
    left = [at]

    def crash(*args: object, **options: object) -> object:
        left[0] -= 1
        if left[0] < 0 and not is_after:
            raise CrashError
        found = step(*args, **options)
        if left[0] < 0:
            raise CrashError
        return found

    return crash


STEPS = ("has_segment", "rest_of", "write_expired", "sync")


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(crashes=st.lists(st.tuples(st.sampled_from(STEPS), st.booleans(), st.integers(0, 2)), max_size=3))
def test_crashes_between_any_two_steps_neither_lose_nor_double_a_record(
    tmp_path_factory: pytest.TempPathFactory, crashes: list[tuple[str, bool, int]], whole: dict[str, object]
) -> None:
    place = tmp_path_factory.mktemp("crashes")
    run, to = place / "run", place / "to"
    segmented(run)
    for step, is_after, at in crashes:
        upload_run(run, str(to))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dropping, step, crashing(getattr(dropping, step), is_after, at))
            with suppress(CrashError):
                dropped_now(run, to)
    shutil.copytree(run, place / "left")
    merge([place / "left"], place / "here")
    manifest_here = read_manifest(place / "here")
    gone = 0 if manifest_here.dropped is None else manifest_here.dropped.records
    assert gone + len(open_requests(place / "here")) == ROWS * BATCHES
    assert manifest_here.complete
    report = finish_run(run).summary
    assert report.completeness.complete
    assert report.completeness.records_stored == len(open_requests(place / "here"))
    upload_run(run, str(to))
    merge([run, to] if to.exists() else [run], place / "merged")
    assert figures(place / "merged") == whole


def test_nothing_is_dropped_of_a_run_that_has_ended_or_is_not_uploaded(tmp_path: Path) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    segmented(run)
    assert "no copy" in dropped_now(run, to).failure
    assert len(segments_of(run)) > 3


def test_a_damaged_segment_stays(tmp_path: Path) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    segmented(run)
    first = segments_of(run)[0].path
    _changed(first)
    upload_run(run, str(to))
    assert dropped_now(run, to).failure
    assert first.exists()


def test_what_is_damaged_of_a_dropped_segment_is_said(tmp_path: Path) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    segmented(run)
    upload_run(run, str(to))
    dropped_now(run, to)
    next((run / "batches").glob("*.expired")).write_text("{}")
    with pytest.raises(StoreError, match=r"does not say what was dropped.*copy it back"):
        finish_run(run)


def test_a_copy_in_slices_that_cut_a_frame_is_sent_again(tmp_path: Path) -> None:
    """As after a write that failed: its first frame was whole, was uploaded, and then overwritten."""
    run, to = tmp_path / "run", tmp_path / "to"
    segmented(run)
    upload_run(run, str(to))
    there, first = to / "r", segments_of(run)[0]
    content, half = first.path.read_bytes(), first.size // 2
    slices = {segment_name(0): content[:half], segment_name(half): content[half:]}
    assert half not in {frame.offset + frame.length for frame in index_frames(first.path).frames}
    for name, part in slices.items():
        (there / name).write_bytes(part)
    write_index(
        open_destination(str(there)),
        read_index(open_destination(str(there)))
        | {name: Stored(len(part), hashlib.sha256(part).hexdigest()) for name, part in slices.items()},
    )
    assert "no copy" in dropped_now(run, to).failure
    upload_run(run, str(to))
    assert (there / segment_name(0)).read_bytes() == content
    assert not (there / segment_name(half)).exists()
    assert dropped_now(run, to).failure == ""
    merge([run, to], tmp_path / "merged")
    assert len(open_requests(tmp_path / "merged")) == ROWS * BATCHES


def test_the_copy_alone_is_the_whole_run_once_that_has_ended(
    tmp_path: Path, whole: dict[str, object]
) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    segmented(run)
    upload_run(run, str(to))
    dropped_now(run, to)
    finish_run(run)
    upload_run(run, str(to))
    merge([to], tmp_path / "merged")
    assert figures(tmp_path / "merged") == whole


def test_the_last_segment_of_a_part_stays_while_its_manifest_is_written(tmp_path: Path) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    segmented(run)
    upload_run(run, str(to))
    last = segments_of(run)[-1].path
    os.utime(run / "manifest.json", (4e9, 4e9))
    assert drop(run, str(to), 1.0, ended=True, now_s=4e9).records
    assert segments_of(run) == [Segment(base_of(last) or 0, last)]
    assert drop(run, str(to), 1.0, ended=True, now_s=4e9 + 2).records
    assert segments_of(run) == []


def test_a_batch_that_was_being_written_when_the_machine_died_stays_without_a_word(tmp_path: Path) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    segmented(run)
    last = segments_of(run)[-1].path
    last.write_bytes(last.read_bytes() + frames()[0][:-1])
    upload_run(run, str(to))
    done = drop(run, str(to), 0.0, ended=True, now_s=4e9)
    assert done.failure == ""
    assert [segment.path for segment in segments_of(run)] == [last]
    assert upload_run(run, str(to)).removed == ()
    assert drop(run, str(to), 0.0, ended=True, now_s=4e9) == dropping.DroppedRecords()


def test_an_earlier_part_that_was_dropped_whole_is_in_the_report_of_all_parts(tmp_path: Path) -> None:
    """Its workers delivered a batch late that its master had received, and had not said so."""
    day, to = tmp_path / "day", tmp_path / "to"
    day.mkdir()
    for number, run in enumerate(("r", "s")):
        part = day / f"part-{number + 1}"
        segmented(part, run, at_s=200.0 * number)
        if number == 0:  # its master died
            write_manifest(part, replace(read_manifest(part), stopped_ns=None, ended_ns=None))
        upload_run(part, str(to))
    late = day / "part-1" / "late" / "w0"
    late.mkdir(parents=True)
    (late / "00000001.frame").write_bytes(frames()[2])
    assert drop(day / "part-1", str(to), 0.0, ended=True, now_s=4e9).records == ROWS * BATCHES
    assert segments_of(day / "part-1") == []
    dropped_now(day / "part-2", to)
    finish_run(day / "part-2")
    report = join_parts(day).summary
    assert report.completeness.complete
    assert report.completeness.records_lost == 0
    assert report.parts is not None
    assert [part.requests for part in report.parts.parts] == [ROWS * BATCHES] * 2
    assert report.dropped is not None
    assert report.since_start is not None
    assert report.since_start.requests == 2 * ROWS * BATCHES
    assert report.requests.scheduled == 2 * ROWS * BATCHES - report.dropped.records
    for number, run in enumerate(("r", "s")):
        upload_run(day / f"part-{number + 1}", str(to))
        merge([day / f"part-{number + 1}", to / run], tmp_path / run)
        assert len(open_requests(tmp_path / run)) == ROWS * BATCHES
        assert read_manifest(tmp_path / run).dropped is None


def test_a_segment_that_cannot_begin_leaves_the_present_one_going_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    now = iter(range(1000))
    log = SegmentLog(run, 0.5, lambda: float(next(now)))
    log.append(frames()[0])
    (run / segment_name(len(frames()[0]))).mkdir()
    log.append(frames()[1])
    log.close()
    assert (run / segment_name(0)).read_bytes() == b"".join(frames()[:2])


def _without_what_was_dropped(run: Path) -> None:
    for path in (run / "batches").glob("*.expired"):
        path.unlink()


def _of_an_earlier_time(run: Path) -> None:
    """Its last segments, and what its manifest says of them, were not there yet."""
    shutil.rmtree(run / "batches")
    log = SegmentLog(run, 3.0, lambda: 0.0)
    log.append(*frames()[:4])
    log.close()
    (run / "requests.parquet").unlink(missing_ok=True)
    known = read_manifest(run)
    workers = [replace(worker, received_seqs="0-1", batches=2, received=2 * ROWS) for worker in known.workers]
    write_manifest(run, replace(known, workers=workers, dropped=None))


def _of_an_earlier_time_with_a_report(run: Path) -> None:
    _of_an_earlier_time(run)
    finish_run(run)


def _with_reports_only(run: Path) -> None:
    shutil.rmtree(run / "batches")
    (run / "requests.parquet").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("spoil", "has_ended", "was_cut"),
    [
        (_without_what_was_dropped, True, False),
        (_of_an_earlier_time, False, True),
        (_of_an_earlier_time, True, False),
        (_of_an_earlier_time_with_a_report, False, True),
        (_of_an_earlier_time_with_a_report, True, False),
        (_with_reports_only, False, True),
        (_with_reports_only, True, False),
    ],
)
def test_an_upload_of_an_older_copy_removes_nothing_that_only_the_destination_has(
    tmp_path: Path, spoil: Callable[[Path], None], has_ended: bool, was_cut: bool
) -> None:
    run, to, old = tmp_path / "run", tmp_path / "to", tmp_path / "old"
    segmented(run)
    upload_run(run, str(to))
    dropped_now(run, to)
    if has_ended:
        finish_run(run)
    upload_run(run, str(to))
    shutil.copytree(run, old)
    spoil(old)
    if was_cut:  # the manifest goes first, and comes last
        (to / "r" / "manifest.json").unlink()
    before = {path: path.read_bytes() for path in to.rglob("*") if path.is_file()}
    with pytest.raises(UploadError, match=r"older or an incomplete copy.*llm-locust merge"):
        upload_run(old, str(to))
    assert {path: path.read_bytes() for path in to.rglob("*") if path.is_file()} == before
    if not was_cut:
        merge([run, to], tmp_path / "merged")
        upload_run(tmp_path / "merged", str(to))  # as the refusal advises
        assert len(open_requests(to / "r")) == ROWS * BATCHES
