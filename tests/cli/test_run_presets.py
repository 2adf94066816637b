"""Protocols as loads of whole runs: a mix of classes, and a sweep, against the simulator."""

import sys
from pathlib import Path

import pytest
from swarm_process import Process

from llm_locust.options.table import GRAMMAR
from llm_locust.scenario import load_scenario
from llm_locust.store import read_manifest
from llm_locust.store.requests import read_requests

pytestmark = pytest.mark.run


@pytest.mark.parametrize(
    ("name", "words", "kinds"),
    [
        ("llm-d-priority-mix", ("--for=3s", "--rate=8"), {"critical", "normal", "batch"}),
        ("inference-perf-reasoning", ("--sweep=users=1,2", "--stage-time=1s"), {""}),
    ],
)
def test_a_protocol_runs_and_its_run_has_its_source(
    name: str, words: tuple[str, ...], kinds: set[str], tmp_path: Path
) -> None:
    short = ("--input-tokens=16", "--output-tokens=4", "--warmup=0s", "--out=run")
    command = [sys.executable, "-m", "llm_locust", "run", "--sim", f"--preset={name}", *words, *short]
    process = Process(command, tmp_path)
    try:
        # 1: too few requests for a certified percentile. 3: the machine is too busy to measure.
        assert process.exit_code() in (0, 1, 3), process.stderr
    finally:
        process.end()
    manifest = read_manifest(tmp_path / "run")
    assert manifest.scenario_document["about"] == load_scenario(name, GRAMMAR).document["about"]
    requests = read_requests(tmp_path / "run")
    assert set(requests.table.column("class").to_pylist()) == kinds
    assert set(requests.table.column("outcome").to_pylist()) <= {"ok", "cancelled"}
