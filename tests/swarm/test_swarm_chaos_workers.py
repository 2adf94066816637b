"""Workers that die, freeze, come late or leave: what the server saw is recorded, or named as missing."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import pytest
from chaos import (
    INTERVAL_S,
    UNHURRIED,
    USERS,
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

from llm_locust.core.manifest import WorkerFacts, worker_names
from llm_locust.store import FRAMES_FILE

#: The spool of the worker that is cut off.
CUT_OFF = "cut-off"

#: By then nothing comes any more of a worker that was killed.
SOON_NS = 1_000_000_000


def _killed(folder: Path) -> Survived:
    """Two of three workers die between two batches; one could not reach its master and filled its spool."""
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
            first_worker=["--spool", CUT_OFF],
        ) as (master, workers),
    ):
        wait_batches(out, workers=3)
        between.cut()
        wait_spooled(folder / CUT_OFF, since_ns=time.time_ns())
        wait_more(sim)
        workers[0].signal(SIGKILL)
        workers[1].signal(SIGKILL)
        at_ns = time.time_ns()
        master.wait_for("failed to send heartbeat", 2)
        wait_senders(sim, 1, since_ns=at_ns + SOON_NS)
        code = end(master, workers)
    merged = merge(folder / "merged", folder / CUT_OFF, out)
    return Survived(code, master, workers, out, sim, at_ns, merged)


def _late_frozen_and_told_to_leave(folder: Path) -> Survived:
    """A worker joins; one stands still for longer than Locust waits for a heartbeat; one is told to end."""
    out, port = folder / "run", free_port()
    with (
        simulation(folder, *UNHURRIED) as sim,
        swarm(folder, 3, *USUAL, "-H", sim.url, port=port, first_worker=["--spool", "frozen"]) as (
            master,
            workers,
        ),
    ):
        wait_batches(out, workers=3)
        (own,) = (folder / "frozen").glob("*/*")
        with locust(folder, *as_worker(port), stdout="late") as late:
            wait_batches(out, workers=4)
            workers[0].signal(SIGSTOP)
            master.wait_for(f"{own.name} failed to send heartbeat")
            at_ns, before = time.time_ns(), batches_of(out)[own.name]
            workers[0].signal(SIGCONT)
            wait_until(lambda: batches_of(out)[own.name] > before + 1, "batches of the worker that goes on")
            workers[1].signal(SIGTERM)
            workers[1].exit_code()
            wait_more(sim)
            code = end(master, [*workers, late])
    return Survived(code, master, [*workers, late], out, sim, at_ns)


def _last_killed(folder: Path) -> Survived:
    """The only worker of a run of an hour dies."""
    out = folder / "run"
    with (
        simulation(folder, *UNHURRIED) as sim,
        swarm(folder, 1, *USUAL, "-u", "4", "-t", "1h", "-H", sim.url) as (master, workers),
    ):
        wait_batches(out, workers=1)
        workers[0].signal(SIGKILL)
        at_ns = time.time_ns()
        code = master.exit_code()
    return Survived(code, master, workers, out, sim, at_ns)


SCENARIOS: dict[str, Callable[[Path], Survived]] = {
    "killed": _killed,
    "the last one killed": _last_killed,
    "whole": _late_frozen_and_told_to_leave,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Survived]:
    return in_parallel(tmp_path_factory.mktemp("workers"), SCENARIOS)


@pytest.fixture(scope="module")
def whole(runs: dict[str, Survived]) -> Survived:
    return runs["whole"]


@pytest.fixture(scope="module")
def killed(runs: dict[str, Survived]) -> Survived:
    return runs["killed"]


def lost_workers(run: Survived) -> tuple[WorkerFacts, WorkerFacts]:
    """The one that was cut off before it died, and the other one."""
    (own,) = (run.path.parent / CUT_OFF).glob("*/*")
    one, other = (worker for worker in run.result.manifest.workers if worker.lost)
    return (one, other) if one.id == own.name else (other, one)


def test_the_records_are_what_the_server_saw(whole: Survived) -> None:
    assert len(whole.truth) > 30
    assert unrecorded(whole.truth, whole.rows) == []


def test_the_run_is_complete_and_its_exit_code_is_0(whole: Survived) -> None:
    manifest = whole.result.manifest
    assert manifest.complete, whole.told()
    assert whole.result.summary["completeness"]["complete"] is True
    assert whole.code == 0, whole.told()
    assert manifest.records_lost == manifest.workers_lost == 0
    assert len(manifest.workers) == 4
    assert all(w.announced == w.received > 0 and w.in_flight == 0 for w in manifest.workers)


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_nothing_went_wrong_unseen(name: str, runs: dict[str, Survived]) -> None:
    assert "Traceback" not in runs[name].told()
    assert runs[name].process.stdout.count("Latency, ms") == 1


def test_a_run_whose_last_worker_was_killed_ends_by_itself(runs: dict[str, Survived]) -> None:
    run = runs["the last one killed"]
    assert run.code == 4, run.told()
    assert run.result.summary["run"]["stop_reason"] == "no worker was left: 1 of 1 went silent at the end"


def test_only_the_last_interval_of_the_workers_that_were_killed_is_missing(killed: Survived) -> None:
    assert killed.merged is not None
    missing = unrecorded(killed.truth, killed.merged.rows)
    workers = senders_of(killed.rows)
    assert {workers[sender(e["request_id"])] for e in missing} == {w.id for w in lost_workers(killed)}
    # What it had in a batch is here: all that ended before the last one was closed.
    assert min(e["ended_ns"] for e in missing) > killed.at_ns - INTERVAL_S * 1e9


def test_the_run_goes_on_without_the_workers_that_were_killed(killed: Survived) -> None:
    after = [row for row in killed.rows.values() if row["scheduled_ns"] > killed.at_ns + SOON_NS]
    (left,) = {row["worker"] for row in after}
    assert {w.id for w in killed.result.manifest.workers if not w.lost} == {left}


def test_the_manifest_names_the_workers_and_how_many_of_their_requests_are_known_to_be_missing(
    killed: Survived,
) -> None:
    manifest, workers = killed.result.manifest, senders_of(killed.rows)
    missing = Counter(workers[sender(e["request_id"])] for e in unrecorded(killed.truth, killed.rows))
    for lost in lost_workers(killed):
        assert lost.announced is not None
        assert lost.received == sum(row["worker"] == lost.id for row in killed.rows.values()) > 0
        assert 0 < lost.in_flight <= USERS  # all of them if the others' heartbeats were late
        assert 0 < lost.unrecorded <= missing[lost.id]
        assert worker_names(manifest.workers)[lost.id] in killed.result.report()
    assert manifest.records_lost == sum(lost.unrecorded for lost in lost_workers(killed))
    assert not manifest.complete
    (whole,) = (worker for worker in manifest.workers if not worker.lost)
    assert whole.announced == whole.received
    assert (whole.in_flight, whole.late, whole.left) == (0, False, False)


def test_lost_requests_are_in_the_denominator_of_goodput(killed: Survived) -> None:
    goodput, lost = killed.result.summary["goodput"], killed.result.manifest.records_lost
    others = {cause: count for cause, count in goodput["first_failed"].items() if cause != "lost"}
    assert goodput["first_failed"]["lost"] == lost > 0
    assert set(others.values()) == {0}  # an answer takes 0.4 s, its limit is 20 s
    assert goodput["ratio"] == pytest.approx(1 - lost / goodput["judged"])
    assert goodput["ratio"] < 1


def test_missing_records_give_exit_code_4_of_a_merge_too_where_they_are_not_allowed(
    killed: Survived, tmp_path: Path
) -> None:
    assert killed.merged is not None
    assert (killed.code, killed.merged.code) == (4, 4), killed.merged.errors
    allowed = merge(tmp_path / "allowed", killed.path, options=("--allow-incomplete",))
    assert allowed.code == 0
    assert allowed.rows.keys() >= killed.rows.keys()
    names = worker_names(killed.result.manifest.workers)
    assert any(names[lost.id] in allowed.output for lost in lost_workers(killed))


def test_a_merge_recovers_what_the_spool_of_a_dead_worker_has(killed: Survived) -> None:
    assert killed.merged is not None
    rows, merged = killed.rows, killed.merged.rows
    cut_off, other = lost_workers(killed)
    recovered = Counter(merged[request_id]["worker"] for request_id in merged.keys() - rows.keys())
    assert recovered[cut_off.id] > 0
    assert rows.keys() < merged.keys() <= killed.truth.keys() | rows.keys()
    received = {worker.id: worker.received for worker in killed.merged.result.manifest.workers if worker.lost}
    assert received == {lost.id: lost.received + recovered[lost.id] for lost in (cut_off, other)}


def test_a_worker_that_was_frozen_is_not_lost(whole: Survived) -> None:
    assert any("self-healed" in line for line in whole.process.lines)
    after = {row["worker"] for row in whole.rows.values() if row["scheduled_ns"] > whole.at_ns}
    assert after == {worker.id for worker in whole.result.manifest.workers}


def test_a_worker_that_joins_a_run_under_way_is_named_late_and_one_that_is_told_to_end_has_left(
    whole: Survived,
) -> None:
    (late,) = (worker for worker in whole.result.manifest.workers if worker.late)
    (left,) = (worker for worker in whole.result.manifest.workers if worker.left)
    assert late.id != left.id
    assert late.joined_ns is not None
    others = [worker for worker in whole.result.manifest.workers if worker is not late]
    times = {worker.id: list[int]() for worker in whole.result.manifest.workers}
    for row in whole.rows.values():
        times[row["worker"]].append(row["scheduled_ns"])
    assert min(times[late.id]) > late.joined_ns > max(min(times[w.id]) for w in others)
    left_ns = max(times.pop(left.id))
    assert all(left_ns < max(own) for own in times.values())


def test_no_batch_waits_anywhere_once_a_run_is_complete(whole: Survived) -> None:
    assert list(whole.path.parent.rglob("*.frame")) == []
    assert not (whole.path / FRAMES_FILE).exists()
