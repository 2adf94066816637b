"""Packets as bytes, and slots of a ring as the kernel fills them: written field by field, by the RFCs."""

import struct
from dataclasses import dataclass
from ipaddress import ip_address

HOST, PEER = "10.0.0.1", "10.0.0.9"
HERE_PORT, PEER_PORT = 40_000, 8000

SYN_ACK, ACK, PSH_ACK, FIN_ACK, RST_ACK = 0x12, 0x10, 0x18, 0x11, 0x14


@dataclass(frozen=True, kw_only=True)
class Packet:
    """A TCP packet from ``peer`` to ``here``."""

    seq: int = 1000
    size: int = 100
    flags: int = ACK
    peer: str = PEER
    here: str = HOST
    peer_port: int = PEER_PORT
    here_port: int = HERE_PORT
    ip_options: int = 0  # words of options of IPv4
    hop_by_hop: bool = False  # an extension head of IPv6
    hop_words: int = 0  # words of eight bytes of it, beyond the first
    tcp_options: int = 3  # words
    protocol: int = 6
    fragment: int = 0
    long: bool = False  # longer than the IP head can say: it says 0
    padding: int = 0  # bytes that the link added
    tail: bytes = b""  # last bytes of the payload, in place of others

    @property
    def tcp(self) -> bytes:
        offset = (5 + self.tcp_options) << 12 | self.flags
        fixed = struct.pack(
            "!HHIIHHHH", self.peer_port, self.here_port, self.seq % 2**32, 7, offset, 512, 0, 0
        )
        return fixed + b"\x01" * (4 * self.tcp_options) + b"p" * (self.size - len(self.tail)) + self.tail

    @property
    def data(self) -> bytes:
        source, target = ip_address(self.peer), ip_address(self.here)
        tcp = self.tcp
        if source.version == 4:
            words = 5 + self.ip_options
            total = 0 if self.long else 4 * words + len(tcp)
            fields = (0x40 | words, 0xB9, total, 1, self.fragment, 64, self.protocol, 0)
            head = struct.pack("!BBHHHBBH", *fields) + source.packed + target.packed
            head += b"\x01" * (4 * self.ip_options)
        else:
            extension = b""
            if self.hop_by_hop:
                extension = bytes(
                    [self.protocol, self.hop_words, 0xC2, 4, 0, 1, 0, 0] + [0] * 8 * self.hop_words
                )
            payload = 0 if self.long else len(extension) + len(tcp)
            following = 0 if self.hop_by_hop else self.protocol
            first = 6 << 28 | 0xB9 << 20 | 0xABCDE  # version, traffic class, flow label
            head = struct.pack("!IHBB", first, payload, following, 64) + source.packed + target.packed
            head += extension
        return head + tcp + bytes(self.padding)


def slot(data: bytes, at_ns: int = 1_000_000_005, *, packet_type: int = 0, network: int = 80) -> bytes:
    """``struct tpacket2_hdr``, ``struct sockaddr_ll``, and as much of the packet as there is room for."""
    captured = data[: 256 - 80]
    seconds, nanoseconds = divmod(at_ns, 10**9)
    head = struct.pack(
        "=IIIHHIIHH4x", 1, len(data), len(captured), network, network, seconds, nanoseconds, 0, 0
    )
    address = struct.pack("=HHiHBB8s", 17, 8, 1, 1, packet_type, 6, bytes(8))
    return (head + address).ljust(80, b"\0") + captured.ljust(256 - 80, b"\xee")
