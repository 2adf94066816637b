"""The demo overlay for real: master, three workers and a simulated deployment as pods of podman."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k8s.pods import Cluster, playing, podman
from llm_locust.store import SUMMARY_FILE, read_manifest

IMAGE = os.environ.get("LLM_LOCUST_TEST_IMAGE", "")

pytestmark = pytest.mark.skipif(not IMAGE, reason="needs root and podman; run by `make test-k8s`")

RUN_TIME_S = 12
SCENARIO = f"""
users: 12
spawn_rate: 12
run_time: {RUN_TIME_S}s
seed: 1
input_tokens: uniform:10,40
output_tokens: uniform:20,60
gate: {{gate}}
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


def manifests(folder: Path, gate: str) -> str:
    scenario = folder / "scenario.yaml"
    scenario.write_text(SCENARIO.format(gate=gate))
    words = ["--scenario", str(scenario), "--overlay", "demo", "--workers", "3", "--image", IMAGE]
    command = str(Path(sys.executable).parent / "llm-locust")
    done = subprocess.run([command, "k8s", "render", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_until(true: Callable[[], bool], patience_s: float = 60) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)


def wait_for_load(cluster: Cluster) -> None:
    """Until the master has records of every worker: two batches each."""
    code = (
        "import glob, json; m = [json.load(open(p)) for p in glob.glob('/runs/*/manifest.json')];"
        "print(json.dumps([w['received'] for r in m for w in r['workers']]))"
    )

    def under_way() -> bool:
        received: Any = cluster.run_python("llm-locust-master", code)
        return len(received) == 3 and all(received)

    wait_until(under_way)


def worker_of(manifest: Any, pod: str) -> Any:
    (worker,) = (w for w in manifest.workers if w.id.startswith(pod))
    return worker


def test_a_run_ends_well_and_a_worker_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    with playing(manifests(tmp_path, "error_rate<1%"), tmp_path) as cluster:
        wait_for_load(cluster)
        for pod in ("llm-locust-master", "llm-locust-worker-0"):
            inside = cluster.run_python(pod, INSIDE)
            assert inside == {
                "ids": [10001, 10001],
                "capabilities": ["0" * 16] * 5,
                "no_new_privileges": "1",
                "seccomp": "2",
                "writing": {
                    "/": "EROFS",
                    "/opt/llm-locust": "EROFS",
                    "/etc": "EROFS",
                    "/runs": None,
                    "/tmp": None,
                },
            }
        podman("stop", "--time", "60", cluster.containers["llm-locust-worker-2"])
        assert cluster.exit_code("llm-locust-worker-2") == 0
        assert cluster.exit_code("llm-locust-master") == 0
        assert [cluster.exit_code(f"llm-locust-worker-{i}") for i in (0, 1)] == [0, 0]
        run = cluster.run_directory(tmp_path)
    manifest = read_manifest(run)
    assert manifest.complete
    stopped = worker_of(manifest, "llm-locust-worker-2")
    assert stopped.left
    assert stopped.received == stopped.announced > 0
    summary = json.loads((run / SUMMARY_FILE).read_text())
    assert summary["requests"]["ok"] > 100
    assert {r["name"] for r in summary["replicas"]} == {f"replica-{i}" for i in range(4)}


def test_a_broken_gate_is_the_exit_code_of_the_master_and_no_failure_of_a_worker(tmp_path: Path) -> None:
    with playing(manifests(tmp_path, "p50_ttft<1ms"), tmp_path) as cluster:
        assert cluster.exit_code("llm-locust-master") == 1
        assert [cluster.exit_code(f"llm-locust-worker-{i}") for i in range(3)] == [0, 0, 0]
        run = cluster.run_directory(tmp_path)
    (gate,) = json.loads((run / SUMMARY_FILE).read_text())["gates"]
    assert not gate["passed"]


def test_a_worker_that_is_killed_is_named_and_the_run_goes_on(tmp_path: Path) -> None:
    with playing(manifests(tmp_path, "error_rate<100%"), tmp_path) as cluster:
        wait_for_load(cluster)
        podman("kill", cluster.containers["llm-locust-worker-1"])
        assert cluster.exit_code("llm-locust-master") == 2  # records are missing, and it says so
        said = "".join(cluster.log("llm-locust-master"))
        run = cluster.run_directory(tmp_path)
    manifest = read_manifest(run)
    assert [w.id.startswith("llm-locust-worker-1") for w in manifest.workers if w.lost] == [True]
    assert not manifest.complete
    assert "llm-locust-worker-1" in said
    for pod in ("llm-locust-worker-0", "llm-locust-worker-2"):
        worker = worker_of(manifest, pod)
        assert worker.received == worker.announced
