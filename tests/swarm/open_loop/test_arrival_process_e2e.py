"""Open loops in real processes: when requests come, how many, and what ends the run."""

import json
import os
import signal
import time
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
    locust,
    simulation,
)

from llm_locust.workload.arrivals import Process, Schedule, constant

OPEN_LOOP = LOCUSTFILES / "open_loop.py"
REPLAY = LOCUSTFILES / "replay.py"

SHORT = ["--input-tokens", "16", "--output-tokens", "1"]
RATE, REQUESTS, SEED = 150, 150, 7

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


def expected_s(process: Process) -> NDArray[np.float64]:
    return Schedule(process, constant(RATE), seed=SEED, limit=REQUESTS).times(1e6).at_s


def load(arrival: str) -> list[str]:
    count = ["--num-requests", str(REQUESTS), "--seed", str(SEED)]
    return ["-u", str(RATE), "--arrival", arrival, *count, *SHORT]


@pytest.mark.parametrize(
    ("arrival", "process", "workers"), [("poisson", Process(1.0), 3), ("gamma:2", Process(2.0), 1)]
)
def test_all_workers_together_send_exactly_the_asked_process(
    tmp_path: Path, arrival: str, process: Process, workers: int
) -> None:
    with simulation(tmp_path / "sim") as sim:
        count = ["--num-requests", str(REQUESTS), "--seed", str(SEED)]
        result = run(
            tmp_path, sim.url, "-u", str(RATE), "--arrival", arrival, *count, *SHORT, workers=workers
        )
        received_ns = {entry["request_id"]: entry["received_ns"] for entry in sim.entries()}
    rows = result.rows()
    assert received_ns.keys() == rows.keys()
    assert len(rows) == result.summary["requests"]["ok"] == REQUESTS
    expected = Schedule(process, constant(RATE), seed=SEED, limit=REQUESTS).times(1e6).at_s
    assert np.ptp(scheduled_s(result) - expected) < 2 * CLOCKS_S, "the union is not the schedule"
    assert result.manifest.open_loop
    assert result.manifest.stop_reason.startswith(f"num-requests: {REQUESTS} ")
    assert result.summary["run"]["stop_reason"] == result.manifest.stop_reason
    # A busy machine is late at times, and the schedule does not shift by it: the next request is due when it
    # was. One that is late all the time says so itself.
    late_s = [(received_ns[request_id] - row["scheduled_ns"]) * 1e-9 for request_id, row in rows.items()]
    assert min(late_s) > -CLOCKS_S, "sent before it was due"
    assert np.quantile(late_s, 0.05) < 0.05 or result.summary["client"]["verdict"] != "ok", late_s


def test_a_closed_loop_sends_exactly_as_many_requests_as_asked(tmp_path: Path) -> None:
    with simulation(tmp_path / "sim") as sim:
        options = ["-u", "7", "-r", "100", "--num-requests", "101", *SHORT]
        result = run(tmp_path, sim.url, *options, locustfile=CHAT, workers=2)
    assert len(result.requests) == result.summary["requests"]["ok"] == 101
    assert not result.manifest.open_loop
    assert sorted(w.received for w in result.manifest.workers) == [50, 51]


def test_a_server_that_stands_still_does_not_hold_the_schedule_up(tmp_path: Path) -> None:
    rate, count, stall_s = 50, 100, 1.0
    with simulation(tmp_path / "sim") as sim:
        options = ["-u", "1", "--arrival", "constant", "--request-rate", str(rate), "--max-in-flight", "5"]
        words = ["--headless", "-H", sim.url, "--out", "run", *options, "--num-requests", str(count), *SHORT]
        words += [
            "--exit-code-on-error",
            "0",
        ]  # a standstill this long is a failure
        with locust(tmp_path, *words, locustfile=OPEN_LOOP) as process:
            sim.wait_entries(10)
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
    assert latency["ttft_scheduled"]["p90"] > 400 > 200 > latency["ttft"]["p90"]
    (worker,) = result.manifest.workers
    assert worker.held_back > stall_s * rate / 2
    assert worker.longest_held_ns > 0.8 * stall_s * 1e9
    assert worker.unsent == 0


def test_a_trace_is_replayed_with_its_lengths_stretched_and_ends_the_run(tmp_path: Path) -> None:
    """In times that are due: when a busy machine sends them is for the client's verdict."""
    n, seconds, scale = 200, 3.0, 0.5
    at_ms = np.round(1e3 * _rising(n, seconds)).astype(int)
    rows: list[dict[str, Any]] = [
        {
            "timestamp": int(at),
            "input_length": 600 + 100 * (k % 3),
            "output_length": 2 + k % 3,
            "hash_ids": [k % 2],
        }
        for k, at in enumerate(at_ms)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)))
    with simulation(tmp_path / "sim") as sim:
        options = ["-u", "1", "--arrival", f"trace:{trace}", "--trace-scale", str(scale)]
        result = run(tmp_path, sim.url, *options, "--trace-slice", "1s-3s", locustfile=REPLAY, workers=2)
    found = sorted(result.rows().values(), key=lambda row: row["scheduled_ns"])
    (inside,) = np.nonzero(at_ms >= 1000)
    assert len(found) == len(inside)
    due_s, wanted_s = scheduled_s(result), scale * 1e-3 * at_ms[inside]
    assert np.ptp(due_s - wanted_s) < 2 * CLOCKS_S
    # Two workers' clocks may put neighbours the other way round.
    for key in ("input", "output"):
        asked = sorted(row[f"asked_{key}_tokens"] for row in found)
        assert asked == sorted(rows[k][f"{key}_length"] for k in inside)
    assert result.manifest.stop_reason == "the end of the trace"


def _rising(n: int, seconds: float) -> NDArray[np.float64]:
    """``n`` times whose rate rises from a half of the mean to one and a half of it."""
    return seconds * (np.sqrt(1 + 8 * np.arange(n) / n) - 1) / 2


def test_turns_wait_for_each_other_and_the_wait_is_told_apart(tmp_path: Path) -> None:
    turns = [
        {"id": "a", "at": 0.0, "input_tokens": 30, "output_tokens": 60},
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
        options = ["-u", "50", "-t", "60s", "--stop-when", "error_rate>20% over 1s", *SHORT]
        with locust(
            tmp_path, "--headless", "-H", sim.url, "--out", "run", *options, locustfile=OPEN_LOOP
        ) as process:
            assert process.exit_code() == 4, process.stderr
            assert "the run was cut short: error_rate>0.2 over 1s" in process.stdout
    reason = Result.read(tmp_path / "run").manifest.stop_reason
    assert reason.startswith("error_rate>0.2 over 1s: of the ")


SHAPE = """
from pathlib import Path

from locust import LoadTestShape

from llm_locust import OpenLoopUser


class Steps(LoadTestShape):
    def tick(self):
        seen = Path("sim/truth.jsonl").read_bytes().count(b"\\n")
        return None if seen > 60 else (20 if seen < 13 else 80, 100)


class Load(OpenLoopUser):
    pass
"""


def test_a_change_of_the_number_of_users_changes_the_rate_on_every_worker(tmp_path: Path) -> None:
    path = tmp_path / "shape.py"
    path.write_text(SHAPE)
    with simulation(tmp_path / "sim") as sim:
        result = run(tmp_path, sim.url, "--arrival", "constant", *SHORT, locustfile=path, workers=2)
    gaps = np.diff(scheduled_s(result))
    assert np.median(gaps[:12]) == pytest.approx(1 / 20, abs=CLOCKS_S)
    assert np.median(gaps[-30:]) == pytest.approx(1 / 80, abs=CLOCKS_S)
