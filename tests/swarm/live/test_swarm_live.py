"""The live numbers of whole runs, in processes of their own, against the records."""

import json
import os
import pty
import re
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

import numpy as np
import pytest
from summaries import summarise
from swarm_process import PATIENCE_S, Result, forked, in_parallel, locust, simulation, swarm
from warm_process import warm_place

from llm_locust.metrics.question import Question
from llm_locust.metrics.window import Window

#: A locustfile that writes at its process's end what the live numbers were.
LOCUSTFILE = """
from pathlib import Path

import msgspec
from locust import events, task

from llm_locust import ChatUser
from llm_locust.live.series import Charts
from llm_locust.live.snapshot import snapshot
from llm_locust.swarm.live import store_of


class Chat(ChatUser):
    @task
    def one_question(self):
        self.chat()


@events.init.add_listener
def on_init(environment, **_):
    store = store_of(environment)
    if store is None:
        return

    @environment.events.quit.add_listener
    def on_quit(**_):
        told = {
            "snapshot": snapshot(store),
            "series": Charts().series(store, "5m"),
            "marks": [mark.kind for mark in store.marks],
        }
        Path("live.json").write_bytes(msgspec.json.encode(told))
"""

USUAL = (
    *("--headless", "-u", "3", "-r", "100", "-t", "6s", "--out", "run", "--slo", "ttft=500ms"),
    *("--output-tokens", "uniform:4,12", "--body", '{"ignore_eos": true}'),
)


#: A hundred requests of three users take six seconds.
SLOW = ("--step-base", "20ms")


@dataclass(frozen=True, slots=True)
class Finished:
    code: int
    stdout: str
    stderr: str
    live: dict[str, Any]
    result: Result

    @property
    def total(self) -> dict[str, Any]:
        figures: dict[str, Any] = self.live["snapshot"]["total"]
        return figures


def _read(folder: Path, code: int, stdout: str, stderr: str) -> Finished:
    live = json.loads((folder / "live.json").read_text())
    return Finished(code, stdout, stderr, live, Result.read(folder / "run"))


def _file(folder: Path) -> Path:
    path = folder / "locustfile.py"
    path.write_text(LOCUSTFILE)
    return path


def _two_workers(folder: Path) -> Finished:
    with (
        simulation(folder, *SLOW, "--faults", "http_500=10%") as sim,
        locust(folder, *USUAL, *forked(2), "-t", "12s", "-H", sim.url, locustfile=_file(folder)) as process,
    ):
        code = process.exit_code()
        return _read(folder, code, process.stdout, process.stderr)


def _worker_killed(folder: Path) -> Finished:
    with simulation(folder, *SLOW) as sim:
        options = [*USUAL, "-t", "9s", "-H", sim.url, "--allow-incomplete"]
        with swarm(folder, 2, *options, locustfile=_file(folder)) as (master, workers):
            sim.wait_entries(20)
            workers[0].signal(SIGKILL)
            code = master.exit_code()
            return _read(folder, code, master.stdout, master.stderr)


