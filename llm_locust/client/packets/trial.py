"""A trial of a capture on loopback: for diagnosis, never for measured load."""

import socket
import time
from contextlib import closing
from dataclasses import dataclass

from llm_locust.client.packets.capture import Capture

_SLOTS = 1024
_WITHIN_S = 1.0


@dataclass(frozen=True, slots=True)
class PacketTrial:
    """Packets that were sent on loopback and looked at together, late.

    ``stamped`` of the ``sent`` have a timestamp of their own between their sending and their reading.
    """

    sent: int
    stamped: int


def try_packets(packets: int) -> PacketTrial:
    """Send packets on loopback, and look at their timestamps when all are there.

    Raises:
        CaptureError: packets cannot be captured here.
        OSError: loopback cannot be used.
    """
    with closing(Capture(_SLOTS)) as capture, closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.settimeout(_WITHIN_S)
        host, port = listener.getsockname()[:2]
        capture.watch(host, port)
        receiver = socket.create_connection((host, port), _WITHIN_S)
        tracked = capture.track(receiver, host, port)
        with closing(receiver), closing(tracked):
            sender, _ = listener.accept()
            with closing(sender):
                sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sent_ns = []
                for _ in range(packets):
                    sent_ns.append(time.time_ns())
                    sender.sendall(b"x")
                    receiver.recv(1)  # else the next bytes may share a packet
            pieces = tracked.pieces(packets) or []
    now_ns = time.time_ns()
    stamps = [at_ns for end, at_ns in pieces if end <= packets]
    right = sum(before <= at_ns <= now_ns for before, at_ns in zip(sent_ns, stamps, strict=False))
    return PacketTrial(packets, right)
