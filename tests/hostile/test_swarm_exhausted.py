"""A process that runs out of something says so; a worker uses only code that is its own or proven."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from chaos import NoSmallDiskError, merge, small_disk
from swarm_process import LOCUSTFILES, Result, as_worker, free_port, in_parallel, locust, simulation

# --- A process that runs out of files, disk, memory or threads, before, in and after its load


SUPPORT = Path(__file__).parents[1] / "support"

#: The error that the process met itself, and the words that name the cause and what to do.
SAID = {
    "EMFILE": ("Too many open files", r"Too many open files: raise `ulimit -n`"),
    "ENOSPC": ("No space left", r"No space left on device: free some of the disk"),
    # A thread's stack, too, is memory that is not there.
    "ENOMEM": ("MemoryError", r"memory has run out: raise `ulimit -v`|its memory limit and `ulimit -v`"),
    "EAGAIN": ("can't start new thread", r"no more threads or processes can be started: raise `ulimit -u`"),
}
BEFORE, DURING = ("start", "ready"), ("middle", "end")


@dataclass(frozen=True, slots=True)
class RanOut:
    code: int
    said: list[str]
    sent: int
    kept: int  # records that `merge` or the report has


def _run(what: str, point: str, folder: Path) -> RanOut | None:
    load = ["--headless", "-u", "3", "-r", "3", "--num-requests", "40", "--output-tokens", "10"]
    load += ["--flush-timeout", "1s"]
    try:
        with (
            small_disk(folder, kib=1024) if what == "ENOSPC" else nullcontext(folder) as disk,
            simulation(folder / "sim") as sim,
            locust(
                folder,
                *(*load, "--out", str(disk / "run"), "-H", sim.url),
                locustfile=SUPPORT / "runs_out.py",
                environ={
                    "RUNS_OUT": f"{what} {point}",
                    "SMALL_DISK": str(disk),
                    "PYTHONPATH": str(SUPPORT),
                },
            ) as process,
        ):
            code = process.exit_code()
            kept = _kept(disk / "run", folder) if point in DURING and what != "ENOSPC" else 0
            return RanOut(code, process.said, len(sim.entries()), kept)
    except NoSmallDiskError:
        return None


def _kept(run: Path, folder: Path) -> int:
    if (run / "requests.parquet").exists():
        return len(Result.read(run).requests)
    return len(merge(folder / "merged", run).rows)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RanOut | None]:
    scenarios: dict[str, Callable[[Path], RanOut | None]] = {
        f"{what} {point}": partial(_run, what, point) for what in SAID for point in (*BEFORE, *DURING)
    }
    return in_parallel(tmp_path_factory.mktemp("exhausted"), scenarios)


@pytest.fixture
def ran_out(runs: dict[str, RanOut | None], what: str, point: str) -> RanOut:
    run = runs[f"{what} {point}"]
    if run is None:
        pytest.skip("this machine has no small disk for it")
    assert any(line.startswith("ran out: ") and SAID[what][0] in line for line in run.said), run.said
    # Under load memory runs out at any line, of Python and of libraries too, which print what they met.
    if (what, point) != ("ENOMEM", "middle"):
        assert not [line for line in run.said if "Traceback" in line], "\n".join(run.said)
    assert not [line for line in run.said if "told to end" in line]
    return run


@pytest.mark.parametrize("point", BEFORE)
@pytest.mark.parametrize("what", SAID)
def test_before_the_load_the_cause_is_said_and_nothing_is_sent(ran_out: RanOut, what: str) -> None:
    assert ran_out.code == 2
    assert re.search(SAID[what][1], "\n".join(ran_out.said)), ran_out.said
    assert ran_out.sent == 0


@pytest.mark.parametrize("point", DURING)
@pytest.mark.parametrize("what", SAID)
def test_in_the_load_the_cause_is_said_and_no_record_is_lost_silently(ran_out: RanOut, what: str) -> None:
    said = "\n".join(ran_out.said)
    if ran_out.code != 0 or what != "ENOMEM":  # what the process had was perhaps enough for the rest
        assert ran_out.code == 4
        assert len(re.findall(SAID[what][1], said)) == 1 or what != "ENOSPC", said  # what to do is said once
        assert re.search(SAID[what][1], said), said
    lost = [int(n) for n in re.findall(r"\((\d+) records\) of run \S+ are lost", said)]
    assert ran_out.sent >= 20
    # What was not acknowledged may have reached the disk all the same.
    assert ran_out.kept <= ran_out.sent <= ran_out.kept + sum(lost)


# --- Whole runs with few open files: refused before the load, or ended as asked. They never ended before


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


def of_a_master(folder: Path) -> Any:
    """No file is left when the master makes its event loop: libev's error has no number."""
    environ = {"RUNS_OUT": "EMFILE start", "PYTHONPATH": str(SUPPORT)}
    options = ["--headless", "--master", "--master-bind-port", str(free_port()), "-H", "http://127.0.0.1:9"]
    with locust(folder, *options, locustfile=SUPPORT / "runs_out.py", environ=environ) as master:
        return master.exit_code(), master.said


