"""Parse of captured packet heads: slots of a packet ring to tuples. Pure functions over bytes.

A frame is what the kernel writes into one slot of a ``TPACKET_V2`` ring of a cooked socket (``SOCK_DGRAM``):
``struct tpacket2_hdr``, ``struct sockaddr_ll``, and from :data:`NETWORK_AT` on the head of the packet, which
begins with the IP header. What is not a whole TCP head is left out, whatever it is.
"""

import struct
from collections.abc import Iterable, Iterator
from socket import AF_INET, AF_INET6, inet_pton

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

#: Bytes of a slot, and where the packet's head is in it.
FRAME_BYTES = 256
NETWORK_AT = 80

#: Bytes of a packet that a slot has room for: the longest heads of IPv4 and TCP have 60 each.
HEAD_BYTES = FRAME_BYTES - NETWORK_AT

#: Marks of a packet: TCP's own flags, and whether its payload ends as a chunked body does. Of such a packet
#: the filter passes only :data:`END_BYTES`. Of one that has no more than that the payload is looked at.
FIN, SYN, RST, END = 1, 2, 4, 8
_FLAGS = FIN | SYN | RST

#: The end of a chunked body, without trailers.
LAST_CHUNK = b"0\r\n\r\n"

#: Bytes captured of a packet that ends a body: those of an IPv4 head with all its options and a TCP head.
END_BYTES = 80

_MAPPED = bytes(10) + b"\xff\xff"  # of an IPv4 address in an IPv6 address
_IPV4_BYTES, _IPV6_BYTES, _TCP_BYTES = 20, 40, 20
_TCP, _HOP_BY_HOP = 6, 0
_OUTGOING = 4  # sll_pkttype of a packet that this machine sends

#: Length of the packet and of what was captured of it, offset of the IP head, time, packet type.
_SLOT = struct.Struct("=4xII2xHII18xB")

#: Of a packet with the shortest head of IPv4: version and length of the head, total length, fragment,
#: protocol, addresses and ports, sequence number, length of the TCP head, flags.
_PLAIN = struct.Struct(">BxHxxHxBxx12sI4xBB")
_PLAIN_BYTES = _IPV4_BYTES + _TCP_BYTES
_PLAIN_VERSION = 0x45

#: The same fields as columns of slots: name, type, offset.
_COLUMNS = [
    ("length", "u4", 4),
    ("captured", "u4", 8),
    ("network", "u2", 14),
    ("s", "u4", 16),
    ("ns", "u4", 20),
    ("type", "u1", 42),
    ("version", "u1", 80),
    ("total", ">u2", 82),
    ("fragment", ">u2", 86),
    ("protocol", "u1", 89),
    ("key", "V12", 92),
    ("seq", ">u4", 104),
    ("offset", "u1", 112),
    ("flags", "u1", 113),
]
_PLAIN_SLOT = np.dtype(
    {
        "names": [name for name, _, _ in _COLUMNS],
        "formats": [kind for _, kind, _ in _COLUMNS],
        "offsets": [at for _, _, at in _COLUMNS],
        "itemsize": FRAME_BYTES,
    }
)

#: Number of frames up to which they are parsed one by one: that takes 0.7 µs each, where a pass over columns
#: takes 38 µs and 0.16 µs each.
_FEW = 64

#: A received TCP packet: key of its connection (see :func:`connection_key`), sequence number of the first
#: byte of payload (of a SYN: its own), bytes of payload, marks, the kernel's receive time (realtime).
Head = tuple[bytes, int, int, int, int]


def connection_key(here: tuple[str, int], peer: tuple[str, int]) -> bytes:
    """Key of a connection in the packets that it receives: the peer's address, this one's, both ports."""
    ports = peer[1].to_bytes(2) + here[1].to_bytes(2)
    return address_bytes(peer[0]) + address_bytes(here[0]) + ports


def address_bytes(host: str) -> bytes:
    """An IP address as it is in a packet: 4 bytes, of IPv6 16; an IPv4 address mapped into IPv6 is IPv4."""
    if ":" not in host:
        return inet_pton(AF_INET, host)
    return inet_pton(AF_INET6, host.partition("%")[0]).removeprefix(_MAPPED)


def heads_of(frames: Bytes) -> Iterable[Head]:
    """Heads of frames, shape (n, FRAME_BYTES), in their order."""
    found = plain_heads(frames) if len(frames) > _FEW else None
    return one_by_one(frames.tobytes()) if found is None else found


def one_by_one(slots: bytes) -> Iterator[Head]:
    """Heads of frames of any kind."""
    for at in range(0, len(slots), FRAME_BYTES):
        head = parse_one(slots, at)
        if head is not None:
            yield head


