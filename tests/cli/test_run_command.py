"""``llm-locust run``: what it refuses, the simulator that it starts, protocols as loads."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from swarm_process import Process, wait_until

from llm_locust.cli.main import main
from llm_locust.cli.run import SimulatorError, start_simulator
from llm_locust.options.table import GRAMMAR
from llm_locust.scenario.document import load_scenario
from llm_locust.store import read_manifest
from llm_locust.store.requests import read_requests

# --- ``llm-locust run``: what it refuses, and the simulator that it starts


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "no server: give its address, as in `llm-locust run http://HOST:8000`, or try --sim"),
        (("ftp://x",), "host 'ftp://x' is not a URL such as http://localhost:8000"),
        (("http://x:1", "--sim"), "both 'http://x:1' and --sim: give one of the two"),
        (("http://x:1", "http://y:1"), "unexpected 'http://y:1'"),
        (("http://x:1", "--usres", "5"), "unknown option --usres; did you mean --users?"),
        (("http://x:1", "--max-concurrency=5"), "unknown option --max-concurrency; here it is --users N; "),
        (("http://x:1", "--num-prompts", "5"), "here it is --num-requests N"),
        (("http://x:1", "--random_output_len", "5"), "here it is --output-tokens D"),
        (("http://x:1", "--api-key", "sk-1"), "unknown option --api-key; here it is --api-key-env NAME; "),
        (("--base-url", "http://x:1"), "here it is the address as the first word"),
        (("http://x:1", "--headless"), "options of Locust itself go after --; see --help"),
        (
            ("http://x:1", "--users", "0"),
            "--users/-u/--agents: '0' is not a whole number of at least 1",
        ),
        (("http://x:1", "--workers", "-1"), "argument --workers: '-1' is not a whole number of at least 1"),
        (("http://x:1", "--for", "60"), "argument --for/-t: '60': a number without a unit"),
        (("http://x:1", "--for", "1.5s"), "a run lasts whole seconds from 1s"),
        (("http://x:1", "--slo", "ttfd=1s"), 'did you mean "ttft"?'),
        (("http://x:1", "--preset", "cat"), "no preset 'cat'; did you mean chat?"),
        (("http://x:1", "--scenario", "none.yaml"), "none.yaml"),
        (("http://x:1", "--preset=chat", "--scenario=none.yaml"), "both --preset and --scenario"),
    ],
)
def test_what_cannot_be_started_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCUST_HOST", raising=False)
    try:
        code: object = main(["run", *argv])
    except SystemExit as e:
        code = e.code
    text = capsys.readouterr()
    assert (code, text.out, text.err.count("\n")) == (2, "", 1)
    assert text.err.startswith("llm-locust run: ")
    assert said in text.err


def test_a_scenario_beside_a_preset_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text("model: m\n")
    assert main(["run", "http://x:1", "--preset=chat", f"--scenario={tmp_path}/s.yaml"]) == 2
    assert "both --preset and --scenario" in capsys.readouterr().err


def simulators(of: int) -> Iterator[psutil.Process]:
    """Simulators that the process started; each is in a session of its own."""
    for child in psutil.Process(of).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "--end-with-stdin" in child.cmdline():
                yield child


#: Starts a simulator, and becomes another program, as a run does.
_BECOMES_ANOTHER = """
import os, sys
from llm_locust.cli.run import SimulatorError, start_simulator

start_simulator()
code = "import time; print('another', flush=True); time.sleep(600)"
os.execv(sys.executable, [sys.executable, "-c", code])
"""


def test_the_simulator_ends_with_a_run_that_is_killed() -> None:
    command = [sys.executable, "-c", _BECOMES_ANOTHER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "another\n"
        (simulator,) = simulators(run.pid)
        assert os.getsid(simulator.pid) != os.getsid(run.pid), "a Ctrl-C in the terminal is the run's alone"
        run.kill()
    wait_until(lambda: not simulator.is_running(), "the simulator's end")


def test_a_simulator_that_does_not_start_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SimulatorError, match="the simulator did not start"):
        start_simulator(["--replicas=none"])
    assert "--replicas" in capfd.readouterr().err


@pytest.mark.run
def test_users_help_and_options_are_listed_without_a_server(tmp_path: Path) -> None:
    users = listed(tmp_path, "run", "--", "--list")
    help_text = listed(tmp_path, "run", "--", "--help")
    options = listed(tmp_path, "options")
    assert "Chat" in users
    assert "--spawn-rate" in help_text
    assert "--input-tokens" in help_text
    assert help_text.rstrip().endswith("`llm-locust options` lists the options of a load test alone.")
    assert "--input-tokens" in options
    assert "%%" not in options


def listed(folder: Path, *words: str) -> str:
    """What a command prints in a process of its own: Locust's parser patches what it imports."""
    process = Process([sys.executable, "-m", "llm_locust", *words], folder)
    assert process.exit_code() == 0, process.stderr
    process.end()
    assert "no server" not in process.stdout + process.stderr
    return process.stdout


# --- Protocols as loads of whole runs: a mix of classes, and a sweep, against the simulator


@pytest.mark.run
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
