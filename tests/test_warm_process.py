"""A warm process is what a cold one of the same command is: its session, ends, words and own secrets."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import psutil
import pytest
from swarm_process import Process, wait_until
from warm_process import keep_warm, warm_place

pytestmark = pytest.mark.run

LISTED = """
import os
import random
import subprocess
import sys

from llm_locust import ChatUser
from llm_locust.swarm.channel import channel


class Listed(ChatUser):
    pass


print(sys.argv[1:], sys.path[0] == os.getcwd(), os.environ["SAID"], os.getsid(0) == os.getpid())
print(channel.forked(), channel._FAMILY_SECRET.hex(), random.random())
"""


def _listed(folder: Path, cold: bool) -> list[str]:
    folder.mkdir()
    (folder / "listed.py").write_text(LISTED)
    command = [sys.executable, "-m", "locust", "-f", "listed.py", "--list"]
    process = Process(command, folder, {"SAID": "so"}, cold=cold)
    assert process.exit_code() == 0, process.stderr
    process.end()
    return process.stdout.splitlines()


def test_a_warm_locust_has_the_state_of_a_cold_one_and_shares_no_secret(tmp_path: Path) -> None:
    cold, first, second = (_listed(tmp_path / name, name == "cold") for name in ("cold", "first", "second"))
    assert cold[0] == first[0] == second[0]
    drawn = [lines[1].split() for lines in (cold, first, second)]
    assert [line[0] for line in drawn] == ["False"] * 3
    assert len({line[1] for line in drawn}) == len({line[2] for line in drawn}) == 3
    assert cold[2:] == first[2:] == second[2:]


@pytest.mark.parametrize("cold", [False, True])
def test_exit_codes_and_errors_are_those_of_the_command(tmp_path: Path, cold: bool) -> None:
    process = Process([sys.executable, "-m", "llm_locust.sim", "--port", "many"], tmp_path, cold=cold)
    assert process.exit_code() == 2
    process.end()
    assert "argument --port" in process.stderr


@pytest.mark.parametrize(("number", "code"), [(SIGTERM, 0), (SIGKILL, -SIGKILL)])
def test_signals_reach_it_and_its_end_is_told(tmp_path: Path, number: Signals, code: int) -> None:
    process = Process([sys.executable, "-m", "llm_locust.sim", "--port", "0"], tmp_path)
    wait_until(lambda: "listening" in process.stdout, "the simulation's first word")
    assert os.getsid(process.pid) == process.pid
    process.signal_group(number)
    assert process.exit_code() == code
    assert not psutil.pid_exists(process.pid)
    process.end()


@pytest.fixture(scope="module")
def stand_in() -> str:
    """What a warm process takes for Python, when those that it asks for forks can be asked."""
    keep_warm("report", "llm_locust.sim")
    for source in ("report", "llm_locust.sim"):
        wait_until((warm_place() / f"{source}.sock").exists, f"{source} has imported what it needs")
    return str(warm_place() / "python")


def test_a_child_of_a_warm_process_has_its_words_streams_folder_and_code(
    stand_in: str, tmp_path: Path
) -> None:
    code = """
block_pandas_import = lambda: None
block_pandas_import()
import os, sys
print(sys.argv, sys.stdin.read(), os.getcwd(), os.environ["SAID"], os.getppid())
print("llm_locust.report" in sys.modules)
sys.exit(7)
"""
    done = subprocess.run(
        [stand_in, "-P", "-c", code, "a b"],
        input="heard",
        cwd=tmp_path,
        env={"SAID": "so"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [f"['-c', 'a b'] heard {tmp_path} so {os.getpid()}", "True"]
    assert done.returncode == 7


def test_what_no_warm_process_knows_is_run_by_python_itself(stand_in: str) -> None:
    code = "import sys; print(sys.executable, 'llm_locust' in sys.modules)"
    done = subprocess.run([stand_in, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [sys.executable, "False"]


@pytest.mark.parametrize(("number", "code"), [(SIGTERM, 0), (SIGKILL, -SIGKILL)])
def test_signals_pass_through_the_stand_in_and_its_death_ends_the_fork(
    stand_in: str, number: Signals, code: int
) -> None:
    with subprocess.Popen(
        [stand_in, "-P", "-m", "llm_locust.sim", "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[2].split(":")[-1].removesuffix("/v1"))

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        assert listens()
        process.send_signal(number)
        assert process.wait(120) == code
        wait_until(lambda: not listens(), "the end of the simulation")


def test_a_fork_that_nobody_waits_for_any_more_has_not_ended_well(stand_in: str) -> None:
    code = """
block_pandas_import = lambda: None
block_pandas_import()
import os, sys
print(os.getpid(), flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [stand_in, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        waiter = psutil.Process(int(process.stdout.readline())).parent()
        assert waiter is not None
        waiter.kill()
        assert process.wait(120) == 1
        _, said = process.communicate()  # the fork ends with its standard input
        assert "who waits for the fork of a warm process was killed" in said


LEFT = """
import subprocess
import sys
from pathlib import Path

from swarm_process import Process

command = [sys.executable, "-m", "llm_locust.sim", "--port", "0"]
process = Process(command, Path.cwd())
print(process.pid, flush=True)
sys.stdin.read()
"""


def test_a_run_ends_with_the_tests_that_started_it_even_if_these_are_killed(tmp_path: Path) -> None:
    support = Path(__file__).parent / "support"
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(support), os.environ.get("PYTHONPATH")])),
    }
    with subprocess.Popen(
        [sys.executable, "-c", LEFT], cwd=tmp_path, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as tests:
        assert tests.stdout is not None
        pid = int(tests.stdout.readline())
        assert psutil.pid_exists(pid)
        tests.kill()
        wait_until(lambda: not psutil.pid_exists(pid), "the end of the run of killed tests")
