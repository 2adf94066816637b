"""One report of the parts of a restartable run."""

import json
import tempfile
from pathlib import Path

import pytest
from metrics_cases import manifest, ns, request, stage

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import StageFacts, WorkerFacts
from llm_locust.core.record import RequestRecord
from llm_locust.deployment.samples import SERVER_METRICS_FILE, SampleWriter, ServerSample
from llm_locust.figures.summary import read_summary
from llm_locust.report.inputs import open_source
from llm_locust.report.run.join import _settled, join_parts, main
from llm_locust.store import FRAMES_FILE, FrameHeader, FrameLog, StoreError, encode_frame, write_manifest

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
    assert main([str(tmp_path)]) == 1
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
