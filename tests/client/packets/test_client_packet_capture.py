"""Captures of real connections on loopback."""

import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import numpy as np
import pytest
from capturing import captures
from packet_bytes import FIN_ACK, HERE_PORT, HOST, PEER, PEER_PORT, Packet, slot

from llm_locust.client.packets.capture import Capture, Tracked
from llm_locust.client.packets.heads import FRAME_BYTES, connection_key
from llm_locust.client.packets.ring import CaptureError, PacketRing
from llm_locust.client.packets.stream import MOST_RESTING, UNACKED_NS
from llm_locust.client.packets.trial import PacketTrial, try_packets

pytestmark = [captures, pytest.mark.usefixtures("kernel_stamping")]

LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


@pytest.fixture
def capture() -> Iterator[Capture]:
    with closing(Capture(512)) as made:
        yield made


class Line:
    """A connection on loopback whose receiving side a capture follows."""

    def __init__(self, capture: Capture, family: socket.AddressFamily = socket.AF_INET) -> None:
        host = LOOPBACK[family]
        with closing(socket.socket(family)) as listener:
            listener.bind((host, 0))
            listener.listen()
            port = listener.getsockname()[1]
            capture.watch(host, port)
            self.receiver = socket.socket(family)
            self.receiver.connect((host, port))
            self.tracked: Tracked = capture.track(self.receiver, host, port)
            self.sender, _ = listener.accept()
        self.sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.receiver.settimeout(120)

    def read(self, size: int) -> list[tuple[int, int]] | None:
        """Read exactly so much, and cut it as one read."""
        left = size
        while left:
            left -= len(self.receiver.recv(left))
        return self.tracked.pieces(size)

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()
        self.tracked.close()


@pytest.mark.parametrize("family", LOOPBACK)
def test_each_packet_of_one_late_read_has_its_own_time(
    capture: Capture, family: socket.AddressFamily
) -> None:
    with closing(Line(capture, family)) as line:
        before, after = [], []
        for n in range(20):
            before.append(time.time_ns())
            line.sender.sendall(b"x" * (n + 1))
            after.append(time.time_ns())
            time.sleep(0.002)
        pieces = line.read(210)
        assert pieces is not None
        ends, stamps = map(np.array, zip(*pieces, strict=True))
        assert ends.tolist() == np.cumsum(np.arange(1, 21)).tolist()
        assert (before <= stamps).all()
        # On loopback a packet is received while it is sent, unless the receiving side is busy.
        assert np.median(stamps - np.array(after)) < 1e6
    assert capture.packets >= 20  # a busy machine's TCP sends a packet again
    assert (capture.dropped, capture.unseen_reads) == (0, 0)


def test_a_packet_is_captured_once_though_loopback_has_it_going_out_and_coming_in(capture: Capture) -> None:
    with closing(Line(capture)) as line:
        line.sender.sendall(b"x" * 10)
        line.read(10)
    assert capture.packets == 1


def test_connections_one_after_another_and_beside_each_other_are_kept_apart(capture: Capture) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(closing(Line(capture))) for _ in range(10)]
        for turn in range(3):
            for n, line in enumerate(lines):
                line.sender.sendall(b"x" * (n + turn + 1))
            for n, line in enumerate(lines):
                assert [end for end, _ in line.read(n + turn + 1) or []] == [n + turn + 1]
    assert not capture._streams


def test_packets_longer_than_what_is_captured_of_them(capture: Capture) -> None:
    size = 3_000_000
    with closing(Line(capture)) as line:
        line.sender.setblocking(False)
        sent = line.sender.send(b"x" * size)
        pieces = line.read(sent)
        assert pieces is not None
        assert pieces[-1][0] == sent


def test_a_ring_that_was_full_says_so_and_the_reads_without_packets_keep_their_stamps(
    capture: Capture,
) -> None:
    with closing(Line(capture)) as line:
        for _ in range(2000):
            line.sender.send(b"x")
            assert line.receiver.recv(1) == b"x"
        assert line.tracked.pieces(2000) is None
        assert capture.dropped >= 2000 - 512
        assert capture.unseen_reads == 1
        line.sender.send(b"yy")
        assert [end for end, _ in line.read(2) or []] == [2]  # and the stream goes on


def test_a_ring_is_read_beyond_its_end(capture: Capture) -> None:
    with closing(Line(capture)) as line:
        for _ in range(1300):
            line.sender.send(b"x")
            assert len(line.read(1) or []) == 1
    assert (capture.packets, capture.dropped) == (1300, 0)


def test_many_packets_in_one_look(capture: Capture) -> None:
    with closing(Line(capture)) as line:
        for _ in range(400):
            line.sender.send(b"x")
            time.sleep(0)
            assert line.receiver.recv(1) == b"x"
        pieces = line.tracked.pieces(400)
        assert pieces is not None
        assert [end for end, _ in pieces] == list(range(1, 401))
        stamps = [at for _, at in pieces]
        assert stamps == sorted(stamps)


def test_a_connection_that_is_not_followed_from_its_beginning_is_not_stamped(capture: Capture) -> None:
    with closing(Line(capture)) as line:
        host, port = line.receiver.getpeername()
        capture.drain()
        line.tracked.close()
        line.tracked = capture.track(line.receiver, host, port)
        line.sender.send(b"abc")
        assert line.read(3) is None
    assert capture.unseen_reads == 1


