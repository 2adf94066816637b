"""Where the timestamps of received data come from."""

import _socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from llm_locust.client.http.clock import ANCILLARY_BYTES, SO_TIMESTAMPNS
from llm_locust.client.http.resting import Rest, Rests
from llm_locust.client.packets.capture import Capture, Tracked
from llm_locust.client.packets.ring import CaptureError
from llm_locust.core.run_facts import StampFacts

#: ``packet``: the kernel's stamp of each packet. ``read``: the kernel's stamp of each read's last packet.
#: ``program``: the program's clock after each read.
Source = Literal["packet", "read", "program"]

#: What a user may choose.
CHOICES = ("auto", *get_args(Source))


@dataclass(frozen=True, slots=True)
class Stamping:
    """Source of the stamps of this process's connections; ``capture`` is that of ``packet``, and ``rests``
    the connections that it lets rest."""

    source: Source = "read"
    capture: Capture | None = None
    rests: Rests | None = None

    @classmethod
    def by_packet(cls, capture: Capture) -> "Stamping":
        return cls("packet", capture, Rests(capture))

    @classmethod
    def chosen(cls, choice: str, capture: Callable[[], Capture] = Capture) -> "Stamping":
        """Make it of one of :data:`CHOICES`; ``auto`` takes reads, and the program's clock without them.

        Raises:
            CaptureError: packets were asked for, and cannot be captured here.
        """
        if choice == "packet":
            try:
                return cls.by_packet(capture())
            except CaptureError as e:
                raise CaptureError(f"--stamps packet: {e}") from e
        return cls("program" if choice == "program" or not ANCILLARY_BYTES else "read")

    def prepare(self, sock: _socket.socket, host: str, port: int) -> None:
        """Prepare a socket that is about to connect to this address."""
        if self.source != "program" and ANCILLARY_BYTES:
            sock.setsockopt(_socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        if self.capture is not None:
            self.capture.watch(host, port)
            self.capture.prepare(sock)

    def has_more_ports(self, sock: _socket.socket, tries: int) -> bool:
        """Prepare a socket again for which no local port was free ``tries`` times; return whether there are
        more."""
        return self.capture is not None and self.capture.has_more_ports(sock, tries)

    def track(self, sock: _socket.socket, host: str, port: int) -> Tracked | None:
        """Follow the packets of a socket that has begun to connect; None unless packets are stamped."""
        return None if self.capture is None else self.capture.track(sock, host, port)

    def rest(self, sock: _socket.socket, packets: Tracked | None) -> Rest | None:
        """Rest of a new connection; None unless its packets are followed."""
        return None if self.rests is None or packets is None else Rest(self.rests, sock, packets)

    def close(self) -> None:
        """Give the capture back."""
        if self.rests is not None:
            self.rests.close()
        if self.capture is not None:
            self.capture.close()

    def facts(self) -> StampFacts:
        """Source, and counts so far."""
        capture = self.capture
        if capture is None:
            return StampFacts(source=self.source)
        return StampFacts(
            source=self.source,
            packets=capture.packets,
            dropped=capture.dropped,
            unseen_reads=capture.unseen_reads,
            rested=0 if self.rests is None else self.rests.rested,
            rests_withdrawn=0 if self.rests is None else self.rests.withdrawn,
        )


#: Stamps of reads.
READ_STAMPS = Stamping()
