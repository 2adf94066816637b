"""Open loops in real processes: when requests come, how many, and what ends the run."""

import json
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from swarm_process import (
    CHAT,
    LOCUSTFILES,
    Result,
    forked,
    in_parallel,
    locust,
    simulation,
)

from llm_locust.workload.arrivals import Process, Schedule, constant

pytestmark = pytest.mark.alone

OPEN_LOOP = LOCUSTFILES / "open_loop.py"
REPLAY = LOCUSTFILES / "replay.py"

SHORT = ["--input-tokens", "16", "--output-tokens", "1"]
RATE, REQUESTS, SEED = 150, 250, 7

#: Clocks of processes of one machine differ by no more, measured over Locust's channel.
CLOCKS_S = 0.003


def run(
    folder: Path, url: str, *options: str, locustfile: Path = OPEN_LOOP, workers: int = 1, code: int = 0
) -> Result:
    topology = forked(workers) if workers > 1 else []
    words = ["--headless", "-H", url, "--out", "run", *options, *topology]
    with locust(folder, *words, locustfile=locustfile) as process:
        assert process.exit_code() == code, process.stderr
    return Result.read(folder / "run")


def scheduled_s(result: Result) -> NDArray[np.float64]:
    """When the requests were due, in order, seconds after the schedule's start as far as it is known."""
    return np.sort((result.requests.ints("scheduled_ns") - result.manifest.started_ns) * 1e-9)


def ks_exponential(gaps_s: NDArray[np.float64], rate: float) -> float:
    """Kolmogorov-Smirnov distance of gaps from the exponential law of this rate."""
    below = 1 - np.exp(-rate * np.sort(gaps_s))
    n = len(gaps_s)
    steps = np.arange(n + 1) / n
    return float(max(np.max(steps[1:] - below), np.max(below - steps[:-1])))


def expected_s(process: Process) -> NDArray[np.float64]:
    return Schedule(process, constant(RATE), seed=SEED, limit=REQUESTS).times(1e6).at_s


def load(arrival: str) -> list[str]:
    count = ["--num-requests", str(REQUESTS), "--seed", str(SEED)]
    return ["-u", str(RATE), "--arrival", arrival, *count, *SHORT]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Result, list[dict[str, Any]]]]:
    """Runs of one seed over 1 and 4 workers, other laws over 2, and what the server saw of each."""

    def one(arrival: str, workers: int) -> Any:
        def at(folder: Path) -> tuple[Result, list[dict[str, Any]]]:
            with simulation(folder / "sim") as sim:
                result = run(folder, sim.url, *load(arrival), workers=workers)
                return result, sim.entries()

        return at

    runs = {f"poisson-{n}": one("poisson", n) for n in (1, 4)} | {
        "constant-2": one("constant", 2),
        "gamma-2": one("gamma:2", 2),
    }
    return in_parallel(tmp_path_factory.mktemp("processes"), runs, at_once=1)


LAWS = {"poisson": Process(1.0), "constant": Process(0.0), "gamma": Process(2.0)}


@pytest.mark.parametrize("name", ["poisson-1", "poisson-4", "constant-2", "gamma-2"])
def test_all_workers_together_send_exactly_the_asked_process(
    processes: dict[str, tuple[Result, list[dict[str, Any]]]], name: str
) -> None:
    result, entries = processes[name]
    process = LAWS[name.partition("-")[0]]
    found, expected = scheduled_s(result), expected_s(process)
    assert len(found) == len(entries) == REQUESTS
    apart = found - expected
    assert np.ptp(apart) < 2 * CLOCKS_S, "the union is not the schedule"
    assert result.manifest.open_loop
    assert result.manifest.stop_reason.startswith(f"num-requests: {REQUESTS} ")
    assert result.summary["run"]["stop_reason"] == result.manifest.stop_reason
    assert result.summary["requests"]["ok"] == REQUESTS
    assert {row["request_id"] for row in entries} == set(result.rows())


