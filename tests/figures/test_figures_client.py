"""Evidence against the client, and its calibration in the head of every report."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metrics_cases import columns, failed, manifest, ns, plain, request
from report_cases import manifest as report_manifest, records, summary
from summaries import typed

from llm_locust.core.manifest import CalibrationFacts, ClockFacts, HealthCell, NodeHealth, WorkerFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures import client_rules
from llm_locust.figures.client import calibration_text, client_validity as client_validity_of
from llm_locust.figures.client_rules import Scale, Threshold, WorstNodes, explain, standstill_findings
from llm_locust.metrics.limits import parse_slo
from llm_locust.metrics.measured import measured_from
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.judgement import Limits, judge
from llm_locust.metrics.requests.latency import per_request
from llm_locust.metrics.window import Window
from llm_locust.report.console import print_report
from llm_locust.report.contents import heading
from llm_locust.report.headline import headline_of
from llm_locust.report.inputs import _pooled_manifest
from llm_locust.report.markdown import markdown


def client_validity(*given: Any, **more: Any) -> Any:
    found: Any = plain(client_validity_of(*given, **more))
    return found


def scale_of(
    window_s: float = 10.0,
    itl: float | None = 20.0,
    ttft: float | None = 50.0,
    e2el: float | None = 90.0,
) -> Scale:
    return Scale(window=Window(ns(0.0), ns(window_s), ""), itl_ms=itl, ttft_ms=ttft, e2el_ms=e2el)


def verdict(
    *records: RequestRecord,
    cpu: float | None = 10.0,
    open_loop: bool = False,
    itl: float | None = 20.0,
    ttft: float | None = 50.0,
    e2el: float | None = 90.0,
    hub_lag: float | None = None,
    clocks: tuple[ClockFacts | None, ...] = (),
    window_s: float = 10.0,
    **facts: Any,
) -> Any:
    c = columns(*records)
    health = [
        NodeHealth(cpu_percent_max=None if cpu is None else 1.0),
        NodeHealth(cpu_percent_max=cpu, hub_lag_ms_p99=hub_lag, hub_lag_ms_max=hub_lag and 2 * hub_lag),
    ]
    workers = [
        WorkerFacts(id=f"w{i}", index=i, announced=0, received=0, health=h) for i, h in enumerate(health)
    ]
    workers += [
        WorkerFacts(id=f"c{i}", index=2 + i, announced=0, received=0, clock=clock)
        for i, clock in enumerate(clocks)
    ]
    made = manifest(open_loop=open_loop, workers=workers, **facts)
    scale = scale_of(window_s, itl, ttft, e2el)
    return client_validity(c, np.arange(len(c)), made, scale)


def clock(error_s: float = 0.0002, steps: int = 0) -> ClockFacts:
    error_ns = round(error_s * 1e9)
    return ClockFacts(
        offset_ns=0, error_ns=error_ns, least_offset_ns=0, most_offset_ns=0, exchanges=8, steps=steps
    )


def lagging(ms: float, **fields: Any) -> RequestRecord:
    return request(client_lag_ns=round(ms * 1e6), **fields)


def test_a_client_that_reads_and_sends_in_time_is_ok() -> None:
    assert verdict(request(), request()) == {
        "verdict": "ok",
        "reasons": [],
        "cause": None,
        "timestamps": "kernel",
        "kernel_share": 1.0,
        "reader": None,
        "first_tokens_wide": 0.0,
        "lag_ms_p50": pytest.approx(0.02),
        "lag_ms_p99": pytest.approx(0.02),
        "end_lag_ms_p50": None,
        "end_lag_ms_p99": None,
        "end_lag_share": None,
        "schedule_delay_ms_p99": None,
        "bad_by_delay": None,
        "cpu_percent_max": 10.0,
        "clock_steps": 0,
        "misplaced": 0,
        "steal_percent_max": None,
        "throttled_percent_max": None,
        "run_queue_percent_max": None,
        "hub_lag_ms_p99": None,
        "hub_lag_ms_max": None,
        "hub_lag_master_ms_max": None,
        "worker_clock_steps": 0,
        "master_clock_steps": 0,
        "clock_error_ms_max": None,
        "calibration": None,
    }


def test_lag_under_kernel_stamps_that_moved_no_figure_is_nothing() -> None:
    for open_loop in (False, True):
        late = verdict(*[lagging(2000, end_lag_ns=20_000)] * 5, hub_lag=148.0, open_loop=open_loop)
        assert (late["verdict"], late["reasons"]) == ("ok", [])


def ended_late(ms: float, **fields: Any) -> RequestRecord:
    """A request of 90 ms whose end the event loop took up so much later."""
    return request(arrivals=(0.05, 0.07, 0.09), end_lag_ns=round(ms * 1e6), **fields)


@pytest.mark.parametrize(
    ("lag_ms", "expected"), [(4, "ok"), (5, "suspect"), (89, "suspect"), (91, "invalid")]
)
def test_a_closed_loop_whose_users_send_late_is_a_lighter_load(lag_ms: float, expected: str) -> None:
    late = verdict(*[ended_late(lag_ms)] * 2)
    assert (late["verdict"], late["end_lag_ms_p50"]) == (expected, pytest.approx(lag_ms))
    assert late["end_lag_share"] == pytest.approx(lag_ms / (lag_ms + 90))
    assert not late["reasons"] or late["reasons"][0].startswith("the load was late: users waited ")
    assert verdict(ended_late(lag_ms), open_loop=True)["verdict"] == "ok"


def test_a_few_ends_that_were_taken_up_very_late_are_a_lighter_load_too() -> None:
    """A worker that was stopped for 3 s: each user waited once."""
    found = verdict(*[ended_late(0.1)] * 290, *[ended_late(3000)] * 3)
    assert found["end_lag_ms_p50"] == pytest.approx(0.1)
    assert (found["verdict"], found["reasons"][0].split(":")[0]) == ("suspect", "the load was late")


def test_after_a_failure_a_user_waits_anyway_and_no_end_of_it_is_late() -> None:
    """A server that refuses at once is no client that is late."""
    found = verdict(*[failed(end_lag_ns=20_000_000)] * 50, request(end_lag_ns=100_000))
    assert (found["verdict"], found["end_lag_ms_p99"]) == ("ok", pytest.approx(0.1))


def test_responses_that_did_not_come_whole_have_no_end_that_could_be_late() -> None:
    found = verdict(request(end_lag_ns=None), failed(end_lag_ns=None))
    assert [found[key] for key in ("end_lag_ms_p50", "end_lag_ms_p99", "end_lag_share")] == [None] * 3
    assert found["verdict"] == "ok"


@pytest.mark.parametrize(
    ("stood_still_ms", "window_s", "expected"),
    [
        (3000, 30, "suspect"),
        (7000, 30, "invalid"),
        (3000, 200, "ok"),
        (900, 10, "ok"),
        (1100, 10, "suspect"),
        (3000, 0, "ok"),
    ],
)
def test_an_event_loop_that_stood_still_for_a_part_of_the_window_sent_nothing(
    stood_still_ms: float, window_s: float, expected: str
) -> None:
    found = verdict(request(), hub_lag=stood_still_ms / 2, window_s=window_s)
    assert (found["hub_lag_ms_max"], found["verdict"]) == (stood_still_ms, expected)


@pytest.mark.parametrize(
    ("paused_ms", "how", "remedy"),
    [
        (None, "if its whole machine was paused", "what holds its event loop"),
        (0.0, "while other threads of it went on", "what holds its event loop"),
        (3000.0, "For 3 s no thread of a worker ran", "what stopped the process"),
    ],
)
def test_a_pause_of_the_whole_process_is_told_from_a_loop_that_is_held(
    paused_ms: float | None, how: str, remedy: str
) -> None:
    findings = list(standstill_findings(3000.0, 30.0, paused_ms=paused_ms))
    assert how in findings[0][1]
    explain(findings, WorstNodes(), paused_ms)
    assert remedy in findings[0][1]


@pytest.mark.parametrize(
    ("of_worker", "cause", "remedy"),
    [
        ({"run_queue_percent": 40.0}, "starved", "Stop other programs"),
        ({"run_queue_percent": 40.0, "cpu_percent_max": 80.0}, "starved", "Stop other programs"),
        ({"run_queue_percent": 9.0, "cpu_percent_max": 80.0}, "busy", "Use more workers"),
        ({"throttled_percent": 30.0, "run_queue_percent": 40.0}, "starved", "raise the limit to a core"),
        ({"steal_percent": 5.0}, "starved", "the hypervisor"),
        ({"cpu_percent_max": 12.0, "run_queue_percent": 2.0}, "late", "look for what holds its event loop"),
        ({}, "late", "look for what holds its event loop"),
    ],
)
def test_a_late_client_was_starved_or_busy_and_is_told_what_to_do(
    of_worker: dict[str, Any], cause: str, remedy: str
) -> None:
    worker = WorkerFacts(id="w", index=0, announced=2, received=2, health=NodeHealth(**of_worker))
    scale = scale_of()

    def judged(record: RequestRecord) -> Any:
        return client_validity(columns(record), np.arange(1), manifest(workers=[worker]), scale)

    late = judged(ended_late(10))
    assert late["cause"] == cause
    assert sum(remedy in reason for reason in late["reasons"] if reason.startswith("the load was late")) == 1
    assert judged(ended_late(0.1))["cause"] is None, "nothing that waited moved a figure"


def test_a_client_that_waited_for_a_core_and_was_not_late_is_ok() -> None:
    worker = WorkerFacts(
        id="w",
        index=0,
        announced=2,
        received=2,
        health=NodeHealth(run_queue_percent=150.0, cpu_percent_max=5.0),
    )
    scale = scale_of()
    found = client_validity(columns(ended_late(0.1)), np.arange(1), manifest(workers=[worker]), scale)
    assert (found["verdict"], found["run_queue_percent_max"]) == ("ok", 150.0)


def wide(lag_ms: float | None = 5.0) -> RequestRecord:
    """A request whose first token came in one read with the second."""
    lag_ns = None if lag_ms is None else round(lag_ms * 1e6)
    return request(arrivals=(0.05, 0.05, 0.07), client_lag_ns=lag_ns)


@pytest.mark.parametrize(
    ("few", "of", "expected"),
    [(2, 3, "ok"), (3, 300, "ok"), (9, 300, "invalid"), (1, 12, "ok"), (3, 12, "invalid")],
)
def test_first_tokens_whose_time_is_not_known_are_held_against_the_client(
    few: int, of: int, expected: str
) -> None:
    """Three at least, and the lower end of the interval of their share beyond 1 %."""
    result = verdict(*[wide()] * few, *[request()] * (of - few))
    assert (result["verdict"], result["first_tokens_wide"]) == (expected, few / of)
    assert len(result["reasons"]) == (expected != "ok")


def test_a_server_that_sends_its_tokens_together_is_not_held_against_a_client_that_read_in_time() -> None:
    result = verdict(*[wide(0.9)] * 100)
    assert (result["verdict"], result["first_tokens_wide"]) == ("ok", 0.0)
    assert verdict(*[wide(None)] * 100)["first_tokens_wide"] == 1.0, "nobody knows whether it was in time"


@pytest.mark.parametrize(
    ("lag_ms", "expected"), [(0.9, "ok"), (1.9, "ok"), (2.1, "suspect"), (20.1, "invalid")]
)
def test_lag_under_the_programs_stamps_is_in_every_latency(lag_ms: float, expected: str) -> None:
    assert verdict(lagging(lag_ms, kernel_stamps=False))["verdict"] == expected


def test_lag_of_less_than_a_millisecond_is_nothing_however_short_the_gaps() -> None:
    assert verdict(lagging(0.9, kernel_stamps=False), itl=0.01)["verdict"] == "ok"


@pytest.mark.parametrize(
    ("late_ms", "expected"), [(4, "ok"), (6, "suspect"), (900, "suspect"), (1100, "invalid")]
)
def test_an_open_loop_that_sends_late_is_not_the_load_asked_for(late_ms: int, expected: str) -> None:
    """Of a window of 10 s: what is sent a tenth of it late moves the rates."""
    record = request(late=late_ms / 1000)
    result = verdict(record, open_loop=True)
    assert result["verdict"] == expected
    assert result["schedule_delay_ms_p99"] == pytest.approx(late_ms)
    assert verdict(record, open_loop=False)["verdict"] == "ok"


@pytest.mark.parametrize(
    ("cpu", "kernel", "program"),
    [(None, "ok", "ok"), (69, "ok", "ok"), (71, "ok", "suspect"), (91, "ok", "invalid")],
)
def test_the_busiest_workers_core_counts_where_it_takes_the_timestamps(
    cpu: float | None, kernel: str, program: str
) -> None:
    assert verdict(request(), cpu=cpu)["verdict"] == kernel
    assert verdict(request(kernel_stamps=False), cpu=cpu)["verdict"] == program


def test_trap_18_a_step_of_the_clock_is_told() -> None:
    steady = [request() for _ in range(199)]
    few = verdict(*steady, request(clock_step_ns=10**9))
    assert (few["verdict"], few["clock_steps"]) == ("suspect", 1)
    assert "during 1 of 200 requests" in few["reasons"][0]


def test_the_worst_reason_comes_first_and_all_are_told() -> None:
    result = verdict(lagging(5, kernel_stamps=False), cpu=99)
    assert result["verdict"] == "invalid"
    assert "core" in result["reasons"][0]
    assert len(result["reasons"]) == 2


def test_stamps_of_two_sources_are_mixed_and_judged_as_the_weaker() -> None:
    result = verdict(request(), lagging(5, kernel_stamps=False))
    assert (result["timestamps"], result["kernel_share"]) == ("mixed", 0.5)
    assert result["verdict"] == "suspect"


def test_a_client_of_which_nothing_is_known_is_suspect() -> None:
    blind = request(kernel_stamps=False, client_lag_ns=None)
    c = columns(blind)
    scale = scale_of()
    result = client_validity(c, np.array([0]), manifest(workers=[]), scale)
    assert result["verdict"] == "suspect"
    assert result["lag_ms_p99"] is None


def test_failures_are_evidence_too() -> None:
    assert verdict(request(), failed(client_lag_ns=10**9))["lag_ms_p99"] > 900


def test_without_requests_there_is_no_evidence() -> None:
    result = verdict(itl=None, ttft=None)
    assert (result["verdict"], result["timestamps"], result["first_tokens_wide"]) == ("ok", None, None)


@pytest.mark.parametrize(
    ("hub_lag", "expected"),
    [(None, "ok"), (0.9, "ok"), (1.9, "ok"), (2.1, "suspect"), (20.1, "invalid"), (float("nan"), "ok")],
)
def test_a_late_event_loop_is_held_against_the_programs_stamps_only(
    hub_lag: float | None, expected: str
) -> None:
    program = request(kernel_stamps=False, client_lag_ns=None)
    assert verdict(program, hub_lag=hub_lag)["verdict"] == expected
    assert verdict(request(), program, hub_lag=hub_lag)["verdict"] == expected
    assert verdict(request(), hub_lag=hub_lag)["verdict"] == "ok"


def test_the_event_loops_lag_is_that_of_the_worst_worker_and_the_masters_stands_beside_it() -> None:
    result = verdict(request(), hub_lag=3.0, master=NodeHealth(hub_lag_ms_p99=1.0, hub_lag_ms_max=70.0))
    assert (result["hub_lag_ms_p99"], result["hub_lag_ms_max"]) == (3.0, 6.0)
    assert result["hub_lag_master_ms_max"] == 70.0


def test_a_client_whose_event_loop_is_known_is_not_blind() -> None:
    blind = request(kernel_stamps=False, client_lag_ns=None)
    assert verdict(blind, cpu=None)["verdict"] == "suspect"
    assert verdict(blind, cpu=None, hub_lag=0.1)["verdict"] == "ok"


def test_a_worker_whose_clock_was_set_is_told_and_changes_no_latency() -> None:
    result = verdict(request(), clocks=(clock(), clock(steps=2)))
    assert (result["verdict"], result["worker_clock_steps"]) == ("suspect", 2)
    assert result["reasons"] == [
        "the clock of worker-4 was set 2 times during the run: the records are placed by the corrected "
        "clock, and no latency changed"
    ]


def test_many_workers_whose_clocks_were_set_are_one_reason() -> None:
    (reason,) = verdict(request(), clocks=(clock(steps=1),) * 5)["reasons"]
    assert reason.startswith(
        "the clocks of 5 workers (worker-3, worker-4, worker-5 and 2 more) were set 5 times during the run"
    )


def test_a_step_of_the_masters_clock_is_told() -> None:
    result = verdict(request(), clock_steps=1)
    assert (result["verdict"], result["master_clock_steps"]) == ("suspect", 1)
    assert "the master's clock was set once" in result["reasons"][0]


@pytest.mark.parametrize(
    ("error_s", "window_s", "expected"),
    [(0.1, 10.0, "ok"), (0.11, 10.0, "suspect"), (1.0, 1e4, "ok"), (1.1, 1e4, "suspect"), (0.1, 0.0, "ok")],
)
def test_a_clock_that_is_not_known_well_enough_for_the_windows_edges_is_suspect(
    error_s: float, window_s: float, expected: str
) -> None:
    result = verdict(request(), clocks=(None, clock(0.001), clock(error_s)), window_s=window_s)
    assert result["verdict"] == expected
    assert result["clock_error_ms_max"] == pytest.approx(error_s * 1e3)
    assert all("the clock of worker-5" in reason for reason in result["reasons"])


def test_a_worker_of_many_that_stood_still_took_little_of_the_load() -> None:
    many = (clock(),) * 18  # and two more, of which one stood still for half of the window
    assert verdict(request(), hub_lag=7_500, clocks=many, window_s=30)["verdict"] == "suspect"
    assert verdict(request(), hub_lag=7_500, window_s=30)["verdict"] == "invalid"


def test_an_offset_that_is_within_its_error_is_not_added_and_is_part_of_the_error() -> None:
    within = replace(clock(0.25), offset_ns=-200_000_000)
    assert verdict(request(), clocks=(within,))["clock_error_ms_max"] == pytest.approx(450)
    beyond = replace(clock(0.25), offset_ns=260_000_000)
    assert verdict(request(), clocks=(beyond,))["clock_error_ms_max"] == pytest.approx(250)


def limit(threshold: Threshold, value: float | None) -> str:
    if value is None:
        return "–"
    of = f" of {threshold.against}" if threshold.against else ""
    return (f"{value * 100:g} %" if threshold.unit is None else f"{value:g} {threshold.unit}".strip()) + of


def test_every_threshold_stands_in_the_docs_as_it_is_in_the_code() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "definitions.md").read_text()
    thresholds = [each for each in vars(client_rules).values() if isinstance(each, Threshold)]
    rows = [f"| {t.figure} | {limit(t, t.suspect)} | {limit(t, t.invalid)} | {t.why} |" for t in thresholds]
    assert "\n".join(["| figure | suspect above | invalid above | why |", "|---|---|---|---|", *rows]) in docs


def run_of(
    *records: RequestRecord, open_loop: bool = False, slo: str = "", window_s: float = 60.0, **health: Any
) -> Any:
    """The verdict on a run of 60 s with this SLO, whose worker measured this of itself."""
    worker = WorkerFacts(id="w", index=0, announced=0, received=0, health=NodeHealth(**health))
    made = manifest(open_loop=open_loop, workers=[worker])
    c, scale = columns(*records), scale_of(window_s)
    limits = Limits(parse_slo(slo))
    judgement = judge(c, per_request(c), limits, measured_from(made)) if limits else None
    return client_validity(c, np.arange(len(c)), made, scale, judgement)


def lagged(end_lag_ms: float) -> RequestRecord:
    """Read by a busy process: taken up late, after the kernel had stamped it in time."""
    return request(client_lag_ns=148_000_000, end_lag_ns=round(end_lag_ms * 1e6))


#: Runs whose every figure is right, whatever their workers and machines went through.
RIGHT: dict[str, dict[str, Any]] = {
    "a core without a break": {"cpu_percent_max": 100.0},
    "threads that waited for a core": {"run_queue_percent": 180.0},
    "a few per cent stolen": {"steal_percent": 9.0},
    "a few periods throttled": {"throttled_percent": 9.0},
    "all of these": {
        "cpu_percent_max": 100.0,
        "run_queue_percent": 180.0,
        "steal_percent": 9.0,
        "throttled_percent": 9.0,
        "hub_lag_ms_p99": 148.0,
        "hub_lag_ms_max": 900.0,
    },
}


@pytest.mark.parametrize("name", list(RIGHT))
def test_what_moved_no_figure_is_nothing(name: str) -> None:
    for open_loop in (False, True):
        found = run_of(*[lagged(0.1)] * 300, open_loop=open_loop, **RIGHT[name])
        assert (found["verdict"], found["reasons"], found["cause"]) == ("ok", [], None)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"ttft_ms": 0.08, "itl_ms": 0.05}, "ok"),
        ({"ttft_ms": 1.0, "itl_ms": 0.05}, "ok"),
        ({"ttft_ms": 3.2, "itl_ms": 0.05}, "suspect"),
        ({"ttft_ms": 0.08, "itl_ms": 3.2}, "suspect"),
        ({"ttft_ms": 0.08, "itl_ms": 0.05, "astray": 2}, "suspect"),
        ({"ttft_ms": 3.2, "itl_ms": 3.2, "open_ms": 4.0}, "ok"),  # the server did not know either
        ({"ttft_ms": 3.2, "open_ms": None}, "ok"),
        ({"answers": 0, "why": "no time was left"}, "ok"),
    ],
)
def test_an_error_against_a_server_of_known_times_is_in_the_verdict(
    known: dict[str, Any], expected: str
) -> None:
    calibration = CalibrationFacts(**({"asked": 8, "streams": 8, "answers": 200, "open_ms": 0.01} | known))
    found = verdict(request(), calibration=calibration)
    assert (found["verdict"], found["calibration"]["ttft_ms"]) == (expected, known.get("ttft_ms"))
    assert all(reason.startswith("before the load the client") for reason in found["reasons"])


def test_delays_under_a_millisecond_are_nothing_however_short_the_answers() -> None:
    """A user that waits 0.9 ms after an embedding of 1 ms sends half as often, as any client's would."""
    short: dict[str, Any] = {"arrivals": (), "streamed": False}
    found = run_of(*[request(ended=0.001, end_lag_ns=900_000, **short)] * 300)
    assert (found["verdict"], found["end_lag_share"]) == ("ok", pytest.approx(0.9 / 1.9))
    longer = run_of(*[request(ended=0.001, end_lag_ns=1_100_000, **short)] * 300)
    assert longer["verdict"] == "invalid"
    assert run_of(*[request(late=0.0009, **short)] * 300, open_loop=True)["verdict"] == "ok"


