"""Opening of a connection: what an address that is not available means."""

import errno
import socket
from typing import cast

import pytest

from llm_locust.client.http.dial import Address, _begin_connecting
from llm_locust.client.http.stamping import Stamping


class _NoAddress:
    """A socket that never finds a local address."""

    def connect(self, place: object) -> None:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")


class _Ports:
    """Blocks of ports, of which there are ``left`` more."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.tries: list[int] = []

    def has_more_ports(self, sock: object, tries: int) -> bool:
        self.tries.append(tries)
        return len(self.tries) <= self.left


def tries_at(address: Address, left: int) -> list[int]:
    """The tries for which more ports were asked for, until the error was passed on."""
    ports = _Ports(left)
    with pytest.raises(OSError, match="Cannot assign"):
        _begin_connecting(cast("socket.socket", _NoAddress()), address, cast("Stamping", ports))
    return ports.tries


def test_a_port_is_looked_for_in_all_blocks_where_the_address_can_be_reached() -> None:
    assert tries_at((socket.AF_INET, ("127.0.0.1", 80)), left=3) == [1, 2, 3, 4]


def test_no_block_is_used_up_by_an_address_that_this_machine_cannot_reach() -> None:
    nowhere = socket.AF_INET6, ("fe80::1", 80, 0, 99_999)  # of an interface that there is not
    assert tries_at(nowhere, left=3) == []
