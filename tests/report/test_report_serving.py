"""Reports by a process of its own, as a container beside the master: its death is not the run's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM

import psutil
import pytest
from report_cases import write_frames
from swarm_process import wait_until

from llm_locust.report import serving
from llm_locust.report.serving import ReportRequest, ask
from llm_locust.store import FRAMES_FILE, REQUESTS_FILE
from llm_locust.swarm.process.children import REPORT_COMMANDS, REPORT_SOCKET, LateError, run_elsewhere
from llm_locust.swarm.run.finishing import FinishError, finish_elsewhere

pytestmark = pytest.mark.alone


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["subprocess.Popen[bytes]"]:
    path = tmp_path / "report.sock"
    monkeypatch.setenv(REPORT_SOCKET, str(path))
    with subprocess.Popen([sys.executable, "-P", "-m", serving.__name__, str(path)]) as process:
        wait_until(path.exists, "the socket", 120)
        yield process
        process.kill()


def commands_of(server: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    return psutil.Process(server.pid).children()


def test_the_server_makes_the_report_and_ends_when_it_is_told(
    server: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    report = finish_elsewhere(write_frames(tmp_path / "run"))
    assert report.summary.requests.scheduled > 0
    assert (tmp_path / "run" / REQUESTS_FILE).exists()
    code, said = run_elsewhere(REPORT_COMMANDS, ["so-far", "--", str(tmp_path)], heard=(2,))
    assert (code, b"manifest.json" in said) == (1, True)
    # Whoever reaches the socket can have reports made, and nothing else run.
    foreign = ask(Path(os.environ[REPORT_SOCKET]), ReportRequest(["drop"], [1]), 120)
    assert foreign == (2, b"")
    server.send_signal(SIGTERM)
    assert server.wait(120) == 0


@pytest.mark.parametrize("with_it", [True, False], ids=["group kill", "report alone"])
def test_a_report_that_is_killed_leaves_the_records_and_says_what_to_do(
    server: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_it: bool
) -> None:
    run = write_frames(tmp_path / "run")
    stopped = subprocess.Popen(
        [sys.executable, "-c", KILLER, str(server.pid), "server" if with_it else "command"]
    )
    with stopped, pytest.raises(FinishError, match=r"memory has run out.*llm-locust merge.*more memory"):
        finish_elsewhere(run)
    assert (run / FRAMES_FILE).exists()


#: Kills the first command of a server before it can be done, with the server as a kernel kills a container.
KILLER = """
import sys, psutil
server = psutil.Process(int(sys.argv[1]))
while not (children := server.children()):
    pass
children[0].suspend()
if sys.argv[2] == "server":
    server.kill()
children[0].kill()
"""


def test_a_report_that_takes_too_long_is_killed(server: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    run = write_frames(tmp_path / "run")
    with pytest.raises(LateError, match="had not ended within 0 s"):
        run_elsewhere(REPORT_COMMANDS, ["finish", "--", str(run)], within_s=0.001)
    wait_until(lambda: not commands_of(server), "the end of the report", 120)


def test_without_a_server_there_is_no_report_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REPORT_SOCKET, str(tmp_path / "nobody.sock"))
    monkeypatch.setattr(serving, "CONNECT_WITHIN_S", 0.0)
    with pytest.raises(FinishError, match=r"cannot be started.*the records are in"):
        finish_elsewhere(write_frames(tmp_path / "run"))


def test_a_file_that_is_no_socket_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("of somebody")
    command = [sys.executable, "-P", "-m", serving.__name__, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert path.read_text() == "of somebody"
    assert "notes.txt': Address already in use" in done.stderr
