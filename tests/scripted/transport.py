"""Between the wire's bytes and HTTP's: nothing, or TLS in memory, so that the socket stays ours."""

import contextlib
import ssl
from collections.abc import Mapping
from typing import Any, Protocol


class Transport(Protocol):
    """Bytes in, bytes out; it never touches a socket."""

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """(what the peer says, what has to be sent back) for bytes off the wire."""

    def encode(self, data: bytes) -> bytes:
        """The wire's form of our bytes."""

    def farewell(self) -> bytes:
        """What goes on the wire before an orderly close."""

    def pending(self) -> bytes:
        """What the transport itself wants to send."""

    def peer_name(self) -> str | None:
        """The common name of the peer's certificate."""


class Plain:
    """The wire's bytes are HTTP's."""

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        return data, b""

    def encode(self, data: bytes) -> bytes:
        return data

    def farewell(self) -> bytes:
        return b""

    def pending(self) -> bytes:
        return b""

    def peer_name(self) -> str | None:
        return None


class Tls:
    """A server's side of TLS. ``receive`` raises ``ssl.SSLError`` where the peer breaks it, and
    ``pending`` then gives the alert for the wire."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._ready = False

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        self._incoming.write(data)
        said = bytearray()
        try:
            if not self._ready:
                self._tls.do_handshake()
                self._ready = True
            while part := self._tls.read(65536):
                said += part
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass  # the rest is not here yet; or close_notify, which a FIN follows
        return bytes(said), self.pending()

    def encode(self, data: bytes) -> bytes:
        self._tls.write(data)
        return self._outgoing.read()

    def farewell(self) -> bytes:
        with contextlib.suppress(ssl.SSLError, ValueError):  # the peer's own close_notify is not waited for
            self._tls.unwrap()
        return self._outgoing.read()

    def pending(self) -> bytes:
        return self._outgoing.read()

    def peer_name(self) -> str | None:
        certificate = self._tls.getpeercert() if self._ready else None
        return _common_name(certificate) if certificate else None


def _common_name(certificate: Mapping[str, Any]) -> str | None:
    pairs = (pair for part in certificate.get("subject", ()) for pair in part)
    return next((value for key, value in pairs if key == "commonName"), None)
