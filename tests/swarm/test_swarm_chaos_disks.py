"""Disks that are full, and a master that is killed: nothing is lost by it."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest
from chaos import (
    UNHURRIED,
    USUAL,
    NoSmallDiskError,
    Survived,
    end,
    fill,
    merge,
    small_disk,
    unrecorded,
    wait_batches,
    wait_more,
    wait_senders,
)
from swarm_process import in_parallel, simulation, swarm, wait_until

# --- Disks that are full or cannot be written: said once, and nothing is lost by it


def _no_spool(folder: Path) -> Survived:
    """There is a file where the first worker's spool should be; the disk of the other's gets full midway."""
    out = folder / "run"
    (folder / "taken").write_text("a file")
    with (
        small_disk(folder, kib=256) as disk,
        simulation(folder, *UNHURRIED) as sim,
        swarm(
            folder,
            2,
            *(*USUAL, "--spool", str(disk / "spool"), "-H", sim.url),
            first_worker=["--spool", "taken"],
        ) as (master, workers),
    ):
        wait_batches(out, workers=2)
        at_ns = time.time_ns()

        def is_said() -> bool:
            fill(disk)  # what went with an acknowledged segment would be room enough for all later ones
            return all("cannot be written" in worker.stderr for worker in workers)

        wait_until(is_said, "each worker says that its spool cannot be written")
        wait_batches(out, workers=2, each=3)
        code = end(master, workers)
    return Survived(code, master, workers, out, sim, at_ns)


def _full_run_directory(folder: Path) -> Survived:
    """The disk of the master's run directory gets full midway."""
    with (
        small_disk(folder, kib=512) as disk,
        simulation(folder, *UNHURRIED) as sim,
        swarm(
            folder,
            2,
            *USUAL,
            *("--out", str(disk / "run"), "--spool", "spool", "--flush-timeout", "1s", "-H", sim.url),
        ) as (master, workers),
    ):
        wait_batches(disk / "run", workers=2)
        at_ns = time.time_ns()
        fill(disk)
        master.wait_for("No space left on device")
        wait_more(sim)
        code = end(master, workers)
        left = Path(shutil.copytree(disk / "run", folder / "left"))  # the disk goes with the block
    merged = merge(folder / "merged", left, folder / "spool")
    return Survived(code, master, workers, left, sim, at_ns, merged)


SCENARIOS: dict[str, Callable[[Path], Survived]] = {
    "no spool": _no_spool,
    "full run directory": _full_run_directory,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Survived | NoSmallDiskError]:
    def scenario(name: str) -> Callable[[Path], Survived | NoSmallDiskError]:
        def run(folder: Path) -> Survived | NoSmallDiskError:
            try:
                return SCENARIOS[name](folder)
            except NoSmallDiskError as e:
                return e

        return run

    return in_parallel(tmp_path_factory.mktemp("disks"), {name: scenario(name) for name in SCENARIOS})


def chosen(runs: dict[str, Survived | NoSmallDiskError], name: str) -> Survived:
    """A scenario's run; its tests are skipped where this machine has no small disk for it."""
    run = runs[name]
    if isinstance(run, NoSmallDiskError):
        pytest.skip(f"{name}: {run}")
    return run


@pytest.fixture
def without_spool(runs: dict[str, Survived | NoSmallDiskError]) -> Survived:
    return chosen(runs, "no spool")


@pytest.fixture
def without_run_directory(runs: dict[str, Survived | NoSmallDiskError]) -> Survived:
    return chosen(runs, "full run directory")


def test_without_a_spool_the_records_are_what_the_server_saw(without_spool: Survived) -> None:
    assert len(without_spool.truth) > 30
    assert unrecorded(without_spool.truth, without_spool.rows) == []
    assert without_spool.result.manifest.complete
    assert all(worker.dropped == 0 for worker in without_spool.result.manifest.workers)
    assert without_spool.code == 0, without_spool.told()


