"""A report of a run that still goes on, from the frames that have come."""

from pathlib import Path

import pytest
from metrics_cases import manifest, ns, request
from run_going_on import frame, going_on

from llm_locust.core.manifest import Manifest, WorkerFacts
from llm_locust.core.record import RequestRecord
from llm_locust.figures.summary import read_summary
from llm_locust.metrics.question import Question
from llm_locust.report.run.analysis import analyse, build_report
from llm_locust.report.run.rolling import main, write_so_far
from llm_locust.report.run.totals import SO_FAR_DIR, open_so_far
from llm_locust.store import (
    StoreError,
    compact,
    write_manifest,
)


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
    assert main([str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"manifest\.json"), open_so_far(tmp_path):
        pass
    write_manifest(tmp_path, manifest())
    with pytest.raises(StoreError, match=r"neither batches\.frames nor"), open_so_far(tmp_path):
        pass