@pytest.mark.parametrize("name", ["poisson-1", "poisson-4"])
def test_gaps_of_a_poisson_process_are_exponential(
    processes: dict[str, tuple[Result, list[dict[str, Any]]]], name: str
) -> None:
    result, _ = processes[name]
    gaps = np.diff(scheduled_s(result))
    # 1.63 / √n is passed by chance once in a hundred; the clocks of several workers add a little.
    assert ks_exponential(gaps, RATE) < 1.63 / np.sqrt(len(gaps)) + RATE * 0.2e-3


def test_gaps_of_a_gamma_process_are_as_bursty_as_they_were_asked_for(
    processes: dict[str, tuple[Result, list[dict[str, Any]]]],
) -> None:
    result, _ = processes["gamma-2"]
    # Half of the gaps are shorter than the clocks of two processes agree: the others are looked at.
    least_s = 0.005
    gaps = np.sort(np.diff(scheduled_s(result)))
    # A coefficient of variation of 2 is a shape of a quarter. Of so many drawn ones the law is known well.
    law = np.sort(np.random.default_rng(0).gamma(0.25, 4 / RATE, 400_000))
    assert np.mean(gaps > least_s) == pytest.approx(np.mean(law > least_s), abs=0.05)
    gaps, law = gaps[gaps > least_s], law[law > least_s]
    below, n = np.searchsorted(law, gaps) / len(law), len(gaps)
    distance = max(np.max(np.arange(1, n + 1) / n - below), np.max(below - np.arange(n) / n))
    assert distance < 1.63 / np.sqrt(n) + 0.01


def test_constant_gaps_are_alike_over_two_workers(
    processes: dict[str, tuple[Result, list[dict[str, Any]]]],
) -> None:
    result, _ = processes["constant-2"]
    errors = np.abs(np.diff(scheduled_s(result)) - 1 / RATE)
    assert np.quantile(errors, 0.99) < 0.002


def test_the_server_gets_what_the_schedule_says(
    processes: dict[str, tuple[Result, list[dict[str, Any]]]],
) -> None:
    for name, (result, entries) in processes.items():
        due = {row["request_id"]: row["scheduled_ns"] for row in result.rows().values()}
        late_s = np.array(
            [(e["received_ns"] - due[e["request_id"]]) * 1e-9 for e in entries[REQUESTS // 2 :]]
        )
        # A busy machine is late at times, and the schedule does not shift by it: the next request is due
        # when it was. One that is late all the time says so itself.
        first = np.quantile(late_s, 0.05)
        assert first > -CLOCKS_S, name
        assert first < 0.05 or result.summary["client"]["verdict"] != "ok", f"{name}: {late_s}"


def test_a_closed_loop_sends_exactly_as_many_requests_as_asked(tmp_path: Path) -> None:
    with simulation(tmp_path / "sim") as sim:
        for workers in (1, 2):
            folder = tmp_path / str(workers)
            folder.mkdir()
            options = ["-u", "7", "-r", "100", "--num-requests", "101", *SHORT]
            result = run(folder, sim.url, *options, locustfile=CHAT, workers=workers)
            assert len(result.requests) == result.summary["requests"]["ok"] == 101
            assert not result.manifest.open_loop
            assert sorted(w.received for w in result.manifest.workers) == (
                [101] if workers == 1 else [50, 51]
            )


def test_a_server_that_stands_still_does_not_hold_the_schedule_up(tmp_path: Path) -> None:
    rate, count, stall_s = 50, 300, 3.0
    with simulation(tmp_path / "sim") as sim:
        options = ["-u", "1", "--arrival", "constant", "--request-rate", str(rate), "--max-in-flight", "5"]
        words = ["--headless", "-H", sim.url, "--out", "run", *options, "--num-requests", str(count), *SHORT]
        with locust(tmp_path, *words, locustfile=OPEN_LOOP) as process:
            sim.wait_entries(50)
            os.kill(sim.pid, signal.SIGSTOP)
            try:
                time.sleep(stall_s)
            finally:
                os.kill(sim.pid, signal.SIGCONT)
            assert process.exit_code() == 0, process.stderr
    result = Result.read(tmp_path / "run")
    assert len(result.requests) == count
    assert np.max(np.abs(np.diff(scheduled_s(result)) - 1 / rate)) < 0.001, "the schedule stood still too"
    latency = result.summary["latency_ms"]
    assert latency["ttft_scheduled"]["p90"] > 1000 > 500 > latency["ttft"]["p90"]
    (worker,) = result.manifest.workers
    assert worker.held_back > stall_s * rate / 2
    assert worker.longest_held_ns > 0.8 * stall_s * 1e9
    assert worker.unsent == 0


def test_a_trace_is_replayed_with_its_lengths_and_ends_the_run(tmp_path: Path) -> None:
    rows = [
        {
            "timestamp": k * 100,
            "input_length": 600 + 100 * (k % 3),
            "output_length": 2 + k % 3,
            "hash_ids": [k % 2],
        }
        for k in range(40)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)))
    with simulation(tmp_path / "sim") as sim:
        options = ["-u", "1", "--arrival", f"trace:{trace}", "--trace-scale", "0.5", "--trace-slice", "1s-3s"]
        result = run(tmp_path, sim.url, *options, locustfile=REPLAY, workers=2)
    found = sorted(result.rows().values(), key=lambda row: row["scheduled_ns"])
    assert [row["asked_input_tokens"] for row in found] == [row["input_length"] for row in rows[10:30]]
    assert [row["asked_output_tokens"] for row in found] == [row["output_length"] for row in rows[10:30]]
    assert np.allclose(np.diff(scheduled_s(result)), 0.05, atol=2 * CLOCKS_S)
    assert result.manifest.stop_reason == "the end of the trace"


