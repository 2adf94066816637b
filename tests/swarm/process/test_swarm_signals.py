"""How whole runs end: by a signal, whenever it comes, and by their run time."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from swarm_process import (
    LOCUSTFILES,
    Process,
    Result,
    forked,
    free_port,
    in_parallel,
    locust,
    simulation,
    wait_until,
)
from warm_process import warm_code

# --- A process that is told to end does so, with a code of the page and one line, whenever it is told


EARLY = "llm-locust: error: interrupted before the load began ({})\n"

AT_ONCE = """
import os, sys
from llm_locust.swarm.process.early_signals import end_at_a_signal

end_at_a_signal()
os.kill(os.getpid(), int(sys.argv[1]))
"""

ACROSS_EXEC = """
import os, sys
from llm_locust.swarm.process.early_signals import end_at_a_signal, keep_for_the_next_program

end_at_a_signal()
keep_for_the_next_program()
os.kill(os.getpid(), int(sys.argv[1]))
code = "from llm_locust.swarm.process.early_signals import end_at_a_signal; end_at_a_signal()"
os.execv(sys.executable, [sys.executable, "-c", code])
"""

#: The event loop is held by a greenlet, and by one that catches what ends it.
HELD = """
import os, signal, sys, time
import gevent
from llm_locust.swarm.process import exits

exits.HELD_S, exits.HELD_CPU_S, exits.AGAIN_S = 0.1, 0.05, 0.1
if sys.argv[1] == "hold":
    sys.stderr = sys.stdout
ours = exits.Signals()
ours.shut_down = lambda: print("shut down")
ours.take_over()

def hold():
    while True:
        pass

def catch():
    while True:
        try:
            hold()
        except BaseException:
            pass

def told():
    os.kill(os.getpid(), signal.SIGTERM)
    hold()

if sys.argv[2] == "signal":
    held = gevent.spawn(told)
else:
    ours.look_in(0.1)
    held = gevent.spawn({"hold": hold, "catch": catch}[sys.argv[1]])
held.join()
gevent.sleep(0.3)
print("goes on")
"""

#: Each answer takes longer than any patience.
SLOW = ("--ttft-base", "300s")
USUAL = ("--headless", "-u", "2", "-r", "10", "--out", "run", "--canary", "off")


@pytest.mark.parametrize("code", [AT_ONCE, ACROSS_EXEC], ids=["at once", "across exec"])
@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")])
def test_a_signal_before_anything_is_loaded_ends_with_2_and_one_line(
    code: str, number: signal.Signals, name: str
) -> None:
    command = [sys.executable, "-c", code, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", EARLY.format(name))


@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")])
def test_a_signal_while_workers_are_waited_for_ends_with_2_and_one_line(
    number: signal.Signals, name: str, tmp_path: Path
) -> None:
    options = ["--master", "--expect-workers", "2", "--master-bind-host", "127.0.0.1"]
    with (
        simulation(tmp_path / "sim") as sim,
        locust(tmp_path, *USUAL, *options, *forked(0)[2:4], "-t", "60s", "-H", sim.url) as master,
    ):
        master.wait_for("Waiting for workers|waiting for 2 workers")
        master.signal(number)
        assert master.exit_code() == 2
        assert master.said == [EARLY.format(name).strip()]


def test_a_second_sigterm_cuts_what_is_in_flight_and_the_process_ends(tmp_path: Path) -> None:
    with (
        simulation(tmp_path / "sim", *SLOW) as sim,
        locust(tmp_path, *USUAL, "-t", "600s", "--drain", "600s", "-H", sim.url) as process,
    ):
        process.wait_for("All users spawned")
        process.signal(signal.SIGTERM)
        process.wait_for("draining 2 requests")
        process.signal(signal.SIGTERM)
        assert process.exit_code() == 4
        assert "told to end again" in process.stderr


#: The process is held between its report and its last line.
WAITS_AT_ITS_END = """
from pathlib import Path
import gevent
from locust import events
from llm_locust.locustfiles.chat import Chat