def test_requests_without_an_answer_say_nothing_of_the_timestamps() -> None:
    """Connections that were refused have no read, and so no stamp of the kernel."""
    refused = failed(outcome=Outcome.CONNECT_ERROR, status=None, kernel_stamps=False, client_lag_ns=None)
    busy: dict[str, Any] = {"cpu_percent_max": 95.0, "hub_lag_ms_p99": 148.0}
    found = run_of(*[lagged(0.1)] * 270, *[refused] * 30, **busy)
    assert (found["verdict"], found["timestamps"], found["kernel_share"]) == ("ok", "kernel", 1.0)
    nobody = run_of(*[refused] * 30, **busy)
    assert (nobody["verdict"], nobody["timestamps"]) == ("ok", None)


def test_a_few_timestamps_of_the_program_move_no_p99() -> None:
    own = lagging(148.0, kernel_stamps=False)
    busy: dict[str, Any] = {"cpu_percent_max": 95.0, "hub_lag_ms_p99": 148.0}
    few = run_of(*[lagged(0.1)] * 298, *[own] * 2, **busy)
    assert (few["verdict"], few["timestamps"]) == ("ok", "mixed")
    assert run_of(*[lagged(0.1)] * 290, *[own] * 10, **busy)["verdict"] == "invalid"


