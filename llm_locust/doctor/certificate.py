"""TLS: version, certificate, its names and its expiry."""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llm_locust.client.http.tls import tls_reason
from llm_locust.client.probing import Session
from llm_locust.doctor.finding import Finding, fail, ok, skipped, warn
from llm_locust.report.text import clean, count, number, plural, short
from llm_locust.wire.names import clean_name

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
