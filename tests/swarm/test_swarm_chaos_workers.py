"""Workers that die, freeze, come late or leave: what the server saw is recorded, or named as missing."""

import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import pytest
from chaos import (
    INTERVAL_S,
    UNHURRIED,
    USUAL,
    Survived,
    batches_of,
    end,
    merge,
    sender,
    senders_of,
    unrecorded,
    wait_batches,
    wait_more,
    wait_senders,
    wait_spooled,
)
from relay import relay
from swarm_process import as_worker, free_port, in_parallel, locust, simulation, swarm, wait_until

from llm_locust.core.manifest import WorkerFacts
from llm_locust.store import FRAMES_FILE

#: Longer than Locust waits for a heartbeat.
FROZEN_S = 10.0

#: By then nothing comes any more of a worker that was killed.
SOON_NS = 1_000_000_000


def _killed(folder: Path) -> Survived:
    """One of three workers dies between two of its batches."""
    out = folder / "run"
    with (
        simulation(folder, *UNHURRIED) as sim,
        swarm(folder, 3, *USUAL, "-H", sim.url) as (master, workers),
    ):
        wait_batches(out, workers=3)
        wait_more(sim)
        workers[0].signal(SIGKILL)
        at_ns = time.time_ns()
        master.wait_for("failed to send heartbeat")
        wait_senders(sim, 2, since_ns=at_ns + SOON_NS)
        code = end(master, workers)
    return Survived(code, master, workers, out, sim, at_ns, merge(folder / "merged", out))


def _killed_behind_a_cut(folder: Path) -> Survived:
    """A worker that cannot reach its master fills its spool, and dies."""
    out, port = folder / "run", free_port()
    with (
        relay(port) as between,
        simulation(folder, *UNHURRIED) as sim,
        swarm(
            folder,
            3,
            *(*USUAL, "-H", sim.url),
            port=port,
            worker_ports=[between.port],
            first_worker=["--spool", "cut-off"],
        ) as (master, workers),
    ):
        wait_batches(out, workers=3)
        between.cut()
        wait_spooled(folder / "cut-off", since_ns=time.time_ns())
        wait_more(sim)
        workers[0].signal(SIGKILL)
        at_ns = time.time_ns()
        master.wait_for("failed to send heartbeat")
        wait_senders(sim, 2, since_ns=at_ns + SOON_NS)
        code = end(master, workers)
    merged = merge(folder / "merged", folder / "cut-off", out)
    return Survived(code, master, workers, out, sim, at_ns, merged)


def _frozen(folder: Path) -> Survived:
    """A worker stands still for longer than Locust waits for a heartbeat, and goes on."""
    out = folder / "run"
    with (
        simulation(folder, *UNHURRIED) as sim,
        swarm(folder, 3, *USUAL, "-H", sim.url, first_worker=["--spool", "frozen"]) as (master, workers),
    ):
        wait_batches(out, workers=3)
        (own,) = (folder / "frozen").glob("*/*")
        workers[0].signal(SIGSTOP)
        at_ns, before = time.time_ns(), batches_of(out)[own.name]
        time.sleep(FROZEN_S)
        workers[0].signal(SIGCONT)
        wait_until(lambda: batches_of(out)[own.name] > before + 1, "batches of the worker that goes on")
        code = end(master, workers)
    return Survived(code, master, workers, out, sim, at_ns)


def _late(folder: Path) -> Survived:
    port = free_port()
    with (
        simulation(folder, *UNHURRIED) as sim,
        swarm(folder, 2, *USUAL, "-H", sim.url, port=port) as (master, workers),
    ):
        wait_batches(folder / "run", workers=2)
        at_ns = time.time_ns()
        with locust(folder, *as_worker(port), stdout="late") as late:
            wait_senders(sim, 3)
            wait_batches(folder / "run", workers=3)
            code = end(master, [*workers, late])
    return Survived(code, master, [*workers, late], folder / "run", sim, at_ns)