@pytest.mark.parametrize(
    ("health", "words"),
    [
        (
            {"steal_percent": 12.4},
            "got 12.4 % less CPU time than it needed: its hypervisor gave it to others",
        ),
        ({"throttled_percent": 12.4}, "throttled in 12.4 % of the periods of its CPU limit"),
    ],
)
def test_much_cpu_that_was_taken_is_told_without_evidence_and_is_the_cause_of_what_shows(
    health: dict[str, Any], words: str
) -> None:
    unseen = run_of(*[lagged(0.1)] * 300, **health)
    assert (unseen["verdict"], unseen["cause"]) == ("suspect", None)
    (reason,) = unseen["reasons"]
    assert words in reason
    assert "No figure shows that the client was late" in reason
    seen = run_of(*[lagged(20.0)] * 300, **health)
    assert (seen["verdict"], seen["cause"]) == ("suspect", "starved")
    (reason,) = seen["reasons"]
    assert reason.startswith("the load was late: users waited ")
    assert "It was starved" in reason


#: Runs with kernel stamps of which a figure is not what it says: records, SLO, and what says so.
WRONG: dict[str, tuple[list[RequestRecord], str, bool, str, str]] = {
    "tokens merged in one per cent": (
        [wide()] * 12 + [request()] * 288,
        "",
        False,
        "invalid",
        "first tokens were read late",
    ),
    "users that wait as long as for an answer": ([lagged(200.0)] * 30, "", False, "invalid", "users waited"),
    "a lighter load": ([lagged(10.0)] * 30, "", False, "suspect", "users waited"),
    "sent in bursts": ([request(late=0.15)] * 30, "", True, "suspect", "sent 150 ms after their schedule"),
    "bad by the delay alone": (
        [request(late=0.15)] * 30,
        "ttft=100ms",
        True,
        "invalid",
        "goodput counts the client's delay",
    ),
    "half of the rate": ([request(late=0.1 * i) for i in range(300)], "", True, "invalid", "rates"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_figure_that_the_client_moved_is_told(name: str) -> None:
    records, slo, open_loop, expected, words = WRONG[name]
    found = run_of(*records, slo=slo, open_loop=open_loop)
    assert (found["verdict"], found["cause"]) == (expected, "late")
    assert words in found["reasons"][0]


@pytest.mark.parametrize(
    ("slo", "late_s", "bad"),
    [
        ("ttft=100ms", 0.04, 0),  # within it both ways
        ("ttft=100ms", 0.06, 300),
        ("ttft=10ms", 0.06, 0),  # broken both ways: the server's
        ("tpot=10ms", 0.06, 0),  # a limit that does not know the schedule
        ("ttft=100ms tpot=10ms", 0.06, 0),
        ("e2el=100ms", 0.06, 300),
    ],
)
def test_a_request_is_bad_by_the_delay_if_it_is_good_without_it(slo: str, late_s: float, bad: int) -> None:
    late = [request(late=late_s)] * 300
    found = run_of(*late, slo=slo, open_loop=True)
    assert (found["bad_by_delay"], found["verdict"]) == (bad, "invalid" if bad else "suspect")
    assert run_of(*late, slo=slo)["bad_by_delay"] is None


def cell(at: float, **of: float) -> HealthCell:
    return HealthCell(at_s=ns(at) / 1e9, seconds=2.0, **({"cpu_percent": 10.0} | of))


def test_cpu_and_lag_are_those_of_the_window() -> None:
    """A worker was busy before the window and after it, and its clock is 100 s behind."""
    cells = [
        cell(-98.0, cpu_percent=99.0, throttled_percent=50.0),
        cell(-94.0, cpu_percent=20.0, throttled_percent=0.0, hub_lag_ms_p99=1.0),
        cell(-92.0, cpu_percent=30.0, throttled_percent=0.5, hub_lag_ms_p99=2.0),
        cell(-80.0, cpu_percent=98.0),
    ]
    health = NodeHealth(cpu_percent_max=99.0, throttled_percent=20.0, cells=cells)
    behind = ClockFacts(offset_ns=100 * 10**9, error_ns=1, least_offset_ns=0, most_offset_ns=0, exchanges=8)
    worker = WorkerFacts(id="w", index=0, announced=0, received=0, health=health, clock=behind)
    made = manifest(workers=[worker])
    found = WorstNodes.of(made, Window(ns(4.0), ns(9.0), ""))
    assert (found.cpu_percent_max, found.throttled_percent_max) == (30.0, 0.25)
    assert (found.hub_lag_ms_p99, found.steal_percent_max) == (2.0, None)
    assert WorstNodes.of(made, Window(ns(100.0), ns(101.0), "")).cpu_percent_max == 99.0


def test_a_worker_whose_clock_was_never_measured_is_told_where_there_are_several() -> None:
    workers = [
        WorkerFacts(id="w0", index=0, announced=5, received=5, clock=clock()),
        WorkerFacts(id="w1", index=1, announced=5, received=5),
    ]
    c, scale = columns(request()), scale_of()
    result = client_validity(c, np.array([0]), manifest(workers=workers), scale)
    assert result["verdict"] == "suspect"
    assert result["reasons"][0].startswith("the clock of worker-2 was never measured")
    alone = client_validity(c, np.array([0]), manifest(workers=workers[1:]), scale)
    assert alone["verdict"] == "ok"


KNOWN: dict[str, Any] = {
    "asked": 400,
    "streams": 400,
    "ttft_n": 1200,
    "ttft_ms": 0.08,
    "itl_ms": 0.05,
    "open_ms": 0.01,
    "tokens_per_s": 20_000.0,
    "answers": 1200,
}


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({}, "TTFT within 0.08 ms (p99) at 400 streams, 20,000 tokens/s; ITL within 0.05 ms"),
        ({"ttft_n": 3}, "TTFT within 0.08 ms (largest of 3) at 400 streams"),
        ({"asked": 9000}, "at 400 streams of 9,000 asked for, 20,000 tokens/s"),
        ({"workers": 4}, "ITL within 0.05 ms (one of 4 workers, on the master's machine)"),
        ({"ttft_ms": None}, "TTFT not known"),
        ({"ttft_ms": None, "itl_ms": None, "tokens_per_s": None}, "ITL not known"),
        ({"ttft_ms": 0.0}, "TTFT within 0.001 ms"),
        ({"astray": 2, "why": "timeout:\x1b no token"}, "2 of 1,200 answers not as the server wrote them; "),
        ({"answers": 0, "why": "no time was left"}, "not calibrated: no time was left"),
    ],
)
def test_the_error_is_one_line_with_its_load(known: dict[str, Any], text: str) -> None:
    said = calibration_text(CalibrationFacts(**(KNOWN | known)))
    assert text in said
    assert said.isprintable()


