"""Clocks of one request: kernel receive stamps (realtime) and monotonic readings.

A request's times are realtime, because the kernel stamps a received packet with ``CLOCK_REALTIME``. The
program stamps a read with ``CLOCK_MONOTONIC``. The pair of clocks read together when the request was sent
converts that to realtime, and the pair read at the end shows whether realtime was stepped in between.
"""

import socket
import struct
import sys
import time
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: ``SO_TIMESTAMPNS`` and its control message: 35 on every Linux architecture except sparc and parisc. The
#: socket module does not define it.
SO_TIMESTAMPNS = 35

#: Space for one 16-byte time stamp in a control message; 0 if the system has no such stamps.
ANCILLARY_BYTES = socket.CMSG_SPACE(16) if sys.platform == "linux" else 0

#: Difference between two pairs of clock readings that counts as a step.
STEP_THRESHOLD_NS = 500_000

_PAIR_TOLERANCE_NS = 20_000
_TIMESPEC = struct.Struct("qq")


def hold_stamping() -> socket.socket | None:
    """Open a socket that keeps the kernel stamping packets for as long as it is open.

    The kernel stamps nothing while no socket requests it, and starts some time after the first one does: the
    first responses of a run would have no stamps. None if the system has no such stamps.
    """
    if not ANCILLARY_BYTES:
        return None
    holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    holder.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return holder


class ClockPair(NamedTuple):
    """Realtime and monotonic time of one instant, in nanoseconds."""

    realtime_ns: int
    monotonic_ns: int

    @property
    def offset_ns(self) -> int:
        return self.realtime_ns - self.monotonic_ns


def read_clocks() -> ClockPair:
    """Read both clocks within 20 µs of each other; on a machine too busy for that, the best of four."""
    best = _read_pair()
    for _ in range(3):
        if best[0] < _PAIR_TOLERANCE_NS:
            break
        best = min(best, _read_pair(), key=itemgetter(0))
    return best[1]


def _read_pair() -> tuple[int, ClockPair]:
    """Duration of the reading, and the clocks. Realtime is taken as the middle of that duration."""
    before = time.monotonic_ns()
    realtime = time.time_ns()
    took = time.monotonic_ns() - before
    return took, ClockPair(realtime, before + took // 2)


def clock_step_ns(start: ClockPair, end: ClockPair) -> int | None:
    """Step of realtime between two pairs; None if there was none.

    Slewing (NTP) moves both clocks alike and does not count.
    """
    step = end.offset_ns - start.offset_ns
    return step if abs(step) > STEP_THRESHOLD_NS else None


#: One read of a response: the number of bytes up to and with it, the kernel's receive stamp (realtime, 0
#: without one), and when the program had it (monotonic), in nanoseconds.
READ = struct.Struct("=qqq")


def stamp_ns(timespec: bytes) -> int:
    """Receive stamp out of a control message, a C ``struct timespec``."""
    seconds, nanoseconds = _TIMESPEC.unpack(timespec)
    return int(seconds * 1_000_000_000 + nanoseconds)


class ReadLog:
    """Times of the reads of one response, and the length of its body after each."""

    __slots__ = ("_packed",)

    def __init__(self) -> None:
        self._packed = bytearray()

    def __len__(self) -> int:
        return len(self._packed) // READ.size

    def add(self, reads: bytes) -> None:
        """Add reads, packed as :data:`READ`, each with the length of the body after it."""
        self._packed += reads

    @property
    def last_ns(self) -> int | None:
        """When the program had the last read (monotonic); None before the first."""
        return int(READ.unpack_from(self._packed, len(self._packed) - READ.size)[2]) if self._packed else None

    def event_ns(self, end: int) -> int:
        """When the program had the byte before offset ``end`` of the body."""
        columns = self.columns()
        return int(columns[np.searchsorted(columns[:, 0], end), 2])

    def columns(self) -> NDArray[np.int64]:
        """For each read the length of the body after it, the kernel's stamp, the program's time: (reads,
        3)."""
        return np.frombuffer(bytes(self._packed), dtype=np.int64).reshape(-1, 3)
