"""A process that is told to end does so, with a code of the page and one line, whenever it is told."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from swarm_process import Process, Result, forked, locust, simulation, wait_until
from warm_process import warm_code

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
from llm_locust.swarm.process import signals

signals.HELD_S, signals.HELD_CPU_S, signals.AGAIN_S = 0.1, 0.05, 0.1
if sys.argv[1] == "hold":
    sys.stderr = sys.stdout
ours = signals.Signals()
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
