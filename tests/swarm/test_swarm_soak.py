"""A soak whose master is killed and started again; workers that wait long for theirs."""

import re
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from signal import SIGINT, SIGKILL
from typing import Any

import pytest
from chaos import UNHURRIED, wait_batches, wait_more
from swarm_process import Process, Result, Simulation, as_worker, free_port, locust, simulation

from llm_locust.core import EXIT_INCOMPLETE
from llm_locust.figures.summary import Summary, read_summary
from llm_locust.report.inputs import open_source
from llm_locust.store import MANIFEST_FILE, read_manifest
from llm_locust.store.facts import parts_of

# --- A soak whose master is killed and started again, and then a worker is killed: one report, a named gap


RUN_TIME_S = 600  # the soak is ended when all has happened


@dataclass(frozen=True)
class Soak:
    code: int
    masters: list[Process]
    workers: list[Process]
    folder: Path
    sim: Simulation
    killed_ns: int
    restarted_ns: int

    @property
    def summary(self) -> Summary:
        return read_summary((self.folder / "summary.json").read_bytes())

    def rows(self) -> dict[str, dict[str, Any]]:
        with open_source(parts_of(self.folder)) as source:
            each = [row for part in source.requests.parts() for row in part.table.to_pylist()]
        by_id = {row["request_id"]: row for row in each}
        assert len(by_id) == len(each), "a request was recorded twice"
        return by_id


def _soak(folder: Path) -> Soak:
    port = free_port()
    options = [
        *("--headless", "-u", "8", "-r", "100", "-t", f"{RUN_TIME_S}s", "--out", "day", "--restartable"),
        *("--input-tokens", "10", "--output-tokens", "8", "--body", '{"ignore_eos": true}'),
        *("--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", str(port)),
        *("--expect-workers", "2", "--slo", "e2el=20s"),
    ]
    with ExitStack() as stack:
        sim = stack.enter_context(simulation(folder, *UNHURRIED))
        master = stack.enter_context(locust(folder, *options, "-H", sim.url))

        def start_workers(name: str) -> list[Process]:
            words = as_worker(port)
            return [stack.enter_context(locust(folder, *words, stdout=f"{name}{i}")) for i in range(2)]

        workers = start_workers("w")
        wait_batches(folder / "day" / "part-1", workers=2)
        master.signal(SIGKILL)
        killed_ns = time.time_ns()
        assert master.exit_code() == -SIGKILL
        again = stack.enter_context(locust(folder, *options, "-H", sim.url, stdout="again"))
        restarted_ns = time.time_ns()
        for worker in workers:
            worker.exit_code()
        workers += start_workers("again-w")  # as their supervisor does
        wait_batches(folder / "day" / "part-2", workers=2)
        workers[-1].signal(SIGKILL)
        wait_more(sim)
        again.signal(SIGINT)
        code = again.exit_code()
        for worker in workers:
            worker.exit_code()
    return Soak(code, [master, again], workers, folder / "day", sim, killed_ns, restarted_ns)


@pytest.fixture(scope="module")
def soak(tmp_path_factory: pytest.TempPathFactory) -> Soak:
    return _soak(tmp_path_factory.mktemp("soak"))


def test_the_next_master_goes_on_with_the_rest_of_the_time(soak: Soak) -> None:
    parts = soak.summary.parts
    assert parts is not None
    assert [part.name for part in parts.parts] == ["part-1", "part-2"]
    first, last = (read_manifest(path) for path in parts_of(soak.folder))
    assert first.ended_ns is None
    assert last.stopped_ns is not None
    found = re.search(r"part 2 of the run in day: (\d+) s are left", soak.masters[1].stderr)
    assert found is not None
    gone_s = (soak.killed_ns - first.started_ns) * 1e-9
    assert 0 < int(found[1]) <= RUN_TIME_S - gone_s + 1


