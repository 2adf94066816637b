"""Processes beside a run: its report, and its scraper."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import gevent
import psutil
import pytest
from metrics_cases import request
from page_server import hang, page, serving
from report_cases import write_frames

from llm_locust.core.manifest import ScrapeFacts
from llm_locust.deployment.server_metrics import SERVER_METRICS_FILE, read_samples
from llm_locust.metrics.server_series import ServerNow
from llm_locust.options.deployment import DeploymentSettings
from llm_locust.report.analysis import Report
from llm_locust.report.finish import finish_run
from llm_locust.store import FRAMES_FILE
from llm_locust.swarm.clocks import RunClock
from llm_locust.swarm.process.children import passed_on
from llm_locust.swarm.run import finishing
from llm_locust.swarm.run.finishing import PATIENCE_S, FinishError, finish_elsewhere, patience_s
from llm_locust.swarm.run.servers import Scraping, _LogLimit

# --- A report made by a process of its own, while the event loop of the one that asked runs on


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


# --- The scraper of a run: there before the first user, gone after the load, and no concern of the load's


PAGE = page("tgi_queue_size 3\n")

#: A process that begins to scrape, says so, and then does nothing more.
PARENT = """
import sys
from pathlib import Path
import gevent
from llm_locust.swarm.clocks import RunClock
from llm_locust.options.deployment import DeploymentSettings
from llm_locust.swarm.run.servers import Scraping

settings = DeploymentSettings(metrics_urls=(sys.argv[1],))
scraping = Scraping(settings, Path(sys.argv[2]), RunClock(), lambda servers: None)
scraping.begin()
print("begun", flush=True)
gevent.sleep(60)
"""


@contextmanager
def scraping(run: Path, *ports: int, told: list[list[ServerNow]] | None = None) -> Iterator[Scraping]:
    settings = DeploymentSettings(
        metrics_urls=tuple(f"http://127.0.0.1:{port}" for port in ports), metrics_interval_s=0.2
    )
    found = Scraping(settings, run, RunClock(), ([] if told is None else told).append)
    try:
        yield found
    finally:
        found.end()


def scraper_pid() -> int:
    (pid,) = (c.pid for c in psutil.Process().children() if "--tell" in c.cmdline())
    return pid


def values(run: Path, name: str) -> list[tuple[str, float]]:
    return [
        (row["target"], row["value"])
        for table in read_samples(run / SERVER_METRICS_FILE)
        for row in table.to_pylist()
        if row["name"] == name
    ]


def test_every_server_was_asked_before_the_load_and_is_asked_once_more_after_it(tmp_path: Path) -> None:
    told: list[list[ServerNow]] = []
    with serving(PAGE) as port, scraping(tmp_path, port, told=told) as found:
        found.begin()
        assert told[0] == [ServerNow(name=f"127.0.0.1:{port}", up=True, waiting=3.0)]
        seen = len(values(tmp_path, "waiting"))
        assert seen >= 1
        found.end()
        assert found.facts == ScrapeFacts()
        assert len(values(tmp_path, "waiting")) > seen
        assert not any("--tell" in child.cmdline() for child in psutil.Process().children())


@pytest.mark.usefixtures("warm")
def test_times_are_those_of_the_runs_axis(tmp_path: Path) -> None:
    axis = RunClock()
    before = axis.now_ns()
    with serving(PAGE) as port, scraping(tmp_path, port) as found:
        found.begin()
        found.end()
    at_ns = [row["at_ns"] for t in read_samples(tmp_path / SERVER_METRICS_FILE) for row in t.to_pylist()]
    assert at_ns
    assert all(before < at < axis.now_ns() for at in at_ns)


@pytest.mark.usefixtures("warm")
def test_a_server_that_hangs_holds_up_neither_the_beginning_nor_the_end(tmp_path: Path) -> None:
    with serving(PAGE) as port, serving(hang) as hung, scraping(tmp_path, port, hung) as found:
        found.begin()
        assert (f"127.0.0.1:{port}", 3.0) in values(tmp_path, "waiting")
        began = time.monotonic()
        found.end()
        assert time.monotonic() - began < 30  # a busy machine is slow; the hung server would never answer
    assert found.facts == ScrapeFacts()
    assert set(values(tmp_path, "up")) == {(f"127.0.0.1:{port}", 1.0), (f"127.0.0.1:{hung}", 0.0)}


@pytest.mark.usefixtures("warm")
def test_one_that_is_killed_is_said_and_what_it_had_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(PAGE) as port, scraping(tmp_path, port) as found:
        found.begin()
        os.kill(scraper_pid(), SIGKILL)
        with gevent.Timeout(120):
            while not found.facts.failure:
                gevent.sleep(0.005)
        found.end()
    assert found.facts.failure == "was ended by signal 9 (SIGKILL)"
    assert found.facts.failed_ns is not None
    (record,) = (r for r in caplog.records if r.levelno == logging.ERROR)
    assert "none from now on; the load goes on" in record.getMessage()
    assert values(tmp_path, "waiting")


@pytest.mark.usefixtures("warm")
def test_what_it_says_of_its_servers_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(page("<html>")) as port, scraping(tmp_path, port) as found:
        found.begin()
        found.end()
    assert any("not Prometheus text" in record.getMessage() for record in caplog.records)


def test_options_that_cannot_work_are_said_and_the_load_goes_on(tmp_path: Path) -> None:
    found = Scraping(
        DeploymentSettings(metrics_urls=("ftp://x",)), tmp_path, RunClock(), lambda servers: None
    )
    found.begin()
    assert "could not be started" in found.facts.failure
    found.end()


@pytest.mark.usefixtures("warm")
def test_a_run_that_does_not_come_about_keeps_nothing(tmp_path: Path) -> None:
    with serving(PAGE) as port, scraping(tmp_path, port) as found:
        found.begin()
        found.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("warm")
def test_a_servers_token_goes_along_and_no_other_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRICS_TOKEN", "s3cret")
    monkeypatch.setenv("OTHER_TOKEN", "t0p")
    with serving(PAGE) as port:
        settings = DeploymentSettings(
            metrics_urls=(f"http://127.0.0.1:{port}",), metrics_api_key_env="METRICS_TOKEN"
        )
        found = Scraping(settings, tmp_path, RunClock(), lambda servers: None)
        found.begin()
        process = psutil.Process(scraper_pid())
        environ, words = process.environ(), process.cmdline()
        found.end()
    assert environ["METRICS_TOKEN"] == "s3cret"
    assert "OTHER_TOKEN" not in environ
    assert not any("s3cret" in word for word in words)


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    with serving(PAGE) as port:
        words = [sys.executable, "-c", PARENT, f"http://127.0.0.1:{port}", str(tmp_path)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "begun\n"
            (scraper,) = psutil.Process(parent.pid).children()
            parent.kill()
        _, alive = psutil.wait_procs([scraper], timeout=120)
        assert alive == []
    assert values(tmp_path, "waiting"), "what it had can be read"


def test_its_lines_are_bounded_and_what_was_left_out_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = _LogLimit(2, lambda: now[0])
    for i in range(5):
        log(f"line {i}")
    now[0] = 61.0
    log("line 5")
    assert [r.getMessage() for r in caplog.records] == [
        "line 0", "line 1", "3 lines on server metrics were left out", "line 5",
    ]  # fmt: skip
