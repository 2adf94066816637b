"""However a run ends, its report is written, and its records are what the server saw."""

import json
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chaos import UNHURRIED, wait_more, wait_senders
from swarm_process import (
    Process,
    Result,
    Simulation,
    forked,
    in_parallel,
    locust,
    simulation,
    swarm,
    wait_until,
)

#: With :data:`UNHURRIED` answers take 0.1 to 1.5 s: a process that stands still for 0.4 s has some under way
#: all the same. With 0.2 s for each, all were in its sockets when it went on, and none was left to cut.
USUAL = (
    *("--headless", "-u", "8", "-r", "100", "--out", "run", "--body", '{"ignore_eos": true}'),
    *("--input-tokens", "10", "--output-tokens", "uniform:2,30", "--drain", "0"),
)

#: A drain that lasts as long as the answers do, never to its bound.
DRAIN_S = 100


#: A load with an end of its own, and users that bring their host.
SHAPE = """
from locust import LoadTestShape, task

from llm_locust import ChatUser


class Stairs(LoadTestShape):
    def tick(self):
        answers = self.runner.stats.total.num_requests
        return (4, 100) if answers < 4 else (8, 100) if answers < 20 else None


class Chat(ChatUser):
    host = "{url}"

    @task
    def ask_one(self):
        self.chat()
"""


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    process: Process
    result: Result
    truth: list[dict[str, Any]]
    took_s: float  # from the signal, or the run's end, to the process's
    at_ns: int  # when it was told to end in the drain, or the late worker was started
    left_over: list[str]

    @property
    def outcomes(self) -> set[str]:
        return {str(outcome) for outcome in self.result.requests.texts("outcome")}


@dataclass(frozen=True, slots=True)
class Unwritten:
    code: int
    process: Process
    path: Path
    left_over: list[str]


def _ended(process: Process, sim: Simulation, folder: Path, at_ns: int = 0) -> Ended:
    since = time.monotonic()
    code = process.exit_code()
    took_s = time.monotonic() - since
    # The server may still be about to learn of the clients that left.
    result = Result.read(folder / "run")
    cancelled = sum(outcome == "cancelled" for outcome in result.requests.texts("outcome"))
    wait_until(lambda: len(sim.entries()) >= len(result.requests) - cancelled, "the truth log's last entries")
    return Ended(code, process, result, sim.entries(), took_s, at_ns, process.left_over())


def _all_told_to_end(folder: Path) -> Ended:
    with simulation(folder, *UNHURRIED) as sim, locust(folder, *USUAL, *forked(2), "-H", sim.url) as master:
        sim.wait_entries(20)
        master.signal_group(signal.SIGTERM)
        return _ended(master, sim, folder)


def _one_process_interrupted(folder: Path) -> Ended:
    with simulation(folder, *UNHURRIED) as sim, locust(folder, *USUAL, "-H", sim.url) as process:
        sim.wait_entries(20)
        process.signal(signal.SIGINT)
        return _ended(process, sim, folder)


def _last_worker_ended(folder: Path) -> Ended:
    with (
        simulation(folder, *UNHURRIED) as sim,
        swarm(folder, 1, *USUAL, "-t", "600s", "-H", sim.url) as (master, workers),
    ):
        sim.wait_entries(20)
        workers[0].signal(signal.SIGTERM)
        return _ended(master, sim, folder)


def _in_the_ramp(*of: str, cut: bool) -> Callable[[Path], Ended]:
    """The run's time is over while users are still being spawned, and those that are there may finish.

    It is told to end as they do, which changes nothing, and then interrupted if they are to be ``cut``.
    """

    def run(folder: Path) -> Ended:
        ramp = ["-u", "60", "-r", "12", "-t", "2s", "--drain", f"{DRAIN_S}s", "--output-tokens", "60"]
        with (
            simulation(folder, *UNHURRIED) as sim,
            locust(folder, *USUAL, *ramp, *of, "-H", sim.url) as process,
        ):
            process.wait_for(r"draining (\d+|the) requests.*, at most 100 s; Ctrl-C cuts them")
            wait_more(sim, 4)  # of answers of 3 s: the ramp would have gone on for more than 1 s
            told_ns = time.time_ns()
            process.signal(signal.SIGTERM)
            if cut:
                wait_more(sim, 3)
                process.signal(signal.SIGINT)
            return _ended(process, sim, folder, told_ns)

    return run


def _shape(folder: Path) -> Ended:
    with simulation(folder, *UNHURRIED) as sim:
        locustfile = folder / "shape.py"
        locustfile.write_text(SHAPE.replace("{url}", sim.url))
        options = ["--headless", "--out", "run", "--output-tokens", "4", "--drain", "0"]
        options += ["--body", '{"ignore_eos": true}']
        with locust(folder, *options, *forked(2), locustfile=locustfile) as master:
            master.wait_for("Shape test stopping")
            return _ended(master, sim, folder)