def test_the_load_is_back_soon_and_the_gap_is_named(soak: Soak) -> None:
    parts = soak.summary.parts
    assert parts is not None
    (gap,) = parts.gaps
    assert gap.after == "part-1"
    assert gap.why == "its master died and gave no reason"
    starts = sorted(entry["received_ns"] for entry in soak.sim.entries())
    silence_s = max(b - a for a, b in pairwise(starts)) * 1e-9
    assert gap.seconds == pytest.approx(silence_s, rel=0.2)
    text = (soak.folder / "report.md").read_text()
    assert "2 parts" in text
    assert "after part-1" in text


def test_no_request_of_the_first_part_is_lost_by_its_masters_death(soak: Soak) -> None:
    part_1 = [entry for entry in soak.sim.entries() if entry["received_ns"] < soak.killed_ns]
    rows = soak.rows()
    assert len(part_1) > 20
    assert [entry for entry in part_1 if entry["request_id"] not in rows] == []
    assert (soak.folder / "part-1" / "late").is_dir()


def test_the_killed_worker_is_what_makes_the_run_incomplete(soak: Soak) -> None:
    assert soak.code == 4, soak.masters[1].stderr
    completeness = soak.summary.completeness
    assert completeness.workers_lost == 1
    assert [worker.exit_code() for worker in soak.workers] == [4, 4, 0, -SIGKILL]


def test_the_workers_say_what_they_do(soak: Soak) -> None:
    said = soak.workers[0].stderr
    assert "this worker's load ends" in said
    assert "a master is there again, and takes a worker that is started anew" in said
    assert "Traceback" not in said + soak.masters[1].stderr


# --- With the run's secret: a worker that waits long for its master, and one whose master is killed


SECRET = ["--swarm-secret-env", "SECRET_OF_A_TEST"]
ENVIRON = {"SECRET_OF_A_TEST": "a secret of the run, for tests"}
LOAD = ["--headless", "-u", "2", "-r", "100", "--output-tokens", "5"]


def test_a_worker_joins_a_late_master_ends_with_it_and_its_successor_joins_the_next(tmp_path: Path) -> None:
    port = free_port()
    as_master = ["--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", str(port)]
    options = [*as_master, "--expect-workers", "1", *LOAD, *SECRET]
    with simulation(tmp_path) as sim, ExitStack() as stack:

        def master(name: str, run_time: str) -> list[str]:
            return [*options, "-H", sim.url, "-t", run_time, "--out", name]

        def worker(name: str) -> Process:
            words = [*as_worker(port), *SECRET, "-L", "DEBUG"]
            return stack.enter_context(locust(tmp_path, *words, environ=ENVIRON, stdout=name))

        early = worker("early")
        early.wait_for("Failed to connect to master .* retry 2/")  # ZeroMQ keeps three hellos by now
        first = stack.enter_context(
            locust(tmp_path, *master("first", "60s"), environ=ENVIRON, stdout="first.out")
        )
        wait_batches(tmp_path / "first", workers=1)
        assert "was dropped" not in first.stderr
        first.signal(SIGKILL)
        first.exit_code()
        second = stack.enter_context(
            locust(tmp_path, *master("second", "2s"), environ=ENVIRON, stdout="second.out")
        )
        assert early.exit_code() == 4, early.stderr
        later = worker("later")  # as its supervisor does
        assert second.exit_code() == 0, second.stderr + later.stderr
        assert later.exit_code() == 0, later.stderr
    assert "this worker ends: a master is there again" in early.stderr
    assert "Traceback" not in early.stderr + second.stderr + later.stderr
    assert Result.read(tmp_path / "second").rows()


def test_a_run_whose_parts_cannot_be_joined_has_no_report_and_ends_with_4(tmp_path: Path) -> None:
    options = ["--headless", "-u", "2", "-t", "2s", "--out", "day", "--restartable", "--output-tokens", "2"]
    with simulation(tmp_path) as sim, locust(tmp_path, *options, "-H", sim.url) as process:
        sim.wait_entries(1)
        damaged = tmp_path / "day" / "part-2"
        damaged.mkdir()
        (damaged / MANIFEST_FILE).write_text("{")
        assert process.exit_code() == EXIT_INCOMPLETE
        assert "the report of 'day" in process.stderr
        assert "part-2/manifest.json" in process.stderr
