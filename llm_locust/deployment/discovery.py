"""Scrape endpoints: URLs, names that stand for all of their addresses, pods by their labels."""

import http.client
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import SplitResult, urlencode, urlsplit

import msgspec

from llm_locust.client.http.target import Target
from llm_locust.metrics.server_roles import ROLES, split_role
from llm_locust.wire.foreign_text import clean_name, public_url, url_fault, url_secret
from llm_locust.wire.payload import DECODE_ERRORS

# --- Scrape endpoints: URLs, names that stand for all of their addresses, and pods by their labels


_SCHEMES = {"http": 80, "https": 443}
_DNS = "dns+"
_K8S = "k8s:"

#: NAMESPACE/ is a name without dots: the prefix of a label's key, such as app.kubernetes.io/name, has one.
_PODS = re.compile(
    r"(?:(?P<namespace>[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)/)?(?P<labels>[^:]+)"
    r"(?::(?P<port>\d{1,5}|[a-z0-9](?:[-a-z0-9]{0,13}[a-z0-9])?)?(?P<path>/\S*)?)?"
)
_PODS_FORM = "k8s:app=vllm:8000, k8s:app=vllm:metrics or k8s:NAMESPACE/app=vllm,role=decode:8000/metrics"

#: Who says the role of a server whose URL has it.
GIVEN = "the options"

#: Most addresses of one name that are scraped.
MOST_ADDRESSES = 1_024


class EndpointError(ValueError):
    """A URL that cannot be scraped; one line that says what to write."""


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods of Kubernetes.

    Attributes:
        namespace: None for the namespace of this pod.
        labels: a label selector in Kubernetes' syntax.
        port: number or name; empty for the pod's annotations or the usual port names.
        path: empty for the pod's annotations, or ``/metrics``.
    """

    namespace: str | None
    labels: str
    port: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """``url`` as given. If ``every`` is set, each address of the host is a target.

    With ``pods`` each of them is one, as :mod:`llm_locust.deployment.discovery` finds them; the host is then
    the text as given, and the port 0. ``role`` is that of all its targets, None where none is given.
    """

    scheme: str
    host: str
    port: int
    path: str
    every: bool = False
    pods: Pods | None = None
    role: str | None = None

    @classmethod
    def parse(cls, url: str) -> "Endpoint":
        """Parse ``http://host:port/metrics``, or ``dns+http://service:port/metrics``; https likewise. Or
        pods: ``k8s:[NAMESPACE/]LABELS[:PORT][/PATH]``, where a path follows a colon. ``prefill=`` or
        ``decode=`` may come first.

        The default path is ``/metrics``.

        Raises:
            EndpointError: not such a URL, or one that may contain a key.
        """
        role, text = split_role(url)
        if text.startswith(_K8S):
            return cls("http", text, 0, "", every=True, pods=_pods(text), role=role)
        if found := ("a user name or a password" if "@" in text else url_secret(text)):
            raise EndpointError(
                f"metrics URL {public_url(url)!r} has {found} in it: leave it out, and give a bearer token "
                "by --metrics-api-key-env"
            )
        every = text.startswith(_DNS)
        text = text.removeprefix(_DNS)
        parts, port = _split(text if "://" in text else f"http://{text}", url)
        if parts.scheme not in _SCHEMES or not parts.hostname or port == 0:
            raise EndpointError(
                f"metrics URL {public_url(url)!r} is not one such as http://10.0.0.7:8000/metrics or "
                "dns+http://service:8000/metrics"
            )
        path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.scheme, parts.hostname, port or _SCHEMES[parts.scheme], path, every, role=role)


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """One place to connect to. ``host`` is the name in the request; ``address`` is its destination. ``role``
    is known before the first page, None where it is not; ``role_source`` says who says so."""

    name: str
    scheme: str
    host: str
    address: str
    port: int
    path: str
    role: str | None = None
    role_source: str = GIVEN


def scrape_targets_of(endpoint: Endpoint) -> list[ScrapeTarget]:
    """The endpoint itself, or each of its host's addresses, in order; not for pods.

    Raises:
        OSError: the name of an ``every`` endpoint cannot be resolved.
    """
    hosts = [endpoint.host]
    if endpoint.every:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        hosts = sorted({str(entry[4][0]) for entry in found})[:MOST_ADDRESSES]
    return [
        ScrapeTarget(
            authority(host, endpoint.port),
            endpoint.scheme,
            endpoint.host,
            host,
            endpoint.port,
            endpoint.path,
            endpoint.role,
        )
        for host in hosts
    ]


def authority(host: str, port: int) -> str:
    """Host and port as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _pods(text: str) -> Pods:
    found = _PODS.fullmatch(text.removeprefix(_K8S))
    port = (found["port"] or "") if found else ""
    if found is None or (port.isdecimal() and not 0 < int(port) < 65_536):
        raise EndpointError(f"{text!r} names no pods; write one such as {_PODS_FORM}")
    return Pods(found["namespace"], found["labels"], port, found["path"] or "")


def _split(text: str, url: str) -> tuple[SplitResult, int | None]:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as e:
        raise EndpointError(f"metrics URL {public_url(url)!r}: {url_fault(e)}") from None
    if not text.isascii() or any(c.isspace() or not c.isprintable() for c in text):
        raise EndpointError(f"metrics URL {public_url(url)!r} holds a character that is invalid in a URL")
    return parts, port


