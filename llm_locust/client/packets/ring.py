"""Ring of captured packet heads, shared with the kernel (``AF_PACKET``, ``TPACKET_V2``; ``packet(7)``).

The kernel stamps every received packet and copies its head into the next free slot; it needs no system call
of this program. One pass over the slots reads all new heads.
"""

import _socket
import ctypes
import mmap
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from llm_locust.client.packets.filters import Instruction
from llm_locust.client.packets.heads import FRAME_BYTES, Bytes

#: Slots of a ring: 16 MiB, which is 0.65 s of 100,000 packets/s.
SLOTS = 65_536

#: Most slots that one pass reads: some 5 ms.
MOST_AT_ONCE = 8192

#: Slots that a pass looks at first: each look at one is a miss of the cache.
_FIRST_SPAN = 32

_BLOCK_BYTES = 64 << 10  # the kernel allocates the ring in blocks of contiguous pages
_SOL_PACKET, _SO_ATTACH_FILTER = 263, 26
_RX_RING, _STATISTICS, _VERSION, _IGNORE_OUTGOING = 5, 6, 10, 23
_TPACKET_V2 = 1
_ALL_PROTOCOLS = 3  # ETH_P_ALL: handed over before the protocol itself has the packet
_TO_KERNEL, _TO_USER = 0, 1  # status of a slot


class CaptureError(Exception):
    """Packets cannot be captured here; the text says why, and what to do."""


class PacketRing:
    """Packet socket with its mapped ring; nothing passes until a filter is attached.

    Attributes:
        cut: whether the last :meth:`read` may have left frames that were there: there were too many, or the
            ring's end came.

    Raises:
        CaptureError: not permitted, or this system has no such sockets.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        if sys.platform != "linux":
            raise CaptureError("packets cannot be captured: only Linux has packet sockets")
        try:
            protocols = _socket.htons(_ALL_PROTOCOLS)
            self._socket = _socket.socket(_socket.AF_PACKET, _socket.SOCK_DGRAM, protocols)
        except PermissionError as e:
            raise CaptureError(
                "packets cannot be captured: not permitted; give the process the capability CAP_NET_RAW"
            ) from e
        except OSError as e:
            raise CaptureError(f"packets cannot be captured: no packet socket ({e.strerror})") from e
        try:
            self._map(slots)
        except (OSError, ValueError) as e:
            self._socket.close()
            raise CaptureError(f"packets cannot be captured: no ring of {slots:,} packets ({e})") from e
        self._frames = np.frombuffer(self._memory, np.uint8).reshape(slots, FRAME_BYTES)
        self._status = self._frames[:, :4].view(np.uint32)[:, 0]
        self._next = 0
        self.cut = False
        self._dropped = 0
        self.closed = False

    def _map(self, slots: int) -> None:
        sock = self._socket
        self.attach([(6, 0, 0, 0)])  # until the first target is known, nothing passes
        sock.setsockopt(_SOL_PACKET, _VERSION, _TPACKET_V2)
        with suppress(OSError):  # before Linux 4.20; the parse leaves them out in any case
            sock.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
        size = slots * FRAME_BYTES
        blocks = size // _BLOCK_BYTES
        sock.setsockopt(_SOL_PACKET, _RX_RING, struct.pack("IIII", _BLOCK_BYTES, blocks, FRAME_BYTES, slots))
        self._memory = mmap.mmap(sock.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    def attach(self, program: Sequence[Instruction]) -> None:
        """Replace the filter."""
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
        described = struct.pack("HP", len(program), ctypes.addressof(code))
        self._socket.setsockopt(_socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)

    def read(self) -> Bytes | None:
        """Take the next frames, in order of capture, and free their slots; None if there is none."""
        if self.closed or not self._status[self._next] & _TO_USER:
            return None
        first, count, span = self._next, 0, _FIRST_SPAN
        while count < MOST_AT_ONCE:
            status = self._status[first + count : first + count + span]
            filled = (status & _TO_USER) > 0
            if not filled.all():
                count += int(filled.argmin())
                break
            if not len(status):
                break
            count += len(status)
            span = count
        frames = self._frames[first : first + count].copy()
        self._status[first : first + count] = _TO_KERNEL
        self._next = (first + count) % len(self._frames)
        self.cut = count >= MOST_AT_ONCE or not self._next
        return frames

    def fileno(self) -> int:
        """Descriptor that is readable as long as there are frames to read."""
        return self._socket.fileno()

    @property
    def dropped(self) -> int:
        """Packets so far that found no free slot."""
        if not self.closed:
            counts = self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 8)  # which sets them to 0
            self._dropped += struct.unpack("II", counts)[1]
        return self._dropped

    def close(self) -> None:
        """Give socket and memory back."""
        if not self.closed:
            _ = self.dropped
            self.closed = True
            self._socket.close()
            del self._frames, self._status
            self._memory.close()
