"""A client whose open files run out says so, and loses nothing: its own files come before connections."""

import resource
import sys
from pathlib import Path

import pytest
from swarm_process import LOCUSTFILES, Process, Result, simulation
from warm_process import warm_code

from llm_locust.host import no_connection

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
