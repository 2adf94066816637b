"""Streams by their packets: against a model that keeps the arrival of every single byte."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_locust.client.packets.stream import (
    MOST_RESTING,
    MOST_RESTING_BYTES,
    MOST_UNACKED,
    SEQUENCE,
    UNACKED_NS,
    Stream,
    ahead,
)

FIRST_SEQS = st.sampled_from([0, 1000, SEQUENCE - 1, SEQUENCE - 37, 2**31, 2**31 - 5]) | st.integers(
    0, SEQUENCE - 1
)


@dataclass
class ByteByByte:
    """The plain model: when each byte was first captured, and from that when it and all before it had."""

    first_seq: int
    captured_ns: dict[int, int] = field(default_factory=dict)

    def add(self, start: int, size: int, at_ns: int) -> None:
        for offset in range(start, start + size):
            self.captured_ns.setdefault(offset, at_ns)

    def arrival_ns(self, upto: int) -> list[int] | None:
        """Of each byte before ``upto``; None if one of them was never captured."""
        latest, found = 0, []
        for offset in range(upto):
            if offset not in self.captured_ns:
                return None
            latest = max(latest, self.captured_ns[offset])
            found.append(latest)
        return found


def by_byte(pieces: list[tuple[int, int]]) -> list[int]:
    """Stamp of each byte of a read."""
    found: list[int] = []
    for end, at_ns in pieces:
        assert end > len(found), "pieces have bytes"
        found += [at_ns] * (end - len(found))
    return found


def opened(first_seq: int = 0) -> Stream:
    stream = Stream()
    stream.open(first_seq)
    return stream


@st.composite
def traffic(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Packets (offset, size) of a stream of at most 400 bytes: in order, then some moved, some repeated."""
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=10))
    sent, at = [], 0
    for size in sizes:
        sent.append((at, size))
        at += size
    for _ in range(draw(st.integers(0, 4))):  # retransmissions, cut and joined in other places
        start = draw(st.integers(0, at - 1))
        sent.insert(draw(st.integers(0, len(sent))), (start, draw(st.integers(1, at - start))))
    for _ in range(draw(st.integers(0, 3))):  # reordering
        sent.insert(draw(st.integers(0, len(sent))), sent.pop(draw(st.integers(0, len(sent) - 1))))
    return sent


@given(traffic(), FIRST_SEQS, st.data())
def test_every_byte_has_the_time_at_which_it_and_all_before_it_had_come(
    sent: list[tuple[int, int]], first_seq: int, data: st.DataObject
) -> None:
    stream, model, read = opened(first_seq), ByteByByte(first_seq), 0
    for n, (start, size) in enumerate(sent):
        stream.add((first_seq + start) % SEQUENCE, size, 1000 + n)
        model.add(start, size, 1000 + n)
        if data.draw(st.booleans()):
            wanted = data.draw(st.integers(1, 80))
            arrivals = model.arrival_ns(read + wanted)
            pieces = stream.take(wanted)
            assert (pieces is None) == (arrivals is None)
            if pieces is not None and arrivals is not None:
                assert by_byte(pieces) == arrivals[read:]
                read += wanted
    total = max(start + size for start, size in sent)
    arrivals = model.arrival_ns(total)
    assert arrivals is not None
    assert by_byte(stream.take(total - read) or []) == arrivals[read:]


@given(traffic(), FIRST_SEQS, st.sets(st.integers(0, 9), min_size=1), st.data())
def test_a_lost_head_costs_the_reads_with_its_bytes_and_never_makes_a_stamp_early(
    sent: list[tuple[int, int]], first_seq: int, lost: set[int], data: st.DataObject
) -> None:
    """The program reads as TCP delivers: what has arrived, whether its head was captured or not."""
    stream, truth, read = opened(first_seq), ByteByByte(first_seq), 0
    for n, (start, size) in enumerate(sent):
        truth.add(start, size, 1000 + n)
        if n not in lost:
            stream.add((first_seq + start) % SEQUENCE, size, 1000 + n)
        arrived = read
        while arrived in truth.captured_ns:
            arrived += 1
        if arrived > read and data.draw(st.booleans()):
            arrivals = truth.arrival_ns(arrived)
            assert arrivals is not None
            pieces = stream.take(arrived - read)
            if pieces is None:
                stream.skip(arrived - read)
            else:
                assert all(a >= b for a, b in zip(by_byte(pieces), arrivals[read:], strict=True))
            read = arrived


def test_a_stream_goes_on_after_a_lost_head() -> None:
    stream = opened()
    stream.add(10, 10, 2)  # the packet before it was not captured
    assert stream.take(20) is None
    stream.skip(20)
    stream.add(20, 5, 3)
    assert stream.take(5) == [(5, 3)]


def test_a_read_that_ends_within_a_packet_has_its_stamp_and_so_has_the_next() -> None:
    stream = opened()
    stream.add(0, 10, 1)
    stream.add(10, 10, 2)
    assert stream.take(13) == [(10, 1), (13, 2)]
    assert stream.take(7) == [(7, 2)]


def test_a_packet_before_its_predecessor_arrives_with_that_one() -> None:
    stream = opened()
    stream.add(10, 10, 1)
    stream.add(0, 10, 5)
    assert stream.take(20) == [(20, 5)]


def test_nothing_is_known_before_the_first_sequence_number_is() -> None:
    stream = Stream()
    stream.add(0, 10, 1)
    assert stream.take(10) is None
    assert not stream.tracked


def test_a_repeated_syn_changes_nothing() -> None:
    stream = opened(100)
    stream.open(500)
    stream.add(100, 4, 1)
    assert stream.take(4) == [(4, 1)]


