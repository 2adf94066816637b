"""A process's loop, CPU and memory, and its children."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import gevent
import pytest

from llm_locust.core.manifest import NodeHealth
from llm_locust.swarm.process import health as module
from llm_locust.swarm.process.children import Child
from llm_locust.swarm.process.health import Health

# --- How a process's event loop, CPU and memory are sampled


pytestmark = pytest.mark.alone

HELD_S = 0.3


@pytest.fixture
def health() -> Iterator[Health]:
    made = Health()
    yield made
    made.close()


def run_until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until the condition holds (Timeout after 120 s)."""
    with gevent.Timeout(120):
        while not condition():
            gevent.sleep(0.01)


def lag_ms_max(health: Health) -> float:
    return health.snapshot().hub_lag_ms_max or 0.0


def use_cpu(seconds: float) -> None:
    """Hold the event loop until this process has used so much CPU."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_before_the_first_sample_the_lag_is_not_known(health: Health) -> None:
    snapshot = health.snapshot()
    assert (snapshot.hub_lag_ms_p99, snapshot.hub_lag_ms_max) == (None, None)


def test_a_loop_that_was_held_is_late_by_what_was_left_of_it_when_the_timer_was_due(health: Health) -> None:
    begin = time.monotonic()
    time.sleep(HELD_S)  # the thread's own: no greenlet gets a turn
    run_until(lambda: health.snapshot().hub_lag_ms_max is not None)
    most_ms = (time.monotonic() - begin - module.LAG_INTERVAL_S) * 1e3
    assert (HELD_S - module.LAG_INTERVAL_S) * 1e3 - 1 <= lag_ms_max(health) <= most_ms + 1


def test_the_percentile_is_that_of_all_samples_of_all_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAG_INTERVAL_S", 0.001)
    monkeypatch.setattr(module, "COST_INTERVAL_S", 0.01)
    health = Health()
    held_s = 0.05
    time.sleep(held_s)
    run_until(lambda: (health.snapshot().hub_lag_ms_p99 or held_s * 1e3) < held_s * 1e3 * 0.9)
    health.close()
    assert lag_ms_max(health) > held_s * 1e3 / 2


def test_a_new_run_begins_with_nothing(health: Health) -> None:
    time.sleep(HELD_S)
    run_until(lambda: lag_ms_max(health) > 0)
    health.begin()
    assert health.snapshot().hub_lag_ms_max is None
    run_until(lambda: health.snapshot().hub_lag_ms_max is not None)
    assert lag_ms_max(health) < HELD_S * 1e3 / 2


def test_a_delay_stands_for_the_samples_that_the_held_loop_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held for 90 of every 100 ms, a sample every 50: of samples that were taken at all times, a tenth is in
    time, and half are 40 ms late and more."""
    health = Health()
    health._new_lags_ns = [40_000_000] * 100
    assert health.snapshot().hub_lag_ms_p99 == pytest.approx(40.0, rel=0.001)
    health._new_lags_ns = [1_000_000_000]
    health.begin()
    health._new_lags_ns = [1_000_000_000]
    found = health.snapshot()
    health.close()
    assert found.hub_lag_ms_max == 1000.0
    assert len(health._lag) == 21, "1000, 950, .. 0 ms"


def test_the_course_of_a_run_is_few_cells_however_long_it_is(
    health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(time, "time", lambda: 1e9 + now_s)
    health.begin()
    began_s = now_s
    for _ in range(400):
        now_s += 75.0
        health._on_timer()
        cells = health.snapshot().cells
        assert len(cells) <= module.MOST_CELLS
    assert sum(cell.seconds for cell in cells) == pytest.approx(now_s - began_s)
    ends = [cell.at_s for cell in cells]
    assert ends == sorted(ends)
    assert ends[-1] == pytest.approx(1e9 + now_s, abs=0.01)
    assert len(cells) > module.MOST_CELLS / 2


def test_cpu_is_the_greatest_mean_of_an_interval_in_percent_of_one_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "COST_INTERVAL_S", 0.1)
    health = Health()
    begin = time.monotonic()
    use_cpu(0.2)
    least = 100 * 0.2 / (time.monotonic() - begin + 0.3)
    idle_until = time.monotonic() + 5 * module.COST_INTERVAL_S
    run_until(lambda: time.monotonic() > idle_until)
    percent = health.snapshot().cpu_percent_max
    health.close()
    assert percent is not None
    assert least <= percent <= 120


def test_a_run_shorter_than_an_interval_has_its_cpu_and_memory_too(health: Health) -> None:
    use_cpu(0.05)
    snapshot = health.snapshot()
    assert snapshot.cpu_percent_max is not None
    assert snapshot.cpu_percent_max > 0
    assert snapshot.rss_mib_max is not None
    assert 5 < snapshot.rss_mib_max < 10_000


def test_memory_that_was_given_back_stays_in_the_greatest(health: Health) -> None:
    before = health.snapshot().rss_mib_max
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    during = health.snapshot().rss_mib_max
    del block
    assert before is not None
    assert during is not None
    assert during > before + 50
    assert health.snapshot().rss_mib_max == during