def _told_to_leave(folder: Path) -> Survived:
    with (
        simulation(folder, *UNHURRIED) as sim,
        swarm(folder, 3, *USUAL, "-H", sim.url) as (master, workers),
    ):
        wait_batches(folder / "run", workers=3)
        wait_more(sim)
        at_ns = time.time_ns()
        workers[0].signal(SIGTERM)
        workers[0].exit_code()
        wait_more(sim)
        code = end(master, workers)
    return Survived(code, master, workers, folder / "run", sim, at_ns)


SCENARIOS: dict[str, Callable[[Path], Survived]] = {
    "frozen": _frozen,
    "killed": _killed,
    "killed behind a cut": _killed_behind_a_cut,
    "late": _late,
    "told to leave": _told_to_leave,
}

WHOLE = ["frozen", "late", "told to leave"]
KILLED = ["killed", "killed behind a cut"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Survived]:
    return in_parallel(tmp_path_factory.mktemp("workers"), SCENARIOS)


def lost_worker(run: Survived) -> WorkerFacts:
    (lost,) = (worker for worker in run.result.manifest.workers if worker.lost)
    return lost


@pytest.mark.parametrize("name", WHOLE)
def test_the_records_are_what_the_server_saw(name: str, runs: dict[str, Survived]) -> None:
    run = runs[name]
    assert len(run.truth) > 100
    assert unrecorded(run.truth, run.rows) == []


@pytest.mark.parametrize("name", WHOLE)
def test_the_run_is_complete_and_its_exit_code_is_0(name: str, runs: dict[str, Survived]) -> None:
    run = runs[name]
    manifest = run.result.manifest
    assert manifest.complete, run.told()
    assert run.result.summary["completeness"]["complete"] is True
    assert run.code == 0, run.told()
    assert manifest.records_lost == manifest.workers_lost == 0
    assert len(manifest.workers) == 3
    assert all(w.announced == w.received > 0 and w.in_flight == 0 for w in manifest.workers)


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_nothing_went_wrong_unseen(name: str, runs: dict[str, Survived]) -> None:
    assert "Traceback" not in runs[name].told()
    assert runs[name].process.stdout.count("Latency, ms") == 1


@pytest.mark.parametrize("name", KILLED)
def test_only_the_last_interval_of_the_worker_that_was_killed_is_missing(
    name: str, runs: dict[str, Survived]
) -> None:
    run = runs[name]
    rows = run.rows if run.merged is None or name != "killed behind a cut" else run.merged.rows
    missing = unrecorded(run.truth, rows)
    assert missing
    assert {senders_of(rows)[sender(e["request_id"])] for e in missing} == {lost_worker(run).id}
    # What it had in a batch is here: all that ended before the last one was closed.
    assert min(e["ended_ns"] for e in missing) > run.at_ns - INTERVAL_S * 1e9


@pytest.mark.parametrize("name", KILLED)
def test_the_run_goes_on_without_the_worker_that_was_killed(name: str, runs: dict[str, Survived]) -> None:
    run = runs[name]
    workers = senders_of(run.rows)
    after = [row for row in run.rows.values() if row["scheduled_ns"] > run.at_ns + SOON_NS]
    assert {row["worker"] for row in after} == set(workers.values()) - {lost_worker(run).id}
    assert len({row["worker"] for row in after}) == 2


@pytest.mark.parametrize("name", KILLED)
def test_the_manifest_names_the_worker_and_how_many_of_its_requests_are_known_to_be_missing(
    name: str, runs: dict[str, Survived]
) -> None:
    run = runs[name]
    lost = lost_worker(run)
    assert lost.announced is not None
    assert lost.received == sum(row["worker"] == lost.id for row in run.rows.values()) > 0
    assert 0 < lost.in_flight <= 24  # all users, if the others' heartbeats were late, each with one request
    assert 0 < lost.unrecorded <= len(unrecorded(run.truth, run.rows))
    assert run.result.manifest.records_lost == lost.unrecorded
    assert not run.result.manifest.complete
    assert lost.id in run.process.stdout
    assert all(
        w.announced == w.received and w.in_flight == 0 and not w.late and not w.left
        for w in run.result.manifest.workers
        if w is not lost
    )