def _rising(n: int, seconds: float) -> list[float]:
    """``n`` times whose rate rises from a half of the mean to one and a half of it."""
    u = np.arange(n) / n
    return [float(t) for t in seconds * (np.sqrt(1 + 8 * u) - 1) / 2]


def _azure(at_s: list[float]) -> str:
    begin = datetime(2023, 11, 16, 18, 15, 46, tzinfo=UTC)
    lines = [
        f"{begin + timedelta(seconds=t):%Y-%m-%d %H:%M:%S.%f}0,{20 + k % 9},2" for k, t in enumerate(at_s)
    ]
    return "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines])


def test_the_rate_over_time_is_that_of_the_trace_stretched_to_one_percent(tmp_path: Path) -> None:
    """In times that are due: when a busy machine sends them is for the client's verdict."""
    n, seconds, scale = 400, 6.0, 0.5
    at_s = _rising(n, seconds)
    (tmp_path / "azure.csv").write_text(_azure(at_s))
    with simulation(tmp_path / "sim") as sim:
        options = ["-u", "1", "--arrival", f"trace:{tmp_path / 'azure.csv'}", "--trace-scale", str(scale)]
        result = run(tmp_path, sim.url, *options, locustfile=REPLAY, workers=2)
        received_ns = {entry["request_id"]: entry["received_ns"] for entry in sim.entries()}
    rows = result.rows()
    assert received_ns.keys() == rows.keys()
    assert len(rows) == n
    due_s = np.sort([row["scheduled_ns"] for row in rows.values()]) * 1e-9
    edges = np.linspace(0, seconds * scale, 6)
    wanted, _ = np.histogram(np.array(at_s) * scale, edges)
    found, _ = np.histogram(due_s - due_s[0], edges)
    # The clocks of two workers may put a request on the other side of an edge.
    assert np.abs(found - wanted).max() <= np.ceil(0.01 * wanted.max())
    early_ns = [row["scheduled_ns"] - received_ns[request_id] for request_id, row in rows.items()]
    assert max(early_ns) < CLOCKS_S * 1e9, "sent before it was due"


