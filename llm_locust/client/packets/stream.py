"""Arrival of the bytes of one TCP stream, by the heads of its packets."""

from collections import deque

#: Sequence numbers count modulo this.
SEQUENCE = 1 << 32

#: A packet further than this from the next byte is none of this connection: no window is as wide.
_FARTHEST = 1 << 30

#: Most packets that wait for one before them, and most that the program has not read yet. Further ones are
#: left out, so that the reads with their bytes keep stamps of their own.
MOST_PENDING = 4096
MOST_UNREAD = 65_536

#: Most pieces that one read is cut into: each is passed on alone, which takes some microseconds.
MOST_PIECES = 1024


class Stream:
    """Received side of one connection: which packet brought which bytes, and when.

    Offsets count from the stream's first byte. A byte has arrived when all before it have: a packet that came
    before its predecessor arrives with that one. Packets are added in order of capture, and reads are taken
    in order.

    Attributes:
        tracked: whether the first sequence number is known.
    """

    __slots__ = ("_arrived", "_ends", "_next", "_origin", "_pending", "_read", "_stamps", "tracked")

    def __init__(self) -> None:
        self.tracked = False
        self._origin = 0  # sequence number of offset 0
        self._next = -1  # sequence number after the last byte that has arrived; -1 before the first is known
        self._arrived = 0  # offset after the last byte that has arrived
        self._read = 0  # offset after the last byte that the program has
        self._ends: deque[int] = deque()  # of packets that are not read yet, offsets after their last bytes
        self._stamps: deque[int] = deque()  # of the same packets
        self._pending: list[tuple[int, int]] = []  # offsets of packets that came before their predecessors

    def open(self, first_seq: int) -> None:
        """Set the sequence number of the first byte; a repeated SYN changes nothing."""
        if not self.tracked:
            self.tracked, self._origin = True, first_seq % SEQUENCE
            self._next = (self._origin + self._arrived) % SEQUENCE

    def add(self, seq: int, size: int, at_ns: int) -> None:
        """Add a packet with ``size`` bytes of payload from sequence number ``seq`` on."""
        if seq == self._next and not self._pending and len(self._ends) < MOST_UNREAD:  # the usual case
            self._arrive(self._arrived + size, at_ns)
            return
        arrived = self._arrived
        start = arrived + ahead(seq, self._origin + arrived)
        end = start + size
        if end <= arrived or not self.tracked or abs(start - arrived) > _FARTHEST:
            return
        if start > arrived:
            if len(self._pending) < MOST_PENDING:
                self._pending.append((start, end))
            return
        if len(self._ends) >= MOST_UNREAD:
            return
        if self._pending:
            end, self._pending = joined(end, self._pending)
        self._arrive(end, at_ns)

    def _arrive(self, end: int, at_ns: int) -> None:
        self._arrived = end
        self._next = (self._origin + end) % SEQUENCE
        self._ends.append(end)
        self._stamps.append(at_ns)

    def take(self, size: int) -> list[tuple[int, int]] | None:
        """Take a read of ``size`` bytes: the end of each packet's part in it, and that packet's stamp.

        None if a packet of it is unknown; then nothing is taken.
        """
        begin, ends = self._read, self._ends
        upto = begin + size
        if self._arrived < upto:
            return None
        pieces: list[tuple[int, int]] = []
        while ends and ends[0] <= upto:
            pieces.append((ends.popleft() - begin, self._stamps.popleft()))
        if size > (pieces[-1][0] if pieces else 0):
            pieces.append((size, self._stamps[0]))
        self._read = upto
        return pieces

    def skip(self, size: int) -> None:
        """Pass over a read of ``size`` bytes of which packets are unknown, and over what is pending."""
        self._read += size
        while self._ends and self._ends[0] <= self._read:
            self._ends.popleft()
            self._stamps.popleft()
        if self._arrived < self._read:
            self._arrived = self._read
            self._next = (self._origin + self._read) % SEQUENCE if self.tracked else -1
            self._pending.clear()


def ahead(seq: int, of: int) -> int:
    """Signed distance from one sequence number to another, which wrap around."""
    return (seq - of + SEQUENCE // 2) % SEQUENCE - SEQUENCE // 2


def joined(end: int, pending: list[tuple[int, int]]) -> tuple[int, list[tuple[int, int]]]:
    """The end of what is contiguous up to ``end`` with pending spans, and the spans beyond it."""
    beyond = []
    for span in sorted(pending):
        if span[0] <= end:
            end = max(end, span[1])
        else:
            beyond.append(span)
    return end, beyond
