"""Target of the load, and the network rules for it."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from llm_locust.k8s.scenario_files import RenderError

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """A server under test.

    Attributes:
        url: as given.
        host: its name or address.
        port: port of the URL. A Service may forward it to another port of its pods.
    """

    url: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> "ServerTarget":
        """Parse a URL (raises RenderError unless it is an http(s) URL with a host)."""
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError as e:
            raise RenderError(f"target {url!r}: {e}") from e
        if parts.scheme not in _PORTS or not parts.hostname:
            raise RenderError(f"target {url!r} is not a URL such as http://vllm.models.svc:8000")
        return cls(url, parts.hostname, port)

    def egress(self, cidrs: Sequence[str]) -> list[dict[str, Any]]:
        """Rules of a NetworkPolicy that let pods reach it.

        A policy has addresses and pods, but no names: a Service of the cluster becomes the pods of its
        namespace, on any port; for another name the addresses must be given.

        Raises:
            RenderError: they are not.
        """
        if cidrs:
            peers = [{"ipBlock": {"cidr": str(_network(cidr))}} for cidr in cidrs]
            return [{"to": peers, "ports": [{"port": self.port}]}]
        address = _address(self.host)
        if address is not None:
            block = f"{address}/{address.max_prefixlen}"
            return [{"to": [{"ipBlock": {"cidr": block}}], "ports": [{"port": self.port}]}]
        return [{"to": [self._pods()]}]

    def _pods(self) -> dict[str, Any]:
        labels = self.host.split(".")
        if len(labels) == 1:
            return {"podSelector": {}}
        if len(labels) >= 3 and labels[2] == "svc":
            return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": labels[1]}}}
        raise RenderError(
            f"{self.host!r} is not a Service of the cluster (NAME or NAME.NAMESPACE.svc); a NetworkPolicy "
            "takes no names: give its addresses by --target-cidr, such as 203.0.113.7/32"
        )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _network(cidr: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(cidr)
    except ValueError as e:
        raise RenderError(f"--target-cidr {cidr!r}: {e}") from e
