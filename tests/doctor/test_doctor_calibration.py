"""The client's times against a server that knows its own."""

import math
import sys
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from doctor_cases import asked

from llm_locust.cli.main import main
from llm_locust.client.http.clock import hold_stamping
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.doctor import calibration, command as checks
from llm_locust.doctor.calibration import Calibrated, calibrate, compare, judge_calibration, measure
from llm_locust.doctor.finding import Examination, Finding, Status, TimeLeft
from llm_locust.doctor.known_server import TTFT_NS, Logged
from llm_locust.host import FileLimits, descriptors_for

MS = 1_000_000
SENT = 1_700_000_000_000_000_000
USERS = 8


def record(at_ms: list[float], request_id: str = "r", **of: Any) -> RequestRecord:
    """An answer whose token events came so long after it was sent."""
    fields: dict[str, Any] = {"outcome": Outcome.OK, "sent_ns": SENT, "reads": len(at_ms)}
    arrivals_ns = np.array([round(ms * MS) for ms in at_ms], dtype=np.int64)
    return RequestRecord(
        request_id=request_id,
        name="calibration",
        scheduled_ns=SENT,
        started_ns=SENT,
        ended_ns=SENT,
        arrivals_ns=arrivals_ns,
        **(fields | of),
    )


def logged(
    at_ms: list[float], request_id: str = "r", *, took_ms: float = 0.0, stamped: bool = True
) -> Logged:
    """The log of an answer that was written so long after the request came."""
    before_ns = [SENT + round(ms * MS) for ms in at_ms]
    return Logged(
        request_id=request_id,
        received_ns=SENT if stamped else None,
        before_ns=before_ns,
        after_ns=[ns + round(took_ms * MS) for ns in before_ns],
    )


def compared(records: list[RequestRecord], log: list[Logged]) -> Calibrated:
    return compare(records, log, asked=USERS, streams=USERS)


def judged(finding: Finding, status: Status, *words: str) -> None:
    assert finding.status is status, finding
    for word in words:
        assert word in f"{finding.figure} | {finding.change}"
    assert bool(finding.change) or status in (Status.OK, Status.SKIPPED)


def moved(entry: Logged, by_ms: float, first: int = 0, step: int = 1) -> Logged:
    """The log with every ``step``-th write moved, from the ``first`` on."""
    by_ns = [
        round(by_ms * MS) * (i >= first and (i - first) % step == 0) for i in range(len(entry.before_ns))
    ]
    return msgspec.structs.replace(
        entry,
        before_ns=[ns + by for ns, by in zip(entry.before_ns, by_ns, strict=True)],
        after_ns=[ns + by for ns, by in zip(entry.after_ns, by_ns, strict=True)],
    )


@pytest.fixture(scope="module")
def measured() -> tuple[list[RequestRecord], list[Logged]]:
    """What the client and the server have of a second of streams."""
    stamping = hold_stamping()
    try:
        records, log, streams = measure(USERS, 1.0)
    finally:
        if stamping is not None:
            stamping.close()
    assert streams == USERS
    return records, log


Measured = tuple[list[RequestRecord], list[Logged]]


def test_the_client_is_held_against_the_log_of_every_request(measured: Measured) -> None:
    records, log = measured
    found = compared(records, log)
    assert (found.astray, found.why) == (0, "")
    assert found.answers == len(records) == len(log) > USERS  # one alone, and at least one of each user
    assert len(found.ttft_ms) == len(records)
    assert len(found.itl_ms) == sum(len(r.arrivals_ns) - 1 for r in records)
    # A ratio, and of the middle: a machine on which others have the cores makes single calls late.
    assert np.median(found.ttft_ms) < TTFT_NS / MS / 10
    assert np.median(found.itl_ms) < 2.0


def test_a_log_that_is_wrong_by_5_ms_shows_as_5_ms(measured: Measured) -> None:
    records, log = measured
    true = compared(records, log)
    for by_ms in (5.0, -5.0):
        late = compared(records, [moved(entry, by_ms) for entry in log])
        assert np.median(late.ttft_ms) == pytest.approx(5.0, abs=0.1 + 2 * np.median(true.open_ms) + 1)
        assert late.itl_ms.tolist() == true.itl_ms.tolist()
        uneven = compared(records, [moved(entry, by_ms, first=1, step=2) for entry in log])
        assert uneven.ttft_ms.tolist() == true.ttft_ms.tolist()
        assert np.median(uneven.itl_ms) == pytest.approx(5.0, abs=1.5)
        judged(judge_calibration(late), Status.WARN)
        judged(judge_calibration(uneven), Status.WARN)


def test_an_error_is_the_distance_from_the_span_of_the_write() -> None:
    log = [logged([50, 70, 90], took_ms=0.5)]
    for first_ms, error_ms in ((49.0, 1.0), (50.0, 0.0), (50.4, 0.0), (50.5, 0.0), (53.5, 3.0)):
        found = compared([record([first_ms, 70.2, 90.2])], log)
        assert found.ttft_ms.tolist() == pytest.approx([error_ms])
    # From the end of one write to the begin of the next, and from begin to end: 19.5 to 20.5 ms.
    assert compared([record([50, 71, 91])], log).itl_ms.tolist() == pytest.approx([0.5, 0.0])
    assert compared([record([50, 90, 90])], log).itl_ms.tolist() == pytest.approx([19.5, 19.5])


