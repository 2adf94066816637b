"""Opening of one connection: the host's addresses, a socket with time stamps, and TLS if requested."""

import _socket
import os
import ssl
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

from llm_locust.client.http.clock import ANCILLARY_BYTES, SO_TIMESTAMPNS
from llm_locust.client.http.connection import Connection
from llm_locust.client.http.tls import Tls

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
