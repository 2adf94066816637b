"""What a process does to keep its loop and its open files free. (Locust patches the one that imports it.)"""

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from swarm_process import LOCUSTFILES, Process, Result, forked, locust, simulation
from warm_process import warm_code

from llm_locust.host import no_connection

# --- What a worker process does to keep its event loop free. (Locust patches the process that imports it.)


REMEMBERED = """
from locust import argument_parser

original, built = argument_parser.default_args_dict, []

def build():
    built.append(1)
    return original()

argument_parser.default_args_dict = build
from llm_locust.swarm.process.patches import remember_default_arguments

remember_default_arguments()
remember_default_arguments()
assert [argument_parser.default_args_dict() for _ in range(3)] == [original()] * 3
assert len(built) == 1, len(built)
"""

COLLECTED = """
import gc
import locust
from llm_locust.swarm.process.event_loop import (keep_collections_short)

before = gc.get_threshold()
keep_collections_short()
assert gc.get_freeze_count() > 10_000, gc.get_freeze_count()
assert len(gc.get_objects()) < 1_000, len(gc.get_objects())
assert gc.get_threshold() > before
"""


def run(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


#: ``inspect`` asks for modules only where it looks for sources.
STOPPED = """
import inspect
import logging
import sys
from locust.env import Environment
from llm_locust.swarm.process.patches import spare_sources

spare_sources()
inspect.getmodule = None
logging.basicConfig(level="DEBUG", stream=sys.stdout, format="%(message)s", force=True)
runner = Environment(user_classes=[]).create_local_runner()
runner.state = "running"
runner.stop()
"""


def test_the_names_of_locusts_own_arguments_are_worked_out_once() -> None:
    warm_code(REMEMBERED)


def test_locusts_stop_names_its_caller_and_looks_for_no_source() -> None:
    assert re.search(r"Stopping all users \(called from \S+/locust/runners\.py:\d+\)", warm_code(STOPPED))


def test_what_lives_at_a_runs_start_is_not_looked_at_by_the_collector_again() -> None:
    run(COLLECTED)


DRAWING = """
import random
import sys
from pathlib import Path

from locust import task

from llm_locust import ChatUser
from llm_locust.swarm.process.event_loop import (THREAD_SLICE_S)


class Drawing(ChatUser):
    @task
    def draw(self):
        assert sys.getswitchinterval() == THREAD_SLICE_S
        if self.number == 0 and not hasattr(self, "drawn"):
            self.drawn = random.random()
            with Path("drawn.txt").open("a") as file:
                file.write(f"{self.drawn}\\n")
        self.chat()
"""


def drawn(folder: Path, url: str) -> set[str]:
    """What each of two forked workers draws first from Python's own generator, with one seed."""
    folder.mkdir()
    path = folder / "locustfile.py"
    path.write_text(DRAWING)
    options = ["--headless", "-u", "4", "-r", "100", "-t", "1s", "--seed", "5", "-H", url, "--out", "run"]
    with locust(folder, *options, "--output-tokens", "40", *forked(2), locustfile=path) as process:
        assert process.exit_code() == 0
    return set((folder / "drawn.txt").read_text().split())


def test_trap_33_forked_workers_draw_apart_and_one_seed_gives_the_same_draws(tmp_path: Path) -> None:
    with simulation(tmp_path / "sim") as sim:
        first, second = (drawn(tmp_path / name, sim.url) for name in ("first", "second"))
    assert len(first) == 2
    assert first == second


# --- A client whose open files run out says so, and loses nothing: its own files come before connections


#: Answers of 5 s outlast the schedule: every request needs a connection of its own.
LIMIT, REQUESTS = 150, 160

WATCH = """
import gevent, logging
from types import SimpleNamespace
from locust.runners import Runner
from llm_locust.swarm.process import patches

looks = []

def watch(runner):
    looks.append(runner)
    raise OSError(24, "Too many open files")

Runner.monitor_cpu_and_memory = watch
patches.CPU_MONITOR_INTERVAL = 0.01
patches.keep_monitoring()
watching = gevent.spawn(Runner.monitor_cpu_and_memory, None)
gevent.sleep(0.2)
print(len(looks) > 2, watching.dead)
"""


@pytest.mark.parametrize(("limit", "kept"), [(200, 64), (100, 50)])
def test_the_last_descriptors_are_kept_for_the_process_itself(
    limit: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert no_connection(limit - kept - 1) is None
    why = f"it may have {limit} open files and keeps {kept} of them for its own: raise `ulimit -n`"
    assert (no_connection(limit - kept) or "").startswith(why)


def test_without_a_limit_there_is_always_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert no_connection(10**6) is None


def test_a_moment_without_a_descriptor_does_not_end_the_watch_that_a_local_run_lives_by() -> None:
    assert warm_code(WATCH).split() == ["True", "False"]


def test_requests_without_a_descriptor_fail_for_that_reason_and_the_run_goes_on(tmp_path: Path) -> None:
    options = ["--headless", "-u", "1", "--out", "run", "--output-tokens", "4", "--canary", "off"]
    options += ["--request-rate", "80", "--num-requests", str(REQUESTS)]
    # Not a warm one, which has inherited descriptors of high numbers.
    limited = ["sh", "-c", f'ulimit -n {LIMIT} && exec "$@"', "sh", sys.executable, "-m", "locust"]
    file = str(LOCUSTFILES / "open_loop.py")
    with simulation(tmp_path / "sim", "--ttft-base", "5s") as sim:
        process = Process([*limited, "-f", file, *options, "-H", sim.url], tmp_path)
        try:
            assert process.exit_code() == 1, process.stderr
        finally:
            process.end()
    result = Result.read(tmp_path / "run")
    assert "Traceback" not in process.stderr
    assert result.manifest.complete
    assert not result.manifest.cut_short
    rows = result.rows().values()
    assert len(rows) == REQUESTS
    failed = {str(row["error"]) for row in rows if row["outcome"] != "ok"}
    assert len(failed) == 1
    assert failed.pop().startswith(f"this client cannot open a connection: it may have {LIMIT} open files")