def reported(**known: Any) -> dict[str, Any]:
    """The summary of a run that was calibrated."""
    return summary(records(bad=0), calibration=CalibrationFacts(**(KNOWN | known)))


def test_the_head_of_every_report_has_the_line() -> None:
    line = "calibrated: TTFT within 0.08 ms (p99) at 400 streams, 20,000 tokens/s; ITL within 0.05 ms"
    found = typed(reported())
    assert line in [each.text for each in heading(found).lines]
    assert line in markdown(found)
    file = io.StringIO()
    print_report(found, Path("runs/first"), file, 160, found=headline_of(found))
    lines = file.getvalue().splitlines()
    assert next(i for i, each in enumerate(lines) if line in each) < next(
        i for i, each in enumerate(lines) if each.startswith("PASS")
    )
    for other in (typed(summary()), typed(reported(answers=0, why="no time"))):
        assert not any("calibrated: TTFT" in each.text for each in heading(other).lines)


def test_a_large_error_is_in_the_line_of_the_client_and_fails_nothing() -> None:
    found = reported(ttft_ms=3.2)
    assert found["client"]["verdict"] == "suspect"
    assert "within 3.2 ms only (p99)" in found["client"]["reasons"][0]
    assert headline_of(typed(found)).code in (0, None)


def test_several_runs_have_the_worst_of_theirs() -> None:
    errors: list[float | None] = [0.08, 0.0, None]
    runs = [
        report_manifest(1, id=f"r{i}", calibration=CalibrationFacts(**(KNOWN | {"ttft_ms": error_ms})))
        for i, error_ms in enumerate(errors)
    ]
    for of, worst in (
        (runs[:2], runs[0]),
        (runs, runs[2]),
        ([report_manifest(1, id="none"), runs[1]], runs[1]),
    ):
        assert _pooled_manifest(of, Question()).calibration == worst.calibration