def test_turns_wait_for_each_other_and_the_wait_is_told_apart(tmp_path: Path) -> None:
    turns = [
        {"id": "a", "at": 0.0, "input_tokens": 30, "output_tokens": 300},
        {"id": "b", "at": 0.1, "input_tokens": 30, "output_tokens": 2, "after": ["a"], "gap_s": 0.2},
        {"id": "c", "at": 0.1, "input_tokens": 30, "output_tokens": 2},
    ]
    trace = tmp_path / "sessions.jsonl"
    trace.write_text("\n".join(map(json.dumps, turns)))
    with simulation(tmp_path / "sim") as sim:
        options = ["-u", "1", "--arrival", f"trace:{trace}", "--body", '{"ignore_eos": true}']
        result = run(tmp_path, sim.url, *options, locustfile=REPLAY)
    a, b, c = sorted(result.rows().values(), key=lambda r: (r["session"], r["turn"]))
    assert [(r["session"], r["turn"]) for r in (a, b, c)] == [("a", 0), ("a", 1), ("c", 0)]
    assert a["blocked_ns"] is c["blocked_ns"] is None
    free_ns = b["scheduled_ns"] + b["blocked_ns"]
    assert a["ended_ns"] + 200_000_000 - 1e6 < free_ns < b["sent_ns"] + 1e6, (
        "two clocks, read one after the other"
    )
    assert c["scheduled_ns"] < a["ended_ns"]


def test_too_many_errors_end_the_run_and_the_report_says_so(tmp_path: Path) -> None:
    with simulation(tmp_path / "sim", "--faults", "http_500=50%") as sim:
        options = ["-u", "50", "-t", "60s", "--stop-when", "error_rate>20% over 3s", *SHORT]
        with locust(
            tmp_path, "--headless", "-H", sim.url, "--out", "run", *options, locustfile=OPEN_LOOP
        ) as process:
            assert process.exit_code() == 1, process.stderr
            assert "error_rate>0.2 over 3s" in process.stdout
    reason = Result.read(tmp_path / "run").manifest.stop_reason
    assert reason.startswith("error_rate>0.2 over 3s: of the ")


SHAPE = """
from locust import LoadTestShape

from llm_locust import OpenLoopUser


class Steps(LoadTestShape):
    def tick(self):
        t = self.get_run_time()
        return None if t > 4 else (20 if t < 2 else 80, 100)


class Load(OpenLoopUser):
    pass
"""


def test_a_change_of_the_number_of_users_changes_the_rate_on_every_worker(tmp_path: Path) -> None:
    path = tmp_path / "shape.py"
    path.write_text(SHAPE)
    with simulation(tmp_path / "sim") as sim:
        result = run(tmp_path, sim.url, "--arrival", "constant", *SHORT, locustfile=path, workers=2)
    gaps = np.diff(scheduled_s(result))
    assert np.median(gaps[:20]) == pytest.approx(1 / 20, abs=CLOCKS_S)
    assert np.median(gaps[-40:]) == pytest.approx(1 / 80, abs=CLOCKS_S)


@pytest.mark.parametrize(
    ("locustfile", "options", "says"),
    [
        (CHAT, ["--arrival", "poisson"], "--arrival needs a user class of OpenLoopUser"),
        (OPEN_LOOP, ["--arrival", "trace:/nowhere.csv"], "--arrival: trace '/nowhere.csv'"),
        (OPEN_LOOP, ["--trace-scale", "2"], "--trace-scale without a trace"),
    ],
)
def test_what_cannot_work_is_one_line_before_any_load(
    tmp_path: Path, locustfile: Path, options: list[str], says: str
) -> None:
    words = ["--headless", "-u", "1", "-H", "http://127.0.0.1:9", *options]
    with locust(tmp_path, *words, locustfile=locustfile) as process:
        assert process.exit_code() == 2
        assert [line for line in process.said if says in line], process.stderr
        assert "Traceback" not in process.stderr
