"""Pods of a Kubernetes cluster that match a label selector, with their current addresses.

The API server is queried with the pod's own service account, by the standard library's HTTP. This blocks, and
is for a process without an event loop (:mod:`llm_locust.deployment.scraper`). The service account needs the
right to list pods, which only the component ``pod-discovery`` of the manifests grants.
"""

import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlencode

import msgspec

from llm_locust.deployment.endpoints import (
    GIVEN,
    MOST_ADDRESSES,
    Endpoint,
    Pods,
    ScrapeTarget,
    authority,
)
from llm_locust.deployment.endpoints import targets_of as targets_of_url
from llm_locust.deployment.fetch import FetchError, fetch
from llm_locust.metrics.deployment.pools.names import ROLES
from llm_locust.wire.payload import DECODE_ERRORS

#: Folder of a pod's token, which the kubelet renews, the cluster's certificates and the namespace.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

#: Timeout of one request to the API server.
TIMEOUT_S = 5.0

#: Pods on one page of the API server's answer: some 5 MB at most.
_PAGE = 250

_ANNOTATION = "prometheus.io/"

#: Default port of a pod: one with these names, in this order, or the only one.
_USUAL_PORTS = ("metrics", "http-metrics", "http")

#: Labels in which a pod's operator names its role: llm-d's, Dynamo's.
_ROLE_LABELS = (
    "llm-d.ai/role",
    "nvidia.com/dynamo-sub-component-type",
    "nvidia.com/dynamo-component-type",
)

_HINTS = {
    "401": "; is its token mounted (automountServiceAccountToken)?",
    "403": "; let its service account list pods there: the component pod-discovery does that",
    "400": "; is this a valid label selector?",
}


