"""Connections to one target: opened when one is needed, kept alive and lent out."""

import _socket
import os
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from socket import (
    AF_INET6,
    AI_NUMERICHOST,
    IPPROTO_TCP,
    SO_ERROR,
    SO_KEEPALIVE,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_NODELAY,
)
from typing import Any

import gevent
import gevent.socket
from gevent.lock import RLock

from llm_locust.client.http.clock import ANCILLARY_BYTES, SO_TIMESTAMPNS
from llm_locust.client.http.connection import Connection
from llm_locust.client.http.errors import ConnectError
from llm_locust.client.http.target import Target
from llm_locust.client.http.tls import Tls, tls_context, tls_reason
from llm_locust.host import exhausted, no_connection

# --- Opening of one connection: the host's addresses, a socket with time stamps, and TLS if requested

#: An address family and a socket address of it.
Address = tuple[int, tuple[object, ...]]

_EV_READ, _EV_WRITE = 1, 2


def resolve(host: str, port: int) -> list[Address]:
    """All addresses of a name, each once (raises OSError or UnicodeError).

    A host that is an address is read as one here: a busy client could wait for gevent's pool of threads until
    the time for connecting is over.
    """
    found: Sequence[tuple[Any, ...]]
    try:
        found = _socket.getaddrinfo(host, port, 0, SOCK_STREAM, 0, AI_NUMERICHOST)
    except _socket.gaierror:
        found = gevent.socket.getaddrinfo(host, port, 0, SOCK_STREAM)
    return list(dict.fromkeys((entry[0], entry[4]) for entry in found))


def dial(address: Address, tls: Tls | None, *, kernel_stamps: bool = True) -> Connection:
    """Connect to this address (raises OSError, including ``ssl.SSLError``)."""
    family, place = address
    sock = _socket.socket(family, SOCK_STREAM, 0)
    try:
        sock.setblocking(False)
        sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        sock.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
        if kernel_stamps and ANCILLARY_BYTES:
            sock.setsockopt(SOL_SOCKET, SO_TIMESTAMPNS, 1)
        with suppress(BlockingIOError):
            sock.connect(place)
        _wait_connected(sock)
        if tls is not None:
            _shake_hands(sock, tls)
        return Connection(sock, tls, address_text(address))
    except BaseException:
        sock.close()
        raise


def address_text(address: Address) -> str:
    """``host:port``, with an IPv6 host in brackets."""
    family, (host, port, *_) = address
    return f"[{host}]:{port}" if family == AF_INET6 else f"{host}:{port}"


def _wait_connected(sock: _socket.socket) -> None:
    _wait_for(sock, _EV_WRITE)
    if error := sock.getsockopt(SOL_SOCKET, SO_ERROR):
        raise OSError(error, os.strerror(error))


def _shake_hands(sock: _socket.socket, tls: Tls) -> None:
    done = False
    while not done:
        try:
            tls.session.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            with suppress(OSError):  # the alert that tells the server why
                sock.send(tls.outgoing.read())
            raise
        _send_all(sock, tls.outgoing.read())
        if not done:
            _wait_for(sock, _EV_READ)
            tls.receive(sock.recv(16_384))