@events.quitting.add_listener
def wait(**_):
    Path("waits").touch()
    while not Path("go").exists():
        gevent.sleep(0.01)
"""


@pytest.mark.parametrize(("interrupts", "code"), [(1, 0), (2, 4)])
def test_an_interrupt_between_the_report_and_its_last_line_changes_nothing_and_a_second_ends(
    interrupts: int, code: int, tmp_path: Path
) -> None:
    (tmp_path / "waits.py").write_text(WAITS_AT_ITS_END)
    options = [*USUAL, "--num-requests", "4", "--output-tokens", "2"]
    with (
        simulation(tmp_path / "sim") as sim,
        locust(tmp_path, *options, "-H", sim.url, locustfile=tmp_path / "waits.py") as process,
    ):
        wait_until((tmp_path / "waits").exists, "the end of the process")
        process.signal(signal.SIGINT)
        process.wait_for("Ctrl-C again exits without it")
        if interrupts == 1:
            (tmp_path / "go").touch()
        else:
            process.signal(signal.SIGINT)
        assert process.exit_code() == code, process.stderr
        assert ("exit 0" in process.stdout) == (interrupts == 1), process.stdout
        assert ("interrupted (Ctrl-C); `llm-locust merge`" in process.stderr) == (interrupts == 2)
        assert "Traceback" not in process.stderr


def test_forked_workers_end_as_soon_as_their_master_is_killed_and_keep_their_records(tmp_path: Path) -> None:
    with (
        simulation(tmp_path / "sim") as sim,
        locust(tmp_path, *USUAL, "-t", "600s", "--processes", "2", "-H", sim.url) as master,
    ):
        sim.wait_entries(10)
        master.signal(signal.SIGKILL)
        wait_until(lambda: not master.left_over(), "the end of its workers", 20)
        assert "the process that started this worker has ended" in master.stderr
        assert "told to end again" not in master.stderr
        assert list((tmp_path / "run" / "spool").glob("*"))


def test_a_port_in_use_is_refused_in_one_line_and_leaves_no_worker(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, simulation(tmp_path / "sim") as sim:
        port = str(taken.getsockname()[1])
        ports = ["--master-bind-port", port, "--master-port", port, "--processes", "2"]
        with locust(tmp_path, *USUAL, "-t", "5s", *ports, "-H", sim.url) as master:
            assert master.exit_code() == 2
            wait_until(lambda: not master.left_over(), "the end of its workers", 20)
            assert "Traceback" not in master.stderr
            assert [line for line in master.said if "is in use by another process" in line] == master.said


#: The second process that is forked ends before it connects.
STILLBORN = """
import os
from llm_locust.locustfiles.chat import Chat

