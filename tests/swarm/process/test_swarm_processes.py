"""A process's log, the programs that it starts, and the silence of its master."""

import errno
import logging
import re
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from llm_locust.swarm.process import log
from llm_locust.swarm.process.event_loop import RateLimiter
from llm_locust.swarm.process.log import LineFilter, LineFormatter
from llm_locust.swarm.roles.lost_master import GIVE_UP_S, SILENT_S, MasterWatch, Step

# --- Programs that a traced process starts: nothing of the load may run between their fork and their start


#: A busy loop beside it, as a user's: what runs in a child writes the child's id.
PROCESS = """
from gevent import monkey
monkey.patch_all()
import os, subprocess, sys
import gevent
from locust.env import Environment
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExporter, MetricExportResult
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from llm_locust.swarm.tracing_setup import (attach_tracing)


class Nowhere(MetricExporter):
    def export(self, *args, **kwargs): return MetricExportResult.SUCCESS
    def force_flush(self, *args, **kwargs): return True
    def shutdown(self, *args, **kwargs): pass


provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
trace.set_tracer_provider(provider)
metrics = MeterProvider([PeriodicExportingMetricReader(Nowhere())])
if sys.argv[1] == "attached":
    attach_tracing(Environment())


def user():
    while True:
        os.write(1, f"{os.getpid()}\\n".encode())
        gevent.sleep(0)


os.write(1, f"{os.getpid()}\\n".encode())
user = gevent.spawn(user)
gevent.sleep(0.01)
for _ in range(3):
    with gevent.Timeout(20, False):
        subprocess.run(["true"], check=True)
os._exit(0)
"""


def _processes(how: str) -> set[str]:
    """The processes in which the user's loop ran."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, how], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_no_user_runs_in_the_child_of_a_traced_process() -> None:
    assert len(_processes("attached")) == 1


# --- The log is for people: time and text, nothing that misleads, one traceback for each place


RAISED = """'token'
Traceback (most recent call last):
  File "/x/site-packages/locust/user/users.py", line 168, in run
    self.on_start()
  File "/home/me/asker.py", line {line}, in on_start
    raise KeyError("token")
