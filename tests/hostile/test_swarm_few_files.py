"""Whole runs with few open files: refused before the load, or ended as asked. They never ended before."""

from pathlib import Path
from typing import Any

import pytest
from swarm_process import LOCUSTFILES, Result, in_parallel, locust, simulation

OPEN_LOOP = LOCUSTFILES / "open_loop.py"


def refused(folder: Path) -> Any:
    load = ["--headless", "-u", "400", "-r", "400", "--num-requests", "800", "--out", "run"]
    with (
        simulation(folder / "sim") as sim,
        locust(folder, *load, "-H", sim.url, most_open_files=256) as process,
    ):
        return process.exit_code(), process.said, len(sim.entries())


def exhausted(folder: Path) -> Any:
    """An open loop, of which nobody knows before how many connections it takes."""
    load = ["--headless", "-u", "200", "-r", "200", "--num-requests", "200", "--out", "run"]
    load += ["--arrival", "constant", "--output-tokens", "20", "--body", '{"ignore_eos": true}']
    with (
        simulation(folder / "sim", "--step-base", "60ms") as sim,
        locust(folder, *load, "-H", sim.url, locustfile=OPEN_LOOP, most_open_files=128) as process,
    ):
        return process.exit_code(), Result.read(folder / "run"), process.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scenarios = {"refused": refused, "exhausted": exhausted}
    return in_parallel(tmp_path_factory.mktemp("files"), scenarios, at_once=2)


def test_a_load_with_too_few_open_files_is_refused_with_number_and_command(
    runs: dict[str, Any],
) -> None:
    code, said, sent = runs["refused"]
    assert code == 2
    assert "400 users need 464 open files" in "\n".join(said)
    assert "`ulimit -n 464`" in "\n".join(said)
    assert sent == 0


def test_a_run_without_a_file_left_ends_with_a_record_of_every_request(
    runs: dict[str, Any],
) -> None:
    _code, result, stderr = runs["exhausted"]
    assert len(result.requests) == 200
    outcomes = result.requests.table.column("outcome").to_pylist()
    assert 0 < sum(outcome == "ok" for outcome in outcomes) < 200
    assert "raise `ulimit -n`" in str(result.requests.table.column("error").to_pylist())
    assert result.summary["completeness"]["complete"] is True, stderr
