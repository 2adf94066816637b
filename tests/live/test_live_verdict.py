"""The client's verdict, users that hang and slow replicas while a run goes: the thresholds of the report."""

import pytest
from live_cases import START_S, Run, counts_of, observation, worker
from metrics_cases import failed, request

from llm_locust.core.manifest import HealthCell
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.live.counts import NOTHING, Counts
from llm_locust.live.findings import LiveValidity, live_validity
from llm_locust.live.snapshot import snapshot
from llm_locust.live.state import MISSING, LiveRun, Waiting, WorkerState
from llm_locust.metrics.limits import Slo
from llm_locust.metrics.requests.judgement import Limits
from llm_locust.report.console import Progress, progress_line


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


def judge(
    found: Counts, *workers: WorkerState, open_loop: bool = False, seconds: float = 30.0
) -> LiveValidity:
    return live_validity(found, workers, open_loop=open_loop, seconds=seconds)


def test_a_client_that_read_in_time_is_ok() -> None:
    assert judge(counts(), worker(cpu_percent=50.0, hub_lag_ms=0.5)) == LiveValidity("ok")


def test_nothing_is_held_against_a_client_before_it_has_done_anything() -> None:
    assert judge(NOTHING) == LiveValidity("ok")


@pytest.mark.parametrize(
    ("lag_ms", "kernel", "severity"),
    [(5.0, True, "ok"), (25.0, True, "ok"), (1.5, False, "ok"), (5.0, False, "suspect")],
)
def test_lag_is_held_against_the_median_gap(lag_ms: float, kernel: bool, severity: str) -> None:
    assert judge(counts(lag_ms, kernel)).severity == severity


def test_lag_of_a_whole_gap_in_the_stamps_is_invalid() -> None:
    found = judge(counts(30.0, kernel=False))
    assert found.severity == "invalid"
    assert found.reasons[0].startswith("the client read 29.9 ms late (p99), the median ITL is 19.9 ms")


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
    assert judge(found, open_loop=True).severity == "suspect"
    assert judge(found, open_loop=True, seconds=0.2).severity == "invalid"
    assert judge(found).severity == "ok"


TTFT_100_MS = Limits(Slo(ttft_s=0.1))


def test_goodput_that_counts_the_delay_of_the_client_is_invalid() -> None:
    (found,) = counts_of(*[request(late=0.06)] * 30, limits=TTFT_100_MS, measured_from="scheduled").values()
    told = judge(found, open_loop=True)
    assert (told.severity, found["bad_by_delay"]) == ("invalid", 30)
    assert "goodput counts the client's delay" in told.reasons[0]
    (held,) = counts_of(*[request(late=0.04)] * 30, limits=TTFT_100_MS, measured_from="scheduled").values()
    assert held["bad_by_delay"] == 0


@pytest.mark.parametrize(
    ("now", "cpu", "cause", "remedy"),
    [
        ({"run_queue_percent": 40.0}, 10.0, "starved", "Stop other programs"),
        ({"steal_percent": 5.0}, 90.0, "starved", "the hypervisor"),
        ({"throttled_percent": 5.0}, 10.0, "starved", "its CPU limit"),
        ({}, 90.0, "busy", "Use more workers"),
        ({}, 10.0, "late", "look for what holds its event loop"),
    ],
)
def test_a_late_client_is_told_why_and_what_to_do(
    now: dict[str, float], cpu: float, cause: str, remedy: str
) -> None:
    state = worker(cpu_percent=cpu, now=HealthCell(at_s=0.0, seconds=9.0, cpu_percent=cpu, **now))
    (late,) = counts_of(*[request(end_lag_ns=100_000_000)] * 5).values()
    told = judge(late, state)
    assert (told.severity, told.cause) == ("invalid", cause)
    assert remedy in told.reasons[0]
    assert judge(counts(), state) == LiveValidity("ok"), "nothing that it went through moved a figure"


def test_a_loop_that_stands_still_is_told_while_it_is_new() -> None:
    def stood(ms: float, of_s: float) -> LiveValidity:
        cell = HealthCell(at_s=0.0, seconds=of_s, cpu_percent=10.0, hub_lag_ms_max=ms)
        return judge(counts(), worker(now=cell))

    assert stood(1500.0, 9.0).severity == "suspect"
    assert "stood still for 1.5 s of a window of 9 s" in stood(1500.0, 9.0).reasons[0]
    assert stood(900.0, 9.0).severity == "ok"
    assert stood(1500.0, 600.0).severity == "ok"


def test_much_cpu_that_was_taken_is_told_though_no_figure_shows_it() -> None:
    stolen = HealthCell(at_s=0.0, seconds=9.0, cpu_percent=10.0, steal_percent=12.0)
    assert judge(counts(), worker(now=stolen)).severity == "suspect"


