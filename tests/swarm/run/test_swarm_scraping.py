"""The scraper of a run: there before the first user, gone after the load, and no concern of the load's."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL

import gevent
import psutil
import pytest
from page_server import hang, page, serving

from llm_locust.core.manifest import ScrapeFacts
from llm_locust.deployment.samples import SERVER_METRICS_FILE, read_samples
from llm_locust.metrics.server_series import ServerNow
from llm_locust.options.deployment import DeploymentSettings
from llm_locust.swarm.clocks import RunClock
from llm_locust.swarm.run.servers import Scraping, _Bounded

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("no_watch_of_children")]

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
    log = _Bounded(2, lambda: now[0])
    for i in range(5):
        log(f"line {i}")
    now[0] = 61.0
    log("line 5")
    assert [r.getMessage() for r in caplog.records] == [
        "line 0", "line 1", "3 lines on server metrics were left out", "line 5",
    ]  # fmt: skip
