"""Where requests go, and the connections that carry them there."""

import _socket
import os
import ssl
import time
from dataclasses import dataclass, replace
from pathlib import Path
from re import fullmatch
from socket import AF_INET6, IPPROTO_TCP, SO_ERROR, SO_KEEPALIVE, SOCK_STREAM, SOL_SOCKET, TCP_NODELAY
from urllib.parse import urlsplit

import gevent
import gevent.socket

from llm_locust.client.clock import ANCILLARY_BYTES, SO_TIMESTAMPNS
from llm_locust.client.connection import Connection, Tls
from llm_locust.client.errors import ConnectError

#: How long a name's addresses are used before it is resolved again.
RESOLVE_AFTER_S = 30.0

_DEFAULT_PORTS = {"http": 80, "https": 443}


class TargetError(ValueError):
    """A host that is no URL that can be loaded; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server's address: scheme, host, port, and the path that its API starts with (``/v1``)."""

    scheme: str
    host: str
    port: int
    base: str

    @classmethod
    def parse(cls, url: str) -> "Target":
        """``http://host:port`` with or without the API's version or another path prefix at its end.

        A path that names a version (a segment such as ``v1``) is the base as it stands; any other is
        a prefix in front of ``/v1``.

        Raises:
            TargetError: not an http(s) URL with a host.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError as e:
            raise TargetError(f"host {url!r}: {e}") from e
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise TargetError(
                f"host {url!r} is not a URL such as http://localhost:8000 or https://example.org/v1"
            )
        if parts.username is not None or parts.query or parts.fragment:
            raise TargetError(
                f"host {parts.hostname!r}: leave user, query and fragment out of the URL; "
                "give keys by --api-key-env or --header"
            )
        base = parts.path.rstrip("/")
        if not any(fullmatch(r"v\d+\w*", segment) for segment in base.split("/")):
            base += "/v1"
        return cls(parts.scheme, parts.hostname, port or _DEFAULT_PORTS[parts.scheme], base)

    @property
    def authority(self) -> str:
        """Host and port as the ``Host`` header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.base}"

    def with_base(self, base: str) -> "Target":
        return replace(self, base=base)


def tls_context(ca_cert: Path | None = None, client_cert: Path | None = None) -> ssl.SSLContext:
    """Verify against the system's CAs, or against ``ca_cert`` alone; ``client_cert`` holds certificate
    and key in one PEM file.

    Raises:
        TargetError: a file that cannot be read as PEM.
    """
    try:
        context = ssl.create_default_context(cafile=None if ca_cert is None else str(ca_cert))
    except (OSError, ssl.SSLError) as e:
        raise TargetError(f"--ca-cert {str(ca_cert)!r} cannot be used: {e}") from e
    if client_cert is not None:
        try:
            context.load_cert_chain(str(client_cert))
        except (OSError, ssl.SSLError) as e:
            raise TargetError(
                f"--client-cert {str(client_cert)!r} cannot be used (PEM, certificate and key): {e}"
            ) from e
    return context