def plain_heads(frames: Bytes) -> Iterable[Head] | None:
    """Heads of frames that all are TCP over IPv4 without IP options; None if one is not, or is damaged."""
    slots = frames.view(_PLAIN_SLOT)[:, 0]
    total, heads_bytes = slots["total"].astype(np.int64), (slots["offset"] >> 4).astype(np.int64) * 4
    size = total - _IPV4_BYTES - heads_bytes
    sound = (
        (slots["version"] == _PLAIN_VERSION)
        & (slots["protocol"] == _TCP)
        & (slots["network"] == NETWORK_AT)
        & (slots["type"] != _OUTGOING)
        & (slots["fragment"] & 0x3FFF == 0)
        & (slots["captured"] >= _PLAIN_BYTES)
        & (heads_bytes >= _TCP_BYTES)
        & (size >= 0)
        & (total <= slots["length"])
    )
    if not sound.all():
        return None
    at_ns = slots["s"].astype(np.int64) * 1_000_000_000 + slots["ns"]
    marks = slots["flags"] & _FLAGS
    for row in np.flatnonzero(slots["captured"] <= END_BYTES).tolist():
        marks[row] |= _end(
            frames[row].tobytes(), int(slots["captured"][row]), int(total[row]), int(size[row])
        )
    columns = slots["key"], slots["seq"], size, marks, at_ns
    return zip(*(column.tolist() for column in columns), strict=True)


def parse_one(slots: bytes, at: int = 0) -> Head | None:
    """Parse the frame at an offset; None if it is no whole TCP head of a received packet."""
    length, captured, network, seconds, nanoseconds, packet_type = _SLOT.unpack_from(slots, at)
    if network != NETWORK_AT or packet_type == _OUTGOING:
        return None
    at_ns = seconds * 1_000_000_000 + nanoseconds
    if captured >= _PLAIN_BYTES:
        version, total, fragment, protocol, key, seq, offset, flags = _PLAIN.unpack_from(
            slots, at + NETWORK_AT
        )
        if version == _PLAIN_VERSION and protocol == _TCP and not fragment & 0x3FFF:
            heads_bytes = (offset >> 4) * 4
            size = (total or length) - _IPV4_BYTES - heads_bytes
            if heads_bytes < _TCP_BYTES or size < 0 or total > length:
                return None
            marks = flags & _FLAGS
            if captured <= END_BYTES:
                marks |= _end(slots[at : at + FRAME_BYTES], captured, total or length, size)
            return key, seq, size, marks, at_ns
    found = _parse_other(slots[at + NETWORK_AT : at + min(NETWORK_AT + captured, FRAME_BYTES)], length)
    if found is None:
        return None
    key, seq, size, flags, total = found
    return key, seq, size, flags | _end(slots[at : at + FRAME_BYTES], captured, total, size), at_ns


def _end(frame: bytes, captured: int, total: int, size: int) -> int:
    """:data:`END`, if the payload of a packet of ``total`` bytes ends a chunked body; else 0."""
    if captured > END_BYTES or size < len(LAST_CHUNK):
        return 0
    end = NETWORK_AT + total
    return END if total > captured or frame[end - len(LAST_CHUNK) : end] == LAST_CHUNK else 0


def _parse_other(head: bytes, length: int) -> tuple[bytes, int, int, int, int] | None:
    """Parse a packet that may have any version and options; its head without :data:`END` and time, and its
    length without padding."""
    version = head[0] >> 4 if head else 0
    if version == 4 and len(head) >= _IPV4_BYTES:
        start, protocol, whole = (head[0] & 15) * 4, head[9], not (head[6] & 0x3F or head[7])
        total = int.from_bytes(head[2:4]) or length
        addresses = head[12:20]
        if not whole or start < _IPV4_BYTES:
            return None
    elif version == 6 and len(head) >= _IPV6_BYTES + _TCP_BYTES:
        start, protocol = _IPV6_BYTES, head[6]
        if protocol == _HOP_BY_HOP:
            start, protocol = _IPV6_BYTES + 8 + head[41] * 8, head[40]
        payload = int.from_bytes(head[4:6])
        total = payload + _IPV6_BYTES if payload else length
        addresses = head[8:40]
    else:
        return None
    tcp = head[start : start + _TCP_BYTES]
    if protocol != _TCP or len(tcp) < _TCP_BYTES:
        return None
    heads_bytes = (tcp[12] >> 4) * 4
    size = total - start - heads_bytes
    if heads_bytes < _TCP_BYTES or size < 0 or total > length:
        return None
    return addresses + tcp[:4], int.from_bytes(tcp[4:8]), size, tcp[13] & _FLAGS, total