@pytest.mark.parametrize("name", KILLED)
def test_lost_requests_are_in_the_denominator_of_goodput(name: str, runs: dict[str, Survived]) -> None:
    run = runs[name]
    goodput, lost = run.result.summary["goodput"], run.result.manifest.records_lost
    others = {cause: count for cause, count in goodput["first_failed"].items() if cause != "lost"}
    assert goodput["first_failed"]["lost"] == lost > 0
    assert set(others.values()) == {0}  # an answer takes 0.4 s, its limit is 20 s
    assert goodput["ratio"] == pytest.approx(1 - lost / goodput["judged"])
    assert goodput["ratio"] < 1


def test_missing_records_give_exit_code_4(runs: dict[str, Survived]) -> None:
    """Unless that is allowed, as in a run of test_swarm_live.py."""
    assert [runs[name].code for name in KILLED] == [4, 4]


def test_a_merge_of_the_same_files_says_the_same_and_may_be_allowed(
    runs: dict[str, Survived], tmp_path: Path
) -> None:
    run = runs["killed"]
    assert run.merged is not None
    assert run.merged.code == run.code, run.merged.errors
    assert run.merged.rows.keys() >= run.rows.keys()
    assert lost_worker(run).id in run.merged.output
    assert merge(tmp_path / "allowed", run.path, options=("--allow-incomplete",)).code == 0


def test_a_merge_recovers_what_the_spool_of_a_dead_worker_has(runs: dict[str, Survived]) -> None:
    run = runs["killed behind a cut"]
    assert run.merged is not None
    recovered = [run.merged.rows[request_id] for request_id in run.merged.rows.keys() - run.rows.keys()]
    assert len(recovered) > 10
    assert {row["worker"] for row in recovered} == {lost_worker(run).id}
    assert run.rows.keys() < run.merged.rows.keys() <= run.truth.keys() | run.rows.keys()
    (lost,) = (worker for worker in run.merged.result.manifest.workers if worker.lost)
    assert lost.received == lost_worker(run).received + len(recovered)
    assert run.merged.code == 4


def test_a_worker_that_was_frozen_is_not_lost(runs: dict[str, Survived]) -> None:
    run = runs["frozen"]
    assert any("failed to send heartbeat" in line for line in run.process.lines)
    assert any("self-healed" in line for line in run.process.lines)
    after_ns = run.at_ns + FROZEN_S * 1e9
    assert len({row["worker"] for row in run.rows.values() if row["ended_ns"] > after_ns}) == 3


def test_a_worker_that_joins_a_run_under_way_is_named_late(runs: dict[str, Survived]) -> None:
    run = runs["late"]
    (late,) = (worker for worker in run.result.manifest.workers if worker.late)
    assert late.joined_ns is not None
    assert late.joined_ns > run.at_ns
    own = [row["scheduled_ns"] for row in run.rows.values() if row["worker"] == late.id]
    assert min(own) > run.at_ns


def test_a_worker_that_is_told_to_end_has_left(runs: dict[str, Survived]) -> None:
    run = runs["told to leave"]
    (left,) = (worker for worker in run.result.manifest.workers if worker.left)
    own = [row for row in run.rows.values() if row["worker"] == left.id]
    assert own
    assert max(row["scheduled_ns"] for row in own) < run.at_ns + 4e9
    assert not any(worker.late for worker in run.result.manifest.workers)


@pytest.mark.parametrize("name", WHOLE)
def test_no_batch_waits_anywhere_once_a_run_is_complete(name: str, runs: dict[str, Survived]) -> None:
    assert list(runs[name].path.rglob("*.frame")) == []
    assert not (runs[name].path / FRAMES_FILE).exists()
