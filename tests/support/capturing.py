"""Captures of packets in tests: skipped where they are not permitted."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from llm_locust.client.http.stamping import Stamping
from llm_locust.client.packets.capture import Capture
from llm_locust.client.packets.ring import CaptureError, PacketRing


def _why_not() -> str:
    try:
        PacketRing(256).close()
    except CaptureError as e:
        return str(e)
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
