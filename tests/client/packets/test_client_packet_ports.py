"""Blocks of local ports: each is one process's own."""

import errno
import socket
import struct
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import cast

import pytest
from capturing import captures

from llm_locust.client.packets.capture import Capture
from llm_locust.client.packets.ports import BLOCK_PORTS, IP_LOCAL_PORT_RANGE, LocalPorts


def _takes_ranges() -> bool:
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, 0)
        except OSError:
            return False
    return True


ranges = pytest.mark.skipif(not _takes_ranges(), reason="the kernel takes no range of local ports")


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A range of ports with four whole blocks."""
    path = tmp_path / "range"
    path.write_text("50000\t51199\n")
    return path


def test_two_processes_never_have_the_same_block_and_the_last_one_has_none(few: Path) -> None:
    with ExitStack() as stack:
        made = [stack.enter_context(closing(LocalPorts(few))) for _ in range(4)]
        blocks = [block for ports in made for block in ports.blocks or ()]
        assert len(set(blocks)) == len(blocks) == 4
        assert {256 * block >= 50_000 and 256 * block + 255 <= 51_199 for block in blocks} == {True}
        assert LocalPorts(few).blocks is None
        made[0].close()
        with closing(LocalPorts(few)) as again:
            assert again.blocks == blocks[:1]


def test_a_process_has_another_block_when_one_is_used_up(few: Path) -> None:
    with closing(LocalPorts(few)) as ports:
        assert [ports.claim() for _ in range(4)] == [True, True, True, False]
        assert ports.blocks is None
    assert LocalPorts(few.with_name("missing")).blocks is None


def test_all_own_blocks_are_tried_again_before_another_one_is_claimed(few: Path) -> None:
    with closing(LocalPorts(few)) as ports:
        ports.claim()
        assert [(ports.turn(tries), len(ports.blocks or ())) for tries in (1, 2)] == [(True, 2), (True, 3)]


def test_a_kernel_that_takes_no_range_chooses_any_port(few: Path) -> None:
    class Older:
        def setsockopt(self, *_: object) -> None:
            raise OSError(errno.ENOPROTOOPT, "Protocol not available")

    with closing(LocalPorts(few)) as ports:
        ports.prepare(cast("socket.socket", Older()))
        assert ports.blocks is None
        with closing(LocalPorts(few)) as other:
            assert other.blocks, "what it had claimed is free"


@ranges
def test_a_block_that_was_full_is_used_again_once_its_ports_are_free() -> None:
    with ExitStack() as stack:
        ports = stack.enter_context(closing(LocalPorts()))
        place = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024)).getsockname()
        opened: list[socket.socket] = []

        def open_one() -> int:
            """Open a connection as a capture does; return the block of its port."""
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME_WAIT
            ports.prepare(sock)
            for tries in count(1):
                found = sock.connect_ex(place)
                if not found:
                    break
                assert found == errno.EADDRNOTAVAIL
                assert ports.turn(tries)
                ports.prepare(sock)
            opened.append(sock)
            return int(sock.getsockname()[1]) // BLOCK_PORTS

        first = open_one()
        while len(ports.blocks or ()) < 2:  # others may have ports of the block too
            open_one()
        for sock in opened[:100]:
            sock.close()
        again = [open_one() for _ in range(BLOCK_PORTS + 50)]
        assert again.count(first) >= 50
        assert len(ports.blocks or ()) == 2


@ranges
@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_connection_gets_a_port_of_the_block(family: socket.AddressFamily, host: str) -> None:
    with closing(LocalPorts()) as ports, socket.socket(family) as listener, socket.socket(family) as sock:
        listener.bind((host, 0))
        listener.listen()
        ports.prepare(sock)
        sock.connect(listener.getsockname()[:2])
        assert ports.blocks is not None
        assert sock.getsockname()[1] // BLOCK_PORTS in ports.blocks


@ranges
@captures
@pytest.mark.usefixtures("kernel_stamping")
def test_a_capture_has_only_its_own_packets_and_claims_more_ports_when_it_needs_them() -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(closing(Capture(1024))) for _ in range(2))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512))
        host, port = listener.getsockname()
        for capture, connections in ((first, BLOCK_PORTS + 5), (second, 3)):
            capture.watch(host, port)
            for _ in range(connections):
                sock = stack.enter_context(socket.socket())
                capture.prepare(sock)
                try:
                    sock.connect((host, port))
                except OSError:
                    assert capture.has_more_ports(sock)
                    sock.connect((host, port))
                tracked = capture.track(sock, host, port)
                sender = stack.enter_context(listener.accept()[0])
                sender.send(b"abc")
                assert sock.recv(3) == b"abc"
                assert [end for end, _ in tracked.pieces(3) or []] == [3]
        frames = second._ring.read()
        assert frames is None
        assert (first.packets, second.packets) == (BLOCK_PORTS + 5, 3)
        assert first._ports is not None
        assert len(first._ports.blocks or ()) >= 2
