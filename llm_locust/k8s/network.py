"""Destinations of a run, as rules of network policies."""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from llm_locust.deployment.discovery import Endpoint
from llm_locust.deployment.targets import ArmError, chosen_arms
from llm_locust.figures.servers import split_role
from llm_locust.k8s.plan import WITH_TARGET, OverlayPlan, RenderError
from llm_locust.wire.foreign_text import public_url, url_fault

# --- Servers that pods connect to, and the network rules for them


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


# --- Everything that a run connects to, as rules of network policies


_DNS = "dns+"

#: Stands for the URL of an overlay's own target, which its policies allow already.
_OWN = "own"

#: Variables of the environment with the address of an OpenTelemetry collector.
_COLLECTORS = tuple(f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT" for signal in ("", "TRACES_", "METRICS_", "LOGS_"))

#: Metadata servers that give credentials to pods: addresses and ports.
CLOUD_IDENTITIES: Mapping[str, tuple[tuple[str, int], ...]] = {
    # The instance's, and the agent of EKS Pod Identity.
    "aws": (("169.254.169.254/32", 80), ("169.254.170.23/32", 80)),
    "azure": (("169.254.169.254/32", 80),),
    # The instance's, and those of GKE's workload identity.
    "gcp": (("169.254.169.254/32", 80), ("169.254.169.254/32", 988), ("169.254.169.252/32", 988)),
}


@dataclass(frozen=True, slots=True)
class Opening:
    """Destination that pods may connect to.

    Attributes:
        policy: the NetworkPolicy that has the rules: ``target`` (master and workers) or ``master``.
        what: the destination as the user knows it.
        meaning: addresses or pods that the rules let through.
    """

    policy: str
    what: str
    meaning: str
    rules: tuple[dict[str, Any], ...]

    def __str__(self) -> str:
        who = "master and workers" if self.policy == "target" else "master"
        return f"{who} may connect to {self.what}: {self.meaning}"


def openings(plan: OverlayPlan) -> list[Opening]:
    """Destinations of a run, in a fixed order, each policy and rule once.

    Raises:
        RenderError: a URL that is not one, or one whose addresses are unknown.
    """
    for cidr in plan.cidrs:
        network(cidr)
    found: dict[tuple[str, str], Opening] = {}
    for policy, url in _servers(plan):
        rules, meaning = ServerTarget.parse(url).egress(plan.cidrs)
        found.setdefault((policy, url), Opening(policy, public_url(url), meaning, tuple(rules)))
    opened = [*found.values(), *_metrics(plan), *_upload(plan)]
    if plan.cloud_identity is not None:
        opened.append(_identity(plan.cloud_identity))
    return opened


def _servers(plan: OverlayPlan) -> Iterator[tuple[str, str]]:
    """URLs with the policies of those who connect to them."""
    for url in _targets(plan):
        yield "target", url
    for name in _COLLECTORS:
        if name in plan.pods.env:
            text = plan.pods.env[name]
            yield "target", text if "://" in text else f"http://{text}"
    for url in plan.option("replica_url"):
        yield "master", split_role(url)[1].removeprefix(_DNS)


def _targets(plan: OverlayPlan) -> list[str]:
    """The servers that get the load."""
    host = plan.target or plan.scenario.options.get("host")
    found = [url.removeprefix(_DNS) for url in plan.option("targets")]
    own = plan.overlay in WITH_TARGET
    usual = str(host) if host else _OWN if own else None
    try:
        arms = chosen_arms(plan.option("arm"), plan.scenario.arms, usual)
    except ArmError as e:
        raise RenderError(f"arms: {e}") from e
    found += [arm.url for arm in arms if arm.url != _OWN]
    if host is not None:
        found.insert(0, str(host))
    elif not found and not own:
        raise RenderError("no target: give --target http://HOST:PORT, or set host in the scenario")
    return found


def _metrics(plan: OverlayPlan) -> Iterator[Opening]:
    for text in plan.option("metrics_url"):
        endpoint = Endpoint.parse(text)
        if endpoint.pods is None:
            address = ServerTarget(text, endpoint.host, endpoint.port)
            rules, meaning = address.egress(plan.cidrs)
            yield Opening("master", public_url(text), meaning, tuple(rules))
            continue
        if not plan.pod_discovery:
            raise RenderError(f"metrics_url {text!r} needs permission to list pods: add --pod-discovery")
        space = endpoint.pods.namespace
        peer = {"podSelector": {}} if space is None else in_namespace(space)
        where = "the run's namespace" if space is None else f"namespace {space}"
        yield Opening("master", text, f"all pods of {where}, any port", ({"to": [peer]},))


def _upload(plan: OverlayPlan) -> Iterator[Opening]:
    """An object store. Its addresses change, so that HTTPS is open to all of them."""
    to = plan.upload or plan.scenario.options.get("upload")
    if to is None or "://" not in str(to):
        return
    text = str(to)
    settings = parse_qs(urlsplit(text).query)
    store = plan.pods.env.get("AWS_ENDPOINT_URL") or next(iter(settings.get("endpoint_override", ())), None)
    shown = text.partition("?")[0]
    if store is None:
        yield Opening("master", shown, "any address, port 443", ({"ports": [{"port": 443}]},))
        return
    scheme = next(iter(settings.get("scheme", ())), "https")
    server = ServerTarget.parse(store if "://" in store else f"{scheme}://{store}", "the upload's store")
    rules, meaning = server.egress(plan.cidrs)
    yield Opening("master", shown, meaning, tuple(rules))


def _identity(cloud: str) -> Opening:
    places = CLOUD_IDENTITIES[cloud]
    rules = tuple(
        {"to": [{"ipBlock": {"cidr": cidr}}], "ports": [{"port": port, "protocol": "TCP"}]}
        for cidr, port in places
    )
    meaning = ", ".join(f"{cidr} port {port}" for cidr, port in places)
    return Opening("master", f"the metadata server of {cloud}", meaning, rules)
