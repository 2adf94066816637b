"""The demo overlay for real: master, three workers and a simulated deployment as pods of podman."""

import json
import time
from datetime import datetime
from pathlib import Path

import pytest
from swarm_process import in_parallel

from pods.cases import MASTER, SIM, WORKERS, Ended, ended, named, rendered, wait_for_load
from pods.cluster import playing, run_python
from pods.podman import podman

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
    with playing(rendered(folder, name, run_time_s=20), folder, name) as cluster:
        wait_for_load(cluster)
        looked_at = {pod: json.loads(run_python(cluster.pod(pod), INSIDE)) for pod in (MASTER, WORKERS[0])}
        podman("stop", "--time", "60", cluster.pod(WORKERS[2]).container())
        made = ended(cluster, folder)
    made.seen = looked_at
    return made


def run_under_fire(folder: Path) -> Ended:
    """One of whose workers one is killed, and another one by the kernel, for its memory.

    It ends when the pods that replace them have loaded, however long a machine takes to start these.
    """
    name = named("fire")
    manifests = rendered(folder, name, gate="error_rate<100%", run_time_s=600)
    with playing(manifests, folder, name) as cluster:
        wait_for_load(cluster)
        cluster.pod(WORKERS[0]).kill()
        run_python(cluster.pod(WORKERS[1]), OUT_OF_MEMORY, check=False)
        wait_for_load(cluster, workers=len(WORKERS) + 2)
        podman("kill", "--signal", "TERM", cluster.master.container())
        return ended(cluster, folder)


def run_with_a_late_target(folder: Path) -> Ended:
    name, begun_s = named("late"), time.time()
    with playing(rendered(folder, name), folder, name, late=SIM, late_s=LATE_S) as cluster:
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


def test_a_run_ends_well_and_says_its_summary_in_the_last_line_of_its_log(runs: dict[str, Ended]) -> None:
    run = runs["well"]
    assert run.exit_codes == dict.fromkeys((MASTER, *WORKERS), 0), run.said
    assert run.manifest.complete
    assert json.loads(run.said[0].splitlines()[-1]) == run.summary
    assert run.summary["requests"]["ok"] > 100
    assert {r["name"] for r in run.summary["replicas"]} == {f"replica-{i}" for i in range(4)}


def test_a_worker_that_is_stopped_leaves_nothing_behind(runs: dict[str, Ended]) -> None:
    stopped = runs["well"].worker(WORKERS[2])
    assert stopped.left
    assert not stopped.lost
    assert stopped.received == stopped.announced
    assert stopped.received > 0


@pytest.mark.parametrize("pod", [MASTER, WORKERS[0]])
def test_a_container_may_write_two_folders_and_nothing_else(runs: dict[str, Ended], pod: str) -> None:
    assert runs["well"].seen[pod] == {
        "ids": [10001, 10001],
        "capabilities": ["0" * 16] * 5,
        "no_new_privileges": "1",
        "seccomp": "2",
        "writing": {"/": "EROFS", "/opt/llm-locust": "EROFS", "/etc": "EROFS", "/runs": None, "/tmp": None},
    }


def test_workers_that_are_killed_are_named_and_the_run_goes_on(runs: dict[str, Ended]) -> None:
    run = runs["fire"]
    # Records are missing, and it says so; the pods that the Job made instead end well.
    assert run.exit_codes == {MASTER: 4} | dict.fromkeys(WORKERS, 0), run.said
    assert sorted(run.replaced) == WORKERS[:2]
    assert not run.manifest.complete
    for pod in WORKERS[:2]:
        killed, successor = sorted(run.workers(pod), key=lambda worker: not worker.lost)
        assert killed.lost
        assert not successor.lost
        assert killed.id in "".join(run.said)
    survivor = run.worker(WORKERS[2])
    assert not survivor.lost
    assert survivor.received == survivor.announced


def test_the_pods_that_replace_killed_workers_load_too(runs: dict[str, Ended]) -> None:
    run = runs["fire"]
    for pod in WORKERS[:2]:
        assert all(worker.received > 0 for worker in run.workers(pod))


def test_no_more_than_the_last_seconds_of_a_killed_worker_are_missing(runs: dict[str, Ended]) -> None:
    completeness = runs["fire"].summary["completeness"]
    assert completeness["workers_lost"] == 2
    missing = completeness["records_announced"] - completeness["records_received"]
    assert 0 <= missing < 0.5 * completeness["records_received"]


def test_a_target_that_comes_up_30_s_late_is_waited_for(runs: dict[str, Ended]) -> None:
    run = runs["late"]
    assert run.seen["load_after_s"] > LATE_S
    assert run.exit_codes == dict.fromkeys((MASTER, *WORKERS), 0), run.said
    assert run.manifest.complete
    assert run.summary["requests"]["failed"] == 0
    assert run.restarts == 0
