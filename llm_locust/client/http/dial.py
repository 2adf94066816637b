"""Opening of one connection: the host's addresses, a socket with time stamps, and TLS if requested."""

import _socket
import errno
import os
import ssl
from collections.abc import Sequence
from contextlib import closing, suppress
from itertools import count
from socket import (
    AF_INET6,
    AI_NUMERICHOST,
    IPPROTO_TCP,
    SO_ERROR,
    SO_KEEPALIVE,
    SOCK_DGRAM,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_NODELAY,
)
from typing import Any

import gevent
import gevent.socket

from llm_locust.client.http.connection import Connection
from llm_locust.client.http.stamping import READ_STAMPS, Stamping
from llm_locust.client.http.tls import Tls
from llm_locust.client.packets.capture import Tracked

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


def dial(address: Address, tls: Tls | None, stamping: Stamping = READ_STAMPS) -> Connection:
    """Connect to this address (raises OSError, including ``ssl.SSLError``)."""
    family, place = address
    host, port = str(place[0]), int(str(place[1]))
    sock, packets = _socket.socket(family, SOCK_STREAM, 0), None
    try:
        sock.setblocking(False)
        sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        sock.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
        stamping.prepare(sock, host, port)
        connecting = _begin_connecting(sock, address, stamping)
        packets = stamping.track(sock, host, port)
        if connecting:
            _wait_connected(sock)
        if tls is not None:
            _shake_hands(sock, tls, packets)
    except BaseException:
        if packets is not None:
            packets.close()
        sock.close()
        raise
    rest = None if tls is not None else stamping.rest(sock, packets)
    return Connection(sock, tls, address_text(address), packets, rest)


def address_text(address: Address) -> str:
    """``host:port``, with an IPv6 host in brackets."""
    family, (host, port, *_) = address
    return f"[{host}]:{port}" if family == AF_INET6 else f"{host}:{port}"


def _begin_connecting(sock: _socket.socket, address: Address, stamping: Stamping) -> bool:
    """Return whether it takes time."""
    for tries in count(1):
        try:
            sock.connect(address[1])
        except BlockingIOError:
            return True
        except OSError as e:
            if e.errno != errno.EADDRNOTAVAIL or not _is_routed(address):
                raise
            if not stamping.has_more_ports(sock, tries):
                raise
        else:
            break
    return False


def _is_routed(address: Address) -> bool:
    """Whether this machine has an address from which this one can be reached: if not, no port helps.

    A datagram socket finds out without sending anything.
    """
    family, place = address
    with closing(_socket.socket(family, SOCK_DGRAM, 0)) as sock:
        try:
            sock.connect(place)
        except OSError:
            return False
    return True


def _wait_connected(sock: _socket.socket) -> None:
    _wait_for(sock, _EV_WRITE)
    if error := sock.getsockopt(SOL_SOCKET, SO_ERROR):
        raise OSError(error, os.strerror(error))


def _shake_hands(sock: _socket.socket, tls: Tls, packets: Tracked | None) -> None:
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
            data = sock.recv(16_384)
            if packets is not None:
                packets.pieces(len(data))
            tls.receive(data)


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
