"""What the kernel knows of a TCP connection (``struct tcp_info``); None where it does not say."""

import _socket
import socket
import sys

_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)

# Eight single bytes, then 32-bit fields; tcpi_rtt (µs, smoothed) is the 16th of them.
_RTT = slice(68, 72)

# 64-bit fields follow at 104: two pacing rates, then tcpi_bytes_acked (Linux 4.1).
_ACKED = slice(120, 128)


def rtt_ns(sock: _socket.socket) -> int | None:
    """Smoothed round-trip time."""
    micros = _field(sock, _RTT)
    return None if micros is None else micros * 1000 or None


def bytes_acked(sock: _socket.socket) -> int | None:
    """Bytes that the peer's kernel has acknowledged."""
    return _field(sock, _ACKED)


def _field(sock: _socket.socket, field: slice) -> int | None:
    if _TCP_INFO is None:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, field.stop)
    except OSError:  # it is closed
        return None
    return int.from_bytes(info[field], sys.byteorder) if len(info) == field.stop else None