def _send_all(sock: _socket.socket, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except BlockingIOError:
            _wait_for(sock, _EV_WRITE)


def _wait_for(sock: _socket.socket, events: int) -> None:
    hub = gevent.get_hub()
    watcher = hub.loop.io(sock.fileno(), events)
    try:
        hub.wait(watcher)
    finally:
        watcher.close()


# --- Connections that are kept and lent

#: Time after which a name is resolved again.
RESOLVE_AFTER_S = 30.0

#: Time after which a name is resolved again if no address has accepted: the server may have moved.
RESOLVE_AFTER_FAILURE_S = 1.0


#: Connections of this process that are open, or being opened.
_OPEN: set[object] = set()


class Pool:
    """Keep-alive connections to one target, as many as there are concurrent requests.

    Each new connection uses the next of the host's addresses, so that a name with several addresses (a
    headless service) is used evenly. An address that refuses while another one accepts is left out until the
    name is resolved again.

    Args:
        tls_name: host name that the certificate must have, and that the server is told (SNI); default: the
            target's.
        most_requests: a connection is closed after this many; None keeps it.
        kernel_stamps: ask the kernel for the time of what is received.
    """

    def __init__(
        self,
        target: Target,
        *,
        tls: ssl.SSLContext | None = None,
        tls_name: str | None = None,
        connect_timeout_s: float = 10.0,
        most_requests: int | None = None,
        kernel_stamps: bool = True,
    ) -> None:
        self.target = target
        self._tls = (tls or tls_context()) if target.scheme == "https" else None
        self._tls_name = tls_name or target.host
        self._connect_timeout_s = connect_timeout_s
        self._most_requests = most_requests
        self._kernel_stamps = kernel_stamps
        self._idle: dict[Connection, None] = {}
        self._closed = False
        self._addresses: list[Address] = []
        self._resolve_at = 0.0
        self._resolving = RLock()
        self._turn = 0
        self.dialling = 0  # connections being opened

    def acquire(self) -> Connection:
        """Return the idle connection used last, or a new one (raises ConnectError)."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.poll():
                return connection
        return self.open()

    def release(self, connection: Connection) -> None:
        """Take back a connection whose exchange is finished."""
        if self._closed:
            connection.close()
        elif not connection.closed:
            self._idle[connection] = None

    def close(self) -> None:
        """Close the idle connections now, and those in use when they are released."""
        self._closed = True
        for connection in list(self._idle):
            connection.close()

    def open(self) -> Connection:
        """Connect to the next address that accepts. Each has an equal share of the timeout.

        Raises:
            ConnectError: none accepts within the connect timeout.
        """
        if (why := no_connection(len(_OPEN))) is not None:
            raise ConnectError(f"this client cannot open a connection: {why}")
        addresses = self._in_turn(self._resolve())
        share_s = self._connect_timeout_s / len(addresses)
        failures: dict[Address, str] = {}
        for address in addresses:
            try:
                connection = self._dial(address, share_s)
            except ssl.SSLError as e:
                raise ConnectError(f"TLS with {self.target.authority} failed: {tls_reason(e)}") from e
            except OSError as e:
                if not isinstance(e, BlockingIOError) and (why := exhausted(e)) is not None:
                    raise ConnectError(f"this client cannot open a connection: {why}") from e
                failures[address] = e.strerror or str(e)
                continue
            self._addresses = [a for a in self._addresses if a not in failures]
            return connection
        self._resolve_at = min(self._resolve_at, time.monotonic() + RESOLVE_AFTER_FAILURE_S)
        raise ConnectError(
            f"cannot connect to {self.target.authority}: {_listed(failures, self.target.authority)}"
        )

    def _dial(self, address: Address, timeout_s: float) -> Connection:
        """As :func:`dial`, with a timeout (raises TimeoutError, an OSError)."""
        tls = None if self._tls is None else Tls.to(self._tls_name, self._tls)
        self.dialling += 1
        _OPEN.add(place := object())
        try:
            with gevent.Timeout(timeout_s, TimeoutError(f"no answer within {timeout_s:.3g} s")):
                connection = dial(address, tls, kernel_stamps=self._kernel_stamps)
        finally:
            self.dialling -= 1
            _OPEN.discard(place)
        _OPEN.add(connection)
        connection.on_closed, connection.limit = self._dropped, self._most_requests
        return connection

    def _in_turn(self, addresses: list[Address]) -> list[Address]:
        """All of them, starting with the next in rotation."""
        first = self._turn % len(addresses)
        self._turn += 1
        return addresses[first:] + addresses[:first]

    def _resolve(self) -> list[Address]:
        """Resolve the host's addresses; only one of concurrent callers asks (raises ConnectError)."""
        if self._addresses and time.monotonic() < self._resolve_at:
            return self._addresses
        host, within_s = self.target.host, self._connect_timeout_s
        try:
            with gevent.Timeout(within_s, TimeoutError(f"no answer within {within_s:g} s")), self._resolving:
                if not self._addresses or time.monotonic() >= self._resolve_at:
                    self._addresses = resolve(host, self.target.port)
                    self._resolve_at = time.monotonic() + RESOLVE_AFTER_S
        except (OSError, UnicodeError) as e:
            if not self._addresses:
                raise ConnectError(f"host {host!r} cannot be resolved: {_reason(e)}") from e
            self._resolve_at = time.monotonic() + RESOLVE_AFTER_FAILURE_S  # the old ones are used meanwhile
        return self._addresses

    def _dropped(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
        _OPEN.discard(connection)


def _reason(error: OSError | UnicodeError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _listed(failures: dict[Address, str], authority: str) -> str:
    """Errors by address, or once if all are the same. The address alone says no more than the authority."""
    if len(set(failures.values())) == 1:
        (reason,) = set(failures.values())
        addresses = ", ".join(map(address_text, failures))
        return reason if addresses == authority else f"{reason} ({addresses})"
    return ", ".join(f"{reason} ({address_text(address)})" for address, reason in failures.items())
