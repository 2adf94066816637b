"""Clocks of one request: kernel receive stamps (realtime) and monotonic readings.

A request's times are realtime, because the kernel stamps a received packet with ``CLOCK_REALTIME``. The
program stamps a read with ``CLOCK_MONOTONIC``. The pair of clocks read together when the request was sent
converts that to realtime, and the pair read at the end shows whether realtime was stepped in between.
"""

import socket
import struct
import sys
import time
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

#: ``SO_TIMESTAMPNS`` and its control message: 35 on every Linux architecture except sparc and parisc. The
#: socket module does not define it.
SO_TIMESTAMPNS = 35

#: Space for one 16-byte time stamp in a control message; 0 if the system has no such stamps.
ANCILLARY_BYTES = socket.CMSG_SPACE(16) if sys.platform == "linux" else 0

#: Placeholder for a read without a kernel stamp: 16 zero bytes, a time long before any run.
NO_STAMP = bytes(16)

#: Difference between two pairs of clock readings that counts as a step.
STEP_THRESHOLD_NS = 500_000

_TIMESPEC = struct.Struct("qq")
_PAIR_TOLERANCE_NS = 20_000


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


@dataclass(frozen=True, slots=True)
class ClockPair:
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


def monotonic_times(
    at_ns: Sequence[int], offsets_ns: tuple[int, int], first_ns: int, last_ns: int
) -> list[int]:
    """Monotonic times of realtime stamps, all between two monotonic times, around a step of realtime.

    Args:
        offsets_ns: realtime less monotonic, before the step and after it. A stamp is of the one that puts it
            between the two times, or nearer to them.
    """

    def outside_ns(time_ns: int) -> int:
        return max(first_ns - time_ns, time_ns - last_ns, 0)

    return [min((at - offset for offset in offsets_ns), key=outside_ns) for at in at_ns]


def stamp_message(at_ns: int) -> list[tuple[int, int, bytes]]:
    """Control messages of a read that the kernel stamped at this realtime."""
    return [(socket.SOL_SOCKET, SO_TIMESTAMPNS, _TIMESPEC.pack(*divmod(at_ns, 1_000_000_000)))]


def pack_stamps(at_ns: Sequence[int]) -> bytes:
    """Realtime stamps in the form that :func:`decode_stamps` reads."""
    pairs = array("q", bytes(16 * len(at_ns)))
    pairs[1::2] = array("q", at_ns)
    return pairs.tobytes()


def decode_stamps(stamps: bytes | bytearray) -> NDArray[np.int64]:
    """Kernel stamps, a C ``struct timespec`` each, as realtime nanoseconds; 0 for :data:`NO_STAMP`."""
    pairs = np.frombuffer(bytes(stamps), dtype=np.int64).reshape(-1, 2)
    return np.asarray(pairs[:, 0] * 1_000_000_000 + pairs[:, 1], dtype=np.int64)


class ReadLog:
    """Times of the reads of one response, and the length of its body after each."""

    __slots__ = ("_empty", "_ends", "_mono", "_stamps")

    def __init__(self) -> None:
        self._ends, self._mono, self._empty = array("q"), array("q"), array("q")
        self._stamps = bytearray()

    def __len__(self) -> int:
        return len(self._mono)

    def add(
        self,
        ends: Sequence[int],
        stamps: Sequence[bytes],
        monotonic_ns: Sequence[int],
        empty_ns: Sequence[int],
    ) -> None:
        """Add reads; ``stamps`` may have those of several in one item."""
        self._ends += array("q", ends)
        self._stamps += b"".join(stamps)
        self._mono += array("q", monotonic_ns)
        self._empty += array("q", empty_ns)

    @property
    def last_ns(self) -> int | None:
        """When the program had the last read (monotonic); None before the first."""
        return self._mono[-1] if self._mono else None

    def event_ns(self, end: int) -> int:
        """When the program had the byte before offset ``end`` of the body."""
        return self._mono[bisect_left(self._ends, end)]

    def ends(self) -> NDArray[np.int64]:
        """For each read, the number of body bytes received after it; shape (reads,)."""
        return np.array(self._ends, dtype=np.int64)

    def kernel_ns(self) -> NDArray[np.int64]:
        """For each read, the kernel's receive time (realtime, 0 without a stamp)."""
        return decode_stamps(self._stamps)

    def monotonic_ns(self) -> NDArray[np.int64]:
        """For each read, when the program had it."""
        return np.array(self._mono, dtype=np.int64)

    def empty_ns(self) -> NDArray[np.int64]:
        """For each read, when its socket was last known to be empty, with the read's marks."""
        return np.array(self._empty, dtype=np.int64)
