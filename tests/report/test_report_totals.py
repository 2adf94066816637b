"""Rolling summaries and reports of a run that goes on say what one reading of everything would say."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from metrics_cases import failed, frame, going_on, manifest, ns, request

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest, WorkerFacts
from llm_locust.core.record import RequestRecord
from llm_locust.figures.summary import Summary, read_summary
from llm_locust.live.counts import MOST_KEYS
from llm_locust.metrics.question import Question
from llm_locust.report import analysis
from llm_locust.report.analysis import analyse, build_report
from llm_locust.report.commands import main
from llm_locust.report.dropping import FrameTotals, counted, decode_totals, encode_totals
from llm_locust.report.so_far import SO_FAR_DIR, STATE_FILE, open_so_far, write_so_far
from llm_locust.store import (
    FRAMES_FILE,
    FrameHeader,
    FrameIndex,
    StoreError,
    compact,
    encode_frame,
    frame_log,
    index_frames,
    write_manifest,
)

RUN = manifest(None, slo="ttft=80ms", warmup_s=5.0)


def encoded(worker: str, seq: int, records: list[RequestRecord]) -> bytes:
    batch = RecordBatch.from_records(records, worker)
    header = FrameHeader("run", worker, seq, len(records), clock_offset_ns=0, clock_error_ns=1)
    return encode_frame(header, batch.to_bytes())


class Growing:
    """The bytes of a file of frames, and how long it is at each reading."""

    def __init__(self, data: bytes, lengths: list[int]) -> None:
        self.data = data
        self.lengths = lengths

    def __repr__(self) -> str:
        return f"{len(self.data)} bytes, read at {self.lengths}"


@st.composite
def files(draw: st.DrawFn) -> Growing:
    """Frames of two workers, some of them twice."""
    frames, seqs = [], {"a": 0, "b": 0}
    for number in range(draw(st.integers(1, 12))):
        worker = draw(st.sampled_from("ab"))
        records = []
        for i in range(draw(st.integers(1, 6))):
            at = draw(st.floats(0, 100))
            id_ = f"{number}-{i}"
            if draw(st.integers(0, 4)) == 0:
                records.append(failed(at, request_id=id_))
            else:
                first = draw(st.sampled_from([0.05, 0.079, 0.081, 0.3]))
                name = draw(st.sampled_from(["chat", "long"]))
                records.append(request(at, (first, first + 0.02), name=name, request_id=id_))
        frames.append(encoded(worker, seqs[worker], records))
        seqs[worker] += 1
        if draw(st.integers(0, 5)) == 0:
            frames.append(draw(st.sampled_from(frames)))  # sent again, and written again
    data = b"".join(frames)
    cuts = draw(st.lists(st.integers(0, len(data)), max_size=6))
    return Growing(data, [*sorted(cuts), len(data)])


@settings(  # of up to seven readings each, 150 ms
    max_examples=settings().max_examples // 6, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(file=files())
def test_many_readings_of_a_growing_file_count_what_one_reading_of_it_counts(
    tmp_path: Path, file: Growing
) -> None:
    data = file.data
    path = tmp_path / FRAMES_FILE
    totals = FrameTotals(run="run")
    for length in file.lengths:  # a cut anywhere is a frame that is being written
        path.write_bytes(data[:length])
        frames = index_frames(path, totals.read_bytes).frames
        totals = decode_totals(encode_totals(counted(totals, frames, RUN)), "run")
    whole = counted(FrameTotals(run="run"), index_frames(path).frames, RUN)
    assert totals.since_start(judged=True) == whole.since_start(judged=True)
    assert totals.read_bytes == whole.read_bytes == len(data)
    assert totals.seqs == whole.seqs


@dataclass(frozen=True)
class Rolled:
    """A rolling summary a minute of a run with ten requests a second, of which each takes 0.2 s."""

    run: Path
    summaries: list[Summary]
    read_bytes: list[int]


@pytest.fixture(scope="module")
def rolled(tmp_path_factory: pytest.TempPathFactory) -> Rolled:
    run = tmp_path_factory.mktemp("rolled") / "run"
    read: list[int] = []

    def noted(path: Path, start: int = 0) -> FrameIndex:
        found = index_frames(path, start)
        read.append(sum(frame.length for frame in found.frames))
        return found

    run.mkdir()
    worker = WorkerFacts(id="a", index=0, announced=None, received=0, heard_ns=ns(0.0))
    write_manifest(run, manifest(None, workers=[worker], slo=RUN.slo, warmup_s=RUN.warmup_s))
    found = []
    with pytest.MonkeyPatch.context() as patch, (run / FRAMES_FILE).open("wb", buffering=0) as file:
        patch.setattr(analysis, "html_report", lambda *_: b"")  # half of the time, and not looked at
        patch.setattr(frame_log, "index_frames", noted)
        for begin in range(0, 300, 60):
            for at in range(begin, begin + 60, 10):
                each = [at + i / 10 for i in range(100)]
                records = [request(t, (0.05 + t / 1e4, 0.2), request_id=f"{t:.1f}") for t in each]
                file.write(encoded("a", at, records))
            write_so_far(run)
            found.append(read_summary((run / SO_FAR_DIR / "summary.json").read_bytes()))
    return Rolled(run, found, read)


def test_spans_follow_each_other_and_every_request_is_in_exactly_one(rolled: Rolled) -> None:
    found = rolled.summaries
    # The last 0.2 s of each reading are left to the next one; the warm-up of 5 s is in none.
    assert [each.requests.scheduled for each in found] == pytest.approx([547, 600, 600, 600, 600], abs=2)
    assert sum(each.requests.scheduled for each in found) == pytest.approx(2947, abs=2)
    # What was in flight at a span's beginning, and ended in it, counts in its rates.
    assert [each.throughput.requests_per_s for each in found[1:]] == pytest.approx([10.0] * 4, rel=1e-3)
    assert [each.throughput.concurrency_mean for each in found[1:]] == pytest.approx([2.0] * 4, rel=1e-3)
    assert all(each.completeness.complete for each in found)
    edges = [(each.window.start, each.window.end) for each in found]
    assert all(end <= start for (_, end), (start, _) in pairwise(edges))
    totals = [each.since_start for each in found]
    assert [each.requests for each in totals if each] == [550, 1150, 1750, 2350, 2950]
    last = totals[-1]
    assert last is not None
    exact_ms = np.percentile([1e3 * (0.05 + t / 1e5) for t in range(50, 3000)], 99)
    assert last.latency_ms["ttft"].p99 == pytest.approx(exact_ms, rel=last.relative_error)
    assert "So far" in (rolled.run / SO_FAR_DIR / "report.md").read_text()


def test_what_is_read_and_what_is_kept_does_not_grow_with_the_run(rolled: Rolled) -> None:
    kept, read = rolled.run / SO_FAR_DIR, rolled.read_bytes
    assert len(read) == 5
    assert max(read[1:]) < 1.2 * read[0]
    assert sum(read) < 1.2 * (rolled.run / FRAMES_FILE).stat().st_size
    assert (kept / STATE_FILE).stat().st_size < 64 << 10
    assert not [path for path in kept.iterdir() if path.name.startswith(".")]


def test_a_damaged_state_and_one_of_another_run_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / FRAMES_FILE
    path.write_bytes(encoded("a", 0, [request(10.0)]))
    state = encode_totals(counted(FrameTotals(run="run"), index_frames(path).frames, RUN))
    assert decode_totals(state, "run").read_bytes > 0
    for content, run in ((state, "other"), (state[:-3], "run"), (b"", "run"), (b"\x93\x01", "run")):
        assert decode_totals(content, run) == FrameTotals(run=run)


def test_more_keys_than_are_kept_fold_alike_in_one_reading_and_in_many(tmp_path: Path) -> None:
    path, data, totals = tmp_path / FRAMES_FILE, b"", FrameTotals(run="run")
    for seq in range(0, MOST_KEYS + 40, 28):
        records = [request(10.0, name="x", replica=f"r{seq + i}", request_id=f"{seq + i}") for i in range(28)]
        data += encoded("a", seq, records)
        path.write_bytes(data)
        totals = decode_totals(
            encode_totals(counted(totals, index_frames(path, totals.read_bytes).frames, RUN)), "run"
        )
    whole = counted(FrameTotals(run="run"), index_frames(path).frames, RUN)
    assert {k.key: k for k in totals.keys} == {k.key: k for k in whole.keys}
    assert len(totals.keys) == MOST_KEYS + 1


def every_second(begin: int, end: int, takes_s: float = 0.2, worker: str = "a") -> list[RequestRecord]:
    return [request(float(at), (0.1, takes_s), request_id=f"{worker}{at}") for at in range(begin, end)]


def test_the_report_has_what_has_come_and_says_so(tmp_path: Path) -> None:
    with going_on(tmp_path, [("a", every_second(0, 30)), ("b", every_second(0, 30, worker="b"))]):
        pass
    out = write_so_far(tmp_path)
    summary = read_summary((out / "summary.json").read_bytes())
    assert out == tmp_path / SO_FAR_DIR
    assert summary.run.so_far is True
    assert summary.requests.ok == 58  # at 29 s and later nothing can be judged yet
    assert summary.completeness.complete is True
    assert "soak, so far: until " in (out / "report.html").read_text()
    assert "soak, so far: until " in (out / "report.md").read_text()


def test_what_is_judged_ends_before_the_slow_requests_are_missing(tmp_path: Path) -> None:
    """Each takes 10 s: of those asked for in the last 10 s there are records of none, or of the fast ones."""
    slow = every_second(0, 50, takes_s=10.0)
    fast = [request(50.0 + i / 10, (0.1, 0.2), request_id=f"f{i}") for i in range(90)]
    with going_on(tmp_path, [("a", slow), ("a", fast)]):
        pass
    with open_so_far(tmp_path) as source:
        summary = analyse(source, Question()).summary
    assert summary.latency_ms["e2el"].known.p50 == pytest.approx(10_000)
    assert summary.window.seconds == pytest.approx(49.1)


def test_a_frame_that_is_being_written_is_left_for_the_next_time(tmp_path: Path) -> None:
    with going_on(tmp_path, [("a", every_second(0, 30))]) as log:
        following = frame("a", 1, every_second(30, 60))
        log.append(following[:-10])
        with open_so_far(tmp_path) as source:
            assert len(source.requests) == 30
            assert source.manifest.complete
        log.append(following[-10:])
        with open_so_far(tmp_path) as source:
            assert len(source.requests) == 60


def test_nothing_of_the_run_itself_is_touched(tmp_path: Path) -> None:
    with going_on(tmp_path, [("a", every_second(0, 30))]):
        pass
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_so_far(tmp_path)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert after == before
    # And the run's end finds what it would have found without.
    compact(tmp_path)
    assert build_report(tmp_path).summary.requests.ok == 30


def test_a_worker_that_is_silent_is_lost_as_far_as_is_known(tmp_path: Path) -> None:
    def facts(name: str, index: int, heard_s: float) -> WorkerFacts:
        return WorkerFacts(
            id=name, index=index, announced=35, received=0, in_flight=2, lost=True, heard_ns=ns(heard_s)
        )

    workers = [facts("a", 0, 60.0), facts("b", 1, 30.0)]
    with going_on(
        tmp_path, [("a", every_second(0, 60)), ("b", every_second(0, 30, worker="b"))], workers=workers
    ):
        pass
    with open_so_far(tmp_path) as source:
        found: Manifest = source.manifest
    assert [w.lost for w in found.workers] == [False, True]
    assert (found.workers[1].missing, found.records_lost) == (5, 7)


def test_a_finished_run_is_itself(tmp_path: Path) -> None:
    with going_on(tmp_path, [("a", every_second(0, 30))]):
        pass
    compact(tmp_path)
    with open_so_far(tmp_path) as source:
        assert len(source.requests) == 30
        assert source.manifest.name == "soak"


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ([], "no request has been recorded yet"),
        ([("a", every_second(0, 1, takes_s=5.0))], "not run long enough"),
    ],
)
def test_too_little_is_said_in_a_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    batches: list[tuple[str, list[RequestRecord]]],
    said: str,
) -> None:
    with going_on(tmp_path, batches):
        pass
    assert main(["so-far", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"manifest\.json"), open_so_far(tmp_path):
        pass
    write_manifest(tmp_path, manifest())
    with pytest.raises(StoreError, match=r"neither batches\.frames nor"), open_so_far(tmp_path):
        pass