def test_more_bytes_than_sequence_numbers() -> None:
    stream, size, at = opened(5), 1 << 29, 0
    for n in range(20):
        stream.add((5 + at) % SEQUENCE, size, n + 1)
        at += size
        assert stream.take(size) == [(size, n + 1)]
    assert at > 2 * SEQUENCE


def test_what_waits_for_a_packet_that_never_comes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_locust.client.packets.stream.MOST_PENDING", 50)
    stream = opened()
    for n in range(150):
        stream.add(10 + 2 * n, 1, n)
    assert len(stream._pending) == 50


@pytest.mark.parametrize("far", [2**30 + 1, 2**31, -(2**30) - 1])
def test_a_packet_far_off_is_none_of_the_stream(far: int) -> None:
    stream = opened(7)
    stream.add((7 + far) % SEQUENCE, 100, 1)
    assert not stream._pending
    assert stream.take(1) is None


@given(FIRST_SEQS, st.integers(-(2**31), 2**31 - 1))
def test_distances_of_sequence_numbers(seq: int, distance: int) -> None:
    assert ahead((seq + distance) % SEQUENCE, seq) == distance


def test_an_empty_read_has_no_pieces() -> None:
    assert opened().take(0) == []


# What comes in order, and again


@given(FIRST_SEQS, st.integers(0, 50))
def test_what_comes_in_order_is_no_repeat_whatever_came_before(first_seq: int, lost: int) -> None:
    """As long as it is none, the connection may rest."""

    def add(offset: int, size: int) -> bool:
        return stream.add((first_seq + offset) % SEQUENCE, size, 1)

    stream = Stream()
    stream.skip(lost)  # bytes that were read before the first packet was seen
    stream.open(first_seq)
    assert [add(lost, 10), add(lost + 20, 10)] == [True, True]
    assert stream.repeats == 1
    assert [add(lost + 20, 10), add(lost + 22, 5), add(lost + 15, 10)] == [False, False, True]
    assert stream.repeats == 4
    assert [add(lost + 10, 10), add(lost + 30, 10)] == [True, True]
    assert (stream.repeats, stream.small, stream.small_bytes) == (5, 2, 20)
    stream.skip(60)  # 20 of which no packet was seen
    assert not stream.has_unread
    assert add(lost + 60, 1000)
    assert (stream.repeats, stream.small, stream.small_bytes) == (5, 2, 20)
    assert stream.take(1000) == [(1000, 1)]


def test_bytes_that_were_read_before_the_first_packet_was_seen_are_no_packets() -> None:
    stream = Stream()
    stream.skip(5)
    for seq in (0, SEQUENCE - 1, SEQUENCE - 2):
        assert not stream.add(seq, 10, 1)
    assert not stream.has_unread


def test_reads_end_where_packets_end() -> None:
    stream = opened()
    for n in range(4):
        stream.add(10 * n, 10, n)
    stream.skip(10)
    assert stream.take(20) == [(10, 1), (20, 2)]
    assert stream.take(10) == [(10, 3)]


def test_what_waits_to_be_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_locust.client.packets.stream.MOST_UNREAD", 3)
    stream = opened()
    assert [stream.add(10 * n, 10, n) for n in range(5)] == [True] * 5
    assert stream.take(40) is None
    assert stream.take(30) == [(10, 0), (20, 1), (30, 2)]
    stream.skip(20)
    assert stream.add(50, 10, 9)
    assert stream.take(10) == [(10, 9)]


@pytest.mark.parametrize("far", [2**30, -(2**30)])
def test_a_packet_as_far_off_as_a_window_may_be_is_of_the_stream(far: int) -> None:
    stream = opened(7)
    stream.add(7, 2**30, 1)
    assert stream.add((7 + 2**30 + far) % SEQUENCE, 2**30 + 1, 2)


# When a read is due


def test_no_read_is_due_of_a_stream_that_does_not_rest() -> None:
    stream = opened()
    for n in range(2 * MOST_RESTING):
        stream.add(n * 1000, 1000, n)
    stream.add(0, 10, 1)
    assert (stream.resting, stream.due_ns) == (False, 0)


@pytest.mark.parametrize(("gap_ns", "due"), [(UNACKED_NS, 0), (UNACKED_NS - 1, 3 * UNACKED_NS + 2)])
def test_a_read_is_due_when_packets_come_faster_than_they_are_acknowledged(gap_ns: int, due: int) -> None:
    stream, at_ns = opened(), 2 * UNACKED_NS
    stream.resting, stream.patience_ns = True, 3
    stamps = [at_ns, *[at_ns] * (MOST_UNACKED - 2), at_ns + gap_ns]
    for n, stamp in enumerate(stamps):
        stream.add(n, 1, stamp)
    assert stream.due_ns == due
    stream.add(len(stamps), 1, at_ns + gap_ns + 1)
    assert stream.due_ns == due, "the first that makes it due stays"


def test_a_read_is_due_of_as_many_bytes_as_are_unread() -> None:
    stream = opened()
    stream.add(0, 5 * MOST_RESTING_BYTES, 1)
    stream.skip(5 * MOST_RESTING_BYTES)
    stream.resting = True
    stream.add(5 * MOST_RESTING_BYTES, MOST_RESTING_BYTES - 1, 2)
    assert stream.due_ns == 0
    stream.add(6 * MOST_RESTING_BYTES - 1, 1, 3)
    assert stream.due_ns == 3
    assert (MOST_RESTING, MOST_RESTING_BYTES, MOST_UNACKED) == (64, 14_336, 4)
