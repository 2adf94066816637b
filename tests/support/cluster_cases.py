"""A fake cluster for the real kubectl: its pods, its log, what is in a pod, and a run against it."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from cluster_server import serving
from swarm_process import wait_until
from warm_process import WarmProcess

from llm_locust.k8s.hold import ENDED, FETCHED

Object = dict[str, Any]


def pod(component: str, state: Object, phase: str = "Running", **status: Any) -> Object:
    """A pod whose one container is in a state."""
    name = f"{{name}}-llm-locust-{component}-abcde"
    labels = {"app.kubernetes.io/component": component}
    one = {"name": component, "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "perf", "labels": labels},
        "spec": {"containers": [{"name": component, "image": "x"}]},
        "status": {"phase": phase, "containerStatuses": [one], **status},
    }


RUNNING: Object = {"running": {}}


def waiting(reason: str, message: str = "") -> Object:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, reason: str = "Error", seconds: int = 2) -> Object:
    times = {"startedAt": "2026-01-01T10:00:00Z", "finishedAt": f"2026-01-01T10:00:{seconds:02d}Z"}
    return {"terminated": {"exitCode": code, "reason": reason, **times}}


class FakeCluster:
    """The folder that the server reads, and kubectl's configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hold.mkdir(parents=True)
        (folder / "runs").mkdir()
        (folder / "log").write_text("")
        self.pods(pod("master", RUNNING), pod("worker", RUNNING))

    @property
    def hold(self) -> Path:
        return self.folder / "tmp" / "llm-locust-hold"

    @property
    def requests(self) -> list[str]:
        return (self.folder / "requests").read_text().splitlines()

    def pods(self, *pods: Object) -> None:
        _replace(self.folder / "pods.json", json.dumps(pods))

    def says(self, *lines: str) -> None:
        """Lines of the master's log."""
        with (self.folder / "log").open("a") as file:
            for line in lines:
                file.write(f"2026-01-01T10:00:00.{file.tell():09d}Z {line}\n")

    def ends(self, code: int) -> None:
        """The run in the pod ends; its process waits for its files to be fetched."""
        _replace(self.hold / ENDED, f"{code}\n")

    def name_of_the_run(self) -> str:
        """From the requests, once it is created."""
        found: list[str] = []

        def is_created() -> bool:
            if (self.folder / "requests").exists():
                found[:] = [line for line in self.requests if "labelSelector" in line]
            return bool(found)

        wait_until(is_created, "a look at the pods", 60)
        return found[0].partition("instance%3D")[2].partition("&")[0]

    def writes(self, name: str, **files: str) -> None:
        run = self.folder / "runs" / name
        run.mkdir()
        for file, text in files.items():
            (run / file).write_text(text)

    @property
    def was_fetched(self) -> bool:
        return (self.hold / FETCHED).exists()


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}")
    part.write_text(text)
    part.rename(path)


@contextmanager
def fake_cluster(folder: Path) -> Iterator[FakeCluster]:
    cluster = FakeCluster(folder)
    with serving(folder) as port:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
            "current-context": "fake",
        }
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        yield cluster


class Run:
    """``llm-locust k8s run`` in a process of its own."""

    def __init__(self, cluster: FakeCluster, folder: Path, *words: str) -> None:
        scenario = folder / "s.yaml"
        scenario.write_text("users: 5\nrun_time: 1m\nhost: http://llm:8000\n")
        command = ["k8s", "run", "--scenario", str(scenario), "--workers", "1", "-n", "perf", *words]
        home = {"KUBECONFIG": str(cluster.folder / "kubeconfig"), "HOME": str(cluster.folder)}
        self.out = folder / "out"
        with self.out.open("wb") as out:
            self._process = WarmProcess("llm_locust", command, folder, os.environ | home, out, {})

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        self._process.send_signal(number)

    def code(self) -> int:
        """Wait for its end."""
        return self._process.wait(120)

    @cached_property
    def said(self) -> str:
        """All of its stderr, once it has ended."""
        return self._process.stderr.read()

    def end(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.stderr.close()
