"""The network between workers and master is cut, slow or out of order: nothing is lost by it."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from chaos import (
    UNHURRIED,
    USUAL,
    Survived,
    end,
    merge,
    sender,
    unrecorded,
    wait_batches,
)
from relay import Relay, relay
from swarm_process import Simulation, free_port, in_parallel, simulation, swarm, wait_until

from llm_locust.store import REQUESTS_FILE, SUMMARY_FILE

#: Workers end when they have heard nothing of their master for 30 s. A report may take longer.
PATIENT = """
from llm_locust.locustfiles.chat import Chat
from llm_locust.swarm.roles import lost_master

lost_master.GIVE_UP_S = 600.0
"""

CUT_S = 5.0
DELAY_S = 0.2

#: A batch that nobody acknowledged is sent again within 10 s; the answer is that the run is over.
SILENT_WITHIN_S = 40.0


def _one_cut_off(folder: Path) -> Survived:
    """One worker of three is cut off for a while; the messages of the others are slow and out of order."""
    port = free_port()
    with relay(port, delays_s=(DELAY_S, DELAY_S / 2), reorder=2) as slow, relay(port) as between:
        return _cut(folder, between, port, [between.port, slow.port, slow.port])


def _all_cut_off(folder: Path) -> Survived:
    port = free_port()
    with relay(port) as between:
        return _cut(folder, between, port, [between.port] * 2)


def _cut(folder: Path, between: Relay, port: int, worker_ports: list[int]) -> Survived:
    """The workers behind a relay are cut off for a while."""
    out, count = folder / "run", len(worker_ports)
    with (
        simulation(folder, *UNHURRIED) as sim,
        swarm(folder, count, *USUAL, "-H", sim.url, port=port, worker_ports=worker_ports) as (
            master,
            workers,
        ),
    ):
        wait_batches(out, workers=count)
        between.cut()
        at_ns = time.time_ns()
        time.sleep(CUT_S)
        between.mend()
        mended_ns = time.time_ns()
        # Locust stops a run when its last worker went missing, which here is a matter of milliseconds.
        wait_until(
            lambda: _goes_on(sim, mended_ns, count) or (out / SUMMARY_FILE).exists(), "what comes after"
        )
        code = end(master, workers)
    return Survived(code, master, workers, out, sim, at_ns)


def _goes_on(sim: Simulation, since_ns: int, senders: int) -> bool:
    after = (entry for entry in sim.entries() if entry["received_ns"] > since_ns + 2e9)
    return len({sender(entry["request_id"]) for entry in after}) == senders


def _beyond_the_end(folder: Path) -> Survived:
    """All workers are cut off until Locust has stopped the run and its records were joined for the report."""
    out, port = folder / "run", free_port()
    (folder / "patient.py").write_text(PATIENT)
    with (
        relay(port) as between,
        simulation(folder, *UNHURRIED) as sim,
        swarm(
            folder,
            2,
            *(*USUAL, "--flush-timeout", "1s", "-H", sim.url),
            port=port,
            worker_ports=[between.port] * 2,
            locustfile=folder / "patient.py",
        ) as (master, workers),
    ):
        wait_batches(out, workers=2)
        between.cut()
        # Not until the report is whole: the master ends then, and may not hear the workers again.
        wait_until((out / REQUESTS_FILE).exists, "the records of a run without workers")
        between.mend()
        master.wait_for("self-healed", 2)
        at_ns = time.time_ns()
        with suppress(TimeoutError):
            wait_until(lambda: _is_silent(sim), "the load's end", timeout_s=SILENT_WITHIN_S)
        code = end(master, workers)
    return Survived(code, master, workers, out, sim, at_ns, merge(folder / "merged", out))


def _is_silent(sim: Simulation) -> bool:
    last_ns: int = max(entry["received_ns"] for entry in sim.entries())
    return time.time_ns() - last_ns > 2e9


SCENARIOS: dict[str, Callable[[Path], Survived]] = {
    "slow, and one worker cut off": _one_cut_off,
    "all workers cut off": _all_cut_off,
    "beyond the run's end": _beyond_the_end,
}

WHOLE = ["slow, and one worker cut off", "all workers cut off"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Survived]:
    return in_parallel(tmp_path_factory.mktemp("network"), SCENARIOS)


@pytest.mark.parametrize("name", WHOLE)
def test_the_records_are_what_the_server_saw(name: str, runs: dict[str, Survived]) -> None:
    run = runs[name]
    assert len(run.truth) > 30
    assert unrecorded(run.truth, run.rows) == []


@pytest.mark.parametrize("name", WHOLE)
def test_the_run_is_complete_and_its_exit_code_says_whether_locust_cut_it_short(
    name: str, runs: dict[str, Survived]
) -> None:
    run = runs[name]
    manifest = run.result.manifest
    assert manifest.complete, run.told()
    assert not manifest.cut_short or name == "all workers cut off"
    assert run.code == (4 if manifest.cut_short else 0), run.told()
    assert manifest.workers_lost == manifest.records_lost == 0
    assert len(manifest.workers) == len(run.workers)
    assert all(w.announced == w.received > 0 and w.in_flight == 0 for w in manifest.workers)
    assert "Traceback" not in run.told()


@pytest.mark.parametrize("name", WHOLE)
def test_the_load_goes_on_while_the_master_cannot_be_reached(name: str, runs: dict[str, Survived]) -> None:
    run = runs[name]
    during = [
        row
        for row in run.rows.values()
        if run.at_ns + 1e9 < row["scheduled_ns"] < run.at_ns + (CUT_S - 1) * 1e9
    ]
    assert len({row["worker"] for row in during}) == len(run.workers)


def test_a_slow_network_is_in_the_error_of_the_clocks_not_in_the_latencies(runs: dict[str, Survived]) -> None:
    run = runs["slow, and one worker cut off"]
    clocks = [worker.clock for worker in run.result.manifest.workers if worker.clock is not None]
    assert all(abs(clock.offset_ns) <= clock.error_ns for clock in clocks), "all processes have one clock"
    # Half of a round trip of two delays.
    assert sum(clock.error_ns > DELAY_S / 2 * 0.9e9 for clock in clocks) >= 2
    assert run.result.summary["latency_ms"]["ttft"]["p50"] < DELAY_S * 1e3


def test_a_run_that_ended_without_its_workers_is_incomplete_until_it_is_merged(
    runs: dict[str, Survived],
) -> None:
    run = runs["beyond the run's end"]
    assert run.merged is not None
    assert run.code == 4, run.told()
    assert run.result.manifest.workers_lost == 2
    assert run.merged.result.manifest.complete
    assert unrecorded(run.truth, run.merged.rows) == []
    assert unrecorded(run.truth, run.rows)


def test_a_worker_that_learns_that_its_run_is_over_ends_its_load(runs: dict[str, Survived]) -> None:
    run = runs["beyond the run's end"]
    last_ns = max(entry["received_ns"] for entry in run.truth.values())
    assert last_ns < run.at_ns + (SILENT_WITHIN_S - 2) * 1e9


def test_a_run_that_ends_because_every_worker_went_silent_says_so_even_when_all_its_records_are_in(
    runs: dict[str, Survived],
) -> None:
    run = runs["beyond the run's end"]
    assert run.merged is not None
    for result in (run.result, run.merged.result):
        assert result.manifest.cut_short
        assert result.summary["run"]["stop_reason"] == "no worker was left: 2 of 2 went silent at the end"
    assert run.merged.code == 4
    assert "CUT SHORT: no worker was left" in run.merged.output