# --- Roles that replicas are given where their URLs are named, for the scraping of their metrics


#: Host and port.
_Place = tuple[str, int]


def metrics_urls(given: Iterable[str], replica_urls: Iterable[str]) -> tuple[str, ...]:
    """The metrics' URLs, each with the role of the replica at its host and port, where that has one.

    Raises:
        ValueError: a role that no metrics URL gets, so that no figure would have it, or two of one server.
    """
    roles: dict[_Place, str] = {}
    for named in replica_urls:
        role, url = split_role(named)
        if role is not None:
            target = Target.parse(url.removeprefix(_DNS))
            _note(roles, (target.host, target.port), role)
    found, scraped = [], set()
    for url in given:
        try:
            endpoint = Endpoint.parse(url)
        except EndpointError:  # refused, with its reason, by the scraper's words
            found.append(url)
            continue
        place = endpoint.host, endpoint.port
        scraped.add(place)
        if endpoint.role is not None:
            _note(roles, place, endpoint.role)
        found.append(url if endpoint.role or place not in roles else f"{roles[place]}={url}")
    for place, role in roles.items():
        if place not in scraped:
            raise ValueError(
                f"--replica-url: {authority(*place)} is a {role} server, and what it does is in its metrics: "
                "give them by --metrics-url, or leave the role out"
            )
    return tuple(found)


def _note(roles: dict[_Place, str], place: _Place, role: str) -> None:
    if roles.setdefault(place, role) != role:
        raise ValueError(
            f"--metrics-url, --replica-url: {authority(*place)} has two roles, {roles[place]} and {role}: "
            "leave one out"
        )


# --- One GET with a hard time limit, whatever the other side does


#: Longest page in bytes.
MOST_BYTES = 8 * 1024 * 1024
_BLOCK = 65_536


class FetchError(OSError):
    """No complete page; the text says why."""


@dataclass(frozen=True, slots=True)
class Page:
    text: str
    seconds: float


def fetch(
    target: ScrapeTarget,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Page:
    """Fetch the page of ``target``.

    A socket's timeout limits only one read. So the connection is cut after the time limit, even if a slow
    server keeps sending.

    Raises:
        FetchError: refused, broken, late, too long, or another status than 200.
    """
    began, line = time.monotonic(), _CuttableSocket()
    cut = threading.Timer(timeout_s, line.cut)
    cut.daemon = True
    cut.start()
    try:
        body = line.get(target, timeout_s, headers or {}, tls)
        if line.late:
            raise FetchError(f"no whole page within {timeout_s:g} s")
    except (OSError, http.client.HTTPException, ValueError) as e:
        if line.late or isinstance(e, TimeoutError):
            raise FetchError(f"no whole page within {timeout_s:g} s") from e
        if isinstance(e, FetchError):
            raise
        text = getattr(e, "strerror", None) or str(e) or type(e).__name__
        raise FetchError(clean_name(" ".join(text.split()))) from e
    finally:
        cut.cancel()
        line.close()
    return Page(body.decode("utf-8", "replace"), time.monotonic() - began)


class _CuttableSocket:
    """A socket that another thread may cut."""

    def __init__(self) -> None:
        self.late = False
        self._sock: socket.socket | None = None
        self._response: http.client.HTTPResponse | None = None

    def cut(self) -> None:
        self.late = True
        if self._sock is not None:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._response is not None:  # it holds the socket too
            self._response.close()
        if self._sock is not None:
            self._sock.close()

    def get(
        self, target: ScrapeTarget, timeout_s: float, headers: Mapping[str, str], tls: ssl.SSLContext | None
    ) -> bytes:
        self._sock = socket.create_connection((target.address, target.port), timeout_s)
        if target.scheme == "https":
            context = tls or ssl.create_default_context()
            self._sock = context.wrap_socket(
                self._sock, server_hostname=target.host, do_handshake_on_connect=False
            )
            self._sock.do_handshake()
        connection = http.client.HTTPConnection(target.host, target.port)
        connection.sock = self._sock
        asked = {"Accept": "text/plain; version=0.0.4", "Connection": "close", **headers}
        connection.request("GET", target.path, headers=asked)
        response = self._response = connection.getresponse()
        if response.status != http.client.OK:
            raise FetchError(f"it answered {response.status}")
        return self._body(response)

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        blocks, size = [], 0
        while not self.late and (block := response.read1(_BLOCK)):
            blocks.append(block)
            size += len(block)
            if size > MOST_BYTES:
                raise FetchError(f"the page has over {MOST_BYTES:,} bytes")
        if response.length:
            raise FetchError(f"the page ended {response.length:,} bytes early")
        return b"".join(blocks)


# --------------------
# Pods of a Kubernetes cluster that match a label selector, with their current addresses.
#
# The API server is queried with the pod's own service account, by the standard library's HTTP. This blocks,
# and is for a process without an event loop (:mod:`llm_locust.deployment.scraper`). The service account
# needs the right to list pods, which only the component ``pod-discovery`` of the manifests grants.
# --------------------


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
        return scrape_targets_of(endpoint)
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