KeyError: 'token'"""


def record(text: str, name: str = "locust.user.users", level: int = logging.ERROR) -> logging.LogRecord:
    return logging.LogRecord(name, level, "", 0, "%s", (text,), None)


@pytest.mark.parametrize(
    ("level", "shown"),
    [(logging.INFO, "text"), (logging.WARNING, "WARNING: text"), (logging.ERROR, "ERROR: text")],
)
def test_a_line_is_time_and_text_and_says_if_it_is_a_warning(level: int, shown: str) -> None:
    for is_terminal, time in ((True, r"\d\d:\d\d:\d\d"), (False, r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")):
        line = LineFormatter(is_terminal).format(record("text", level=level))
        assert re.fullmatch(rf"{time} {shown}", line), line


@pytest.mark.parametrize(
    "text",
    [
        "No run time limit set, use CTRL+C to interrupt",
        "Your selected spawn rate is very high (>100), and this is known to sometimes cause issues.",
        "Your selected spawn rate is very high (>100/worker), and this is known to sometimes cause issues.",
        "While stopping users, we encountered a user that didn't have proper args <Greenlet at 0x7f>",
        "Admin had no tasks left after filtering, instantiating it will fail!",
        "Bad response code from worker children: 4",
        "Ramping to 1 users at a rate of 1.00 per second",
        'All users spawned: {"OpenLoop": 1} (1 total users)',
    ],
)
def test_what_misleads_is_dropped(text: str) -> None:
    assert not LineFilter().filter(record(text, "locust.runners"))
    assert LineFilter().filter(record(f"the users said: {text}", "locust.runners"))


@pytest.mark.parametrize("error", ["MemoryError", "numpy._core._exceptions._ArrayMemoryError: no room"])
def test_memory_that_has_run_out_is_a_line_with_what_to_do(error: str) -> None:
    lost = "Uncaught exception in event handler: \n" + RAISED.format(line=9).replace(
        "KeyError: 'token'", error
    )
    line = record(lost.replace("'token'\n", "", 1), "locust.event")
    assert LineFilter().filter(line)
    said = "Uncaught exception in event handler: memory has run out: raise `ulimit -v` or the memory limit"
    assert line.getMessage().startswith(said)
    assert "\n" not in line.getMessage()
    lines, of_a_task = LineFilter(), RAISED.format(line=9).replace("KeyError: 'token'", "MemoryError")
    assert [lines.filter(record(of_a_task)) for _ in range(3)] == [True, False, False]


def test_what_has_run_out_is_a_line_without_a_traceback_unless_a_user_logs_it() -> None:
    error = OSError(errno.EMFILE, "Too many open files")
    for name, is_line in (("locust.log", True), ("llm_locust.swarm.plugin", True), ("mine", False)):
        line = record("the web server failed", name)
        line.exc_info = (OSError, error, None)
        assert LineFilter().filter(line)
        said = LineFormatter(False).format(line)
        assert ("the web server failed: Too many open files: raise `ulimit -n`" in said) == is_line
        assert ("\n" not in said) == is_line


def test_the_first_traceback_of_a_place_is_shown_and_the_others_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(log, "time", SimpleNamespace(monotonic=lambda: now[0]))
    lines = LineFilter()
    first = record(RAISED.format(line=9))
    assert lines.filter(first)
    assert lines.filter(first), "by the next handler"
    assert not lines.filter(record(RAISED.format(line=9), "llm_locust.swarm.process.log")), "gevent's report"
    assert not any(lines.filter(record(RAISED.format(line=9))) for _ in range(98))
    assert lines.filter(record(RAISED.format(line=10))), "another place"
    assert lines.filter(record(RAISED.format(line=9), "a.library")), "not of a user"
    now[0] = 31.0
    counted = record(RAISED.format(line=9))
    assert lines.filter(counted)
    assert counted.getMessage() == "KeyError: 'token' (at asker.py:9 in on_start): 100 times so far"
    assert not lines.filter(record(RAISED.format(line=9)))


# --- A message that comes often is said at once, and then seldom


def test_the_first_is_said_and_then_one_an_interval() -> None:
    now = [100.0]
    limiter = RateLimiter(30.0, clock=lambda: now[0])
    said = []
    for moment in (100.0, 100.0, 129.9, 130.0, 131.0, 500.0):
        now[0] = moment
        said.append(limiter.ready())
    assert said == [True, False, False, True, False, True]


# --- What a worker does about the silence of its master, on a virtual clock


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def steps(watch: MasterWatch, clock: Clock, seconds: float, every_s: float = 0.5) -> list[tuple[float, Step]]:
    """Each step that was decided, with the seconds since the beginning."""
    found = []
    begin_s = clock.now_s
    while clock.now_s - begin_s < seconds:
        clock.now_s += every_s
        found.append((clock.now_s - begin_s, watch.step()))
    return found


def met() -> tuple[MasterWatch, Clock]:
    clock = Clock()
    watch = MasterWatch(clock)
    watch.heard()
    return watch, clock


def test_a_load_ends_within_ten_seconds_of_silence_and_its_worker_gives_up_after_thirty() -> None:
    watch, clock = met()
    found = steps(watch, clock, 35.0)
    at = {step: next(at_s for at_s, each in found if each == step) for step in ("stop", "leave")}
    assert at == {"stop": SILENT_S, "leave": GIVE_UP_S}
    assert at["stop"] < 10.0
    counted = Counter(step for _, step in found)
    assert counted["stop"] == 1
    assert counted["deliver"] == 0


def test_a_master_that_answers_every_second_is_never_gone() -> None:
    watch, clock = met()
    for _ in range(100):
        assert {step for _, step in steps(watch, clock, 7.0)} == {"load"}
        watch.heard()


def test_a_worker_that_has_not_met_its_master_waits_for_it() -> None:
    clock = Clock()
    watch = MasterWatch(clock)
    assert {step for _, step in steps(watch, clock, 400.0)} == {"load"}


def test_a_master_that_is_back_is_delivered_to_after_the_load_has_ended() -> None:
    watch, clock = met()
    steps(watch, clock, 15.0)
    watch.heard()
    assert steps(watch, clock, 0.5)[0][1] == "deliver"


def test_another_master_ends_the_load_at_once_and_is_delivered_to() -> None:
    watch, clock = met()
    watch.unknown()
    assert [step for _, step in steps(watch, clock, 1.0)] == ["stop", "deliver"]


@pytest.mark.parametrize("pause_s", [20.0, 300.0])
def test_a_process_that_stood_still_reads_what_has_arrived_before_it_decides(pause_s: float) -> None:
    watch, clock = met()
    clock.now_s += pause_s
    assert watch.step() == "load"
    watch.heard()
    assert watch.step() == "load"
