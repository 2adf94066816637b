"""Scrape endpoints: URLs, names that stand for all of their addresses, and pods by their labels."""

import re
import socket
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from llm_locust.metrics.deployment.pools.names import split_role
from llm_locust.wire.secrecy import public_url, url_fault, url_secret

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


def targets_of(endpoint: Endpoint) -> list[ScrapeTarget]:
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
