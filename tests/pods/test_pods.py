"""The demo overlay for real: master, three workers and a simulated deployment as pods of podman."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from swarm_process import in_parallel, wait_until

from llm_locust.core.manifest import Manifest, WorkerFacts
from llm_locust.store import MANIFEST_FILE, SUMMARY_FILE, read_manifest
from pods.pods import Cluster, playing, podman

IMAGE = os.environ.get("LLM_LOCUST_TEST_IMAGE", "")

pytestmark = pytest.mark.skipif(not IMAGE, reason="needs root and podman; run by `make test-k8s`")

MASTER = "llm-locust-master"
WORKERS = [f"llm-locust-worker-{i}" for i in range(3)]

SCENARIO = """
users: 12
spawn_rate: 12
run_time: {run_time_s}s
seed: 1
input_tokens: uniform:10,40
output_tokens: uniform:20,60
gate: {gate}
"""

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


@dataclass(slots=True)
class Ended:
    """What is left of a run."""

    exit_codes: dict[str, int]
    said: tuple[str, str]
    run: Path
    seen: dict[str, Any] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        return read_manifest(self.run)

    @property
    def summary(self) -> Any:
        return json.loads((self.run / SUMMARY_FILE).read_text())

    def worker(self, pod: str) -> WorkerFacts:
        (worker,) = (w for w in self.manifest.workers if w.id.startswith(pod))
        return worker


def manifests(folder: Path, gate: str, run_time_s: int) -> str:
    scenario = folder / "scenario.yaml"
    scenario.write_text(SCENARIO.format(gate=gate, run_time_s=run_time_s))
    words = ["--scenario", str(scenario), "--overlay", "demo", "--workers", "3", "--image", IMAGE]
    command = str(Path(sys.executable).parent / "llm-locust")
    done = subprocess.run([command, "k8s", "render", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_for_load(cluster: Cluster) -> None:
    """Until the master has records of every worker."""
    runs = cluster.volume(MASTER, "/runs")

    def under_way() -> bool:
        manifests = [read_manifest(path.parent) for path in runs.glob(f"*/{MANIFEST_FILE}")]
        received = [worker.received for manifest in manifests for worker in manifest.workers]
        return len(received) == len(WORKERS) and all(received)

    wait_until(under_way, "records of every worker", 90)


def ended(cluster: Cluster, folder: Path) -> Ended:
    codes = {pod: cluster.exit_code(pod) for pod in (MASTER, *WORKERS)}
    said = cluster.log(MASTER)
    runs = list(cluster.volume(MASTER, "/runs").glob(f"*/{SUMMARY_FILE}"))
    assert len(runs) == 1, "".join(said)
    return Ended(codes, said, shutil.copytree(runs[0].parent, folder / "run"))


def run_well(folder: Path) -> Ended:
    """One whose last worker is stopped midway, as a drained node does it."""
    with playing(manifests(folder, "error_rate<1%", 25), folder, "llm-locust-test-well") as cluster:
        wait_for_load(cluster)
        inside = {pod: json.loads(cluster.run_python(pod, INSIDE)) for pod in (MASTER, WORKERS[0])}
        podman("stop", "--time", "60", cluster.containers[WORKERS[2]])
        made = ended(cluster, folder)
    made.seen = inside
    return made


def run_badly(folder: Path) -> Ended:
    with playing(manifests(folder, "p50_ttft<1ms", 4), folder, "llm-locust-test-gate") as cluster:
        return ended(cluster, folder)


def run_under_fire(folder: Path) -> Ended:
    """One of whose workers one is killed, and another one by the kernel, for its memory."""
    with playing(manifests(folder, "error_rate<100%", 25), folder, "llm-locust-test-fire") as cluster:
        wait_for_load(cluster)
        podman("kill", cluster.containers[WORKERS[0]])
        cluster.run_python(WORKERS[1], OUT_OF_MEMORY, check=False)
        return ended(cluster, folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    folder = tmp_path_factory.mktemp("pods")
    return in_parallel(folder, {"well": run_well, "gate": run_badly, "fire": run_under_fire})


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


def test_a_broken_gate_is_the_exit_code_of_the_master_and_no_failure_of_a_worker(
    runs: dict[str, Ended],
) -> None:
    run = runs["gate"]
    assert run.exit_codes == {MASTER: 1} | dict.fromkeys(WORKERS, 0), run.said
    assert [gate["passed"] for gate in run.summary["gates"]] == [False]


def test_workers_that_are_killed_are_named_and_the_run_goes_on(runs: dict[str, Ended]) -> None:
    run = runs["fire"]
    # Records are missing, and it says so.
    assert run.exit_codes == dict(zip((MASTER, *WORKERS), (4, 137, 137, 0), strict=True)), run.said
    assert not run.manifest.complete
    for pod in WORKERS[:2]:
        assert run.worker(pod).lost
        assert pod in "".join(run.said)
    survivor = run.worker(WORKERS[2])
    assert not survivor.lost
    assert survivor.received == survivor.announced
    longest_lived = max(run.manifest.workers, key=lambda worker: worker.received)
    assert longest_lived == survivor


def test_no_more_than_the_last_seconds_of_a_killed_worker_are_missing(runs: dict[str, Ended]) -> None:
    completeness = runs["fire"].summary["completeness"]
    assert completeness["workers_lost"] == 2
    missing = completeness["records_announced"] - completeness["records_received"]
    assert 0 <= missing < 0.5 * completeness["records_received"]