def test_answers_are_joined_by_request_id_and_a_late_server_is_no_error() -> None:
    records = [record([50, 70], "a"), record([450, 900], "b")]
    found = compared(records, [logged([450, 900], "b"), logged([50, 70], "a")])
    assert found.ttft_ms.tolist() == [0, 0]
    assert found.itl_ms.tolist() == [0, 0]
    judged(judge_calibration(found), Status.OK, "TTFT within 0.001 ms (largest of 2) at 8 streams")


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([record([50], outcome=Outcome.TIMEOUT, error="no token")], "timeout: no token"),
        ([record([50, 70], "of nobody")], "it is not in the server's log"),
        ([record([50])], "1 token event of 2 written"),
        ([record([50, 70, 90])], "3 token events of 2 written"),
        ([], "0 of 0 answers"),
    ],
)
def test_an_answer_that_the_server_did_not_write_is_a_failure(
    records: list[RequestRecord], words: str
) -> None:
    judged(judge_calibration(compared(records, [logged([50, 70])])), Status.FAIL, words, "fewer users")


def of_errors(ttft_ms: float, itl_ms: float, open_ms: float = 0.01, n: int = 200, **of: Any) -> Calibrated:
    """A calibration in which all errors are the same."""
    found = Calibrated(
        asked=400,
        streams=400,
        ttft_ms=np.full(n, ttft_ms),
        itl_ms=np.full(50 * n, itl_ms),
        open_ms=np.full(50 * n, open_ms),
        tokens_per_s=20_000.0,
        wide_ratio=0.02,
        answers=n,
    )
    return replace(found, **of)


@pytest.mark.parametrize(
    ("seen", "status", "words"),
    [
        (
            of_errors(0.08, 0.05),
            Status.OK,
            "TTFT within 0.08 ms (p99) at 400 streams, 20,000 tokens/s; ITL within 0.05 ms",
        ),
        (of_errors(0.999, 0.05), Status.OK, "TTFT within 1 ms"),
        (of_errors(1.0, 0.05), Status.WARN, "2.0 % of the reads had several tokens"),
        (of_errors(0.05, 3.21), Status.WARN, "ITL within 3.2 ms"),
        (of_errors(0.05, 0.05, open_ms=1.0), Status.WARN, "too busy to tell"),
        (of_errors(0.05, 0.05, n=99), Status.OK, "(largest of 99)"),
        (of_errors(0.08, 0.05, asked=9_000), Status.OK, "at 400 streams of 9,000 asked for"),
        (replace(of_errors(0.05, 0.05), ttft_ms=np.empty(0)), Status.WARN, "TTFT not known"),
        (of_errors(9.0, 9.0, clock_was_set=True), Status.WARN, "the clock was set"),
        ("no time was left", Status.SKIPPED, "no time was left"),
    ],
)
def test_the_error_is_said_and_judged(seen: Calibrated | str, status: Status, words: str) -> None:
    judged(judge_calibration(seen), status, words)


def test_a_request_without_a_stamp_of_the_kernel_has_no_true_ttft() -> None:
    found = compared([record([50, 70])], [logged([50, 70], stamped=False)])
    assert len(found.ttft_ms) == 0
    judged(judge_calibration(found), Status.WARN, "TTFT not known")


def test_nothing_written_is_no_rate() -> None:
    assert math.isnan(compared([], []).tokens_per_s)


def test_streams_that_the_open_files_do_not_allow_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "raise_file_limit", lambda _: False)
    monkeypatch.setattr(calibration, "file_limits", lambda: FileLimits(256, 256))
    streams = calibration.streams_of(10_000)
    assert 1 <= streams < 256
    assert descriptors_for(streams, targets=1) <= 256


def test_a_server_that_does_not_start_is_said_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    found = calibrate(1, TimeLeft(60.0))
    judged(judge_calibration(found), Status.SKIPPED, "cannot be used: No such file")


def test_without_time_nothing_is_measured() -> None:
    judged(judge_calibration(calibrate(1, TimeLeft(1.0))), Status.SKIPPED, "no time was left")


def test_the_check_is_made_if_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    def measured_at(users: int, _: TimeLeft) -> Calibrated:
        seen.append(users)
        return of_errors(0.08, 0.05)

    monkeypatch.setattr(checks, "calibrate", measured_at)
    assert main(["doctor", "--calibrate", "--users", "400"]) in (0, 2)
    assert seen == [400]
    said = " ".join(capsys.readouterr().out.split())
    assert "Calibration ok TTFT within 0.08 ms" in said
    assert checks.CALIBRATION not in [result.check for result in checks.examine(asked())]
    assert seen == [400]
    assert Examination(users=1).calibrate is False
