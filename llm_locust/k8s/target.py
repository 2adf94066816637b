"""Where the load goes, and what the network has to let through for it."""

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
        url: as it was given.
        host: its name or address.
        port: of the URL. A Service may send it to another port of its pods.
    """

    url: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> "ServerTarget":
        """Raises RenderError for what is no http(s) URL with a host."""
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError as e:
            raise RenderError(f"target {url!r}: {e}") from e
        if parts.scheme not in _PORTS or not parts.hostname:
            raise RenderError(f"target {url!r} is no URL such as http://vllm.models.svc:8000")
        return cls(url, parts.hostname, port)

    def egress(self, cidrs: Sequence[str]) -> list[dict[str, Any]]:
        """The rules of a NetworkPolicy that let pods reach it.

        A policy sees addresses and pods, no names: a Service of the cluster becomes the pods of its
        namespace, on any port; of another name the addresses must be said.

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
            f"{self.host!r} is no Service of the cluster (NAME, or NAME.NAMESPACE.svc), and a NetworkPolicy "
            "knows no names: give its addresses by --target-cidr, such as 203.0.113.7/32"
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
