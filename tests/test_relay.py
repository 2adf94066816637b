"""The relay passes bytes on as a network does, and fails as it is told."""

import socket
import time
from collections.abc import Iterator

import pytest
from relay import MOST_CONNECTIONS, Relay, relay

PATIENCE_S = 120.0


@pytest.fixture
def target() -> Iterator[socket.socket]:
    """A listening socket in the master's place."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        yield listener


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


def dial(between: Relay) -> socket.socket:
    return socket.create_connection(("127.0.0.1", between.port), PATIENCE_S)


def accepted(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    connection.settimeout(PATIENCE_S)
    return connection


def received(connection: socket.socket, size: int) -> bytes:
    """The next ``size`` bytes, or all there are before the end."""
    data = bytearray()
    while len(data) < size and (chunk := connection.recv(size - len(data))):
        data += chunk
    return bytes(data)


def test_bytes_pass_in_both_directions_in_order(target: socket.socket) -> None:
    sent = bytes(range(256)) * 512
    with relay(port_of(target)) as between, dial(between) as near, accepted(target) as far:
        near.sendall(sent)
        assert received(far, len(sent)) == sent
        far.sendall(sent[::-1])
        assert received(near, len(sent)) == sent[::-1]
        assert between.accepted == 1


def test_the_end_of_one_direction_leaves_the_other_open(target: socket.socket) -> None:
    with relay(port_of(target)) as between, dial(between) as near, accepted(target) as far:
        near.sendall(b"all I have")
        near.shutdown(socket.SHUT_WR)
        assert received(far, 100) == b"all I have"
        far.sendall(b"thanks")
        far.shutdown(socket.SHUT_WR)
        assert received(near, 100) == b"thanks"


def test_a_cut_resets_connections_on_both_sides(target: socket.socket) -> None:
    with relay(port_of(target)) as between, dial(between) as near, accepted(target) as far:
        near.sendall(b"x")
        assert far.recv(1) == b"x"
        between.cut()
        for side in (near, far):
            with pytest.raises(ConnectionResetError):
                side.recv(1)


def test_while_it_is_cut_connections_are_refused(target: socket.socket) -> None:
    with relay(port_of(target)) as between:
        between.cut()
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                dial(between)


def test_once_mended_connections_to_the_same_port_pass_again(target: socket.socket) -> None:
    with relay(port_of(target)) as between:
        port = between.port
        between.cut()
        between.cut()  # twice is once
        between.mend()
        between.mend()
        assert between.port == port
        with dial(between) as near, accepted(target) as far:
            near.sendall(b"again")
            assert received(far, 5) == b"again"


def test_a_side_that_is_reset_resets_the_other(target: socket.socket) -> None:
    with relay(port_of(target)) as between, dial(between) as near:
        far = accepted(target)
        near.sendall(b"unread")
        assert received(far, 1) == b"u"
        far.close()  # with bytes unread that is a reset
        with pytest.raises(ConnectionResetError):
            near.recv(1)


def test_a_target_that_is_not_there_is_a_reset() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        # By the time that the connection is made, or just after.
        with relay(port_of(nobody)) as between, pytest.raises(ConnectionResetError), dial(between) as near:
            near.recv(1)


def test_a_delay_holds_each_byte_for_its_time_and_no_longer(target: socket.socket) -> None:
    with relay(port_of(target), delays_s=(0.2,)) as between, dial(between) as near, accepted(target) as far:
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.monotonic()
        for byte in b"0123456789":
            near.send(bytes((byte,)))
        sent_within_s = time.monotonic() - began
        assert received(far, 10) == b"0123456789"
        took_s = time.monotonic() - began
        assert took_s >= 0.2
        assert took_s < 1.5 + sent_within_s  # ten delays, one after the other, would be 2 s


def test_each_connection_has_a_delay_of_its_own(target: socket.socket) -> None:
    with relay(port_of(target), delays_s=(0.3, 0.0)) as between:
        with dial(between) as slow, accepted(target) as far:
            began = time.monotonic()
            slow.sendall(b"x")
            assert far.recv(1) == b"x"
            slow_s = time.monotonic() - began
        with dial(between) as fast, accepted(target) as far:
            began = time.monotonic()
            fast.sendall(b"x")
            assert far.recv(1) == b"x"
            fast_s = time.monotonic() - began
    assert slow_s >= 0.3 > fast_s


def test_connections_are_let_through_in_the_opposite_order(target: socket.socket) -> None:
    with relay(port_of(target), reorder=3) as between:
        dialled = [dial(between) for _ in range(4)]
        for number, near in enumerate(dialled):
            near.sendall(str(number).encode())
        came = []
        for _ in dialled:
            with accepted(target) as far:
                came.append(far.recv(1))
        for near in dialled:
            near.close()
    assert [number for number in came if number != b"3"] == [b"2", b"1", b"0"]


def test_a_connection_is_not_held_for_ever(target: socket.socket) -> None:
    with (
        relay(port_of(target), reorder=2, longest_hold_s=0.2) as between,
        dial(between) as near,
        accepted(target) as far,
    ):
        near.sendall(b"alone")
        assert received(far, 5) == b"alone"


def test_connections_are_bounded(target: socket.socket) -> None:
    with relay(port_of(target)) as between:
        dialled = [dial(between) for _ in range(MOST_CONNECTIONS)]
        served = [accepted(target) for _ in dialled]
        with dial(between) as one_more, pytest.raises(ConnectionResetError):
            one_more.recv(1)
        for connection in (*dialled, *served):
            connection.close()
