"""Parse of captured packet heads: frames of a packet ring to columns. Pure functions over bytes.

A frame is what the kernel writes into one slot of a ``TPACKET_V2`` ring of a cooked socket (``SOCK_DGRAM``):
``struct tpacket2_hdr``, ``struct sockaddr_ll``, and from :data:`NETWORK_AT` on the head of the packet, which
begins with the IP header. What is not a whole TCP head is left out, whatever it is.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from socket import AF_INET, AF_INET6, inet_pton

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]

#: Bytes of a slot, and where the packet's head is in it.
FRAME_BYTES = 256
NETWORK_AT = 80

#: Bytes of a packet that a slot has room for: the longest heads of IPv4 and TCP have 60 each.
HEAD_BYTES = FRAME_BYTES - NETWORK_AT

#: Bytes of a key: both addresses and both ports, as they are in a received packet.
KEY_BYTES = 36

_MAPPED = bytes(10) + b"\xff\xff"  # of an IPv4 address in an IPv6 address
_IPV4_BYTES, _IPV6_BYTES, _TCP_BYTES = 20, 40, 20
_TCP, _HOP_BY_HOP = 6, 0
_SYN = 2
_OUTGOING = 4  # sll_pkttype of a packet that this machine sends
_PACKET_TYPE_AT = 42


#: Length of the packet and of what was captured of it, offset of the IP head, time, packet type.
_SLOT = struct.Struct("=4xII2xHII18xB")

#: Of a packet with the shortest head of IPv4: version and length of the head, total length, fragment,
#: protocol, addresses, ports, sequence number, length of the TCP head, flags.
_PLAIN = struct.Struct(">BxHxxHxBxx4s4s4sI4xBB")
_PLAIN_BYTES = _IPV4_BYTES + _TCP_BYTES
_PLAIN_VERSION = 0x45

#: Number of frames up to which they are parsed one by one: that takes 3 µs each, a pass over columns takes
#: 100 µs and 1 µs each.
_FEW = 48

#: Key, ``seq``, ``size``, ``syn`` and ``at_ns`` as in :class:`Heads`.
Head = tuple[bytes, int, int, bool, int]


@dataclass(frozen=True, slots=True)
class Heads:
    """Received TCP packets in order of capture, those with payload or SYN.

    Attributes:
        keys: of the connection, see :func:`connection_key`.
        seq: sequence number of the first byte of payload (of a SYN: its own), 0 … 2³² - 1.
        size: bytes of payload.
        syn: whether it is a SYN.
        at_ns: the kernel's receive time, realtime.
    """

    keys: list[bytes]
    seq: Integers
    size: Integers
    syn: NDArray[np.bool_]
    at_ns: Integers


def connection_key(here: tuple[str, int], peer: tuple[str, int]) -> bytes:
    """Key of a connection in the packets that it receives: the peer's address, this one's, both ports."""
    ports = peer[1].to_bytes(2) + here[1].to_bytes(2)
    return address_bytes(peer[0]) + address_bytes(here[0]) + ports


def address_bytes(host: str) -> bytes:
    """An IP address as 16 bytes; IPv4 as mapped into IPv6."""
    if ":" not in host:
        return _MAPPED + inet_pton(AF_INET, host)
    return inet_pton(AF_INET6, host.partition("%")[0])


def heads_of(frames: Bytes) -> Iterator[Head]:
    """Heads of frames, shape (n, FRAME_BYTES), in their order."""
    if len(frames) > _FEW:
        heads = parse(frames)
        columns = heads.keys, heads.seq.tolist(), heads.size.tolist(), heads.syn.tolist()
        yield from zip(*columns, heads.at_ns.tolist(), strict=True)
        return
    slots = frames.tobytes()
    for at in range(0, len(slots), FRAME_BYTES):
        head = parse_one(slots, at)
        if head is not None:
            yield head


def parse_one(slots: bytes, at: int = 0) -> Head | None:
    """Parse the frame at an offset as :func:`parse` does; None where that leaves it out."""
    length, captured, network, seconds, nanoseconds, packet_type = _SLOT.unpack_from(slots, at)
    if network != NETWORK_AT or packet_type == _OUTGOING:
        return None
    at_ns = seconds * 1_000_000_000 + nanoseconds
    if captured >= _PLAIN_BYTES:
        version, total, fragment, protocol, peer, here, ports, seq, offset, flags = _PLAIN.unpack_from(
            slots, at + NETWORK_AT
        )
        if version == _PLAIN_VERSION and protocol == _TCP and not fragment & 0x3FFF:
            heads_bytes = (offset >> 4) * 4
            size = (total or length) - _IPV4_BYTES - heads_bytes
            syn = flags & _SYN > 0
            if heads_bytes < _TCP_BYTES or size < 0 or total > length or not (size or syn):
                return None
            return _MAPPED + peer + _MAPPED + here + ports, seq, size, syn, at_ns
    return _parse_other(slots[at + NETWORK_AT : at + min(NETWORK_AT + captured, FRAME_BYTES)], length, at_ns)


def _parse_other(head: bytes, length: int, at_ns: int) -> Head | None:
    """Parse a packet that may have any version and options."""
    version = head[0] >> 4 if head else 0
    if version == 4 and len(head) >= _IPV4_BYTES:
        start, protocol, whole = (head[0] & 15) * 4, head[9], not (head[6] & 0x3F or head[7])
        total = int.from_bytes(head[2:4]) or length
        addresses = _MAPPED + head[12:16] + _MAPPED + head[16:20]
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
    heads_bytes, syn = (tcp[12] >> 4) * 4, bool(tcp[13] & _SYN)
    size = total - start - heads_bytes
    if heads_bytes < _TCP_BYTES or size < 0 or total > length or not (size or syn):
        return None
    return addresses + tcp[:4], int.from_bytes(tcp[4:8]), size, syn, at_ns


def parse(frames: Bytes) -> Heads:
    """Parse frames, shape (n, FRAME_BYTES)."""
    words = np.ascontiguousarray(frames[:, :32]).view(np.uint32)
    captured = words[:, 2].astype(np.int64)
    at_ns = words[:, 4].astype(np.int64) * 1_000_000_000 + words[:, 5]
    placed = (words[:, 3] >> 16) == NETWORK_AT
    incoming = frames[:, _PACKET_TYPE_AT] != _OUTGOING
    head = np.ascontiguousarray(frames[:, NETWORK_AT:])
    start, whole = _tcp_start(head)
    room = np.minimum(captured, HEAD_BYTES)
    kept = np.flatnonzero(placed & incoming & whole & (start + _TCP_BYTES <= room))
    head, start = head[kept], start[kept]
    tcp = head[np.arange(len(kept))[:, None], start[:, None] + np.arange(_TCP_BYTES)]
    begin = start + (tcp[:, 12] >> 4).astype(np.int64) * 4
    length = words[kept, 1].astype(np.int64)
    total = _packet_bytes(head, length)
    size = total - begin
    syn = (tcp[:, 13] & _SYN) > 0
    sound = (begin >= start + _TCP_BYTES) & (size >= 0) & (total <= length) & ((size > 0) | syn)
    return Heads(
        _keys(head[sound], tcp[sound]),
        _big_endian(tcp[sound], 4, 4),
        size[sound],
        syn[sound],
        at_ns[kept][sound],
    )


def _big_endian(rows: Bytes, at: int, size: int) -> Integers:
    value = np.zeros(len(rows), np.int64)
    for place in range(at, at + size):
        value = value << 8 | rows[:, place]
    return value


def _tcp_start(head: Bytes) -> tuple[Integers, NDArray[np.bool_]]:
    """Offset of the TCP head in each packet, and whether there is one: no other protocol, no fragment."""
    version = head[:, 0] >> 4
    of_ipv4 = (head[:, 0] & 15).astype(np.int64) * 4
    unbroken = (head[:, 6] & 0x3F | head[:, 7]) == 0
    ipv4 = (version == 4) & (head[:, 9] == _TCP) & unbroken & (of_ipv4 >= _IPV4_BYTES)
    hops = head[:, 6] == _HOP_BY_HOP  # jumbograms have this one extension
    of_ipv6 = np.where(hops, _IPV6_BYTES + 8 + head[:, 41].astype(np.int64) * 8, _IPV6_BYTES)
    ipv6 = (version == 6) & (np.where(hops, head[:, 40], head[:, 6]) == _TCP)
    return np.where(version == 4, of_ipv4, of_ipv6), ipv4 | ipv6


def _packet_bytes(head: Bytes, length: Integers) -> Integers:
    """Bytes of each packet by its IP head; by the kernel where that says 0: it has no room for 64 KiB."""
    ipv4 = head[:, 0] >> 4 == 4
    told = np.where(ipv4, _big_endian(head, 2, 2), _big_endian(head, 4, 2))
    return np.where(told == 0, length, np.where(ipv4, told, told + _IPV6_BYTES))


def _keys(head: Bytes, tcp: Bytes) -> list[bytes]:
    keys = np.empty((len(head), KEY_BYTES), np.uint8)
    ipv4 = (head[:, 0] >> 4 == 4)[:, None]
    mapped = np.frombuffer(_MAPPED, np.uint8)
    for at, place in ((0, 12), (16, 16)):  # source, destination
        keys[:, at : at + 12] = np.where(ipv4, mapped, head[:, 8 + at : 20 + at])
        keys[:, at + 12 : at + 16] = np.where(ipv4, head[:, place : place + 4], head[:, 20 + at : 24 + at])
    keys[:, 32:] = tcp[:, :4]
    found: list[bytes] = keys.view(f"V{KEY_BYTES}")[:, 0].tolist()
    return found