class Pool:
    """Keep-alive connections to one target, as many as there are requests at once.

    Each new connection takes the next of the host's addresses, so that a name with several
    addresses (a headless service) is used evenly. An address that refuses while another one
    accepts is left out until the name is resolved again.
    """

    def __init__(
        self, target: Target, *, tls: ssl.SSLContext | None = None, connect_timeout_s: float = 10.0
    ) -> None:
        self.target = target
        self._tls = tls if target.scheme == "https" else None
        if target.scheme == "https" and tls is None:
            self._tls = tls_context()
        self._connect_timeout_s = connect_timeout_s
        self._idle: dict[Connection, None] = {}
        self._addresses: list[tuple[int, tuple[object, ...]]] = []
        self._resolved_at = 0.0
        self._turn = 0

    def acquire(self) -> Connection:
        """An idle connection, the one used last, else a new one (raises ConnectError)."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.usable:
                return connection
        return self.open()

    def release(self, connection: Connection) -> None:
        """Take back a connection whose exchange is finished."""
        if connection.usable:
            self._idle[connection] = None

    def close(self) -> None:
        """Close the idle connections."""
        for connection in list(self._idle):
            connection.close()

    def open(self) -> Connection:
        """A new connection to the next address that accepts one.

        Raises:
            ConnectError: none does, within the connect time-out.
        """
        timeout = gevent.Timeout(self._connect_timeout_s)
        timeout.start()
        try:
            return self._open()
        except gevent.Timeout as e:
            if e is not timeout:
                raise
            raise ConnectError(
                f"no connection to {self.target.authority} within {self._connect_timeout_s:g} s"
            ) from None
        finally:
            timeout.close()

    def _open(self) -> Connection:
        addresses = self._resolve()
        failure: OSError | None = None
        for _ in range(len(addresses)):
            family, address = addresses[self._turn % len(addresses)]
            self._turn += 1
            try:
                connection = self._connect(family, address)
            except ssl.SSLError as e:
                raise ConnectError(f"TLS with {self.target.authority} failed: {_reason(e)}") from e
            except OSError as e:
                failure = e
                continue
            if failure is not None:
                self._forget_all_but(family, address)
            return connection
        raise ConnectError(f"cannot connect to {self.target.authority}: {_reason(failure)}") from failure

    def _resolve(self) -> list[tuple[int, tuple[object, ...]]]:
        now = time.monotonic()
        if not self._addresses or now - self._resolved_at > RESOLVE_AFTER_S:
            try:
                found = gevent.socket.getaddrinfo(self.target.host, self.target.port, 0, SOCK_STREAM)
            except OSError as e:
                raise ConnectError(f"host {self.target.host!r} cannot be resolved: {_reason(e)}") from e
            self._addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
            self._resolved_at = now
        return self._addresses

    def _forget_all_but(self, family: int, address: tuple[object, ...]) -> None:
        """Addresses of the other family that refuse (``localhost`` as ::1) are not tried each time."""
        self._addresses = [a for a in self._addresses if a[0] == family] or [(family, address)]

    def _connect(self, family: int, address: tuple[object, ...]) -> Connection:
        sock = _socket.socket(family, SOCK_STREAM, 0)
        try:
            sock.setblocking(False)
            sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            sock.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
            if ANCILLARY_BYTES:
                sock.setsockopt(SOL_SOCKET, SO_TIMESTAMPNS, 1)
            try:
                sock.connect(address)
            except BlockingIOError:
                _wait_for(sock, write=True)
                error = sock.getsockopt(SOL_SOCKET, SO_ERROR)
                if error:
                    raise OSError(error, os.strerror(error)) from None
            tls = self._handshake(sock) if self._tls is not None else None
        except BaseException:
            sock.close()
            raise
        host, port = address[0], address[1]
        connection = Connection(sock, tls, f"[{host}]:{port}" if family == AF_INET6 else f"{host}:{port}")
        connection.on_closed = self._dropped
        return connection

    def _handshake(self, sock: _socket.socket) -> Tls:
        assert self._tls is not None
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = self._tls.wrap_bio(incoming, outgoing, server_hostname=self.target.host)
        while True:
            try:
                session.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            _send_all(sock, outgoing.read())
            if done:
                return Tls(session, incoming, outgoing)
            _wait_for(sock, write=False)
            data = sock.recv(16_384)
            if data:
                incoming.write(data)
            else:
                incoming.write_eof()

    def _dropped(self, connection: Connection) -> None:
        self._idle.pop(connection, None)


def _send_all(sock: _socket.socket, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except BlockingIOError:
            _wait_for(sock, write=True)


def _wait_for(sock: _socket.socket, *, write: bool) -> None:
    hub = gevent.get_hub()
    watcher = hub.loop.io(sock.fileno(), 2 if write else 1)
    try:
        hub.wait(watcher)
    finally:
        watcher.close()


def _reason(error: OSError | None) -> str:
    if error is None:
        return "it has no address"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    return error.strerror or str(error)
