"""The demo overlay for real: master, workers and a simulated deployment as pods of podman, all at once."""

import json
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from swarm_process import in_parallel

from pods.cases import MASTER, SIM, Ended, ended, named, rendered, wait_for_load, worker
from pods.cluster import playing, run_python
from pods.podman import podman

#: Those that are killed.
KILLED = [worker(0), worker(1)]

#: How long the target is not there.
LATE_S = 30

#: What a container says of itself from inside.
INSIDE = """
import errno, json, os
def error_of_writing(folder):
    try:
        with open(folder + "/probe", "w"):
            os.unlink(folder + "/probe")
    except OSError as e:
        return errno.errorcode[e.errno]
status = dict(line.rstrip("\\n").split(":\\t", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "ids": [os.getuid(), os.getgid()],
    "capabilities": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"],
    "seccomp": status["Seccomp"],
    "writing": {at: error_of_writing(at) for at in ("/", "/opt/llm-locust", "/etc", "/runs", "/tmp")},
}))
"""

#: Takes all memory that the container may have; the worker is what the kernel kills first then.
OUT_OF_MEMORY = """
import mmap
for pid, score in (("1", "1000"), ("self", "0")):
    with open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write(score)
mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
"""


def run_well(folder: Path) -> Ended:
    """One whose last worker is stopped midway, as a drained node does it."""
    name = named("well")
    with playing(rendered(folder, name, workers=2, run_time_s=20), folder, name) as cluster:
        wait_for_load(cluster)
        podman("stop", "--time", "60", cluster.pod(worker(1)).container())
        return ended(cluster, folder)


def run_under_fire(folder: Path) -> Ended:
    """One of whose workers one is killed, and another one by the kernel, for its memory.

    It ends when the pods that replace them have loaded, however long a machine takes to start these.
    """
    name = named("fire")
    manifests = rendered(folder, name, workers=3, gate="error_rate<100%", run_time_s=600)
    with playing(manifests, folder, name) as cluster:
        wait_for_load(cluster)
        looked_at = {pod: json.loads(run_python(cluster.pod(pod), INSIDE)) for pod in (MASTER, worker(0))}
        cluster.pod(worker(0)).kill()
        run_python(cluster.pod(worker(1)), OUT_OF_MEMORY, check=False)
        wait_for_load(cluster, workers=5)
        podman("kill", "--signal", "TERM", cluster.master.container())
        made = ended(cluster, folder)
    made.seen = looked_at
    return made


def run_with_a_late_target(folder: Path) -> Ended:
    """One that breaks its gate besides."""
    name, begun_s = named("late"), time.time()
    manifests = rendered(folder, name, workers=1, gate="p50_ttft<1ms")
    with playing(manifests, folder, name, late=SIM, late_s=LATE_S) as cluster:
        made = ended(cluster, folder)
        load_s = datetime.fromisoformat(made.summary["window"]["start"]).timestamp()
        made.seen = {"load_after_s": load_s - begun_s}
        return made


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    folder = tmp_path_factory.mktemp("pods")
    cases = {
        "late": run_with_a_late_target,
        "fire": run_under_fire,
        "well": run_well,
    }
    return in_parallel(folder, cases)


@pytest.mark.parametrize(("case", "workers"), [("well", 2), ("late", 1)])
def test_a_run_says_its_summary_in_the_last_line_of_its_log_and_a_broken_gate_is_the_masters_exit_code_alone(
    runs: dict[str, Ended], case: str, workers: int
) -> None:
    run, is_broken = runs[case], case == "late"
    assert run.exit_codes == {MASTER: int(is_broken)} | {worker(i): 0 for i in range(workers)}, run.said
    assert [gate["passed"] for gate in run.summary["gates"]] == [not is_broken]
    assert run.manifest.complete
    assert json.loads(run.said[0].splitlines()[-1]) == run.summary
    assert run.summary["requests"]["failed"] == 0
    assert run.restarts == 0
    assert run.replaced == []


def test_a_run_asks_all_replicas_of_its_target(runs: dict[str, Ended]) -> None:
    run = runs["well"]
    assert run.summary["requests"]["ok"] > 50
    assert {r["name"] for r in run.summary["replicas"]} == {f"replica-{i}" for i in range(4)}


def test_a_worker_that_is_stopped_leaves_nothing_behind(runs: dict[str, Ended]) -> None:
    stopped = runs["well"].worker(worker(1))
    assert stopped.left
    assert not stopped.lost
    assert stopped.received == stopped.announced
    assert stopped.received > 0


@pytest.mark.parametrize("pod", [MASTER, worker(0)])
def test_a_container_may_write_two_folders_and_nothing_else(runs: dict[str, Ended], pod: str) -> None:
    assert runs["fire"].seen[pod] == {
        "ids": [10001, 10001],
        "capabilities": ["0" * 16] * 5,
        "no_new_privileges": "1",
        "seccomp": "2",
        "writing": {"/": "EROFS", "/opt/llm-locust": "EROFS", "/etc": "EROFS", "/runs": None, "/tmp": None},
    }


def test_workers_that_are_killed_are_named_and_the_run_goes_on(runs: dict[str, Ended]) -> None:
    run = runs["fire"]
    # Records are missing, and it says so; the pods that the Job made instead end well.
    assert run.exit_codes == {MASTER: 4} | {worker(i): 0 for i in range(3)}, run.said
    assert sorted(run.replaced) == KILLED
    assert not run.manifest.complete
    for pod in KILLED:
        killed, successor = sorted(run.workers(pod), key=lambda worker: not worker.lost)
        assert killed.lost
        assert not successor.lost
        assert killed.id in "".join(run.said)
    survivor = run.worker(worker(2))
    assert not survivor.lost
    assert survivor.received == survivor.announced


def test_the_pods_that_replace_killed_workers_load_too(runs: dict[str, Ended]) -> None:
    run = runs["fire"]
    for pod in KILLED:
        assert all(worker.received > 0 for worker in run.workers(pod))


def test_no_more_than_the_last_seconds_of_a_killed_worker_are_missing(runs: dict[str, Ended]) -> None:
    completeness = runs["fire"].summary["completeness"]
    assert completeness["workers_lost"] == 2
    missing = completeness["records_announced"] - completeness["records_received"]
    assert 0 <= missing < 0.5 * completeness["records_received"]


def test_a_target_that_comes_up_30_s_late_is_waited_for(runs: dict[str, Ended]) -> None:
    assert runs["late"].seen["load_after_s"] > LATE_S


def test_runs_side_by_side_by_name_have_nothing_of_each_other(runs: dict[str, Ended]) -> None:
    in_order = sorted(runs.values(), key=lambda run: run.lived_s)
    assert any(a.lived_s[1] > b.lived_s[0] for a, b in pairwise(in_order)), "none were side by side"
    for case, workers in (("late", 1), ("well", 2), ("fire", 5)):
        run = runs[case]
        assert len(run.manifest.workers) == workers
        assert all(facts.received and facts.id.startswith(run.name) for facts in run.manifest.workers)
        assert run.manifest.host == f"http://{run.name}-llm-locust-sim:8000"
