"""Pods of rendered manifests on a network of podman's."""

import base64
import json
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

import yaml

from pods.kubelet import PodNetwork, RunningPod, start
from pods.manifests import Document, Pod, config_maps, pods
from pods.podman import podman, remove_all

#: What everything begins with that the tests make.
PREFIX = "llm-locust-test-"

NETWORK = f"{PREFIX}network"

_LOOK_S = 0.2


@contextmanager
def network() -> Iterator[None]:
    """The network of all clusters, as one namespace has all runs; what is on it goes with it."""
    remove_all(PREFIX)
    podman("network", "create", NETWORK)
    try:
        yield
    finally:
        remove_all(PREFIX)


@dataclass(slots=True)
class Cluster:
    """Objects of one run.

    Attributes:
        name: what their names begin with.
        pods: those that Kubernetes has made last, by their names.
        replaced: pods of Jobs that failed, each followed by another one.
        began_s: monotonic time at which the first pods were started.
    """

    name: str
    folder: Path
    maps: Sequence[Document]
    pods: dict[str, RunningPod] = field(default_factory=dict)
    replaced: list[RunningPod] = field(default_factory=list)
    began_s: float = 0.0

    def pod(self, name: str) -> RunningPod:
        """A pod by its name without that of the run."""
        return self.pods[f"{self.name}-{name}"]

    @property
    def master(self) -> RunningPod:
        (master,) = (pod for name, pod in self.pods.items() if "-master" in name)
        return master

    def workers(self) -> list[RunningPod]:
        return [pod for name, pod in self.pods.items() if "-worker-" in name]

    def make(self, plans: Sequence[Pod], attempt: int = 0) -> list[RunningPod]:
        """Make pods that are not started; those that no Service leads to are played together."""
        names = {plan.name: f"{plan.name}-r{attempt}" for plan in plans}
        for services in sorted({plan.services for plan in plans}):
            together = [plan.named(names[plan.name]) for plan in plans if plan.services == services]
            file = self.folder / f"{together[0]['metadata']['name']}.yaml"
            file.write_text(yaml.safe_dump_all([*self.maps, *together]), encoding="utf-8")
            aliases = ",".join(f"alias={service}" for service in services)
            where = f"{NETWORK}:{aliases}" if aliases else NETWORK
            podman("kube", "play", "--start=false", "--network", where, str(file))
        networks = _networks(names.values())
        return [RunningPod(plan, names[plan.name], networks[names[plan.name]]) for plan in plans]

    def remove(self) -> None:
        """Remove the pods. One that podman refuses to remove, and volumes, go with the network."""
        names = [pod.name for pod in (*self.pods.values(), *self.replaced)]
        if names:
            podman("pod", "rm", "--force", "--time", "0", "--ignore", *names, check=False)

    def look(self) -> None:
        """What Kubernetes does after a while."""
        for name, pod in list(self.pods.items()):
            pod.look(time.monotonic())
            attempts = sum(each.plan.name == name for each in self.replaced)
            if pod.ended and attempts < pod.plan.retries and pod.exit_code() != 0:
                self.replaced.append(pod)
                (self.pods[name],) = self.make([pod.plan], attempts + 1)
                start([self.pods[name]])


def _networks(names: Collection[str]) -> dict[str, PodNetwork]:
    """Start the containers that hold the networks of pods; by the pods' names."""
    listed = [pod for pod in json.loads(podman("pod", "ps", "--format", "json")) if pod["Name"] in names]
    holders = [pod["InfraId"] for pod in listed]
    podman("start", *holders)
    made = {}
    for pod, found in zip(listed, json.loads(podman("inspect", *holders)), strict=True):
        (network,) = found["NetworkSettings"]["Networks"].values()
        made[pod["Name"]] = PodNetwork(network["IPAddress"], network["Gateway"], found["State"]["Pid"])
    return made


def run_python(pod: RunningPod, code: str, check: bool = True) -> str:
    """What a program inside of the main container prints."""
    return podman("exec", pod.container(), "python", "-c", code, check=check)


def log(pod: RunningPod, container: str | None = None) -> tuple[str, str]:
    """What a container said on standard output and on standard error."""
    done = subprocess.run(
        ["podman", "logs", pod.container(container)], capture_output=True, text=True, check=False
    )
    return done.stdout, done.stderr


def volume(pod: RunningPod, path: str) -> Path:
    """Where on this machine the volume is that the main container has at ``path``."""
    (found,) = json.loads(podman("inspect", pod.container()))
    (source,) = (Path(mount["Source"]) for mount in found["Mounts"] if mount["Destination"] == path)
    return source


@contextmanager
def playing(
    manifests: str,
    folder: Path,
    name: str,
    secrets: Mapping[str, Mapping[str, str]] | None = None,
    late: str = "",
    late_s: float = 0.0,
) -> Iterator[Cluster]:
    """All objects of a run, at once; gone in the end.

    Args:
        name: of the run; all its objects begin with it.
        secrets: values by key and name of Secret.
        late: pod whose containers start ``late_s`` after those of the others.
    """
    assert name.startswith(PREFIX)
    for secret, values in (secrets or {}).items():
        _make_secret(secret, values)
    cluster = Cluster(name, folder, config_maps(manifests))
    over = Event()
    failed: list[BaseException] = []

    def look() -> None:
        try:
            while not over.wait(_LOOK_S):
                cluster.look()
        except BaseException as e:
            failed.append(e)
            raise

    looking = Thread(target=look)
    try:
        made = cluster.make(pods(manifests))
        cluster.pods.update((pod.plan.name, pod) for pod in made)
        delayed = [pod for pod in made if late and pod.plan.name.startswith(f"{name}-{late}")]
        cluster.began_s = time.monotonic()
        start(pod for pod in made if pod not in delayed)
        looking.start()
        if delayed:
            over.wait(cluster.began_s + late_s - time.monotonic())
            start(delayed)
        yield cluster
    finally:
        over.set()
        if looking.is_alive():
            looking.join()
        for secret in secrets or {}:
            podman("secret", "rm", secret)
        cluster.remove()
    if failed:
        raise failed[0]


def _make_secret(name: str, values: Mapping[str, str]) -> None:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    podman("secret", "rm", name, check=False)  # of tests that were killed
    podman("secret", "create", name, "-", given=json.dumps(encoded))