def _joined_late(folder: Path) -> Ended:
    """A second worker joins in the middle; all are interrupted before that one's first report."""
    with simulation(folder, *UNHURRIED) as sim, swarm(folder, 1, *USUAL, "-H", sim.url) as (master, workers):
        # Before that Locust gives a worker that joins no users.
        master.wait_for(r"All users spawned|Spawning is complete")
        joins_ns = time.time_ns()
        port = workers[0].command[-1]
        with locust(folder, "--worker", "--master-port", port, stdout="late") as late:
            master.wait_for("2 workers connected")
            wait_senders(sim, 2)
            for process in (master, workers[0], late):
                process.signal(signal.SIGINT)
            ended = _ended(master, sim, folder, joins_ns)
            late.exit_code()
            return ended


def _disk_full(largest_file_kib: int, *topology: str) -> Callable[[Path], Unwritten]:
    """The run's files cannot grow to the size that its records need: 1 KB each, 20 a second."""

    def run(folder: Path) -> Unwritten:
        prompts = folder / "prompts.jsonl"
        lines = ({"id": secrets.token_urlsafe(600), "prompt": "How?"} for _ in range(400))
        prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
        options = ["--headless", "-u", "8", "-r", "100", "--out", "run", "--body", '{"ignore_eos": true}']
        options += [
            "--dataset",
            str(prompts),
            "--output-tokens",
            "8",
            "--drain",
            "0",
            "--flush-timeout",
            "1s",
        ]
        with (
            simulation(folder, *UNHURRIED) as sim,
            locust(folder, *options, *topology, "-H", sim.url, largest_file_kib=largest_file_kib) as process,
        ):
            process.wait_for("a write failed, its batches will be sent again")
            wait_more(sim)
            process.signal(signal.SIGTERM)
            code = process.exit_code()
            return Unwritten(code, process, folder / "run", process.left_over())

    return run


FULL_DISKS = {
    "no room for records": _disk_full(112, *forked(2)),
    "no room for a report": _disk_full(8),
}

#: Each signal and each receiver. Forked workers that are interrupted are in ../lies/test_run_end.py, workers
#: that are killed, or told to end in the middle, in test_swarm_chaos_workers.py.
SCENARIOS: dict[str, Callable[[Path], Ended]] = {
    "SIGTERM to all": _all_told_to_end,
    "Ctrl-C to one process": _one_process_interrupted,
    "SIGTERM to the last worker": _last_worker_ended,
    "end in the ramp": _in_the_ramp(*forked(2), cut=False),
    "end in the ramp, alone, and a cut": _in_the_ramp(cut=True),
    "Ctrl-C to all, of which one joined late": _joined_late,
    "end of a shape": _shape,
}

#: Ended before its time by something other than its settings.
CUT_SHORT = "SIGTERM to the last worker"
RAMPS = [name for name in SCENARIOS if "ramp" in name]
JOINED = "Ctrl-C to all, of which one joined late"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    return in_parallel(tmp_path_factory.mktemp("stops"), SCENARIOS, at_once=4)


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_every_request_that_the_server_saw_is_recorded(name: str, runs: dict[str, Ended]) -> None:
    run = runs[name]
    rows = run.result.rows()
    seen = {entry["request_id"] for entry in run.truth}
    assert len(seen) >= 8
    assert seen <= rows.keys()
    # A request that was cancelled as it was sent may not have reached the server.
    assert {rows[request_id]["outcome"] for request_id in rows.keys() - seen} <= {"cancelled"}


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_the_run_is_complete(name: str, runs: dict[str, Ended]) -> None:
    run = runs[name]
    assert run.result.manifest.complete, run.process.stderr
    assert run.result.manifest.workers_lost == 0
    assert run.result.summary["completeness"]["complete"] is True
    assert run.code == (4 if name == CUT_SHORT else 0), run.process.stderr
    assert "complete: all" in run.process.stdout


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_nothing_is_left_running_and_nothing_went_wrong_unseen(name: str, runs: dict[str, Ended]) -> None:
    run = runs[name]
    assert run.left_over == []
    assert "Traceback" not in run.process.stderr
    assert run.process.stdout.count("Latency, ms") == 1
    assert run.took_s < DRAIN_S * 0.9, "waited for the bound of the drain"


