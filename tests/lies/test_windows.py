"""Windows that chose by outcome or were short beside their requests, and intervals of a queue."""

import math
from dataclasses import replace
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, columns, failed, manifest, ns, request, summarise_latency
from numpy.typing import NDArray
from summaries import summarise, typed

from llm_locust.core.manifest import WorkerFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.client import show as client
from llm_locust.figures.goodput import show_throughput as throughput
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import Section, Tone
from llm_locust.metrics.question import Question
from llm_locust.metrics.steady_window import asked_load, steady_window
from llm_locust.metrics.window import Window
from llm_locust.report.console import print_report

SECONDS = 60.0
STALL = 30.0, 39.0


def answered(at: float, user: int | None, ttft: float = 0.1, last: float = 1.0) -> RequestRecord:
    """A request that the stall makes wait for its first token until it is over."""
    begun = max(at + ttft, STALL[1]) if STALL[0] <= at + ttft < STALL[1] else at + ttft
    return request(at, (begun - at, begun - at + last), user=user)


def closed(users: int = 10, ramp_s: float = 0.0) -> list[RequestRecord]:
    """Each user sends its next request when it has the answer, until the stop."""
    made = []
    for user in range(users):
        at = user * (ramp_s / users) + user * 0.01
        while at < SECONDS:
            made.append(answered(at, user))
            at = (made[-1].ended_ns - ns(0)) / 1e9 + 0.05
    return made


@cache
def opened(rate: float = 100.0, seed: int = 3) -> list[RequestRecord]:
    """Poisson arrivals: during the stall requests pile up."""
    at = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, round(1.5 * rate * SECONDS)))
    return [answered(float(each), None, last=0.5) for each in at if each < SECONDS]


def report(records: list[RequestRecord], window: str = "steady", **facts: Any) -> dict[str, Any]:
    return summarise(batch(*records), manifest(SECONDS, slo="ttft=1s", **facts), Question(window=window))


@pytest.mark.parametrize("open_loop", [False, True], ids=["closed", "open"])
def test_a_stall_stays_in_the_steady_window(open_loop: bool) -> None:
    records = opened() if open_loop else closed()
    run, steady = (report(records, w, open_loop=open_loop) for w in ("run", "steady"))
    assert steady["window"]["seconds"] > 0.9 * SECONDS
    assert steady["latency_ms"]["ttft"]["p99"] > 5000
    assert steady["latency_ms"]["ttft"]["p99"] == pytest.approx(run["latency_ms"]["ttft"]["p99"], rel=0.05)
    assert steady["window"]["rule"].startswith("steady: load within ")


def test_what_the_steady_window_left_out_is_said() -> None:
    """Users come one after the other for 12 s, and the first seconds are slow."""
    records = [
        r if r.scheduled_ns >= ns(8.0) else answered((r.scheduled_ns - ns(0)) / 1e9, r.user, ttft=3.0)
        for r in closed(users=20, ramp_s=12.0)
    ]
    found = report(records)
    left = found["window"]["left_out"]
    assert left["seconds"] == pytest.approx(SECONDS - found["window"]["seconds"])
    assert left["seconds"] > 5
    in_window = found["requests"]["scheduled"]
    assert left["requests"] + in_window == left["requests_run"] == len(records)
    assert left["ttft_p99_ms"] > 2000
    assert left["goodput_ratio"] < found["goodput"]["ratio"]
    assert left["goodput_ratio_run"] == pytest.approx(report(records, "run")["goodput"]["ratio"])
    assert report(records, "run")["window"]["left_out"] is None


def test_a_report_says_it_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    print_report(typed(report(closed(users=20, ramp_s=12.0))), None, sys.stdout, width=200)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "left out" in line.lower()]
    assert "p99 TTFT" in line
    assert "goodput" in line


