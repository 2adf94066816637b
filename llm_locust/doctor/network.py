"""Name and connections: DNS and TCP."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address

from llm_locust.client.http.dial import Address, address_text
from llm_locust.doctor.finding import Finding, fail, ok, skipped, warn
from llm_locust.report.text import count, number, plural

#: Most addresses that are connected to.
MOST_TRIED = 8

#: A slower answer of the resolver is in the time of requests that open a connection.
SLOW_DNS_S = 0.5

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Resolved:
    """Addresses of the host; ``error`` if there are none."""

    host: str
    addresses: tuple[Address, ...] = ()
    seconds: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One connection: its time, or why there is none."""

    address: Address
    seconds: float | None
    error: str | None = None


def judge_dns(resolved: Resolved) -> Finding:
    """Resolution of the host's name."""
    if resolved.error is not None:
        return fail(
            f"{resolved.host!r} cannot be resolved: {resolved.error}",
            "check the spelling and the resolver (/etc/resolv.conf; in Kubernetes SERVICE.NAMESPACE)",
        )
    if is_address(resolved.host):
        return skipped("the host is an address")
    figure = (
        f"{plural(len(resolved.addresses), 'address', 'addresses')} in {number(resolved.seconds * 1e3)} ms"
    )
    if resolved.seconds > SLOW_DNS_S:
        return warn(
            figure,
            "use a faster resolver, or an address: a run resolves the name every 30 s, and its requests wait",
        )
    return ok(figure)


def is_address(host: str) -> bool:
    """Whether the host is an IP address."""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def try_addresses(addresses: tuple[Address, ...], connect: Callable[[Address], float]) -> tuple[Attempt, ...]:
    """Connect to the first :data:`MOST_TRIED` of them, one after another."""
    return tuple(_attempt(address, connect) for address in addresses[:MOST_TRIED])


def _attempt(address: Address, connect: Callable[[Address], float]) -> Attempt:
    try:
        return Attempt(address, connect(address))
    except OSError as e:
        return Attempt(address, None, e.strerror or str(e))


def judge_tcp(attempts: tuple[Attempt, ...]) -> Finding:
    """Connections to the addresses.

    A run leaves out an address that refuses. A family of addresses (IPv4, IPv6) of which none accepts is no
    warning: many servers listen on one of the two.
    """
    if not attempts:
        return skipped("no address")
    times = [attempt.seconds for attempt in attempts if attempt.seconds is not None]
    refused = [attempt for attempt in attempts if attempt.seconds is None]
    if not times:
        return fail(
            _listed(refused),
            "start the server, or check host, port and firewalls; a container has a localhost of its own",
        )
    most = f"{count(len(times))} of {count(len(attempts))} addresses accepted, at most after"
    figure = f"{'accepted after' if len(attempts) == 1 else most} {number(max(times) * 1e3)} ms"
    families = {attempt.address[0] for attempt in attempts if attempt.seconds is not None}
    if odd := [attempt for attempt in refused if attempt.address[0] in families]:
        return warn(f"{figure}; {_listed(odd)}", "remove the addresses that do not serve from the name")
    if refused:
        family = "IPv6" if refused[0].address[0] == socket.AF_INET6 else "IPv4"
        return ok(f"{figure} (none by {family})")
    return ok(figure)


def _listed(refused: list[Attempt]) -> str:
    named = "; ".join(f"{address_text(a.address)}: {a.error}" for a in refused[:_MOST_NAMED])
    more = len(refused) - _MOST_NAMED
    return f"{named}; and {count(more)} more" if more > 0 else named
