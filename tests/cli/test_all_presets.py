"""Whole runs of all public protocols, ten seconds each, by ``make presets``.

Every day ``tests/scenario/test_protocols_run.py`` has their requests answered, without whole runs.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from protocol_files import needed_files
from swarm_process import LOCUSTFILES, Result, locust, simulation

from llm_locust.core import EXIT_GATE, EXIT_INVALID
from llm_locust.options.table import GRAMMAR
from llm_locust.scenario.document import load_scenario, protocol_names, scenario_path

CHOSEN = os.environ.get("LLM_LOCUST_TEST_PRESETS")
if not CHOSEN:
    pytest.skip("whole runs of all protocols: make presets", allow_module_level=True)

#: All, or those whose names begin so.
NAMES = [name for name in protocol_names() if CHOSEN == "all" or name.startswith(CHOSEN)]

#: Runs at once: each waits for most of its ten seconds.
AT_ONCE = 3

SECONDS = 10
SMALL = ("--output-tokens", "16", "--warmup", "0s", "--out", "run", "--headless")
ROOM = ("--max-model-len", "300000", "--kv-cache-tokens", "100000000", "--prefill-per-token", "0")


def load(name: str) -> tuple[str, ...]:
    """A load of ten seconds in place of the protocol's own, of the same kind."""
    options = load_scenario(scenario_path(name), GRAMMAR).options
    if "find" in options:
        return ("--stage-time", "3s", "--max-stages", "3", "-t", "120s")
    if "sweep" in options:
        axis = str(options["sweep"]).partition("=")[0]
        return ("--sweep", f"{axis}=1,2", "--stage-time", f"{SECONDS // 2}s", "-t", "120s")
    if "request_rate" in options:
        return ("--request-rate", "4", "-t", f"{SECONDS}s")
    return ("-u", "2", "-r", "2", "-t", f"{SECONDS}s")


def run(name: str, url: str, folder: Path) -> tuple[int | None, str, Result | None]:
    """Exit code, None for no end; what was said; and the run directory, None for none."""
    folder.mkdir()
    files = needed_files(name, folder)
    given = [word for option, path in files.items() for word in (f"--{option}", path)]
    file = "agents.py" if "trajectories" in files else "scenario.py"
    words = ["-H", url, "--scenario", name, *SMALL, *load(name), *given]
    with locust(folder, *words, locustfile=LOCUSTFILES / file) as process:
        try:
            code = process.exit_code()
        except TimeoutError as e:  # which is not to stop the other runs
            return None, str(e), None
    made = (folder / "run" / "summary.json").exists()
    return code, process.stderr, Result.read(folder / "run") if made else None


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("presets")
    with simulation(folder / "sim", *ROOM) as sim, ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(NAMES, pool.map(lambda n: run(n, sim.url, folder / n), NAMES), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_run_of_every_protocol_has_its_source_and_no_failed_request(
    name: str, runs: dict[str, Any]
) -> None:
    code, said, result = runs[name]
    # Gates need more requests than ten seconds have, and a busy machine is no measurement.
    assert code in (0, EXIT_GATE, EXIT_INVALID), said
    assert result is not None
    assert result.manifest.scenario_document["about"] == load_scenario(name, GRAMMAR).document["about"]
    outcomes = set(result.requests.texts("outcome"))
    assert "ok" in outcomes
    assert outcomes <= {"ok", "cancelled"}
    assert result.summary["completeness"]["complete"]
