"""Servers that pods connect to, and the network rules for them."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from llm_locust.k8s.scenario_files import RenderError
from llm_locust.wire.secrecy import public_url, url_fault

_PORTS = {"http": 80, "https": 443}

#: Rules of a NetworkPolicy's egress, and what they let through, in words.
Rules = tuple[list[dict[str, Any]], str]


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """A server.

    Attributes:
        url: as given.
        host: its name or address.
        port: port of the URL. A Service may forward it to another port of its pods.
    """

    url: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str, what: str = "target") -> "ServerTarget":
        """Parse a URL (raises RenderError unless it is an http(s) URL with a host).

        Args:
            what: names it in the error.
        """
        shown = public_url(url)
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError as e:
            raise RenderError(f"{what} {shown!r}: {url_fault(e)}") from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise RenderError(f"{what} {shown!r} is not a URL such as http://vllm.models.svc:8000")
        return cls(shown, parts.hostname, port)

    def egress(self, cidrs: Sequence[str]) -> Rules:
        """Rules of a NetworkPolicy that let pods reach it, and what they open.

        A policy has addresses and pods, but no names: a Service of the cluster becomes the pods of its
        namespace, on any port, because the Service may forward to any; for another name the addresses must
        be given.

        Raises:
            RenderError: they are not.
        """
        address = _address(self.host)
        if address is not None:
            return self._blocks([f"{address}/{address.max_prefixlen}"])
        labels = self.host.removesuffix(".").split(".")
        if len(labels) == 1:
            return [{"to": [{"podSelector": {}}]}], "all pods of the run's namespace, any port"
        if len(labels) >= 3 and labels[2] == "svc":
            return [{"to": [in_namespace(labels[1])]}], f"all pods of namespace {labels[1]}, any port"
        if cidrs:
            return self._blocks([str(network(cidr)) for cidr in cidrs])
        raise RenderError(
            f"{self.host!r} is not a Service of the cluster (NAME or NAME.NAMESPACE.svc); a NetworkPolicy "
            "takes no names: give its addresses by --target-cidr, such as 203.0.113.7/32, or leave the "
            "policies out by --no-network-policies"
        )

    def _blocks(self, cidrs: Sequence[str]) -> Rules:
        peers = [{"ipBlock": {"cidr": cidr}} for cidr in cidrs]
        return [{"to": peers, "ports": [{"port": self.port}]}], f"{', '.join(cidrs)}, port {self.port}"


def in_namespace(name: str) -> dict[str, Any]:
    """All pods of a namespace."""
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def network(cidr: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Addresses of one CIDR (raises RenderError)."""
    try:
        return ipaddress.ip_network(cidr)
    except ValueError as e:
        raise RenderError(f"--target-cidr {cidr!r}: {e}") from e


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