def test_a_closed_capture_stamps_nothing_and_gives_its_memory_back(capture: Capture) -> None:
    with closing(Line(capture)) as line:
        capture.close()
        capture.close()
        line.sender.send(b"abc")
        assert line.read(3) is None
    assert capture.dropped == 0


def test_two_captures_of_one_process_each_have_all(capture: Capture) -> None:
    with closing(Capture(512)) as other, closing(Line(capture)) as line, closing(Line(other)) as second:
        for one in (line, second):
            one.sender.send(b"abc")
            assert [end for end, _ in one.read(3) or []] == [3]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(1, "Operation not permitted"), "not permitted; give .* CAP_NET_RAW"),
        (OSError(97, "Address family not supported"), r"no packet socket \(Address family not supported\)"),
    ],
)
def test_where_packets_cannot_be_captured_the_error_says_why(
    monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr("llm_locust.client.packets.ring._socket.socket", refuse)
    with pytest.raises(CaptureError, match=said):
        PacketRing()


def test_a_ring_that_does_not_fit_is_refused() -> None:
    with pytest.raises(CaptureError, match="no ring of 17 packets"):
        PacketRing(17)


def test_a_closed_ring_has_given_its_memory_back() -> None:
    ring = PacketRing(512)
    assert not ring._memory.closed
    ring.close()
    assert ring._memory.closed


def test_a_capture_that_cannot_be_made_leaves_no_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[PacketRing] = []

    def note(slots: int) -> PacketRing:
        made.append(PacketRing(slots))
        return made[-1]

    monkeypatch.setattr("llm_locust.client.packets.capture.PacketRing", note)
    with pytest.raises(CaptureError, match="no ring of 17 packets"):
        Capture(17)
    assert [ring.closed for ring in made] == [True]


def test_a_capture_has_further_ports_only_while_it_has_blocks_of_its_own(capture: Capture) -> None:
    with socket.socket() as sock:
        assert not capture.has_more_ports(sock)
        capture.prepare(sock)
        assert capture.has_more_ports(sock) == bool(capture._ports and capture._ports.blocks)
        capture.close()
        assert not capture.has_more_ports(sock)


def rings(capture: Capture) -> bool:
    return bool(select.select([capture.bell()], [], [], 0)[0])


def test_the_bell_rings_for_the_end_of_a_body_and_for_nothing_else(capture: Capture) -> None:
    with closing(Line(capture)) as line:
        assert not rings(capture)
        for _ in range(300):  # more than the bell has slots
            line.sender.sendall(b"x" * 200)
            assert not rings(capture)
            line.sender.sendall(b"x" * 200 + b"\r\n0\r\n\r\n")
            assert rings(capture)
            capture.drain()
            assert line.tracked.stream.has_unread  # the heads are there when the bell rings
            assert line.read(407) is not None
            assert rings(capture)
            capture.silence_bell()
        line.sender.sendall(b"0\r\n\r\n")
        assert rings(capture)


def test_a_bell_that_nobody_hears_rings_until_it_is_silenced(capture: Capture) -> None:
    with closing(Line(capture)) as line:
        for _ in range(600):  # more than it has slots
            line.sender.sendall(b"0\r\n\r\n")
            assert line.read(5) is not None
        assert rings(capture)
        capture.silence_bell()
        assert not rings(capture)
        line.sender.sendall(b"0\r\n\r\n")
        assert rings(capture)


def test_one_look_has_all_packets_that_were_there_however_many(capture: Capture) -> None:
    """The ring has 512 slots, of which the first ones are used again, and a pass has a limit."""
    with closing(Line(capture)) as line, pytest.MonkeyPatch.context() as patch:
        patch.setattr("llm_locust.client.packets.ring.MOST_AT_ONCE", 64)
        for _ in range(4):
            for _ in range(400):
                line.sender.sendall(b"x" * 10)
                line.receiver.recv(10)
            capture.drain()
            assert line.tracked.stream._arrived - line.tracked.stream._read == 4000
            assert line.tracked.pieces(4000) is not None
    assert (capture.dropped, capture.unseen_reads) == (0, 0)


@pytest.mark.parametrize(("last_flags", "late_ns"), [(0x10, 12_000_000), (FIN_ACK, 1)])
def test_a_read_of_many_packets_may_wait_and_that_of_an_end_may_not(
    capture: Capture, last_flags: int, late_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a client that notices an end late would not be late in its record."""
    stream = Tracked(capture, connection_key((HOST, HERE_PORT), (PEER, PEER_PORT))).stream
    stream.open(0)
    stream.resting, stream.patience_ns = True, 12_000_000
    at_ns = [10**18 + n * UNACKED_NS for n in range(MOST_RESTING)]
    packets = [slot(Packet(seq=100 * n).data, at) for n, at in enumerate(at_ns)]
    packets.append(slot(Packet(seq=100 * MOST_RESTING, flags=last_flags).data, at_ns[-1] + 1))
    frames = np.frombuffer(b"".join(packets), np.uint8).reshape(-1, FRAME_BYTES)
    monkeypatch.setattr(capture._ring, "read", iter([frames]).__next__)
    capture.drain()
    assert capture.take_due() == [stream]
    assert stream.due_ns == at_ns[-1] + late_ns


def test_a_trial_of_this_machine_finds_the_stamp_of_every_packet() -> None:
    assert try_packets(20) == PacketTrial(sent=20, stamped=20)
