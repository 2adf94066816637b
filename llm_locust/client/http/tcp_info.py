"""What the kernel knows of a TCP connection (``struct tcp_info``); None where it does not say."""

import _socket
import socket
import struct
from typing import NamedTuple

_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)

#: tcpi_rcv_mss, tcpi_rtt (µs, smoothed), tcpi_bytes_acked (Linux 4.1), tcpi_segs_out, tcpi_min_rtt (µs) and
#: tcpi_data_segs_out (4.6).
_FIELDS = struct.Struct("=20xI44xI48xQ8xI8xI4xI")

#: The kernel's value of tcpi_min_rtt before its first sample.
_NO_RTT = 2**32 - 1


#: Longest time, or two round trips if longer, until a stale connection breaks after a request was sent.
STALE_WITHIN_S = 0.05


class TcpFacts(NamedTuple):
    """Smoothed and least round-trip time, 0 if unknown; bytes that the peer's kernel has acknowledged;
    packets without data sent so far, which acknowledge what the peer sent; the peer's full packet, as
    estimated from what it sent.

    The smoothed time has acknowledgements in it that the peer delayed, by up to 40 ms; the least, of some
    minutes, is that of the network."""

    rtt_ns: int
    least_rtt_ns: int
    bytes_acked: int
    acks: int
    full_bytes: int


def tcp_facts(sock: _socket.socket) -> TcpFacts | None:
    """Facts of a connection."""
    if _TCP_INFO is None:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _FIELDS.size)
    except OSError:  # it is closed
        return None
    if len(info) != _FIELDS.size:
        return None
    full_bytes, rtt_us, bytes_acked, segments, least_us, with_data = _FIELDS.unpack(info)
    least_ns = 0 if least_us == _NO_RTT else least_us * 1000
    return TcpFacts(rtt_us * 1000, least_ns, bytes_acked, (segments - with_data) % 2**32, full_bytes)


def was_unprocessed(
    sock: _socket.socket, before: TcpFacts | None, handed: int, waited_ns: int, *, by_end: bool
) -> bool:
    """Whether a request was certainly not processed, on a connection that broke soon after it was sent.

    True if the socket accepted none of its bytes, or if the peer's FIN acknowledges none: a FIN acknowledges
    what the peer has received, so it was sent before the request arrived. A reset proves nothing: a peer that
    aborts after its work may not have acknowledged anything either.

    Args:
        before: facts of the connection before the request.
        handed: bytes of it that the socket accepted.
        waited_ns: time since it was sent.
        by_end: the connection broke by the peer's FIN.
    """
    now = tcp_facts(sock)
    rtt_ns = 0 if now is None else now.rtt_ns
    if waited_ns > max(STALE_WITHIN_S * 1e9, 2 * rtt_ns):
        return False
    if not handed:
        return True
    return by_end and now is not None and before is not None and now.bytes_acked == before.bytes_acked
