"""Looks at a server, one after another: the way to it, certificate, clock, models, and its answers."""

import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Any

from llm_locust.client import probing
from llm_locust.client.http.errors import ClientError
from llm_locust.client.http.pool import Address, Pool, address_text, resolve
from llm_locust.client.http.target import Target
from llm_locust.client.http.tls import tls_context, tls_reason
from llm_locust.client.probing import REFUSALS, Listing, Session, list_models
from llm_locust.core.texts import nearest
from llm_locust.doctor.finding import (
    NO_TIME,
    Examination,
    Finding,
    OutOfTimeError,
    TimeLeft,
    fail,
    ok,
    skipped,
    warn,
    why,
)
from llm_locust.doctor.stream import TOKENS, DoctorRequester, SeenStream, was_read_late
from llm_locust.figures.text import clean, count, number, plural, short
from llm_locust.wire.foreign_text import blanked, blanked_name, clean_name

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
                f"the certificate is for {_shown_names(certificate.names)}, the URL has {seen.host!r}",
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


def _shown_names(names: tuple[str, ...]) -> str:
    if not names:
        return "no name"
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {count(more)} more" if more > 0 else "")


# --- Its clock


#: Difference between the server's clock and this one from which logs are hard to join with records.
SERVER_CLOCK_OFF_S = 2.0

#: ``Date`` has whole seconds.
_DATE_RESOLUTION_S = 1.0


@dataclass(frozen=True, slots=True)
class ServerTime:
    """``Date`` of an answer, as sent, and the realtime seconds just before the request and after it."""

    date: str | None
    before_s: float
    after_s: float


def judge_server_clock(seen: ServerTime | None) -> Finding:
    """How far the server's clock is off, as far as ``Date`` tells. No latency depends on it."""
    if seen is None:
        return skipped("no answer")
    if seen.date is None:
        return skipped("the answer has no Date")
    try:
        date_s = parsedate_to_datetime(seen.date).replace(tzinfo=UTC).timestamp()
    except (ValueError, TypeError, OverflowError, OSError):
        return skipped("the answer's Date is not a date")
    # The server read its clock between before and after, and cut off the part of a second.
    ahead_s, behind_s = date_s - seen.after_s, seen.before_s - (date_s + _DATE_RESOLUTION_S)
    off_s = max(ahead_s, behind_s, 0.0)
    if off_s == 0:
        return ok("within 1 s of this machine's, as far as Date tells")
    figure = f"{number(off_s)} s {'ahead of' if ahead_s > behind_s else 'behind'} this machine's"
    if off_s > SERVER_CLOCK_OFF_S:
        return warn(
            figure, "synchronise both (NTP), to join server logs with records; no latency depends on it"
        )
    return ok(figure)


# --- The target: its list of models, and the API key


_SHOWN = 3


def chosen_model(listing: Listing | str, options: str | None) -> str | None:
    """Model of the requests: the one that is asked for, else the first of the list."""
    if options is not None or isinstance(listing, str) or not listing.names:
        return options
    return listing.names[0]


