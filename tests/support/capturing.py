"""Captures of packets in tests: skipped where they are not permitted."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from llm_locust.client.http.stamping import Stamping
from llm_locust.client.packets.capture import Capture

_SOL_PACKET, _PACKET_VERSION, _TPACKET_V2 = 263, 10, 1


def _why_not() -> str:
    """Ask the kernel and not the client, of which a defect would skip the tests that are to notice it."""
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
            sock.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V2)
    except (AttributeError, OSError) as e:
        return f"packets cannot be captured: {e}"
    return ""


_REASON = _why_not()

#: Mark of tests that capture packets.
captures = pytest.mark.skipif(bool(_REASON), reason=_REASON)


@contextmanager
def packet_stamps(slots: int = 4096) -> Iterator[Stamping]:
    """Stamps of packets, for a test's own client."""
    stamping = Stamping.by_packet(Capture(slots))
    try:
        yield stamping
    finally:
        stamping.close()