def test_a_span_shorter_than_half_of_the_run_is_not_taken() -> None:
    """Three levels of users, each for a third."""
    records = [
        r for user in range(30) for r in closed_user(user, 20.0 * (user // 10), 60.0)
    ]  # 10, 20, 30 users
    found = report(records)
    assert found["window"]["seconds"] == pytest.approx(SECONDS, rel=0.01)
    assert "(no steady span: the longest at " in found["window"]["rule"]
    assert "% of the run)" in found["window"]["rule"]


def closed_user(user: int, from_s: float, to_s: float) -> list[RequestRecord]:
    return [request(at, (0.1, 0.4), user=user) for at in np.arange(from_s, to_s - 0.4, 0.5)]


def test_without_users_in_the_records_the_run_is_judged_and_that_is_said() -> None:
    records = [request(at, (0.1, 0.4)) for at in np.arange(0, SECONDS - 0.5, 0.1)]
    found = report(records)
    assert found["window"]["seconds"] == pytest.approx(SECONDS)
    assert found["window"]["rule"].endswith("(no steady span: the requested load is unknown)")
    assert found["window"]["left_out"]["requests"] == 0


def test_users_of_two_workers_with_the_same_number_are_two() -> None:
    one, two = closed_user(0, 0.0, 60.0), closed_user(0, 20.0, 60.0)
    rows = type(batch()).concat([batch(*one, worker="w1"), batch(*two, worker="w2")])
    load = asked_load(rows, manifest(SECONDS), ns(0))
    assert load is not None
    assert load.levels(np.array([0.0, 10.0, 30.0, 40.0])).tolist() == pytest.approx([1.0, 1.5, 2.0], rel=0.01)


def test_a_rate_that_chance_alone_moves_is_steady() -> None:
    for seed in range(8):
        records = opened(rate=80.0, seed=seed)
        load = asked_load(batch(*records), manifest(SECONDS, open_loop=True), ns(0))
        window = steady_window(load, columns(*records), Window(ns(0), ns(SECONDS), "run"))
        assert window.seconds == pytest.approx(SECONDS), (seed, window.rule)


def test_a_rate_that_was_changed_is_not_one_plateau() -> None:
    half, whole = opened(rate=40.0), opened(rate=160.0)
    records = [r for r in half if r.scheduled_ns < ns(20)] + [r for r in whole if r.scheduled_ns >= ns(20)]
    load = asked_load(batch(*records), manifest(SECONDS, open_loop=True), ns(0))
    window = steady_window(load, columns(*records), Window(ns(0), ns(SECONDS), "run"))
    assert ns(18) <= window.start_ns <= ns(26)
    assert window.end_ns == ns(SECONDS)
    assert "of 1" in window.rule, "about 160 requests/s"


def hung(from_s: float = 40.0, rate: float = 100.0, in_flight: int = 50) -> list[RequestRecord]:
    """An open loop whose server is silent from ``from_s`` on: so many requests are sent after that."""
    answered_ones = [request(at) for at in np.arange(0.0, from_s, 1 / rate)]
    sent = from_s + np.arange(in_flight) / rate
    return answered_ones + [request(at, (), ended=SECONDS, outcome=Outcome.CANCELLED) for at in sent]


def unsent(count: int) -> dict[str, Any]:
    return {"open_loop": True, "workers": [replace(manifest().workers[0], unsent=count)]}


def test_a_hang_that_left_requests_unsent_stays_in_the_window_of_an_open_loop() -> None:
    found = report(hung(), gates="p99_ttft<100ms max_ttft<1s rps>=90", **unsent(1950))
    assert found["window"]["seconds"] == pytest.approx(SECONDS)  # printed 36.0
    why = "(no steady span: 1,950 requests were due and never sent, and it is not known when)"
    assert found["window"]["rule"].endswith(why)
    assert [gate["passed"] for gate in found["gates"]] == [False, False, False]  # printed True, True, True
    assert found["requests"]["cut"] == 50


def test_unsent_requests_of_the_warm_up_do_not_end_the_search() -> None:
    """The server is silent in the first seconds only, which are left out."""
    facts = unsent(200)
    facts["workers"] = [replace(facts["workers"][0], unsent_warmup=200)]
    found = report(opened(), warmup_s=5.0, **facts)
    assert found["window"]["rule"].startswith("steady: ")


def test_a_few_requests_that_the_end_of_the_load_overtook_leave_the_steady_window_as_it_is() -> None:
    """The rate is a quarter for 12 s: that is left out, and the span goes on to the stop."""
    slow = [request(at) for at in np.arange(0.0, 12.0, 1 / 25)]
    records = slow + [request(at) for at in np.arange(12.0, SECONDS, 1 / 100)]
    of_all, of_some = (report(records, **unsent(count))["window"] for count in (0, 3))
    assert of_all["seconds"] < 0.85 * SECONDS
    assert (of_some["start"], of_some["end"], of_some["rule"]) == tuple(
        of_all[key] for key in ("start", "end", "rule")
    )
    assert "(no steady span: 300 requests" in report(records, **unsent(300))["window"]["rule"]


def refused(from_s: float = 40.0, users: int = 20) -> list[RequestRecord]:
    """Users whose last request is refused with a wait that outlasts the run."""
    answered_ones = [
        request(at + user * 0.01, user=user) for user in range(users) for at in np.arange(0.0, from_s, 0.5)
    ]
    return answered_ones + [failed(from_s + user * 0.01, user=user) for user in range(users)]


@pytest.mark.parametrize("options", [{}, {"num_users": 20}], ids=["shape", "users"])
def test_users_that_wait_when_the_run_ends_are_present_to_the_stop(options: dict[str, Any]) -> None:
    found = report(refused(), gates="rps>=30 error_rate<1%", options=options)
    assert found["window"]["seconds"] > 0.95 * SECONDS  # printed 39.0
    assert [gate["passed"] for gate in found["gates"]] == [False, False]  # printed True, True
    assert found["steadiness"]["plateau"] == pytest.approx(20.0)


@pytest.mark.parametrize("options", [{}, {"num_users": 20}], ids=["shape", "users"])
def test_users_that_think_when_the_run_ends_are_present_to_the_stop(options: dict[str, Any]) -> None:
    """From 38 s on the server is silent. Four of twenty have had their answers by then, and think."""
    records = []
    for user in range(20):
        records.append(request(0.1 * user, (0.1, 0.4), user=user))
        if user < 4:
            records.append(request(36.0 + 0.1 * user, (0.1, 0.4), user=user))
        else:
            at = 40.0 + 0.1 * user
            records.append(request(at, (), ended=SECONDS, outcome=Outcome.CANCELLED, user=user))
    found = report(records, options=options)
    assert found["window"]["end"] == report(records, "run")["window"]["end"]
    assert found["requests"]["cut"] == 16  # printed 0: the window ended at 36 s


def test_users_of_a_worker_that_was_lost_are_gone_when_it_was_heard_of_last() -> None:
    one, two = closed_user(0, 0.0, 60.0), closed_user(0, 0.0, 20.0)
    rows = type(batch()).concat([batch(*one, worker="w1"), batch(*two, worker="w2")])
    lost = WorkerFacts(id="w2", index=1, announced=0, received=0, lost=True, heard_ns=ns(30.0))
    facts = manifest(SECONDS, workers=[*manifest().workers, lost], options={"num_users": 2})
    load = asked_load(rows, facts, ns(0))
    assert load is not None
    assert load.levels(np.array([0.0, 29.0, 31.0, 60.0])).tolist() == pytest.approx([2.0, 1.5, 1.0], rel=0.01)


def test_users_that_a_shape_has_ended_are_gone_after_the_longest_pause_of_any() -> None:
    """Ten of twenty leave at 45 s. All have answers of 0.4 s, and pauses of 0.1 s."""
    records = [r for user in range(20) for r in closed_user(user, 0.0, 45.0 if user < 10 else SECONDS)]
    of_shape = report(records)["window"]
    assert of_shape["seconds"] == pytest.approx(45.0, abs=1.0)
    assert report(records, options={"num_users": 20})["window"]["seconds"] == pytest.approx(SECONDS, rel=0.02)
    assert report(records, options={"num_users": 20, "num_requests": "1"})["window"] == of_shape


def waves(*seconds: float, users: int = 32) -> list[RequestRecord]:
    """Requests of ``users`` at once, each wave after the one before."""
    made, at_s = [], 0.0
    for each in seconds:
        made += [request(at_s + i * 1e-3, (0.5, each)) for i in range(users)]
        at_s += each + 0.1
    return made


def seen(made: list[RequestRecord], *, warmup_s: float, seconds: float) -> Summary:
    return typed(summarise(batch(*made), manifest(seconds, warmup_s=warmup_s)))


def warnings(section: Section) -> list[str]:
    return [line.text for line in section.lines if line.tone is Tone.WARN]


def test_rates_of_a_window_that_is_short_beside_its_requests_are_called_so() -> None:
    summary = seen(waves(18.0, 9.0), warmup_s=4.0, seconds=20.0)
    share = summary.littles_law.edges_share
    # In flight at the start: 14 s of 18 are in the window; at the end: 1.9 s of 9 are.
    assert share == pytest.approx(
        (14.0 - 7.1) * 32 / 16 / (summary.throughput.concurrency_mean or 0), rel=0.01
    )
    [warning] = warnings(throughput(summary))
    assert warning.startswith("not the rates of a steady load: 43")
    assert warning.endswith("a request takes 9.00 s and the window only 16.0 s: measure longer")


def test_both_sides_of_littles_law_are_equal_as_they_are_printed() -> None:
    [law] = [
        line.text
        for line in client(seen(waves(18.0, 9.0), warmup_s=4.0, seconds=20.0)).lines
        if "Little" in line.text
    ]
    in_flight, product, edges = (float(law.split(a)[1].split()[0]) for a in ("holds: ", "s = ", " + "))
    assert in_flight == pytest.approx(product + edges, abs=0.1)


def test_a_load_that_changes_in_a_long_window_is_called_so_too() -> None:
    stopped = [request(i * 0.1, (0.1, 60.0 - i * 0.1)) for i in range(300)]
    [warning] = warnings(throughput(seen(stopped, warmup_s=0.0, seconds=50.0)))
    assert "not the rates of a steady load" in warning


@pytest.mark.parametrize("warmup_s", [0.0, 5.0, 30.0])
def test_a_steady_load_has_no_such_warning(warmup_s: float) -> None:
    steady = [request(i * 0.05, (0.1, 1.0)) for i in range(2000)]
    summary = seen(steady, warmup_s=warmup_s, seconds=100.0)
    assert warnings(throughput(summary)) == []
    assert "edges" not in " ".join(line.text for line in client(summary).lines)


LOAD, RUNS, REQUESTS = 0.9, 40, 100_000
SHARES = {"p50": 0.5, "p90": 0.9}


def sojourns(seed: int, n: int) -> NDArray[np.float64]:
    """Times in system by Lindley's recursion, of a mean service time of 1 s, from the steady state on."""
    rng, before = np.random.default_rng(seed), 5_000
    service, between = rng.exponential(1, n + before), rng.exponential(1 / LOAD, n + before)
    level = np.concatenate([[0.0], np.cumsum(service[:-1] - between[1:])])
    return (level - np.minimum.accumulate(level) + service)[before:]


def of_independent(ascending: NDArray[np.float64], share: float) -> tuple[float, float]:
    """The order statistics between which a percentile of independent samples lies with 95 %."""
    n = len(ascending)
    reach = NormalDist().inv_cdf(0.975) * math.sqrt(n * share * (1 - share))
    return float(ascending[int(n * share - reach)]), float(ascending[math.ceil(n * share + reach)])


def test_intervals_of_a_queue_at_90_percent_load_hold_the_truth() -> None:
    before, held, told = (dict.fromkeys(SHARES, 0) for _ in range(3))
    for seed in range(RUNS):
        values = sojourns(seed, REQUESTS)
        ends, ascending = summarise_latency(values)["ci95"], np.sort(values)
        for key, share in SHARES.items():
            truth = -math.log(1 - share) / (1 - LOAD)  # the time in system is exponential
            low, high = of_independent(ascending, share)
            before[key] += low <= truth <= high
            if ends[key] is not None:
                told[key] += 1
                held[key] += ends[key][0] <= truth * 1e3 <= ends[key][1]
    for key in SHARES:
        assert before[key] < 0.7 * RUNS
        assert told[key] >= 0.8 * RUNS
        assert held[key] >= 0.85 * told[key]


def test_a_run_too_short_for_its_queue_mostly_has_no_interval_of_its_p99() -> None:
    told = sum(summarise_latency(sojourns(seed, 1_000))["ci95"]["p99"] is not None for seed in range(RUNS))
    assert told <= 2


def test_runs_that_happen_to_be_quiet_are_not_those_that_have_an_interval() -> None:
    runs, wrong, told = 150, dict.fromkeys(("mean", "p90"), 0), dict.fromkeys(("mean", "p90"), 0)
    truths = {"mean": 10e3, "p90": -math.log(0.1) * 10e3}
    for seed in range(runs):
        ends = summarise_latency(sojourns(1_000 + seed, 10_000))["ci95"]
        for key, truth in truths.items():
            if ends[key] is not None:
                told[key] += 1
                wrong[key] += not ends[key][0] <= truth <= ends[key][1]
    assert all(count <= 0.2 * runs for count in told.values()), told
    assert all(count <= 0.03 * runs for count in wrong.values()), wrong