def judge_models(listing: Listing | str | None, options: Examination) -> Finding:
    """The list of models, or why there is none, and whether the model asked for is in it."""
    if listing is None:
        return skipped("no connection")
    if isinstance(listing, str):
        return fail(listing, "check host, port and path of the URL")
    status = listing.answer.status
    if listing.is_refused:
        return skipped(f"access refused (HTTP {status})")
    if listing.names is None:
        figure = f"{listing.base}/models gives no list (HTTP {status})"
        if options.model is None:
            return fail(figure, "give --model NAME, and check the path of the URL")
        return ok(f"{figure}; not needed, --model is given")
    names = [short(clean_name(blanked_name(name, options.secrets)), 60) for name in listing.names]
    figure = f"{plural(len(names), 'model')}: {_shown(names)}" if names else "the list is empty"
    if options.model is None:
        if len(names) == 1:
            return ok(figure)
        return (
            warn(figure, "give --model NAME: a run needs it")
            if names
            else fail(figure, "load a model, or give --model")
        )
    if options.model not in listing.names:
        return fail(
            f"{options.model!r} is not there; {figure}",
            f"{nearest(options.model, names)}give --model with one of the list",
        )
    return ok(f"{short(clean_name(options.model), 60)!r} is one of {plural(len(names), 'model')}")


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def judge_key(listing: Listing | str | None, first: SeenStream | str, *, has_key: bool) -> Finding:
    """Whether the key that is given, or none, is accepted."""
    listed = listing.answer.status if isinstance(listing, Listing) else None
    generated = None if isinstance(first, str) else first.record.status
    refusal = next((status for status in (generated, listed) if status in REFUSALS), None)
    if refusal is not None and not has_key:
        return fail(
            f"absent, and the server asks for one (HTTP {refusal})", "give --api-key-env NAME or --header"
        )
    if refusal is not None:
        return fail(
            f"refused (HTTP {refusal})",
            "check the key: the right variable, not expired, allowed for this model and endpoint",
        )
    if (generated or listed) is None:
        return skipped("no answer")
    if generated is None or generated >= 300:
        return skipped("no request was answered that would need one")
    return ok("accepted, or not looked at" if has_key else "none given, none needed")


# --- Looks at the server, one after another, each in its time


#: Time limits of single looks.
DNS_S, CONNECT_S, MODELS_S, ANSWER_S = 5.0, 5.0, 5.0, 10.0

#: Time limit of the connection of a request, in addition to that of its answer.
REQUEST_CONNECT_S = 2.0

#: Time by which a request may end after its own limits, which say why it ended.
CLOSE_S = 0.5

#: How often the longer answer is asked for again where this machine read it too late to judge it.
MOST_READ_LATE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSeen:
    """The server, as far as it was reached.

    Attributes:
        listing: the list of models, or why it failed; None if no connection came so far.
        clock: None if no answer came.
        first, stream: answers of one token and of 32, or why no request was sent.
        others: answers of one token of the further models.
    """

    resolved: Resolved
    attempts: tuple[Attempt, ...] = ()
    tls: TlsSeen | None = None
    listing: Listing | str | None = None
    clock: ServerTime | None = None
    first: SeenStream | str = "no connection"
    stream: SeenStream | str = "no connection"
    others: Mapping[str, SeenStream | str] = field(default_factory=dict)


def _tls(options: Examination) -> ssl.SSLContext:
    return tls_context(options.ca_cert, options.client_cert, insecure=options.insecure)


def look_at_server(options: Examination, target: Target, time_left: TimeLeft) -> ServerSeen:
    """Look at the server, as far as one look after another succeeds and time is left.

    Raises:
        TargetError: a certificate of this machine's cannot be used.
    """
    tls = _tls(options) if target.scheme == "https" else None
    seen = ServerSeen(resolved=_resolve(target, time_left))
    seen = replace(seen, attempts=_attempts(seen.resolved, time_left))
    reached = next((attempt.address for attempt in seen.attempts if attempt.seconds is not None), None)
    if reached is None:
        return seen
    if tls is not None:
        seen = replace(seen, tls=_shake_hands(options, target, reached, tls, time_left))
        if seen.tls is None or seen.tls.session is None:
            return seen
    listing, clock = _list(options, target, tls, time_left)
    base = target.base if isinstance(listing, str) else listing.base
    first, stream, others = _answers(options, target.with_base(base), tls, listing, time_left)
    return replace(seen, listing=listing, clock=clock, first=first, stream=stream, others=others)


def _resolve(target: Target, time_left: TimeLeft) -> Resolved:
    began_s = time.monotonic()
    try:
        found = probing.within(time_left.at_most(DNS_S), lambda: resolve(target.host, target.port))
    except (OSError, UnicodeError, OutOfTimeError) as e:
        return Resolved(target.host, error=why(e))
    return Resolved(target.host, tuple(found), time.monotonic() - began_s)


