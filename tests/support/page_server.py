"""Servers that answer a GET well, badly, slowly or not at all: plain sockets on loopback."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

#: Does something with an accepted connection whose request was read.
Behaviour = Callable[[socket.socket], None]


def page(text: str, status: str = "200 OK", length: int | None = None) -> Behaviour:
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n"
    return lambda sock: sock.sendall(head.encode() + body)


def hang(sock: socket.socket) -> None:
    """Say nothing until the client leaves."""
    while sock.recv(1024):
        pass


def drip(sock: socket.socket) -> None:
    """A byte now and then, so that no single read is late."""
    sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    with suppress(OSError):
        while not _left(sock, 0.02):
            sock.sendall(b"#")


def endless(sock: socket.socket) -> None:
    """More than any page has."""
    sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    with suppress(OSError):
        while True:
            sock.sendall(b"# comment\n" * 6_000)


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[int]:
    """The port of a server that does this with each connection, in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, behaviour), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, behaviour: Behaviour) -> None:
    with suppress(OSError):
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=_serve, args=(sock, behaviour), daemon=True).start()


def _serve(sock: socket.socket, behaviour: Behaviour) -> None:
    with sock, suppress(OSError):
        request = b""
        while b"\r\n\r\n" not in request:
            block = sock.recv(4096)
            if not block:
                return
            request += block
        behaviour(sock)


def _left(sock: socket.socket, within_s: float) -> bool:
    sock.settimeout(within_s)
    try:
        return not sock.recv(16)
    except TimeoutError:
        return False
