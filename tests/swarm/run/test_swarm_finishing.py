"""A report made by a process of its own, while the event loop of the one that asked runs on."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import gevent
import psutil
import pytest
from finish_cases import write_frames
from metrics_cases import request

from llm_locust.report.run.analysis import Report
from llm_locust.report.run.finish import finish_run
from llm_locust.store import FRAMES_FILE
from llm_locust.swarm.process.children import passed_on
from llm_locust.swarm.run import finishing
from llm_locust.swarm.run.finishing import PATIENCE_S, FinishError, finish_elsewhere, patience_s

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("no_watch_of_children")]

#: As in a Locust process: patched, a timer every 20 ms, and memory that a fork would have to copy.
MASTER = """
from gevent import monkey; monkey.patch_all()
import json, resource, sys, time
from pathlib import Path
import gevent
from llm_locust.swarm.run.finishing import finish_elsewhere

late_ms = []
def tick():
    while True:
        asked = time.perf_counter()
        gevent.sleep(0.02)
        late_ms.append((time.perf_counter() - asked) * 1e3 - 20)

memory = b"x" * (256 << 20)
gevent.spawn(tick)
gevent.sleep(0.1)
late_ms.clear()
own = time.process_time()
report = finish_elsewhere(Path(sys.argv[1]))
spent = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({
    "exit_code": report.exit_code,
    "scheduled": report.summary.requests.scheduled,
    "own_cpu_s": time.process_time() - own,
    "child_cpu_s": spent.ru_utime + spent.ru_stime,
    "ticks": len(late_ms),
    "late_ms_p50": sorted(late_ms)[len(late_ms) // 2],
    "late_ms_max": max(late_ms),
}))
"""


def start(run: Path) -> tuple["gevent.Greenlet[..., Report]", psutil.Process]:
    """Begin to finish a run; gives who waits for it, and the process that does it."""
    before = set(psutil.Process().children())
    finishing = gevent.spawn(finish_elsewhere, run)
    gevent.idle()
    (child,) = set(psutil.Process().children()) - before
    return finishing, child


def end_by(signal: Signals, run: Path) -> str:
    """What is said when the process gets a signal before it is done."""
    finishing, child = start(run)
    child.send_signal(signal)
    with pytest.raises(FinishError) as raised:
        finishing.get(timeout=120)
    return str(raised.value)


@pytest.mark.usefixtures("warm")
def test_the_report_is_the_one_that_this_process_would_have_made(tmp_path: Path) -> None:
    here = finish_run(write_frames(tmp_path / "here", gates="rps>1 error_rate<50%", workers_expected=2))
    write_frames(tmp_path / "there", gates="rps>1 error_rate<50%", workers_expected=2)
    assert finish_elsewhere(tmp_path / "there") == here
    assert here.exit_code == 4
    assert finish_elsewhere(tmp_path / "there", allow_incomplete=True).exit_code == 0


@pytest.mark.usefixtures("warm")
def test_what_the_process_finds_wrong_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(FinishError, match=r"holds no manifest\.json"):
        finish_elsewhere(tmp_path)


@pytest.mark.usefixtures("warm")
def test_a_process_that_is_killed_is_named_with_what_can_be_done(tmp_path: Path) -> None:
    run = write_frames(tmp_path)
    killed = end_by(SIGKILL, run)
    assert "was ended by signal 9 (as when memory has run out)" in killed
    assert f"`llm-locust merge {run} --out NEW` makes the report of them, on a machine with more" in killed
    assert "was ended by signal 15 (Terminated)" in end_by(SIGTERM, run)
    assert (run / FRAMES_FILE).exists(), "the records stay"


def test_a_process_that_hangs_is_killed_with_its_own_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = tmp_path / "hung"
    hung.write_text("#!/bin/sh\nsleep 600 & sleep 600\n")
    hung.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hung))
    monkeypatch.setattr(finishing, "PATIENCE_S", 0.5)
    run = write_frames(tmp_path / "run")
    with gevent.Timeout(120), pytest.raises(FinishError) as raised:
        finish_elsewhere(run)
    assert "was killed because it had not ended within" in str(raised.value)
    assert f"`llm-locust merge {run} --out NEW`" in str(raised.value)
    assert (run / FRAMES_FILE).exists(), "the records stay"


def test_the_time_for_a_report_grows_with_its_records(tmp_path: Path) -> None:
    assert patience_s(tmp_path) == PATIENCE_S
    with (tmp_path / FRAMES_FILE).open("wb") as file:
        file.truncate(10 << 30)
    assert patience_s(tmp_path) > 24 * 3600


def test_a_process_that_ends_without_a_word_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\nexit 7\n")
    mute.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(mute))
    with pytest.raises(FinishError, match="ended with 7 before it was done"):
        finish_elsewhere(tmp_path)


def test_a_process_that_cannot_be_started_is_an_error_and_leaves_no_pipe_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    before = psutil.Process().num_fds()
    with pytest.raises(FinishError, match="cannot be started: No such file"):
        finish_elsewhere(tmp_path)
    gevent.idle()
    assert psutil.Process().num_fds() <= before


@pytest.mark.usefixtures("warm")
def test_the_process_gets_no_secrets_and_no_signal_of_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    finishing, child = start(write_frames(tmp_path))
    assert os.getsid(child.pid) == child.pid
    while not (environ := child.environ()):  # its program is being loaded
        gevent.sleep(0.001)
    assert environ.get("LC_ALL") == "C.UTF-8"
    assert "OPENAI_API_KEY" not in environ
    assert environ == passed_on(os.environ)
    finishing.get(timeout=120)


def test_files_where_the_run_was_started_stand_for_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("random", "msgspec", "numpy", "llm_locust"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger')")
    write_frames(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert finish_elsewhere(Path("run")).summary.requests.scheduled == 100


def test_a_master_is_idle_while_the_report_of_a_large_run_is_made(tmp_path: Path) -> None:
    tokens = tuple(0.05 + 0.02 * k for k in range(20))
    run = write_frames(tmp_path, [request(i / 500, tokens) for i in range(2048)], times=40)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", MASTER, str(run)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr == ""
    seen = json.loads(done.stdout)
    print(f"{time.monotonic() - began:.1f} s, {seen}")
    assert seen["scheduled"] == 81_920
    assert seen["own_cpu_s"] < 0.5 * seen["child_cpu_s"]
    assert seen["late_ms_p50"] < 5