def test_a_run_whose_last_worker_leaves_before_its_time_is_cut_short(runs: dict[str, Ended]) -> None:
    run = runs[CUT_SHORT]
    assert run.result.summary["completeness"]["cut_short"] is True
    said = " ".join(run.process.stdout.split())
    assert "INCOMPLETE: the run was cut short: no worker was left: the last one quit" in said


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "end in the ramp"])
def test_without_a_drain_and_after_a_ctrl_c_in_it_what_is_under_way_is_cancelled_and_recorded(
    name: str, runs: dict[str, Ended]
) -> None:
    run = runs[name]
    rows = run.result.rows()
    assert run.outcomes == {"ok", "cancelled"}
    left = {entry["request_id"] for entry in run.truth if entry["disconnected"]}
    assert {rows[request_id]["outcome"] for request_id in left} == {"cancelled"}
    cut = sum(worker.cut for worker in run.result.manifest.workers)
    cancelled = sum(row["outcome"] == "cancelled" for row in rows.values())
    # A worker that joins takes users from the other one, whose requests end then.
    assert cut == cancelled if name != JOINED else 0 < cut <= cancelled


def test_in_the_drain_requests_finish_and_none_is_cancelled(runs: dict[str, Ended]) -> None:
    assert runs["end in the ramp"].outcomes == {"ok"}


@pytest.mark.parametrize("name", RAMPS)
def test_a_sigterm_in_the_drain_cuts_nothing(name: str, runs: dict[str, Ended]) -> None:
    run = runs[name]
    stopped_ns = run.result.manifest.stopped_ns
    assert stopped_ns is not None
    ends_ns = [row["ended_ns"] for row in run.result.rows().values() if row["outcome"] == "ok"]
    assert sum(stopped_ns < end_ns for end_ns in ends_ns) >= 4
    assert any(end_ns > run.at_ns for end_ns in ends_ns)


@pytest.mark.parametrize("name", RAMPS)
def test_users_that_the_ramp_brings_after_the_runs_end_send_nothing(
    name: str, runs: dict[str, Ended]
) -> None:
    """60 users were asked for, 12 a second, in a run of 2 s; its drain would bring 18 more."""
    rows, stopped_ns = runs[name].result.rows().values(), runs[name].result.manifest.stopped_ns
    assert stopped_ns is not None
    load_s = (stopped_ns - min(row["started_ns"] for row in rows)) * 1e-9
    users = {(row["worker"], row["user"]) for row in rows}
    assert 1 < len(users) <= 12 * (load_s + 1)


def test_a_worker_that_joins_late_takes_part_and_is_named(runs: dict[str, Ended]) -> None:
    run = runs[JOINED]
    assert len(run.result.manifest.workers) == 2
    assert all(worker.received > 0 for worker in run.result.manifest.workers)
    (late,) = (worker for worker in run.result.manifest.workers if worker.late)
    assert late.joined_ns is not None
    assert late.joined_ns > run.at_ns
    own = [row["scheduled_ns"] for row in run.result.rows().values() if row["worker"] == late.id]
    assert min(own) > run.at_ns


@pytest.fixture(scope="module")
def unwritten(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Unwritten]:
    return in_parallel(tmp_path_factory.mktemp("full"), FULL_DISKS)


@pytest.mark.parametrize("name", list(FULL_DISKS))
def test_a_full_disk_gives_exit_code_4_and_says_why_without_a_traceback(
    name: str, unwritten: dict[str, Unwritten]
) -> None:
    run = unwritten[name]
    assert run.code == 4
    assert "a write failed, its batches will be sent again: File too large" in run.process.stderr
    assert "Traceback" not in run.process.stderr
    assert run.left_over == []


def test_records_that_found_no_room_are_missing_in_the_report(unwritten: dict[str, Unwritten]) -> None:
    result = Result.read(unwritten["no room for records"].path)
    assert result.summary["completeness"]["complete"] is False
    assert sum(worker.missing for worker in result.manifest.workers) > 10
    assert result.manifest.workers_lost == 0


def test_a_report_that_cannot_be_written_is_said_in_one_line(unwritten: dict[str, Unwritten]) -> None:
    lines = [line for line in unwritten["no room for a report"].process.said if "the report of" in line]
    assert len(lines) == 1
    assert "'run' could not be written: the reports in 'run' cannot be written: File too large" in lines[0]
    assert "the records received are kept there" in lines[0]


def test_a_run_that_cannot_even_write_its_manifest_does_not_begin(tmp_path: Path) -> None:
    with (
        simulation(tmp_path) as sim,
        locust(tmp_path, *USUAL, "-H", sim.url, largest_file_kib=1) as process,
    ):
        assert process.exit_code() == 2
        assert sim.entries() == []
    (line,) = [line for line in process.said if " ERROR: " in line]
    assert "File too large" in line
    assert "Traceback" not in process.stderr