def test_requests_without_an_answer_say_nothing_of_the_timestamps() -> None:
    refused = failed(outcome=Outcome.CONNECT_ERROR, status=None, kernel_stamps=False, client_lag_ns=None)
    (found,) = counts_of(request(client_lag_ns=148_000_000), refused).values()
    assert judge(found, worker(cpu_percent=95.0, hub_lag_ms=148.0)).severity == "ok"


@pytest.mark.parametrize(
    ("cpu", "kernel", "severity"),
    [
        (80.0, True, "ok"),
        (95.0, True, "ok"),
        (60.0, False, "ok"),
        (80.0, False, "suspect"),
        (95.0, False, "invalid"),
    ],
)
def test_the_busiest_worker_counts_where_it_takes_the_timestamps(
    cpu: float, kernel: bool, severity: str
) -> None:
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


QUICK, SLOW = request(arrivals=(0.1, 0.12)), request(arrivals=(8.0, 8.02))
WHOLE = request(arrivals=(6.0,), streamed=False)
HOLE = request(arrivals=(0.1, 6.1))
TOLD_S = 40.0


def told(
    answers: list[RequestRecord], waiting: list[Waiting], state: str = "running", **facts: object
) -> Progress:
    """Of ten users, 40 s after the start."""
    run = Run()
    run.store.begin(LiveRun(id="run", **facts))  # type: ignore[arg-type]
    run.ended(answers)
    run.report()
    run.store.observe(
        observation(10, worker("a", state, reported_s=START_S + TOLD_S, waiting=tuple(waiting)))
    )
    return Progress(run.store.run, snapshot(run.store), snapshot(run.store, 10))


def silent(*seconds: float, name: str = "chat", streamed: bool = True) -> list[Waiting]:
    return [Waiting(name, "", streamed, each) for each in seconds]


@pytest.mark.parametrize(
    ("answers", "waiting", "said"),
    [
        ([QUICK] * 40, silent(32, 31, 20), "3 of 10 users hung from 8 s on"),
        ([QUICK] * 40, silent(32, 31, 20) * 4, "12 of 10"),
        ([QUICK] * 40, [], ""),
        ([QUICK] * 9, silent(32), ""),  # too few tell what is usual
        ([QUICK] * 30 + [SLOW], silent(20), ""),  # one of few has waited for a third of it
        ([QUICK] * 30 + [SLOW], silent(32), "1 of 10"),
        ([QUICK] * 99 + [SLOW], silent(20), "1 of 10"),  # seldom enough
        ([QUICK] * 30 + [HOLE], silent(17), ""),  # pauses in an answer are waits, too
        ([WHOLE] * 30, silent(17, streamed=False), ""),
        ([WHOLE] * 30, silent(19, streamed=False), "1 of 10"),
        ([QUICK] * 40, silent(32, name="another"), ""),  # of which nothing is known
    ],
)
def test_a_user_hangs_whose_silence_is_three_times_as_long_as_is_usual(
    answers: list[RequestRecord], waiting: list[Waiting], said: str
) -> None:
    found = told(answers, waiting)
    assert found.whole.hung.text(10).startswith(said)
    assert said in progress_line(found)
    assert ("hung" in progress_line(found)) == bool(said)


def test_it_is_said_from_when_on_without_the_warm_up_as_in_the_report() -> None:
    assert (
        told([QUICK] * 40, silent(32), warmup_s=5.0).whole.hung.text(10) == "1 of 10 users hung from 3 s on"
    )
    assert "from the warm-up on" in told([QUICK] * 40, silent(38), warmup_s=5.0).whole.hung.text(10)


def test_what_a_lost_worker_had_said_is_no_news() -> None:
    assert told([QUICK] * 40, silent(32), MISSING).whole.hung.n == 0


def served(replica: str, pace_s: float, n: int = 20) -> list[RequestRecord]:
    arrivals = tuple(0.1 + pace_s * k for k in range(10))
    return [request(arrivals=arrivals, replica=replica) for _ in range(n)]


@pytest.mark.parametrize(
    ("paces_s", "n", "said"),
    [
        ((0.01, 0.03, 0.01), 20, "b is 3.0 times slower than the others: TPOT p50 29.9 ms against 9.95 ms"),
        ((0.01, 0.03), 20, "b is 3.0 times slower than a: "),
        ((0.01, 0.014, 0.01), 20, ""),
        ((0.01, 0.03, 0.01), 5, ""),  # chance may have made it
        ((0.01,), 20, ""),
    ],
)
def test_a_replica_that_is_slower_than_the_others_is_named(
    paces_s: tuple[float, ...], n: int, said: str
) -> None:
    answers = [each for name, pace_s in zip("abc", paces_s, strict=False) for each in served(name, pace_s, n)]
    found = told(answers, []).whole.slow
    assert (found[0] if found else "").startswith(said)
    assert len(found) == bool(said)
