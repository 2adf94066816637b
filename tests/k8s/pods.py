"""Rendered manifests as pods of podman, whose ``kube play`` knows pods and config maps only."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

#: Longer than any of these runs takes.
PATIENCE_S = 180

_NETWORK = "llm-locust-test"

#: Fields of a pod that this podman refuses, or that would publish ports on this machine.
_LEFT_OUT = ("ports", "readinessProbe", "livenessProbe", "startupProbe")


def podman(*words: str, check: bool = True) -> str:
    """What podman prints."""
    done = subprocess.run(["podman", *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert not check or done.returncode == 0, f"podman {' '.join(words)}: {done.stderr}"
    return done.stdout


def pods(manifests: str) -> list[dict[str, Any]]:
    """The config maps, and a pod for each that a Job or Deployment would make; a pod has the name of the
    Service before it, which podman does not know."""
    made: list[dict[str, Any]] = []
    for document in yaml.safe_load_all(manifests):
        spec = document.get("spec", {})
        if document["kind"] == "ConfigMap":
            made.append(document)
        elif document["kind"] in ("Job", "Deployment"):
            amount = spec.get("completions") or spec.get("replicas") or 1
            indexed = spec.get("completionMode") == "Indexed"
            name = document["metadata"]["name"]
            names = [f"{name}-{i}" for i in range(amount)] if indexed else [name]
            made += [_pod(one, spec["template"]) for one in names]
    return made


def _pod(name: str, template: dict[str, Any]) -> dict[str, Any]:
    spec = json.loads(json.dumps(template["spec"]))
    spec.setdefault("restartPolicy", "Never")
    spec.pop("topologySpreadConstraints", None)
    for container in spec["containers"]:
        for key in _LEFT_OUT:
            container.pop(key, None)
        for amounts in container["resources"].values():
            amounts.pop("ephemeral-storage", None)
    metadata = {"name": name, "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Pods that run. A container is named after its pod."""

    containers: dict[str, str] = field(default_factory=dict)

    def exit_code(self, pod: str) -> int:
        """Wait for its end."""
        return int(podman("wait", self.containers[pod]))

    def run_python(self, pod: str, code: str) -> dict[str, Any]:
        """What a program inside of the container prints as JSON."""
        printed: dict[str, Any] = json.loads(podman("exec", self.containers[pod], "python", "-c", code))
        return printed

    def log(self, pod: str) -> tuple[str, str]:
        """What it said on standard output and on standard error."""
        done = subprocess.run(
            ["podman", "logs", self.containers[pod]], capture_output=True, text=True, check=False
        )
        return done.stdout, done.stderr

    def run_directory(self, folder: Path) -> Path:
        """The only run in the master's /runs, copied."""
        podman("cp", f"{self.containers['llm-locust-master']}:/runs/.", str(folder))
        (run,) = (p.parent for p in folder.glob("*/manifest.json"))
        return run


@contextmanager
def playing(manifests: str, folder: Path) -> Iterator[Cluster]:
    """The pods on a network of their own; all gone in the end."""
    made = pods(manifests)
    file = folder / "play.yaml"
    file.write_text(yaml.safe_dump_all(made), encoding="utf-8")
    named = {p["metadata"]["name"]: p["spec"]["containers"][0]["name"] for p in made if p["kind"] == "Pod"}
    _remove(named)
    podman("network", "create", _NETWORK)
    try:
        podman("kube", "play", "--network", _NETWORK, str(file))
        yield Cluster({pod: f"{pod}-{container}" for pod, container in named.items()})
    finally:
        _remove(named)


def _remove(names: Sequence[str] | dict[str, str]) -> None:
    for name in names:
        podman("pod", "rm", "--force", "--time", "0", "--ignore", name)
    podman("network", "rm", "--force", _NETWORK, check=False)
