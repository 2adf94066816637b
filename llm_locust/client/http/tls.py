"""TLS over memory buffers: this package's socket carries the bytes, with their stamps."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llm_locust.client.http.target import TargetError
from llm_locust.core.files import InputError, open_plain

_READ_SIZE = 65_536

#: ``verify_code`` of a certificate whose authority is unknown: itself, or at the end of its chain.
_UNKNOWN_AUTHORITY = frozenset({18, 19, 20, 21})

#: ``verify_code`` of a certificate for another host, name or address.
_OTHER_NAME = frozenset({62, 63, 64})

_HUNG_UP = "UNEXPECTED_EOF_WHILE_READING"

_ADVICE = {
    "WRONG_VERSION_NUMBER": "the server does not speak TLS at this port; try http://",
    "HTTP_REQUEST": "the server does not speak TLS at this port; try http://",
    _HUNG_UP: "the server hung up; if it does not speak TLS at this port, try http://",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server asks for a client's certificate; give --client-cert",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the server may ask for a client's certificate; give --client-cert",
}


def tls_context(
    ca_cert: Path | None = None, client_cert: Path | None = None, *, insecure: bool = False
) -> ssl.SSLContext:
    """Verify against the system's CAs, or against ``ca_cert`` alone; ``client_cert`` holds certificate and
    key in one PEM file. ``insecure``: accept any certificate, of any name.

    Raises:
        TargetError: a file cannot be read as PEM.
    """
    _check_files({"--ca-cert": ca_cert, "--client-cert": client_cert})
    try:
        context = ssl.create_default_context(cafile=None if ca_cert is None else str(ca_cert))
    except (OSError, ssl.SSLError) as e:
        raise TargetError(f"--ca-cert {str(ca_cert)!r} cannot be used: {e}") from e
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if client_cert is not None:
        try:
            context.load_cert_chain(str(client_cert))
        except (OSError, ssl.SSLError) as e:
            raise TargetError(
                f"--client-cert {str(client_cert)!r} cannot be used (PEM, certificate and key): {e}"
            ) from e
    return context


def _check_files(given: Mapping[str, Path | None]) -> None:
    """Refuse what is no file, by flag: OpenSSL would wait for a pipe for ever (raises TargetError)."""
    for flag, path in given.items():
        try:
            if path is not None:
                open_plain(path).close()
        except InputError as e:
            raise TargetError(f"{flag} {str(path)!r} cannot be used: {e.why}") from e


def tls_reason(error: ssl.SSLError) -> str:
    """Reason of a TLS error in words, with advice if there is any."""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"certificate not accepted: {error.verify_message}"
        if error.verify_code in _UNKNOWN_AUTHORITY:
            return f"{text} (--ca-cert names an authority of your own; --insecure accepts any certificate)"
        if error.verify_code in _OTHER_NAME:
            return f"{text} (--tls-name gives the name that the certificate has)"
        return text
    # What hangs up passes for what ends the session, before Python 3.11.4.
    reason = _HUNG_UP if isinstance(error, ssl.SSLZeroReturnError) else error.reason or ""
    words = reason.replace("_", " ").lower() or error.strerror or str(error)
    return f"{words} ({_ADVICE[reason]})" if reason in _ADVICE else words


@dataclass(slots=True)
class Tls:
    """One session. Bytes in and out; it never uses a socket."""

    session: ssl.SSLObject
    incoming: ssl.MemoryBIO = field(repr=False)
    outgoing: ssl.MemoryBIO = field(repr=False)
    _broken: ssl.SSLError | None = field(default=None, init=False, repr=False)

    @classmethod
    def to(cls, host: str, context: ssl.SSLContext) -> "Tls":
        """Create a client's session with ``host``, before the handshake."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        return cls(context.wrap_bio(incoming, outgoing, server_hostname=host), incoming, outgoing)

    def receive(self, data: bytes) -> None:
        """Process bytes from the network; none at its end."""
        if data:
            self.incoming.write(data)
        else:
            self.incoming.write_eof()

    def encrypt(self, data: bytes) -> bytes:
        """Encrypt these bytes, after what the session itself has to send (raises SSLError)."""
        self.session.write(data)
        return self.outgoing.read()

    def decrypt(self, data: bytes) -> tuple[bytes, bool]:
        """Return the plain bytes that a read completed, and whether the peer has ended the stream.

        An end without close_notify is accepted: many servers do so, and HTTP detects a truncated response.

        Raises:
            ssl.SSLError: an alert, or bytes that are not TLS.
        """
        if self._broken is not None:
            raise self._broken
        self.receive(data)
        parts: list[bytes] = []
        ended = not data
        try:
            while part := self.session.read(_READ_SIZE):
                parts.append(part)
            ended = True
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            ended = True
        except ssl.SSLError as e:
            self._broken = e
            if not parts:  # otherwise the next read, even of the end, raises the error
                raise
        return b"".join(parts), ended