def test_memory_over_time_is_few_points_however_long_the_run_is(
    health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    health.begin()
    for _ in range(480):
        now_s += 180.0
        points = health.snapshot().rss_mib
        assert len(points) < module.MOST_MEMORY_POINTS
    at_s = [at for at, _ in points]
    assert at_s == sorted(at_s)
    assert at_s[-1] > 0.9 * 24 * 3600
    assert len(points) >= module.MOST_MEMORY_POINTS / 2 - 1
    assert all(mib > 1 for _, mib in points)
    health.begin()
    now_s += 1.0
    assert health.snapshot().rss_mib == []


def test_a_closed_one_samples_no_more(health: Health) -> None:
    run_until(lambda: health.snapshot().hub_lag_ms_max is not None)
    health.close()
    before = health.snapshot().hub_lag_ms_max
    time.sleep(HELD_S)
    gevent.sleep(2 * module.LAG_INTERVAL_S)  # nothing is to happen: there is no event to wait for
    assert health.snapshot().hub_lag_ms_max == before


STOPPED = """
import json, sys
from dataclasses import asdict
import gevent
from gevent.select import select
from llm_locust.swarm.process.health import (Health)

health = Health()
while health.snapshot().hub_lag_ms_max is None:
    gevent.sleep(0.01)
print("ready", flush=True)
select([sys.stdin], [], [])
gevent.sleep(0.2)
print(json.dumps(asdict(health.snapshot())), flush=True)
"""


def test_a_process_that_was_stopped_shows_one_lag_of_that_length() -> None:
    stopped_s = 1.5
    child = subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGSTOP)
        time.sleep(stopped_s)
        child.stdin.write("go on\n")
        child.stdin.flush()
        child.send_signal(signal.SIGCONT)
        said = NodeHealth(**json.loads(child.stdout.readline()))
    finally:
        child.kill()
        child.communicate()
    assert said.hub_lag_ms_max is not None
    assert said.hub_lag_ms_max >= (stopped_s - module.LAG_INTERVAL_S) * 1e3 - 50
    assert said.paused_ms_max == said.hub_lag_ms_max


@pytest.mark.parametrize("hold", [time.sleep, use_cpu])
def test_a_loop_that_is_held_is_no_pause_of_the_process(
    health: Health, hold: Callable[[float], None]
) -> None:
    hold(1.2)
    run_until(lambda: lag_ms_max(health) > 1000)
    assert health.snapshot().paused_ms_max == 0


def test_a_machine_that_slept_was_paused_though_its_clock_was_too(
    health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_ns = module._asleep_ns()
    monkeypatch.setattr(module, "_asleep_ns", lambda: before_ns + 5_000_000_000)
    run_until(lambda: lag_ms_max(health) > 1000)
    assert 5000 <= (health.snapshot().paused_ms_max or 0) < 6000


def test_without_a_thread_to_tell_a_pause_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "get_original", lambda *_: full)
    health = Health()
    assert health.snapshot().paused_ms_max is None
    health.close()


# --- A process that goes on beside this one: heard line by line, ended in bounded time


#: What the child does, by its first word.
MODULE = """
import os, signal, sys, time

def main():
    what = sys.argv[1]
    if what == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"begun {os.environ.get('TOKEN')} {os.environ.get('TOKEN_2')}", flush=True)
    print("trouble", file=sys.stderr, flush=True)
    if what == "brief":
        print("last words without an end", end="")
        return 3
    while True:
        time.sleep(0.02)
"""


@dataclass
class Heard:
    """A child, and what was heard of it."""

    lines: list[bytes] = field(default_factory=list)
    errors: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def start(self, word: str, **more: Any) -> Child:
        return Child(
            "child_of_a_test",
            [word],
            on_line=self.lines.append,
            on_error_line=self.errors.append,
            on_end=self.ends.append,
            **more,
        )

    def until_begun(self) -> None:
        with gevent.Timeout(120):
            while not (self.lines and self.errors):
                gevent.sleep(0.005)


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_watch_of_children: None) -> None:
    (tmp_path / "child_of_a_test.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_all_that_it_said_is_heard_before_its_end_is_known() -> None:
    heard = Heard()
    assert heard.start("brief").wait(120) == 3
    assert heard.lines == [b"begun None None", b"last words without an end"]
    assert heard.errors == [b"trouble"]
    gevent.sleep(0)
    assert heard.ends == [3]


def test_it_is_asked_to_end_and_its_lines_come_while_it_runs() -> None:
    heard = Heard()
    child = heard.start("patient")
    heard.until_begun()
    assert child.wait(0.01) is None
    assert child.end(within_s=20) == -SIGTERM
    assert child.end(within_s=20) == -SIGTERM, "one that has ended is left alone"
    assert heard.ends == [-SIGTERM]


def test_one_that_does_not_listen_is_killed_after_its_time() -> None:
    heard = Heard()
    child = heard.start("stubborn")
    heard.until_begun()
    began = time.monotonic()
    assert child.end(within_s=0.2) == -SIGKILL
    assert 0.2 <= time.monotonic() - began < 10


def test_only_the_variables_that_are_named_go_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "t")
    monkeypatch.setenv("TOKEN_2", "u")
    heard = Heard()
    heard.start("brief", variables=["TOKEN"]).wait(120)
    assert heard.lines[0] == b"begun t None"


def test_what_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(sys, "executable", "/nowhere")
    with pytest.raises(OSError, match="nowhere"):
        Heard().start("brief")
    assert len(os.listdir("/proc/self/fd")) <= len(before)
