"""What the kernel says of a connection's round trips."""

import socket
import struct
from typing import cast

import pytest

from llm_locust.client.http.connection import tcp_facts


class Told:
    """A socket of which the kernel says these bytes."""

    def __init__(self, info: bytes) -> None:
        self._info = info

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return self._info[:size]


def info(*, smoothed_us: int, least_us: int) -> socket.socket:
    """``struct tcp_info`` of Linux with these round trips, at the places of its ABI."""
    content = bytearray(160)
    struct.pack_into("=I", content, 68, smoothed_us)
    struct.pack_into("=I", content, 148, least_us)
    return cast(socket.socket, Told(bytes(content)))


@pytest.mark.parametrize(("least_us", "least_ns"), [(230, 230_000), (2**32 - 1, 0)])
def test_the_least_round_trip_is_apart_from_the_smoothed_one_and_unknown_before_its_first_sample(
    least_us: int, least_ns: int
) -> None:
    facts = tcp_facts(info(smoothed_us=40_000, least_us=least_us))
    assert facts is not None
    assert (facts.rtt_ns, facts.least_rtt_ns) == (40_000_000, least_ns)


def test_of_a_connection_on_this_machine_it_is_known_and_no_longer_than_the_smoothed_one() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as ours,
        listener.accept()[0] as theirs,
    ):
        ours.sendall(b"a")
        assert theirs.recv(1) == b"a"
        facts = tcp_facts(ours)
    assert facts is not None
    assert 0 < facts.least_rtt_ns <= facts.rtt_ns
