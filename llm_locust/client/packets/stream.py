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

#: Payload of a small packet, at most: less than any path's largest segment, so that a sender that waits for
#: acknowledgements (Nagle) would wait before it.
SMALL_BYTES = 1000

#: A connection at rest is to be read as soon as it has this many unread packets, or bytes, ...
MOST_RESTING, MOST_RESTING_BYTES = 64, 14 << 10

#: ... or this many packets within the longest time that Linux leaves a packet unacknowledged. A sender's
#: congestion window is at least ten packets as long as nothing is lost.
MOST_UNACKED, UNACKED_NS = 4, 40_000_000

#: Most pieces that one read is cut into: each is passed on alone, which takes some microseconds.
MOST_PIECES = 1024


class Stream:
    """Received side of one connection: which packet brought which bytes, and when.

    Offsets count from the stream's first byte. A byte has arrived when all before it have: a packet that came
    before its predecessor arrives with that one. Packets are added in order of capture, and reads are taken
    in order.

    A connection at rest (``resting``) is not read packet by packet. ``due_ns`` is set to the time at which a
    read is due: the stamp of the packet that makes it so, or ``patience_ns`` later if there are just many.

    Attributes:
        tracked: whether the first sequence number is known.
        small, small_bytes: number of small packets that arrived in order, and their payload.
        repeats: number of packets that brought nothing new, or came before a predecessor.
        last_ns: stamp of the last packet.
    """

    __slots__ = (
        "_arrived",
        "_ends",
        "_next",
        "_origin",
        "_pending",
        "_read",
        "_stamps",
        "due_ns",
        "last_ns",
        "patience_ns",
        "repeats",
        "resting",
        "small",
        "small_bytes",
        "tracked",
    )

    def __init__(self) -> None:
        self.tracked = False
        self._origin = 0  # sequence number of offset 0
        self._next = -1  # sequence number after the last byte that has arrived; -1 before the first is known
        self._arrived = 0  # offset after the last byte that has arrived
        self._read = 0  # offset after the last byte that the program has
        self._ends: deque[int] = deque()  # of packets that are not read yet, offsets after their last bytes
        self._stamps: deque[int] = deque()  # of the same packets
        self._pending: list[tuple[int, int]] = []  # offsets of packets that came before their predecessors
        self.small = self.small_bytes = self.repeats = self.last_ns = self.due_ns = self.patience_ns = 0
        self.resting = False

    def open(self, first_seq: int) -> None:
        """Set the sequence number of the first byte; a repeated SYN changes nothing."""
        if not self.tracked:
            self.tracked, self._origin = True, first_seq % SEQUENCE
            self._next = (self._origin + self._arrived) % SEQUENCE

    def add(self, seq: int, size: int, at_ns: int) -> bool:
        """Add a packet with ``size`` bytes of payload from sequence number ``seq`` on.

        Return whether it brought bytes that no packet before it had.
        """
        if seq == self._next and not self._pending and len(self._ends) < MOST_UNREAD:  # the usual case
            self._arrived = end = self._arrived + size
            self._next = (seq + size) % SEQUENCE
            stamps, self.last_ns = self._stamps, at_ns
            self._ends.append(end)
            stamps.append(at_ns)
            if size < SMALL_BYTES:
                self.small += 1
                self.small_bytes += size
            if self.resting and not self.due_ns:
                unread = len(stamps)
                if (
                    unread >= MOST_RESTING
                    or end - self._read >= MOST_RESTING_BYTES
                    or (unread >= MOST_UNACKED and at_ns - stamps[-MOST_UNACKED] < UNACKED_NS)
                ):
                    self.due_ns = at_ns + self.patience_ns
            return True
        return self._add_other(seq, size, at_ns)

    def _add_other(self, seq: int, size: int, at_ns: int) -> bool:
        """Add a packet that was sent again or came out of order, or one of a stream that is not known yet."""
        self.repeats += 1
        self.due_ns = self.due_ns or (at_ns if self.resting else 0)
        arrived = self._arrived
        start = arrived + ahead(seq, self._origin + arrived)
        end = start + size
        if end <= arrived or not self.tracked or abs(start - arrived) > _FARTHEST:
            return False
        if start > arrived:
            new = not any(first <= start and end <= last for first, last in self._pending)
            if new and len(self._pending) < MOST_PENDING:
                self._pending.append((start, end))
            return new
        if len(self._ends) >= MOST_UNREAD:
            return True
        if self._pending:
            end, self._pending = joined(end, self._pending)
        self._arrived, self.last_ns = end, at_ns
        self._next = (self._origin + end) % SEQUENCE
        self._ends.append(end)
        self._stamps.append(at_ns)
        return True

    @property
    def has_unread(self) -> bool:
        """Whether bytes have arrived that no read has taken."""
        return self._arrived > self._read

    def take(self, size: int) -> list[tuple[int, int]] | None:
        """Take a read of ``size`` bytes: the end of each packet's part in it, and that packet's stamp.

        None if a packet of it is unknown; then nothing is taken.
        """
        begin, ends = self._read, self._ends
        upto = begin + size
        if self._arrived < upto:
            return None
        self._read = upto
        if upto == self._arrived:  # the usual case
            if len(ends) == 1:
                return [(ends.pop() - begin, self._stamps.pop())]
            pieces = list(zip([end - begin for end in ends], self._stamps, strict=True))
            ends.clear()
            self._stamps.clear()
            return pieces
        pieces = []
        while ends and ends[0] <= upto:
            pieces.append((ends.popleft() - begin, self._stamps.popleft()))
        if size > (pieces[-1][0] if pieces else 0):
            pieces.append((size, self._stamps[0]))
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
