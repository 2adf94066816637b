"""Capture of the packets that this process's connections receive."""

import _socket

from gevent.monkey import get_original

from llm_locust.client.packets.filters import passes_from
from llm_locust.client.packets.heads import (
    END,
    FIN,
    RST,
    SYN,
    address_bytes,
    connection_key,
    heads_of,
)
from llm_locust.client.packets.ports import IP_LOCAL_PORT_RANGE, LocalPorts
from llm_locust.client.packets.ring import SLOTS, CaptureError, PacketRing
from llm_locust.client.packets.stream import MOST_PIECES, Stream

#: How often a packet is looked for that the program has already read from its socket. Its slot may be behind
#: that of another processor's packet, which is still being filled.
_LOOKS = 4
_BETWEEN_LOOKS_S = 2e-5

#: Slots of the ring that has ends of bodies only. One that has no room is of no matter: others wait there.
_BELL_SLOTS = 256

#: Under Locust ``time.sleep`` is gevent's, which cannot be called where reads are: in the hub.
_sleep = get_original("time", "sleep")


class Capture:
    """Ring of received packets, and the streams that they are of.

    Args:
        slots: length of the ring.

    Attributes:
        packets: number of packets that brought new bytes of a stream.
        unseen_reads: number of reads with bytes of which a packet was not captured.

    Raises:
        CaptureError: packets cannot be captured here.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        self._bell = PacketRing(_BELL_SLOTS)  # first: the kernel serves the newest first
        try:
            self._ring = PacketRing(slots)
        except CaptureError:
            self._bell.close()
            raise
        self._streams: dict[bytes, Stream] = {}
        self._sources: set[tuple[bytes, int]] = set()
        self._due: list[Stream] = []
        self._ports: LocalPorts | None = None  # from the first prepared socket on
        self.packets = 0
        self.unseen_reads = 0

    @property
    def dropped(self) -> int:
        """Packets that the ring had no room for, those of other processes' connections included."""
        return self._ring.dropped

    def watch(self, host: str, port: int) -> None:
        """Let packets of this address pass from now on, before a connection to it is opened."""
        source = (address_bytes(host), port)
        if source not in self._sources and not self._ring.closed:
            self._sources.add(source)
            self._attach()

    def _attach(self) -> None:
        blocks = None if self._ports is None else self._ports.blocks
        self._ring.attach(passes_from(self._sources, blocks))
        self._bell.attach(passes_from(self._sources, blocks, ends_only=True))

    def prepare(self, sock: _socket.socket) -> None:
        """Prepare a socket that is about to connect to a watched address: it gets a port of this process.

        From then on, only packets to prepared sockets pass.
        """
        if self._ring.closed:
            return
        ports, before = self._ports, None
        if ports is None:
            self._ports = ports = LocalPorts()
        else:
            before = ports.blocks
        ports.prepare(sock)
        if ports.blocks is not before:
            self._attach()

    def has_more_ports(self, sock: _socket.socket, tries: int = 1) -> bool:
        """Prepare a socket again for which so many blocks had no free port; return whether there are more."""
        ports = self._ports
        if ports is None or not ports.blocks or self._ring.closed:
            return False
        before = len(ports.blocks)
        if not ports.turn(tries):
            sock.setsockopt(_socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, 0)
        if ports.blocks is None or len(ports.blocks) != before:
            self._attach()
        ports.prepare(sock)
        return True

    def track(self, sock: _socket.socket, host: str, port: int) -> "Tracked":
        """Follow a connection to a watched address. To be called as soon as it has begun to connect, before
        its first packet is looked at."""
        return Tracked(self, connection_key(sock.getsockname()[:2], (host, port)))

    def drain(self) -> None:
        """Pass the packets captured so far to their streams."""
        find, due = self._streams.get, self._due
        while (frames := self._ring.read()) is not None:
            packets = 0
            for key, seq, size, marks, at_ns in heads_of(frames):
                stream = find(key)
                if stream is None:
                    continue
                if size and not marks & SYN:
                    packets += stream.add(seq, size, at_ns)
                elif marks & SYN:
                    stream.open(seq + 1)
                else:
                    marks &= ~END  # an acknowledgement
                if marks & (END | FIN | RST) and not 0 < stream.due_ns <= at_ns:  # an end waits for nothing
                    stream.due_ns = at_ns
                if stream.due_ns and stream.resting:
                    stream.resting = False
                    due.append(stream)
            self.packets += packets
            if not self._ring.cut:  # on a busy machine new ones have come, and a pass of few costs as much
                break

    def bell(self) -> int:
        """Descriptor that is readable from when a packet has come that ends a body until
        :meth:`silence_bell`."""
        return self._bell.fileno()

    def silence_bell(self) -> None:
        while self._bell.read() is not None:
            pass

    def take_due(self) -> list[Stream]:
        """Streams at rest that are to be read since the last call. They rest no longer."""
        due, self._due = self._due, []
        return due

    def enter(self, key: bytes, stream: Stream) -> None:
        self._streams[key] = stream

    def leave(self, key: bytes, stream: Stream) -> None:
        """Follow it no longer; a newer connection of the same ports stays."""
        if self._streams.get(key) is stream:
            del self._streams[key]

    def close(self) -> None:
        """Give the ring back. Reads from now on have stamps of their own."""
        self._streams.clear()
        if self._ports is not None:
            self._ports.close()
        self._ring.close()
        self._bell.close()


class Tracked:
    """A connection that a capture follows."""

    __slots__ = ("_capture", "_key", "stream")

    def __init__(self, capture: Capture, key: bytes) -> None:
        self._capture, self._key, self.stream = capture, key, Stream()
        capture.enter(key, self.stream)

    def pieces(self, size: int) -> list[tuple[int, int]] | None:
        """Cut a read of ``size`` bytes, the next ones, by packets: the end of each part, and its stamp.

        None if a packet is unknown, or there are too many: then the read keeps its own stamp.
        """
        stream, capture = self.stream, self._capture
        found = stream.take(size)
        if found is None:
            found = self._look(size)
        if found is None:
            stream.skip(size)
        if found is None or len(found) > MOST_PIECES:
            capture.unseen_reads += 1
            return None
        return found

    def _look(self, size: int) -> list[tuple[int, int]] | None:
        for look in range(_LOOKS):
            self._capture.drain()
            found = self.stream.take(size)
            if found is not None or not self.stream.tracked:
                return found
            if look:
                _sleep(_BETWEEN_LOOKS_S)
        return None

    def close(self) -> None:
        self._capture.leave(self._key, self.stream)
