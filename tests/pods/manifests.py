"""Rendered manifests as what podman's ``kube play`` knows: pods, config maps. All changes are here.

A Service becomes a name that its pods have on the network, a Job, JobSet or Deployment the pods that it would
make, a sidecar an ordinary container, a config map's variables the container's own. Left out is what podman
refuses or would do with this machine (publish ports); probes, Services' readiness and restarts are up to
:mod:`pods.kubelet`.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k8s_tools import documents

Document = dict[str, Any]

_PROBES = ("startup", "readiness", "liveness")
_LEFT_OUT = ("ports", *(f"{kind}Probe" for kind in _PROBES))


@dataclass(frozen=True, slots=True)
class Probe:
    """A GET of a path, or only a connection; Kubernetes' defaults."""

    port: int
    path: str | None
    period_s: float
    timeout_s: float
    failures: int


@dataclass(frozen=True, slots=True)
class Container:
    """What podman does not know of a container; a sidecar starts before the others and ends after them.

    Attributes:
        started: until this one is answered, the others are not sent.
    """

    name: str
    is_sidecar: bool
    restarts: bool
    started: Probe | None
    ready: Probe | None
    alive: Probe | None


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod to play.

    Attributes:
        name: its name as Kubernetes would give it, without the random end.
        retries: how often another pod takes its place if it fails.
        services: names that lead to it.
        hidden: ports of these that nobody reaches before the pod is ready.
    """

    name: str
    document: Document
    containers: tuple[Container, ...]
    retries: int
    services: tuple[str, ...]
    hidden: frozenset[int]

    def named(self, name: str) -> Document:
        """Its document, for podman under this name.

        An emptyDir of podman's is a volume of its name, which all pods would share.
        """
        document = copy.deepcopy(self.document)
        document["metadata"]["name"] = name
        spec = document["spec"]
        mounts = [mount for container in spec["containers"] for mount in container.get("volumeMounts", ())]
        for volume in (*spec.get("volumes", ()), *mounts):
            volume["name"] = f"{name}-{volume['name']}"
        return document

    @property
    def main(self) -> Container:
        (main,) = (each for each in self.containers if not each.is_sidecar)
        return main


def config_maps(manifests: str) -> list[Document]:
    return [document for document in documents(manifests) if document["kind"] == "ConfigMap"]


def pods(manifests: str) -> list[Pod]:
    """The pods that the controllers of Kubernetes would make at once."""
    read = documents(manifests)
    services = [document for document in read if document["kind"] == "Service"]
    maps = {each["metadata"]["name"]: each["data"] for each in config_maps(manifests)}
    made = [
        _pod(name, template, retries, services)
        for document in read
        for name, template, retries in _templates(document)
    ]
    for pod in made:
        for container in pod.document["spec"]["containers"]:
            _set_variables(container, maps)
    return made


def _templates(document: Document) -> Iterator[tuple[str, Document, int]]:
    """Name, template and retries of each pod."""
    name, spec = document["metadata"]["name"], document.get("spec", {})
    match document["kind"]:
        case "JobSet":
            for job in spec["replicatedJobs"]:
                yield from _of_job(f"{name}-{job['name']}-0", job["template"]["spec"])
        case "Job":
            yield from _of_job(name, spec)
        case "Deployment":
            template = copy.deepcopy(spec["template"])
            template["spec"]["restartPolicy"] = "Always"
            yield from ((f"{name}-{i}", template, 0) for i in range(spec["replicas"]))


def _of_job(name: str, spec: Document) -> Iterator[tuple[str, Document, int]]:
    if spec.get("completionMode") != "Indexed":
        assert spec["backoffLimit"] == 0
        yield name, spec["template"], 0
        return
    for i in range(spec["completions"]):
        yield f"{name}-{i}", spec["template"], spec["backoffLimitPerIndex"]


def _pod(name: str, template: Document, retries: int, services: Sequence[Document]) -> Pod:
    spec, labels = copy.deepcopy(template["spec"]), template["metadata"]["labels"]
    own = [each for each in services if each["spec"]["selector"].items() <= labels.items()]
    sidecars = spec.pop("initContainers", [])
    assert all(each["restartPolicy"] == "Always" for each in sidecars), "a container that ends first"
    spec["containers"] = sidecars + spec["containers"]
    restarts = spec["restartPolicy"] == "Always"
    ports = {p["name"]: p["containerPort"] for c in spec["containers"] for p in c.get("ports", ())}
    containers = tuple(_container(each, each in sidecars, restarts, ports) for each in spec["containers"])
    hidden = frozenset(
        ports[port["targetPort"]]
        for each in own
        for port in each["spec"]["ports"]
        if not each["spec"].get("publishNotReadyAddresses")
    )
    for container in spec["containers"]:
        for key in (*_LEFT_OUT, "restartPolicy"):
            container.pop(key, None)
        for amounts in container["resources"].values():
            amounts.pop("ephemeral-storage", None)
    spec.pop("topologySpreadConstraints", None)
    spec |= {"restartPolicy": "Never", "hostname": name}
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": labels},
        "spec": spec,
    }
    names = tuple(each["metadata"]["name"] for each in own)
    return Pod(name, document, containers, retries, names, hidden)


def _set_variables(container: Document, maps: Mapping[str, Mapping[str, str]]) -> None:
    """Variables of config maps as the container's own: with podman they would win over these.

    Words of the command have the values of the variables that they name.
    """
    env = {one["name"]: one for one in container.get("env", ())}
    sources = container.get("envFrom", [])
    for source in [source for source in sources if "configMapRef" in source]:
        for name, value in maps[source["configMapRef"]["name"]].items():
            env.setdefault(name, {"name": name, "value": value})
        sources.remove(source)
    if env:
        container["env"] = list(env.values())
    for key in ("command", "args"):
        for name, one in env.items():
            container[key] = [
                word.replace(f"$({name})", one.get("value", "")) for word in container.get(key, ())
            ]


def _container(given: Document, is_sidecar: bool, restarts: bool, ports: Mapping[str, int]) -> Container:
    started, ready, alive = (_probe(given.get(f"{kind}Probe"), ports) for kind in _PROBES)
    return Container(given["name"], is_sidecar, restarts or is_sidecar, started, ready, alive)


def _probe(given: Document | None, ports: Mapping[str, int]) -> Probe | None:
    if given is None:
        return None
    action = given.get("httpGet") or given["tcpSocket"]
    return Probe(
        port=ports.get(action["port"], action["port"]),
        path=action.get("path"),
        period_s=given.get("periodSeconds", 10),
        timeout_s=given.get("timeoutSeconds", 1),
        failures=given.get("failureThreshold", 3),
    )