def _on_a_terminal(folder: Path) -> Finished:
    """With stderr on a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    seen: list[bytes] = []

    def read() -> None:
        while True:
            try:
                seen.append(os.read(ours, 1 << 16))
            except OSError:  # the other end is closed
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with simulation(folder, *SLOW) as sim, (folder / "stdout").open("wb") as stdout:
        command = [str(warm_place() / "locust"), "-f", str(_file(folder)), *USUAL, "-H", sim.url]
        environ = os.environ | {"PROGRESS": "auto", "COLUMNS": "100", "TERM": "xterm"}
        code = subprocess.run(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=theirs,
            timeout=PATIENCE_S,
            check=False,
        ).returncode
    os.close(theirs)
    reader.join(PATIENCE_S)
    os.close(ours)
    return _read(folder, code, (folder / "stdout").read_text(), b"".join(seen).decode())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    return in_parallel(
        tmp_path_factory.mktemp("live"),
        {
            "two workers": _two_workers,
            "worker killed": _worker_killed,
            "terminal": _on_a_terminal,
        },
    )


@pytest.mark.parametrize("name", ["two workers", "terminal"])
def test_every_request_is_in_the_live_numbers_once(runs: dict[str, Finished], name: str) -> None:
    run = runs[name]
    requests = run.result.summary["requests"]
    outcomes = run.result.requests.table.column("outcome").to_pylist()
    # Live counts know no window: a request that began between the end of the load and its news is in them.
    assert run.total["requests"] == len(outcomes) > 20
    assert run.total["failures"] == sum(outcome != "ok" for outcome in outcomes) >= requests["failed"]
    assert run.live["snapshot"]["missed"] == 0
    late = len(outcomes) - requests["sent"]
    assert run.total["goodput"] == pytest.approx(
        run.result.summary["goodput"]["ratio"], abs=late / len(outcomes)
    )


@pytest.mark.parametrize("name", ["two workers", "terminal"])
def test_live_percentiles_are_those_of_the_report(runs: dict[str, Finished], name: str) -> None:
    result = runs[name].result
    check = result.summary["live_check"]
    assert check["within"] is True
    assert check["requests"]["live"] == check["requests"]["records"] == len(result.requests)
    assert list(check["latency_ms"]) == ["ttft", "tpot", "itl", "e2el", "ttft_scheduled", "schedule_delay"]
    started_ns = result.manifest.started_ns
    # Live figures know no window: a request that began before the news of the load's end is in them.
    every = Window(started_ns - 60 * 10**9, started_ns + 600 * 10**9, "run")
    exact = summarise(result.requests, result.manifest, Question(window=every))
    for metric in ("ttft", "tpot", "itl", "e2el"):
        for percentile in ("p50", "p95", "p99"):
            exact_ms = exact["latency_ms"][metric][percentile]
            assert check["latency_ms"][metric][percentile] == [
                pytest.approx(exact_ms, rel=check["relative_error"]),
                pytest.approx(exact_ms),
            ]
    assert result.manifest.live_check == check


def test_tokens_are_those_of_the_records(runs: dict[str, Finished]) -> None:
    for name in ("two workers", "terminal"):
        run = runs[name]
        tokens = run.result.requests.floats("output_tokens")
        told = run.total["output_tokens_per_s"] * run.total["seconds"]
        assert told == pytest.approx(float(tokens[~np.isnan(tokens)].sum()))


def test_the_series_has_the_load_and_the_workers(runs: dict[str, Finished]) -> None:
    columns = runs["two workers"].live["series"]["columns"]
    assert max(users for users in columns["users"] if users is not None) == 3
    assert max(workers for workers in columns["workers"] if workers is not None) == 2
    assert any(concurrency for concurrency in columns["concurrency"])
    assert any(p50 for p50 in columns["ttft_p50_ms"])


def test_a_worker_that_dies_is_marked_and_what_it_reported_stays(runs: dict[str, Finished]) -> None:
    run = runs["worker killed"]
    assert run.code == 0, "what is missing is allowed"
    assert run.result.summary["completeness"]["complete"] is False
    assert "lost" in run.live["marks"]
    lost = [
        worker for worker in run.live["snapshot"]["observation"]["workers"] if worker["state"] == "missing"
    ]
    assert len(lost) == 1
    # Its last report may be 3 s older than its last record, or newer than the last that it delivered.
    known = len(run.result.requests) + run.result.summary["requests"]["lost"]
    assert 0 < run.total["requests"] <= known
    check = run.result.summary["live_check"]
    assert check["within"] is not False, "that is no fault of the live view"
    assert check["requests"]["live"] == run.total["requests"] + run.total["cancelled"]


def test_a_log_gets_a_line_now_and_then_instead_of_locusts_tables(runs: dict[str, Finished]) -> None:
    text = runs["two workers"].stderr
    assert re.search(
        r"\S{10} [\d:]{8} 0:\d\d of 0:12 · 3 users · \d+ in flight · 2 workers · [\d,.]+ tokens/s · "
        r"TTFT p50 [\d.]+ p99 [\d.]+ ms · goodput [\d.]+ % · \d+ errors · client \w+",
        text,
    )
    assert "Aggregated" not in text, "the report has what is in Locust's tables"


def test_a_terminal_gets_a_panel_that_goes_at_the_end(runs: dict[str, Finished]) -> None:
    drawn = runs["terminal"].stderr
    assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h") == 1, "the cursor is shown again"
    text = re.sub(r"\x1b\[[0-9;]*m", "", drawn)
    assert " of 0:06 ─" in text
    assert "3 users · " in text
    assert "since start" in text
    assert text.rstrip().rfind("since start") < text.find("Shutting down")
    assert re.search(r"\d\d:\d\d:\d\d run time limit reached", text), "the log is whole"


@pytest.mark.parametrize("name", ["two workers", "terminal"])
def test_nothing_goes_wrong_on_the_way(runs: dict[str, Finished], name: str) -> None:
    run = runs[name]
    assert run.code == (1 if run.total["failures"] else 0)
    assert "Traceback" not in run.stderr
    assert "ERROR" not in run.stderr
