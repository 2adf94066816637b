"""The client's verdict while a run goes: the thresholds of the report."""

import pytest
from live_cases import counts_of, worker
from metrics_cases import request

from llm_locust.live.counts import NOTHING, Counts
from llm_locust.live.state import MISSING, WorkerState
from llm_locust.live.verdict import LiveVerdict, verdict


def counts(lag_ms: float = 0.1, kernel: bool = True, late: float = 0.0) -> Counts:
    """A request with a TTFT of 50 ms and ITLs of 20 ms."""
    (found,) = counts_of(
        request(
            arrivals=(0.05, 0.07, 0.09, 0.11),
            client_lag_ns=round(lag_ms * 1e6),
            kernel_stamps=kernel,
            late=late,
        )
    ).values()
    return found


def judge(found: Counts, *workers: WorkerState, open_loop: bool = False) -> LiveVerdict:
    return verdict(found, workers, open_loop=open_loop)


def test_a_client_that_read_in_time_is_ok() -> None:
    assert judge(counts(), worker(cpu_percent=50.0, hub_lag_ms=0.5)) == LiveVerdict("ok")


def test_nothing_is_held_against_a_client_before_it_has_done_anything() -> None:
    assert judge(NOTHING) == LiveVerdict("ok")


@pytest.mark.parametrize(
    ("lag_ms", "kernel", "severity"),
    [(5.0, True, "ok"), (25.0, True, "ok"), (1.5, False, "ok"), (5.0, False, "suspect")],
)
def test_lag_is_held_against_the_median_gap(lag_ms: float, kernel: bool, severity: str) -> None:
    assert judge(counts(lag_ms, kernel)).severity == severity


def test_lag_of_a_whole_gap_in_the_stamps_is_invalid() -> None:
    found = judge(counts(30.0, kernel=False))
    assert found.severity == "invalid"
    assert found.reasons[0] == "the client read 29.9 ms late (p99), the median ITL is 19.9 ms"


def test_a_late_event_loop_counts_where_it_takes_the_stamps() -> None:
    slow = worker(hub_lag_ms=25.0)
    assert judge(counts(kernel=False), slow).severity == "invalid"
    assert judge(counts(kernel=True), slow).severity == "ok"


@pytest.mark.parametrize(("end_lag_ms", "severity"), [(4.0, "ok"), (10.0, "suspect"), (150.0, "invalid")])
def test_an_end_that_is_taken_up_late_counts_in_a_closed_loop_only(end_lag_ms: float, severity: str) -> None:
    """The response took 110 ms."""
    (found,) = counts_of(request(arrivals=(0.05, 0.11), end_lag_ns=round(end_lag_ms * 1e6))).values()
    assert judge(found).severity == severity
    assert judge(found, open_loop=True).severity == "ok"


def test_a_late_schedule_counts_in_an_open_loop_only() -> None:
    found = counts(late=0.03)
    assert judge(found, open_loop=True).severity == "invalid"
    assert judge(found).severity == "ok"


@pytest.mark.parametrize(
    ("cpu", "kernel", "severity"),
    [
        (80.0, True, "ok"),
        (95.0, True, "suspect"),
        (60.0, False, "ok"),
        (80.0, False, "suspect"),
        (95.0, False, "invalid"),
    ],
)
def test_the_busiest_worker_counts(cpu: float, kernel: bool, severity: str) -> None:
    workers = worker("a", cpu_percent=cpu), worker("b", cpu_percent=10.0)
    assert judge(counts(kernel=kernel), *workers).severity == severity


def test_a_worker_that_is_gone_counts_no_more() -> None:
    assert judge(counts(), worker("a", MISSING, cpu_percent=100.0)).severity == "ok"


def test_first_tokens_that_came_with_later_ones_count_where_the_client_was_late() -> None:
    def merged(lag_ms: float) -> Counts:
        made = request(arrivals=(0.05, 0.05, 0.07), client_lag_ns=round(lag_ms * 1e6))
        return Counts.merge([*counts_of(*[made] * 5).values()])

    assert judge(merged(2.0)).severity == "invalid"
    assert judge(merged(0.1)).severity == "ok"


def test_the_worst_comes_first() -> None:
    found = judge(counts(5.0, kernel=False), worker(cpu_percent=95.0))
    assert found.severity == "invalid"
    assert "core" in found.reasons[0]
    assert "late" in found.reasons[1]