def test_a_spool_that_cannot_be_written_is_said_once_by_each_worker(without_spool: Survived) -> None:
    for worker, why in zip(without_spool.workers, ("Not a directory", "No space left"), strict=True):
        (said,) = (line for line in worker.said if "the spool" in line and "cannot be written" in line)
        assert why in said
    assert "Traceback" not in without_spool.told()


def test_a_spool_that_was_never_there_is_not_spoken_of_again_at_the_end(without_spool: Survived) -> None:
    assert not [line for line in without_spool.workers[0].said if "worker.json" in line]


def test_a_run_directory_without_room_is_said_and_gives_exit_code_4(without_run_directory: Survived) -> None:
    run = without_run_directory
    assert run.code == 4, run.told()
    assert "Traceback" not in run.told()
    assert "llm-locust merge" in run.told()


def test_what_the_run_directory_had_no_room_for_is_in_the_spools_and_merges(
    without_run_directory: Survived,
) -> None:
    run = without_run_directory
    assert run.merged is not None
    # The disk had no room for the end of the load either: nothing here shows that the run was not cut short.
    assert run.merged.code == 4, run.merged.errors
    assert run.merged.result.manifest.cut_short
    assert run.merged.result.manifest.complete
    assert unrecorded(run.truth, run.merged.rows) == []


# --- A master that is killed leaves its directory and its workers' spools: from these the run is made again


#: Locust's workers end by themselves when they have heard nothing of their master, usually for a minute.
IMPATIENT = """
import locust.runners
from locust import task

from llm_locust import ChatUser

locust.runners.MASTER_HEARTBEAT_TIMEOUT = 3


class Chat(ChatUser):
    @task
    def ask_one(self):
        self.chat()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Survived:
    """The master dies; one worker is told to end, as Kubernetes would, the other one notices.

    The spool of the first one is elsewhere, that of the other one next to the run.
    """
    folder = tmp_path_factory.mktemp("master")
    out, locustfile = folder / "run", folder / "impatient.py"
    locustfile.write_text(IMPATIENT)
    with (
        simulation(folder, *UNHURRIED) as sim,
        swarm(
            folder,
            2,
            *(*USUAL, "--flush-timeout", "1s", "-H", sim.url),
            locustfile=locustfile,
            first_worker=["--spool", "elsewhere"],
        ) as (master, workers),
    ):
        wait_batches(out, workers=2)
        wait_more(sim)
        master.signal(SIGKILL)
        at_ns = time.time_ns()
        code = master.exit_code()
        wait_senders(sim, 2, since_ns=at_ns)
        workers[0].signal(SIGTERM)
        for worker in workers:
            worker.exit_code()
    merged = merge(folder / "merged", out, folder / "elsewhere")
    return Survived(code, master, workers, out, sim, at_ns, merged)


def test_a_merge_has_every_request_that_the_server_saw(run: Survived) -> None:
    assert run.merged is not None
    assert run.code == -SIGKILL
    assert not (run.path / "requests.parquet").exists()
    assert unrecorded(run.truth, run.merged.rows) == []
    after = [row for row in run.merged.rows.values() if row["scheduled_ns"] > run.at_ns]
    assert len({row["worker"] for row in after}) == 2


def test_the_merged_run_is_complete_and_has_its_report(run: Survived) -> None:
    merged = run.merged
    assert merged is not None
    # Every record is there, and still the run was cut short: its load has no end that anybody recorded.
    assert merged.code == 4, merged.errors
    assert merged.result.manifest.complete
    assert merged.result.manifest.cut_short
    assert "CUT SHORT: the end of the load was never recorded" in " ".join(merged.output.split())
    assert merged.result.manifest.id in (run.path / "manifest.json").read_text()
    assert all(w.announced == w.received > 0 for w in merged.result.manifest.workers)
    assert merged.result.summary["requests"]["ok"] > 30
    assert "Latency, ms" in merged.output


def test_workers_without_a_master_end_and_say_where_their_records_are(run: Survived) -> None:
    for worker in run.workers:
        assert "Traceback" not in worker.stderr
        assert [line for line in worker.said if "llm-locust merge" in line]
