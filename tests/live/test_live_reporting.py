"""What a worker sends: each request in one report, by the second in which it ended."""

import msgspec
import pytest
from hypothesis import given, strategies as st
from live_cases import LIMITS, Clock, counts_of
from metrics_cases import request, requests

from llm_locust.core.record import RequestRecord
from llm_locust.live.counts import LiveKey
from llm_locust.live.messages import (
    PASS_ROWS,
    STEPS,
    LiveCounts,
    LiveReport,
    LiveSlice,
    PackedCounts,
    ReportError,
    decode_report,
    encode_report,
)
from llm_locust.live.state import LiveRun


def worker(clock: Clock) -> LiveCounts:
    return LiveCounts(LiveRun(id="run", limits=LIMITS), clock.ns)


def ended(report: LiveReport) -> list[tuple[float, int]]:
    """The age of each slice, and how many requests are in it."""
    return [(s.age_s, sum(p.unpacked().ended for p in s.counts)) for s in report.slices]


def test_requests_are_told_with_the_age_of_their_second() -> None:
    clock = Clock(1000.0)
    counts = worker(clock)
    counts.add(request())
    counts.add(request())
    clock.tick(2)
    counts.add(request())
    clock.tick(0.75)
    assert ended(decode_report(counts.report())) == [(2.25, 2), (0.25, 1)]


def test_a_report_has_what_came_since_the_one_before() -> None:
    counts = worker(Clock(1000.0))
    counts.add(request())
    first, second = decode_report(counts.report()), decode_report(counts.report())
    counts.add(request())
    third = decode_report(counts.report())
    assert [r.seq for r in (first, second, third)] == [0, 1, 2]
    assert [r.finished for r in (first, second, third)] == [1, 1, 2]
    assert second.slices == []
    assert sum(n for _, n in ended(third)) == 1


@pytest.mark.parametrize("n", [1, PASS_ROWS - 1, PASS_ROWS, PASS_ROWS + 1, 3 * PASS_ROWS])
def test_passes_of_any_number_lose_nothing(n: int) -> None:
    counts = worker(Clock(1000.0))
    for _ in range(n):
        counts.add(request())
    report = decode_report(counts.report())
    assert sum(amount for _, amount in ended(report)) == report.finished == n


@given(st.lists(st.sampled_from(["ended", "step", "tick", "report", "part"]), max_size=40))
def test_steps_at_any_time_between_lose_nothing_and_count_nothing_twice(happened: list[str]) -> None:
    clock = Clock(1000.0)
    counts, reports = worker(clock), list[LiveReport]()
    for what in [*happened, "report"]:
        if what == "ended":
            counts.add(request())
        elif what == "step":
            counts.step()
        elif what == "tick":
            clock.tick()
        else:
            reports.append(decode_report(counts.report(whole=what == "report")))
            told = sum(amount for report in reports for _, amount in ended(report))
            assert told == reports[-1].finished
            assert what == "part" or not counts.is_due
    assert reports[-1].finished == happened.count("ended")


def test_a_second_that_has_passed_is_due_and_counted_in_some_steps() -> None:
    clock = Clock(1000.0)
    counts = worker(clock)
    counts.add(request())
    assert not counts.is_due
    clock.tick()
    counts.add(request())
    assert counts.is_due
    assert [counts.step() for _ in range(STEPS)] == [True] * STEPS  # the second that goes on is left
    assert not counts.is_due
    assert [counts.step() for _ in range(STEPS + 1)] == [True, True, False, False]


def test_a_reset_forgets_what_was_not_reported() -> None:
    counts = worker(Clock(1000.0))
    counts.add(request())
    counts.report()
    counts.add(request())
    counts.reset(epoch=3)
    report = decode_report(counts.report())
    assert (report.epoch, report.seq, report.finished, report.slices) == (3, 0, 0, [])


@given(st.lists(requests(), min_size=1, max_size=5))
def test_counts_survive_their_way(records: list[RequestRecord]) -> None:
    for key, counts in counts_of(*records).items():
        report = LiveReport("run", 0, 0, 1, [LiveSlice.of(0.5, {key: counts})])
        (packed,) = decode_report(encode_report(report)).slices[0].counts
        back = packed.unpacked()
        assert packed.key == key
        assert back.scalars.tolist() == counts.scalars.tolist()
        assert back.tally.packed() == counts.tally.packed()


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", msgspec.msgpack.encode([1, 2]), msgspec.msgpack.encode(["run", 0, 0, -1, [[0.5, 3]]])],
)
def test_bytes_that_are_no_report_are_refused(data: bytes) -> None:
    with pytest.raises(ReportError, match="not a report of live counts"):
        decode_report(data)


def test_a_report_of_a_second_with_few_requests_is_small() -> None:
    clock = Clock(1000.0)
    counts = worker(clock)
    for i in range(50):
        arrivals = tuple(0.05 + 0.001 * i + 0.02 * k for k in range(100))
        counts.add(request(arrivals=arrivals))
    assert len(counts.report()) < 1000


def test_sums_of_another_version_are_refused() -> None:
    with pytest.raises(ValueError, match="2 sums instead of"):
        PackedCounts(LiveKey("chat", "", ""), [1, 2], [], []).unpacked()
