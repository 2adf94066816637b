"""``llm-locust run --sim``: one whole run."""

import re
import sys
from pathlib import Path

import psutil
import pytest
from swarm_process import Process, wait_until

from llm_locust.store import read_manifest

pytestmark = [pytest.mark.run, pytest.mark.everyday]


def simulators(of: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(of).children() if "--end-with-stdin" in child.cmdline()]


def test_a_run_against_the_simulator_prints_the_report_and_leaves_a_run_and_no_process(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "llm_locust", "run", "--sim", "--for=120s", "--num-requests=20"]
    own = ["--workers=2", "--model=tiny", "--output-tokens=4", "--input-tokens=16", "--gate=p50_ttft<1us"]
    rest = ["--out=run", "--", "--loglevel=INFO", "Chat"]
    process = Process([*command, *own, *rest], tmp_path, cold=True)
    try:
        wait_until(lambda: bool(simulators(process.pid)), "the simulator")
        (simulator,) = simulators(process.pid)
        # The gate broke; 3 where the machine is too busy to measure.
        assert process.exit_code() in (1, 3), process.stderr
        assert process.stdout.startswith("run · tiny at http://127.0.0.1:")
        assert re.search(r"FAIL +p50_ttft<1us", process.stdout), process.stdout
        assert "ttft ≤ 500 ms" in process.stdout
        assert "Aggregated" not in process.stdout + process.stderr
        run = read_manifest(tmp_path / "run")
        assert (len(run.workers), run.options["num_requests"], run.options["num_users"]) == (2, "20", 10)
        assert (tmp_path / "run/report.html").exists()
        wait_until(lambda: not simulator.is_running(), "the simulator's end")
        assert process.left_over() == []
    finally:
        process.end()
