"""Rendered manifests as pods of podman, whose ``kube play`` knows pods and config maps only."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

#: Longer than any of these runs takes.
PATIENCE_S = 240

#: Fields of a container that this podman refuses, or that would publish ports on this machine.
_LEFT_OUT = ("ports", "readinessProbe", "livenessProbe", "startupProbe")

Document = dict[str, Any]


def podman(*words: str, check: bool = True) -> str:
    """What podman prints."""
    done = subprocess.run(["podman", *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert not check or done.returncode == 0, f"podman {' '.join(words)}: {done.stderr}"
    return done.stdout


def config_maps(manifests: str) -> list[Document]:
    return [d for d in yaml.safe_load_all(manifests) if d["kind"] == "ConfigMap"]


def pods(manifests: str) -> list[Document]:
    """A pod for each that a Job or Deployment would make."""
    made: list[Document] = []
    for document in yaml.safe_load_all(manifests):
        if document["kind"] in ("Job", "Deployment"):
            spec, name = document["spec"], document["metadata"]["name"]
            amount = spec.get("completions") or spec.get("replicas") or 1
            indexed = spec.get("completionMode") == "Indexed"
            names = [f"{name}-{i}" for i in range(amount)] if indexed else [name]
            made += [_pod(one, spec["template"]) for one in names]
    return made


def _pod(name: str, template: Document) -> Document:
    spec = json.loads(json.dumps(template["spec"]))
    spec.setdefault("restartPolicy", "Never")
    spec.pop("topologySpreadConstraints", None)
    spec["hostname"] = name
    for container in spec["containers"]:
        for key in _LEFT_OUT:
            container.pop(key, None)
        for amounts in container["resources"].values():
            amounts.pop("ephemeral-storage", None)
    metadata = {"name": name, "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Pods that run, with a network of their own, beside those of other clusters.

    Attributes:
        name: what its pods' names begin with, for podman; inside they have those of the manifests.
        containers: of each pod the only one.
    """

    name: str
    containers: dict[str, str]

    def exit_code(self, pod: str) -> int:
        """Wait for its end."""
        return int(podman("wait", self.containers[pod]))

    def run_python(self, pod: str, code: str, check: bool = True) -> str:
        """What a program inside of the container prints."""
        return podman("exec", self.containers[pod], "python", "-c", code, check=check)

    def log(self, pod: str) -> tuple[str, str]:
        """What it said on standard output and on standard error."""
        done = subprocess.run(
            ["podman", "logs", self.containers[pod]], capture_output=True, text=True, check=False
        )
        return done.stdout, done.stderr

    def volume(self, pod: str, path: str) -> Path:
        """Where on this machine the volume is that the pod has at ``path``."""
        (found,) = json.loads(podman("inspect", self.containers[pod]))
        (source,) = (Path(m["Source"]) for m in found["Mounts"] if m["Destination"] == path)
        return source


@contextmanager
def playing(manifests: str, folder: Path, name: str) -> Iterator[Cluster]:
    """The pods on a network; all gone in the end.

    A Service, which podman does not know, is a name on the network that the pod before it has.
    """
    maps, made = config_maps(manifests), pods(manifests)
    _remove(name)
    podman("network", "create", name)
    try:
        for pod in made:
            file = folder / f"{pod['metadata']['name']}.yaml"
            file.write_text(yaml.safe_dump_all(_renamed([*maps, pod], name)), encoding="utf-8")
            podman("kube", "play", "--network", f"{name}:alias={pod['metadata']['name']}", str(file))
        containers = {p["metadata"]["name"]: p["spec"]["containers"][0]["name"] for p in made}
        yield Cluster(name, {pod: f"{name}-{pod}-{container}" for pod, container in containers.items()})
    finally:
        _remove(name)


def _renamed(documents: Sequence[Document], prefix: str) -> list[Document]:
    """The same documents, whose pods, config maps and volumes collide with those of no other cluster.

    An emptyDir of podman's is a volume of that name, which all pods would share.
    """
    made: list[Document] = json.loads(json.dumps(documents))
    for document in made:
        name = document["metadata"]["name"] = f"{prefix}-{document['metadata']['name']}"
        spec = document.get("spec", {})
        volumes, containers = spec.get("volumes", []), spec.get("containers", [])
        mounts = [mount for container in containers for mount in container.get("volumeMounts", [])]
        for one in (*volumes, *mounts):
            one["name"] = f"{name}-{one['name']}"
        maps = [v["configMap"] for v in volumes if "configMap" in v]
        maps += [e["configMapRef"] for c in containers for e in c.get("envFrom", []) if "configMapRef" in e]
        for one in maps:
            one["name"] = f"{prefix}-{one['name']}"
    return made


def _remove(name: str) -> None:
    for kind, options in (
        ("pod", ("--force", "--time", "0")),
        ("volume", ("--force",)),
        ("network", ("--force",)),
    ):
        found = podman(kind, "ls", "--quiet", "--filter", f"name=^{name}").split()
        if found:
            podman(kind, "rm", *options, *found)
