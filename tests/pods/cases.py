"""Runs to render and to play, and what is left of them."""

import argparse
import json
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swarm_process import wait_until

from llm_locust.core.manifest import Manifest, WorkerFacts
from llm_locust.k8s import command
from llm_locust.k8s.kubectl import render
from llm_locust.k8s.overlay import write_overlay
from llm_locust.k8s.plan import plan_of
from llm_locust.store import MANIFEST_FILE, SUMMARY_FILE, StoreError, read_manifest
from pods.cluster import PREFIX, Cluster, log, volume

IMAGE = os.environ.get("LLM_LOCUST_TEST_IMAGE", "")

MASTER = "llm-locust-master"
SIM = "llm-locust-sim-0"

SCENARIO = """
users: 6
spawn_rate: 6
run_time: {run_time_s}s
seed: 1
input_tokens: uniform:10,40
output_tokens: uniform:20,60
gate: {gate}
"""


def named(what: str) -> str:
    """Name of a run of the tests."""
    return f"{PREFIX}{what}"


def worker(number: int) -> str:
    """Name of a worker's pod without that of its run."""
    return f"llm-locust-worker-{number}"


def rendered(
    folder: Path,
    name: str,
    *words: str,
    workers: int,
    overlay: str = "demo",
    gate: str = "error_rate<1%",
    run_time_s: int = 5,
) -> str:
    """What ``llm-locust k8s render`` gives for a small load."""
    scenario = folder / "scenario.yaml"
    scenario.write_text(SCENARIO.format(gate=gate, run_time_s=run_time_s))
    given = ["--scenario", str(scenario), "--overlay", overlay, "--name", name, "--image", IMAGE]
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["render", *given, "--workers", str(workers), *words])
    place = folder / overlay
    write_overlay(plan_of(args), place)
    return render(place)


@dataclass(slots=True)
class Ended:
    """What is left of a run.

    Attributes:
        restarts: of all containers together.
        replaced: failed pods that others took the place of.
        lived_s: when its pods were started, and when all of them had ended.
    """

    name: str
    exit_codes: dict[str, int]
    said: tuple[str, str]
    run: Path
    restarts: int
    replaced: list[str]
    lived_s: tuple[float, float]
    seen: dict[str, Any] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        return read_manifest(self.run)

    @property
    def summary(self) -> Any:
        return json.loads((self.run / SUMMARY_FILE).read_text())

    def worker(self, pod: str) -> WorkerFacts:
        (worker,) = self.workers(pod)
        return worker

    def workers(self, pod: str) -> list[WorkerFacts]:
        """Those that ran in the pods of this name, one after the other."""
        return [w for w in self.manifest.workers if w.id.startswith(f"{self.name}-{pod}")]


def wait_for_load(cluster: Cluster, workers: int | None = None) -> None:
    """Until the master has records of every worker, or of as many as are given, killed ones included."""
    expected = workers or len(cluster.workers())
    runs = volume(cluster.master, "/runs")

    def under_way() -> bool:
        try:
            found = [read_manifest(path.parent) for path in runs.glob(f"**/{MANIFEST_FILE}")]
        except StoreError:  # it is being written
            return False
        received = [worker.received for manifest in found for worker in manifest.workers]
        return len(received) >= expected and all(received)

    wait_until(under_way, f"records of {expected} workers", 120)


def ended(cluster: Cluster, folder: Path) -> Ended:
    """Wait for the end of master and workers."""
    names = [name.removeprefix(f"{cluster.name}-") for name in cluster.pods if "-sim-" not in name]
    codes = {name: cluster.pod(name).exit_code() for name in names}
    lived_s = cluster.began_s, time.monotonic()
    said = log(cluster.pod(MASTER))
    runs = list(volume(cluster.pod(MASTER), "/runs").glob(f"*/{SUMMARY_FILE}"))
    assert len(runs) == 1, "".join(said)
    return Ended(
        cluster.name,
        codes,
        said,
        shutil.copytree(runs[0].parent, folder / "run"),
        sum(sum(pod.restarts.values()) for pod in cluster.pods.values()),
        [pod.plan.name.removeprefix(f"{cluster.name}-") for pod in cluster.replaced],
        lived_s,
    )
