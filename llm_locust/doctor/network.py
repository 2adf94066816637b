"""Checks of the way to the server: names, connections, certificates."""

import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from llm_locust.client.http.pool import Address, address_text
from llm_locust.client.http.tls import tls_reason
from llm_locust.client.probing import Session
from llm_locust.doctor.finding import Finding, fail, ok, skipped, warn
from llm_locust.figures.text import clean, count, number, plural, short
from llm_locust.wire.foreign_text import clean_name

# --- Name and connections: DNS and TCP


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


# --- TLS: version, certificate, its names and its expiry


#: A certificate that expires sooner is worth a warning.
SOON_DAYS = 14.0

_DAY_S = 86_400.0
_MOST_NAMES = 5

#: ``verify_code`` of a certificate for other names (of a host, of an address), expired, or not valid yet.
_OTHER_NAME, _EXPIRED, _NOT_YET = frozenset({62, 64}), 10, 9


@dataclass(frozen=True, slots=True)
class Certificate:
    """Names that a certificate is for, and the realtime second of its end; None if unknown."""

    names: tuple[str, ...]
    expires_s: float | None

    @classmethod
    def of(cls, decoded: dict[str, object]) -> "Certificate":
        """Read what :meth:`ssl.SSLSocket.getpeercert` returns."""
        end = decoded.get("notAfter")
        try:
            expires_s = float(ssl.cert_time_to_seconds(str(end))) if end else None
        except (ValueError, OverflowError):
            expires_s = None
        return cls(tuple(_names(decoded.get("subjectAltName"))), expires_s)


def _names(entries: Any) -> Iterator[str]:
    for entry in entries or ():
        if isinstance(entry, tuple) and len(entry) == 2 and entry[0] in ("DNS", "IP Address"):
            yield clean_name(str(entry[1]))


@dataclass(frozen=True, slots=True)
class TlsSeen:
    """A handshake with the server.

    Attributes:
        session: of the verified handshake; None if it failed.
        certificate: as the server sent it, if it can be read.
        error: of the verified handshake.
        now_s: realtime seconds at which it was made.
    """

    host: str
    session: Session | None
    certificate: Certificate | None
    error: OSError | None
    now_s: float


def judge_tls(seen: TlsSeen | None, *, is_https: bool) -> Finding:
    """The handshake and the certificate."""
    if not is_https:
        return skipped("the URL is http://")
    if seen is None:
        return skipped("no connection")
    if seen.session is None:
        return _judge_failure(seen)
    figure = f"{seen.session.version}, {number(seen.session.seconds * 1e3)} ms with TCP"
    certificate = seen.certificate
    if certificate is None or certificate.expires_s is None:
        return ok(figure)
    days = (certificate.expires_s - seen.now_s) / _DAY_S
    figure += f", certificate expires in {_days(days)}"
    return warn(figure, "renew the certificate") if days < SOON_DAYS else ok(figure)


def _judge_failure(seen: TlsSeen) -> Finding:
    error, certificate = seen.error, seen.certificate
    if isinstance(error, ssl.SSLCertVerificationError) and certificate is not None:
        if error.verify_code in _OTHER_NAME:
            return fail(
                f"the certificate is for {_shown(certificate.names)}, the URL has {seen.host!r}",
                "write one of the certificate's names into the URL, or give the server another certificate",
            )
        if error.verify_code == _EXPIRED and certificate.expires_s is not None:
            days = (seen.now_s - certificate.expires_s) / _DAY_S
            return fail(
                f"the certificate expired {_days(days)} ago", "renew it, or check this machine's clock"
            )
        if error.verify_code == _NOT_YET:
            return fail(
                "the certificate is not valid yet", "check the clocks of this machine and of the server"
            )
    if isinstance(error, ssl.SSLError):
        return fail(
            short(clean(tls_reason(error)), 200), "see what is in parentheses, or ask who runs the server"
        )
    return fail(str(error), "check that the port serves TLS; without TLS write http://")


def _days(days: float) -> str:
    return plural(round(days), "day") if days >= 2 else f"{number(days * 24)} hours"


def _shown(names: tuple[str, ...]) -> str:
    if not names:
        return "no name"
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {count(more)} more" if more > 0 else "")