def _attempts(resolved: Resolved, time_left: TimeLeft) -> tuple[Attempt, ...]:
    """Connections to the addresses; all share :data:`CONNECT_S`."""
    share_s = CONNECT_S / max(1, min(MOST_TRIED, len(resolved.addresses)))
    try:
        return try_addresses(
            resolved.addresses, lambda address: probing.connect_s(address, time_left.at_most(share_s))
        )
    except OutOfTimeError:
        return ()


def _shake_hands(
    options: Examination, target: Target, address: Address, tls: ssl.SSLContext, time_left: TimeLeft
) -> TlsSeen | None:
    """A verified handshake; if the certificate is not accepted, a second one that only reads it."""

    def handshake(context: ssl.SSLContext) -> probing.Session:
        return probing.handshake(
            address, options.tls_name or target.host, context, time_left.at_most(CONNECT_S)
        )

    now_s = time.time()
    try:
        session = handshake(tls)
        return TlsSeen(target.host, session, Certificate.of(session.certificate), None, now_s)
    except ssl.SSLCertVerificationError as e:
        try:
            looked = handshake(probing.lenient(_tls(options)))
            return TlsSeen(target.host, None, Certificate.of(looked.certificate), e, now_s)
        except (OSError, OutOfTimeError):
            return TlsSeen(target.host, None, None, e, now_s)
    except OSError as e:
        return TlsSeen(target.host, None, None, e, now_s)
    except OutOfTimeError:
        return None


def _list(
    options: Examination, target: Target, tls: ssl.SSLContext | None, time_left: TimeLeft
) -> tuple[Listing | str, ServerTime | None]:
    """The list of models, or why there is none; and the server's clock."""
    try:
        pool = Pool(
            target, tls=tls, tls_name=options.tls_name, connect_timeout_s=time_left.at_most(CONNECT_S)
        )
    except OutOfTimeError:
        return NO_TIME, None
    before_s = time.time()
    try:
        limit_s = time_left.at_most(MODELS_S)
        listing = probing.within(
            time_left.at_most(2 * MODELS_S), lambda: list_models(pool, options.headers, limit_s)
        )
    except (ClientError, TimeoutError, OutOfTimeError) as e:
        return blanked(why(e), options.secrets), None
    finally:
        pool.close()
    date = listing.answer.headers.get(b"date")
    text = None if date is None else date[:100].decode("latin-1")
    return listing, ServerTime(text, before_s, time.time())


def _answers(
    options: Examination,
    target: Target,
    tls: ssl.SSLContext | None,
    listing: Listing | str,
    time_left: TimeLeft,
) -> tuple[SeenStream | str, SeenStream | str, dict[str, SeenStream | str]]:
    """The answers of one token and of 32, the second only after the first; and those of the other models."""
    model = chosen_model(listing, options.model)
    if model is None:
        return "no model is known", "no model is known", {}
    try:
        requester = DoctorRequester(options, target, tls, time_left.at_most(REQUEST_CONNECT_S))
    except OutOfTimeError:
        return NO_TIME, NO_TIME, dict.fromkeys(options.others, NO_TIME)

    def answer(tokens: int, model: str = model) -> SeenStream | str:
        try:
            limit_s = time_left.at_most(ANSWER_S)
            return probing.within(
                REQUEST_CONNECT_S + limit_s + CLOSE_S, lambda: requester.stream(model, tokens, limit_s)
            )
        except (OutOfTimeError, TimeoutError):
            return NO_TIME

    try:
        first = answer(1)
        stream: SeenStream | str = "the request for one token failed"
        if not isinstance(first, str) and first.record.status == 200:
            stream = answer(TOKENS)
            for _ in range(MOST_READ_LATE):
                if isinstance(stream, str) or not was_read_late(stream, first):
                    break
                stream = answer(TOKENS)
        return first, stream, {name: answer(1, name) for name in options.others}
    finally:
        requester.close()