class DiscoveryError(OSError):
    """Pods cannot be listed; one line that says why."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Address of the API server of the pod's own cluster, and the folder of its service account."""

    host: str
    port: int
    account: Path

    @classmethod
    def of_this_pod(cls, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> "ApiServer":
        """Server of this pod (raises DiscoveryError if this is not a pod, or one without a token)."""
        host = environ.get("KUBERNETES_SERVICE_HOST")
        if not host:
            raise DiscoveryError("this is not a pod of Kubernetes: KUBERNETES_SERVICE_HOST is not set")
        port = environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or environ.get("KUBERNETES_SERVICE_PORT", "")
        if not (account / "token").exists():
            raise DiscoveryError(
                f"this pod has no service account token in {str(account)!r}: the component pod-discovery "
                "gives the master one"
            )
        return cls(host, int(port) if port.isdecimal() else 443, account)

    def namespace(self) -> str:
        return self._read("namespace")

    def get(self, path: str, timeout_s: float = TIMEOUT_S) -> bytes:
        """Get a path (raises DiscoveryError)."""
        target = ScrapeTarget(authority(self.host, self.port), "https", self.host, self.host, self.port, path)
        # Read again each time: a token lasts an hour.
        headers = {"Accept": "application/json", "Authorization": f"Bearer {self._read('token')}"}
        try:
            tls = ssl.create_default_context(cafile=self.account / "ca.crt")
            return fetch(target, timeout_s, headers, tls).text.encode()
        except FetchError as e:
            hint = next((hint for status, hint in _HINTS.items() if str(e) == f"it answered {status}"), "")
            raise DiscoveryError(f"the API server {target.name}: {e}{hint}") from e
        except OSError as e:
            raise DiscoveryError(f"the certificates in {str(self.account)!r}: {e.strerror or e}") from e

    def _read(self, name: str) -> str:
        try:
            return (self.account / name).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as e:
            reason = getattr(e, "strerror", None) or e
            raise DiscoveryError(f"the service account's {str(self.account / name)!r}: {reason}") from e


class _Port(msgspec.Struct, rename="camel"):
    container_port: int
    name: str = ""


class _Container(msgspec.Struct):
    ports: list[_Port] | None = None


class _Spec(msgspec.Struct):
    containers: list[_Container]


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Status(msgspec.Struct, rename={"pod_ip": "podIP"}):
    pod_ip: str = ""
    conditions: list[_Condition] | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec
    status: _Status

    @property
    def is_ready(self) -> bool:
        conditions = self.status.conditions or []
        ready = any(c.type == "Ready" and c.status == "True" for c in conditions)
        return ready and bool(self.status.pod_ip) and self.metadata.deletion_timestamp is None

    def annotation(self, name: str) -> str:
        return (self.metadata.annotations or {}).get(_ANNOTATION + name, "").strip()

    @property
    def role_label(self) -> str | None:
        """The label that names its role."""
        labels = self.metadata.labels or {}
        return next((label for label in _ROLE_LABELS if labels.get(label) in ROLES), None)

    @property
    def ports(self) -> list[_Port]:
        return [port for container in self.spec.containers for port in container.ports or []]


class _ListMetadata(msgspec.Struct, rename={"further": "continue"}):
    further: str = ""


class _PodList(msgspec.Struct):
    metadata: _ListMetadata
    items: list[_Pod]


def targets_of(endpoint: Endpoint, server: ApiServer | None = None) -> list[ScrapeTarget]:
    """The endpoint itself, each address of its host, or each of its ready pods, by name.

    Raises:
        OSError: a name cannot be resolved, or the API server does not list the pods.
    """
    if endpoint.pods is None:
        return targets_of_url(endpoint)
    found = pods_of(endpoint.pods, ApiServer.of_this_pod() if server is None else server)
    if endpoint.role is None:
        return found
    return [replace(target, role=endpoint.role, role_source=GIVEN) for target in found]


def pods_of(pods: Pods, server: ApiServer) -> list[ScrapeTarget]:
    """The ready pods, by name; the first 1,024. A target's name is the pod's, and the port.

    Raises:
        DiscoveryError: the API server does not list them, or the port of a ready pod is unknown.
    """
    found = [pod for pod in _listed(pods, server) if pod.is_ready]
    return [_target(pod, pods) for pod in sorted(found, key=lambda pod: pod.metadata.name)[:MOST_ADDRESSES]]


def _listed(pods: Pods, server: ApiServer) -> Iterator[_Pod]:
    """All pods with these labels, page by page."""
    namespace, further = pods.namespace or server.namespace(), ""
    while True:
        query = {"labelSelector": pods.labels, "limit": str(_PAGE)} | (
            {"continue": further} if further else {}
        )
        try:
            answer = server.get(f"/api/v1/namespaces/{namespace}/pods?{urlencode(query)}")
            page = msgspec.json.decode(answer, type=_PodList)
        except DECODE_ERRORS as e:
            raise DiscoveryError(f"the API server's answer is not a list of pods: {e}") from e
        yield from page.items
        further = page.metadata.further
        if not further:
            return


def _target(pod: _Pod, pods: Pods) -> ScrapeTarget:
    address, port = pod.status.pod_ip, _port_of(pod, pods.port)
    scheme = "https" if pod.annotation("scheme") == "https" else "http"
    path = pods.path or pod.annotation("path") or "/metrics"
    target = ScrapeTarget(f"{pod.metadata.name}:{port}", scheme, address, address, port, path)
    label = pod.role_label
    if label is None:
        return target
    return replace(target, role=(pod.metadata.labels or {})[label], role_source=f"pod label {label}")


def _port_of(pod: _Pod, asked: str) -> int:
    """The requested port by number or name; else its annotation's, a usual name's, or the only one."""
    by_name = {port.name: port.container_port for port in pod.ports}
    if asked.isdecimal():
        return int(asked)
    if asked:
        if asked not in by_name:
            raise DiscoveryError(f"pod {pod.metadata.name} has no port of the name {asked!r}")
        return by_name[asked]
    if annotated := pod.annotation("port"):
        if not annotated.isdecimal() or not 0 < int(annotated) < 65_536:
            raise DiscoveryError(f"pod {pod.metadata.name}: {_ANNOTATION}port {annotated!r} is not a port")
        return int(annotated)
    for name in _USUAL_PORTS:
        if name in by_name:
            return by_name[name]
    if len(pod.ports) == 1:
        return pod.ports[0].container_port
    raise DiscoveryError(
        f"pod {pod.metadata.name} has {len(pod.ports)} ports, and none is called "
        f"{' or '.join(_USUAL_PORTS)}: give one, as in k8s:app=vllm:8000"
    )
