"""A worker and the validators that its master names, as whole runs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from swarm_process import LOCUSTFILES, as_worker, free_port, in_parallel, locust, simulation

CHECK = "def fine(answer, prompt):\n    return True\n"
SCENARIO = """
users: 2
num_requests: 10
output_tokens: 2
input_tokens: 10
classes: {{a: {{validators: [{{function: "{named}"}}]}}}}
"""
SECRET = ["--swarm-secret-env", "RUN_SECRET"]


def run(folder: Path, named: str, *options: str) -> tuple[int, str]:
    """The master's exit code, and what master and worker said. They have one locustfile, and one library."""
    project, library, port = folder / "project", folder / "library", free_port()
    for place in (project, library):
        place.mkdir()
    (project / "locustfile.py").write_text((LOCUSTFILES / "scenario.py").read_text())
    (project / "ownchecks.py").write_text(CHECK)
    (library / "librarychecks.py").write_text(CHECK)
    (folder / "mix.yaml").write_text(SCENARIO.format(named=named))
    environ = {"PYTHONPATH": f"{library}:{LOCUSTFILES.parent}", "RUN_SECRET": "a secret for this test"}
    found = {"locustfile": project / "locustfile.py", "environ": environ}
    as_master = ["--master", "--expect-workers", "1", "--master-bind-port", str(port), "--headless"]
    asked = ["--scenario", str(folder / "mix.yaml"), "--out", str(folder / "run")]
    with (
        simulation(folder / "sim") as sim,
        locust(project, *as_master, *asked, *options, "-H", sim.url, **found) as master,  # type: ignore[arg-type]
        locust(project, *as_worker(port), *options, stdout="worker", **found) as worker,  # type: ignore[arg-type]
    ):
        return master.exit_code(), f"{master.stderr}\n{worker.stderr}"


RUNS: dict[str, Callable[[Path], tuple[int, str]]] = {
    "next to the locustfile": lambda folder: run(folder, "ownchecks:fine"),
    "elsewhere": lambda folder: run(folder, "librarychecks:fine"),
    "elsewhere with a secret": lambda folder: run(folder, "librarychecks:fine", *SECRET),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    return in_parallel(tmp_path_factory.mktemp("named"), RUNS, at_once=2)


@pytest.mark.parametrize("name", ["next to the locustfile", "elsewhere with a secret"])
def test_a_worker_uses_its_own_code_and_that_of_a_master_that_knows_the_secret(
    runs: dict[str, tuple[int, str]], name: str
) -> None:
    code, said = runs[name]
    assert code == 0, said
    assert "not imported" not in said


def test_a_worker_imports_no_other_code_that_a_master_names(runs: dict[str, tuple[int, str]]) -> None:
    code, said = runs["elsewhere"]
    assert code == 2, said
    (line,) = [line for line in said.splitlines() if "is not imported" in line and " ERROR: " in line]
    assert "validator 'librarychecks:fine' of the master's scenario is not imported" in line
    assert "--swarm-secret-env" in line
    assert "Traceback" not in said