born = [0]
os.register_at_fork(
    before=lambda: born.__setitem__(0, born[0] + 1),
    after_in_child=lambda: born[0] == 2 and os.kill(os.getpid(), 9),
)
"""


def test_a_master_does_not_wait_for_a_forked_worker_that_has_ended(tmp_path: Path) -> None:
    (tmp_path / "stillborn.py").write_text(STILLBORN)
    words = [*USUAL, "-t", "5s", "--processes", "2"]
    with (
        simulation(tmp_path / "sim") as sim,
        locust(tmp_path, *words, "-H", sim.url, locustfile=tmp_path / "stillborn.py") as master,
    ):
        assert master.exit_code() == 2
        wait_until(lambda: not master.left_over(), "the end of the other worker", 20)
        (line,) = master.said
        assert "ended before the load" in line


def test_two_runs_with_local_workers_do_not_meet(tmp_path: Path) -> None:
    options = (*USUAL, "--processes", "2", "--num-requests", "20", "--output-tokens", "4")
    first, second = (tmp_path / name for name in ("first", "second"))
    first.mkdir()
    second.mkdir()
    with simulation(tmp_path / "sim") as sim:
        runs: list[tuple[Path, Process]] = []
        with (
            locust(first, *options, "-H", sim.url) as one,
            locust(second, *options, "-H", sim.url) as other,
        ):
            runs += [(first, one), (second, other)]
            assert [process.exit_code() for _, process in runs] == [0, 0], one.stderr + other.stderr
    assert all(len(Result.read(folder / "run").requests) == 20 for folder, _ in runs)
    assert all(len(Result.read(folder / "run").manifest.workers) == 2 for folder, _ in runs)


@pytest.mark.parametrize("by", ["signal", "alarm"])
def test_code_that_holds_the_event_loop_is_ended_and_the_process_goes_on(by: str) -> None:
    said = warm_code(HELD, "hold", by)
    assert "the event loop is held by code that does not wait" in said
    assert ("shut down" in said) == (by == "signal")
    assert said.endswith("goes on\n")


def test_code_that_holds_it_for_good_ends_the_process() -> None:
    with pytest.raises(AssertionError, match="the event loop is held by code that does not end"):
        warm_code(HELD, "catch", "alarm")


# --- The run time in whole runs of an open loop: the schedule has all of it, however the run is started


RATE, RUN_TIME_S = 10, 2
LOAD = ["--request-rate", str(RATE), "--arrival", "constant", "--output-tokens", "1", "--input-tokens", "16"]


def _started_at_once(*words: str) -> Callable[[Path], Result]:
    """A run that begins by itself and ends with its process."""

    def run(folder: Path) -> Result:
        with (
            simulation(folder / "sim") as sim,
            locust(
                folder,
                *(*LOAD, "-t", f"{RUN_TIME_S}s", "-H", sim.url, "--out", "run", *words),
                locustfile=LOCUSTFILES / "open_loop.py",
            ) as process,
        ):
            assert process.exit_code() == 0, process.stderr
        return Result.read(folder / "run")

    return run


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=120):
            return True
    except OSError:
        return False


def _started_in_the_web_ui(folder: Path) -> Result:
    port = free_port()
    web = ["--web-host", "127.0.0.1", "--web-port", str(port), "--out", "run"]
    form = {"user_count": "1", "spawn_rate": "1", "run_time": f"{RUN_TIME_S}s"}
    with (
        simulation(folder / "sim") as sim,
        locust(folder, *LOAD, *web, "-H", sim.url, locustfile=LOCUSTFILES / "open_loop.py"),
    ):
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: _answers(url), "the web UI")
        with urlopen(f"{url}/swarm", urlencode(form).encode(), timeout=120) as answer:
            assert json.loads(answer.read())["success"]
        wait_until((folder / "run/report.html").exists, "the report of a run that nobody stopped")
    return Result.read(folder / "run")


RUNS: dict[str, Callable[[Path], Result]] = {
    "headless, two workers": _started_at_once("--headless", *forked(2)),
    "--autostart --autoquit": _started_at_once(
        *("--autostart", "--autoquit", "0", "--web-host", "127.0.0.1", "--web-port", str(free_port()))
    ),
    "web UI": _started_in_the_web_ui,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    return in_parallel(tmp_path_factory.mktemp("run_time"), RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_a_schedule_of_constant_gaps_has_as_many_requests_as_the_run_time_asks_for(
    name: str, runs: dict[str, Result]
) -> None:
    manifest, requests = runs[name].manifest, runs[name].requests
    scheduled_ns = requests.ints("scheduled_ns")
    # One request may be due at the very end. A busy machine ends later, never earlier.
    assert len(scheduled_ns) + runs[name].summary["completeness"]["unsent"] >= RATE * RUN_TIME_S - 1
    assert manifest.stopped_ns is not None
    assert (manifest.stopped_ns - scheduled_ns.min()) * 1e-9 > RUN_TIME_S - 1 / RATE - 0.001


@pytest.mark.parametrize("name", RUNS)
def test_an_end_by_the_run_time_needs_no_reason_and_is_in_the_manifest_as_it_was_given(
    name: str, runs: dict[str, Result]
) -> None:
    manifest = runs[name].manifest
    assert (manifest.stop_reason, manifest.cut_short) == ("", False)
    assert manifest.options["run_time"] == RUN_TIME_S
