"""What becomes of a run's directory when it is done: copied elsewhere, told on standard output."""

import json
from pathlib import Path

import pytest
from swarm_process import Process, in_parallel, locust, simulation

from llm_locust.store import read_manifest

USUAL = ("--headless", "-u", "2", "-r", "10", "--num-requests", "20", "-t", "30s", "--out", "run")


def _run(folder: Path, to: str) -> tuple[int, Process, Path]:
    (folder / "taken").write_text("a file")
    with (
        simulation(folder / "sim") as sim,
        locust(
            folder, *USUAL, "-H", sim.url, "--output-tokens", "3", "--print-summary", "--upload", to
        ) as process,
    ):
        return process.exit_code(), process, folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, Process, Path]]:
    return in_parallel(
        tmp_path_factory.mktemp("upload"),
        {
            "done": lambda at: _run(at, str(at / "away")),
            "refused": lambda at: _run(at, str(at / "taken" / "x")),
        },
    )


def test_the_run_is_copied_whole_after_its_report(runs: dict[str, tuple[int, Process, Path]]) -> None:
    code, process, folder = runs["done"]
    assert code == 0, process.stderr
    there = folder / "away" / read_manifest(folder / "run").id
    for file in (folder / "run").iterdir():
        assert (there / file.name).read_bytes() == file.read_bytes()


def test_the_last_line_on_standard_output_is_the_summary(
    runs: dict[str, tuple[int, Process, Path]],
) -> None:
    _, process, folder = runs["done"]
    last = process.stdout.splitlines()[-1]
    assert json.loads(last) == json.loads((folder / "run" / "summary.json").read_text())


def test_a_run_that_could_not_be_copied_gives_exit_code_4_and_keeps_its_files(
    runs: dict[str, tuple[int, Process, Path]],
) -> None:
    code, process, _ = runs["refused"]
    assert code == 4
    assert len([line for line in process.stderr.splitlines() if "taken" in line and "/ERROR/" in line]) <= 1
    assert "taken" in process.stderr
    assert "Traceback" not in process.stderr