def of_a_worker(folder: Path) -> Any:
    """The thread that reads the sockets cannot be started in a worker."""
    environ = {"RUNS_OUT": "EAGAIN ready", "PYTHONPATH": str(SUPPORT)}
    port = free_port()
    as_master = ["--headless", "--master", "--expect-workers", "1", "--master-bind-port", str(port)]
    with (
        simulation(folder / "sim") as sim,
        locust(folder, *as_master, "-t", "60s", "--out", "run", "-H", sim.url) as master,
        locust(
            folder, *as_worker(port), stdout="worker", locustfile=SUPPORT / "runs_out.py", environ=environ
        ) as worker,
    ):
        code = master.exit_code()
        worker.exit_code()
        return code, [*master.said, *worker.said]


@pytest.fixture(scope="module")
def files_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scenarios = {"refused": refused, "exhausted": exhausted}
    scenarios |= {"EMFILE of a master": of_a_master, "EAGAIN of a worker": of_a_worker}
    return in_parallel(tmp_path_factory.mktemp("files"), scenarios, at_once=2)


def test_a_load_with_too_few_open_files_is_refused_with_number_and_command(
    files_runs: dict[str, Any],
) -> None:
    code, said, sent = files_runs["refused"]
    assert code == 2
    assert "400 users need 464 open files" in "\n".join(said)
    assert "`ulimit -n 464`" in "\n".join(said)
    assert sent == 0


def test_a_run_without_a_file_left_ends_with_a_record_of_every_request(
    files_runs: dict[str, Any],
) -> None:
    _code, result, stderr = files_runs["exhausted"]
    assert len(result.requests) == 200
    outcomes = result.requests.table.column("outcome").to_pylist()
    assert 0 < sum(outcome == "ok" for outcome in outcomes) < 200
    assert "raise `ulimit -n`" in str(result.requests.table.column("error").to_pylist())
    assert result.summary["completeness"]["complete"] is True, stderr


@pytest.mark.parametrize("name", ["EMFILE of a master", "EAGAIN of a worker"])
def test_a_process_of_a_swarm_that_cannot_begin_ends_the_run_with_its_cause(
    files_runs: dict[str, Any], name: str
) -> None:
    code, said = files_runs[name]
    assert code == 2, said
    assert re.search(SAID[name.split()[0]][1], "\n".join(said)), said
    assert not [line for line in said if "Traceback" in line], said


# --- A worker and the validators that its master names, as whole runs


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
def code_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    return in_parallel(tmp_path_factory.mktemp("named"), RUNS, at_once=2)


@pytest.mark.parametrize("name", ["next to the locustfile", "elsewhere with a secret"])
def test_a_worker_uses_its_own_code_and_that_of_a_master_that_knows_the_secret(
    code_runs: dict[str, tuple[int, str]], name: str
) -> None:
    code, said = code_runs[name]
    assert code == 0, said
    assert "not imported" not in said


def test_a_worker_imports_no_other_code_that_a_master_names(code_runs: dict[str, tuple[int, str]]) -> None:
    code, said = code_runs["elsewhere"]
    assert code == 2, said
    (line,) = [line for line in said.splitlines() if "is not imported" in line and " ERROR: " in line]
    assert "validator 'librarychecks:fine' of the master's scenario is not imported" in line
    assert "--swarm-secret-env" in line
    assert "Traceback" not in said
