"""Addresses at which no connection comes about."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def refusing_port(host: str = "127.0.0.1") -> Iterator[int]:
    """A port that is held but not listened on: a connection to it is refused at once."""
    with socket.socket(_family(host)) as holder:
        holder.bind((host, 0))
        yield holder.getsockname()[1]


@contextmanager
def silent_port(host: str = "127.0.0.1") -> Iterator[int]:
    """A port whose accept queue is full: a connection to it is neither made nor refused (Linux)."""
    with socket.socket(_family(host)) as listener, socket.socket(_family(host)) as only_place:
        listener.bind((host, 0))
        listener.listen(0)
        only_place.connect(listener.getsockname())
        yield listener.getsockname()[1]


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
