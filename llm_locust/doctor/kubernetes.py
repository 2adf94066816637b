"""Access to Kubernetes: the service account of this pod, else the cluster of a kubeconfig."""

import ssl
import time
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llm_locust.core.files import SmallYamlError, read_small_yaml
from llm_locust.deployment.discovery import (
    ApiServer,
    DiscoveryError,
    FetchError,
    ScrapeTarget,
    authority,
    fetch,
)
from llm_locust.doctor.finding import Finding, ok, skipped, warn
from llm_locust.figures.text import clean, number, short
from llm_locust.wire.foreign_text import clean_name, public_url

#: Answers that refuse access show that the server is there.
_REFUSED = ("it answered 401", "it answered 403")

_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Access:
    """Result of one request to an API server; ``error`` is why it failed."""

    server: str
    in_cluster: bool
    seconds: float | None = None
    error: str | None = None


def look_at_kubernetes(environ: Mapping[str, str], timeout_s: float) -> Access | None:
    """Ask the API server of this pod for one of its pods, or that of a kubeconfig for its version.

    None without either. No credentials of a kubeconfig are sent: an answer that refuses access is an answer.
    """
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return _in_cluster(environ, timeout_s)
    path = _kubeconfig(environ)
    return None if path is None else _by_kubeconfig(path, timeout_s)


def judge_kubernetes(access: Access | None) -> Finding:
    """Whether the cluster can be reached, and from a pod whether pods may be listed."""
    if access is None:
        return skipped("no pod's service account and no kubeconfig")
    server = short(clean(access.server), 80)
    if access.error is not None:
        change = (
            "needed only for `k8s:` addresses: apply the component pod-discovery"
            if access.in_cluster
            else "needed only for `llm-locust k8s` and kubectl: check the kubeconfig's current context"
        )
        return warn(f"{server}: {short(clean(access.error), 160)}", change)
    how = "lists pods" if access.in_cluster else "answers"
    return ok(f"{server} {how}, {number((access.seconds or 0.0) * 1e3)} ms")


def _in_cluster(environ: Mapping[str, str], timeout_s: float) -> Access:
    name, began_s = environ["KUBERNETES_SERVICE_HOST"], time.monotonic()
    try:
        server = ApiServer.of_this_pod(environ)
        name = authority(server.host, server.port)
        server.get(f"/api/v1/namespaces/{server.namespace()}/pods?limit=1", timeout_s)
    except DiscoveryError as e:
        return Access(name, True, error=str(e))
    return Access(name, True, seconds=time.monotonic() - began_s)


def _kubeconfig(environ: Mapping[str, str]) -> Path | None:
    """The first file of ``KUBECONFIG`` that exists, else ``~/.kube/config``."""
    named = [Path(path) for path in environ.get("KUBECONFIG", "").split(":") if path]
    home = environ.get("HOME")
    paths = named or ([Path(home) / ".kube" / "config"] if home else [])
    return next((path for path in paths if path.is_file()), None)


def _by_kubeconfig(path: Path, timeout_s: float) -> Access:
    name, began_s = str(path), time.monotonic()
    try:
        cluster = _current_cluster(read_small_yaml(path))
        server = str(cluster["server"])
        target, name = _target(server), public_url(server)
        fetch(target, timeout_s, tls=_context(cluster, path.parent) if target.scheme == "https" else None)
    except FetchError as e:
        if str(e) not in _REFUSED:
            return Access(name, False, error=str(e))
    except SmallYamlError as e:
        return Access(name, False, error=str(e))
    except (LookupError, TypeError, ValueError, OSError) as e:
        return Access(name, False, error=f"the current context cannot be used: {e}")
    return Access(name, False, seconds=time.monotonic() - began_s)


def _current_cluster(config: Any) -> dict[str, Any]:
    """The ``cluster`` of the current context (raises LookupError or TypeError)."""
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster: dict[str, Any] = _named(config["clusters"], context["cluster"])["cluster"]
    return cluster


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for entry in entries:
        if entry["name"] == name:
            return entry
    raise LookupError(f"it names {clean_name(str(name))!r}, which the file does not have")


def _target(server: str) -> ScrapeTarget:
    parts = urlsplit(server)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{public_url(server)!r} is not a URL")
    port = parts.port or _PORTS[parts.scheme]
    path = parts.path.rstrip("/") + "/version"
    name = authority(parts.hostname, port)
    return ScrapeTarget(name, parts.scheme, parts.hostname, parts.hostname, port, path)


def _context(cluster: dict[str, Any], folder: Path) -> ssl.SSLContext:
    """TLS as the kubeconfig says: its authority, or none that is verified."""
    data, file = cluster.get("certificate-authority-data"), cluster.get("certificate-authority")
    text = b64decode(str(data)).decode("ascii") if data else None
    path = None if text or not file else str(folder / str(file))
    context = ssl.create_default_context(cafile=path, cadata=text)
    if cluster.get("insecure-skip-tls-verify") is True:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
