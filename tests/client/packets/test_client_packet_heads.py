"""Captured heads: what they say of a packet, and that bytes of any kind do no harm."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packet_bytes import FIN_ACK, HERE_PORT, HOST, PEER, PEER_PORT, PSH_ACK, RST_ACK, SYN_ACK, Packet, slot

from llm_locust.client.packets.heads import (
    END,
    END_BYTES,
    FIN,
    FRAME_BYTES,
    HEAD_BYTES,
    RST,
    SYN,
    Head,
    address_bytes,
    connection_key,
    heads_of,
    parse_one,
    plain_heads,
)

#: Returns the head of a frame, None if it is left out.
ParseFrame = Callable[[bytes], Any]

KEY = connection_key((HOST, HERE_PORT), (PEER, PEER_PORT))
FEW, MANY = 1, 70  # frames that are parsed one by one, and as columns


def frames(*slots: bytes) -> np.ndarray:
    return np.frombuffer(b"".join(slots), np.uint8).reshape(-1, FRAME_BYTES)


def by_columns(*slots: bytes) -> list[Head]:
    """As in a look that has many frames: each of them :data:`MANY` times, of which the first is returned."""
    return list(heads_of(frames(*(one for one in slots for _ in range(MANY)))))[::MANY]


@pytest.fixture(params=["one by one", "columns"])
def head(request: pytest.FixtureRequest) -> ParseFrame:
    """The head of a frame as each of the two parsers has it; None if it is left out."""

    def found(frame: bytes) -> Head | None:
        if request.param == "columns":
            return next(iter(by_columns(frame)), None)
        return parse_one(frame)

    return found


def test_a_packet_has_its_connection_its_bytes_and_its_time(head: ParseFrame) -> None:
    packet = Packet(seq=4_000_000_000, size=321)
    assert head(slot(packet.data, 17_000_000_123)) == (KEY, 4_000_000_000, 321, 0, 17_000_000_123)


@pytest.mark.parametrize("ip_options", [0, 1, 10])
@pytest.mark.parametrize("tcp_options", [0, 3, 10])
def test_options_are_no_payload(head: ParseFrame, ip_options: int, tcp_options: int) -> None:
    packet = Packet(size=7, ip_options=ip_options, tcp_options=tcp_options)
    assert head(slot(packet.data))[2] == 7


def test_ipv6_with_and_without_an_extension(head: ParseFrame) -> None:
    here, peer = "2001:db8::1", "2001:db8::2"
    key = connection_key((here, HERE_PORT), (peer, PEER_PORT))
    for hop_by_hop in (False, True):
        packet = Packet(here=here, peer=peer, size=55, hop_by_hop=hop_by_hop)
        assert head(slot(packet.data))[:3] == (key, 1000, 55)


@pytest.mark.parametrize("size", [9000, 60_000])
def test_a_packet_longer_than_what_was_captured_has_all_its_bytes(head: ParseFrame, size: int) -> None:
    assert head(slot(Packet(size=size).data))[2] == size


@pytest.mark.parametrize(("here", "peer"), [(HOST, PEER), ("2001:db8::1", "2001:db8::2")])
def test_a_packet_longer_than_its_head_can_say_has_the_length_of_the_kernel(
    head: ParseFrame, here: str, peer: str
) -> None:
    packet = Packet(size=200_000, long=True, here=here, peer=peer, hop_by_hop=":" in here)
    assert head(slot(packet.data))[2] == 200_000


def test_padding_of_the_link_is_no_payload(head: ParseFrame) -> None:
    assert head(slot(Packet(size=2, padding=30).data))[2] == 2


def test_a_syn_an_acknowledgement_and_an_end_have_no_bytes(head: ParseFrame) -> None:
    assert head(slot(Packet(size=0, flags=SYN_ACK).data))[1:4] == (1000, 0, SYN)
    assert head(slot(Packet(size=0).data))[1:4] == (1000, 0, 0)
    assert head(slot(Packet(size=0, flags=FIN_ACK).data))[1:4] == (1000, 0, FIN)
    assert head(slot(Packet(size=0, flags=RST_ACK).data))[1:4] == (1000, 0, RST)
    assert head(slot(Packet(size=300, flags=FIN_ACK).data))[2:4] == (300, FIN)


@pytest.mark.parametrize(("captured", "marks"), [(80, END), (81, 0), (176, 0)])
def test_a_packet_of_which_the_filter_passed_less_is_an_end(
    head: ParseFrame, captured: int, marks: int
) -> None:
    whole = bytearray(slot(Packet(size=1000).data))
    whole[8:12] = captured.to_bytes(4, sys.byteorder)
    assert head(bytes(whole))[2:4] == (1000, marks)


def test_a_packet_that_the_sender_pushed_is_no_end(head: ParseFrame) -> None:
    assert head(slot(Packet(size=300, flags=PSH_ACK).data))[2:4] == (300, 0)


@pytest.mark.parametrize("peer", [PEER, "2001:db8::2"])
@pytest.mark.parametrize("padding", [0, 6])
@pytest.mark.parametrize(("tail", "marks"), [(b"0\r\n\r\n", END), (b"1\r\n\r\n", 0), (b"\r\n\r\n", 0)])
def test_a_packet_that_was_captured_whole_is_an_end_if_its_payload_is_one(
    head: ParseFrame, peer: str, padding: int, tail: bytes, marks: int
) -> None:
    here = HOST if peer == PEER else "2001:db8::1"
    packet = Packet(here=here, peer=peer, size=len(tail), tail=tail, padding=padding, tcp_options=0)
    assert head(slot(packet.data))[2:4] == (len(tail), marks)


@pytest.mark.parametrize(
    "packet",
    [
        Packet(protocol=17),
        Packet(fragment=0x2000),
        Packet(fragment=10),
        Packet(here="::1", peer="::2", protocol=17),
    ],
)
def test_other_protocols_and_fragments_are_left_out(head: ParseFrame, packet: Packet) -> None:
    assert head(slot(packet.data)) is None


def test_what_this_machine_sends_is_left_out(head: ParseFrame) -> None:
    assert head(slot(Packet().data, packet_type=4)) is None


def test_a_head_elsewhere_in_the_slot_is_left_out(head: ParseFrame) -> None:
    assert head(slot(Packet().data, network=96)) is None


@given(st.integers(0, 39))
def test_a_head_that_was_cut_is_left_out(size: int) -> None:
    cut = slot(Packet(tcp_options=0).data[:size])
    assert by_columns(cut) == []
    assert parse_one(cut) is None


@given(st.integers(0, 39))
def test_a_head_of_which_too_little_was_captured_is_left_out(captured: int) -> None:
    whole = bytearray(slot(Packet(size=100, tcp_options=0).data))
    whole[8:12] = captured.to_bytes(4, sys.byteorder)
    assert by_columns(bytes(whole)) == []
    assert parse_one(bytes(whole)) is None


def test_a_length_beyond_the_packet_is_not_believed(head: ParseFrame) -> None:
    data = Packet(size=100).data
    assert head(slot(data[:-50])) is None


@pytest.mark.parametrize("peer", [PEER, "2001:db8::2"])
def test_a_length_that_has_no_room_for_the_heads_is_not_believed(head: ParseFrame, peer: str) -> None:
    here = HOST if peer == PEER else "2001:db8::1"
    frame = bytearray(slot(Packet(here=here, peer=peer, size=0).data))
    at = 80 + (2 if peer == PEER else 4)
    assert head(bytes(frame))[2] == 0
    frame[at : at + 2] = (int.from_bytes(frame[at : at + 2]) - 1).to_bytes(2)
    assert head(bytes(frame)) is None


@pytest.mark.parametrize(("here", "peer"), [(HOST, PEER), ("2001:db8::1", "2001:db8::2")])
def test_another_version_of_ip_is_left_out(head: ParseFrame, here: str, peer: str) -> None:
    for version in (0, 5, 7, 15):
        frame = bytearray(slot(Packet(here=here, peer=peer).data))
        frame[80] = version << 4 | frame[80] & 15
        assert head(bytes(frame)) is None


def test_numbers_are_those_of_the_protocols() -> None:
    assert (FIN, SYN, RST, HEAD_BYTES, END_BYTES) == (0x01, 0x02, 0x04, 60 + 60 + 56, 60 + 20)
    assert address_bytes("::ffff:1.2.3.4") == address_bytes("1.2.3.4") == bytes([1, 2, 3, 4])


random_frames = st.lists(st.binary(min_size=FRAME_BYTES, max_size=FRAME_BYTES), max_size=8)

ends = st.sampled_from([b"", b"", b"0\r\n\r\n", b"1\r\n\r\n"])
packets = st.builds(
    Packet,
    seq=st.integers(0, 2**32 - 1),
    size=st.integers(5, 3000) | st.integers(5, 20),
    flags=st.integers(0, 255),
    ip_options=st.integers(0, 10),
    tcp_options=st.integers(0, 10),
    hop_by_hop=st.booleans(),
    long=st.booleans(),
    padding=st.integers(0, 40),
    fragment=st.sampled_from([0, 0, 0, 0x4000, 0x2000, 0x100, 1]),
    tail=ends,
) | st.builds(
    Packet,
    here=st.just("fe80::1"),
    peer=st.ip_addresses(v=6).map(str).filter(lambda host: not host.startswith("::ffff:")),
    size=st.integers(5, 3000) | st.integers(5, 20),
    flags=st.integers(0, 255),
    tcp_options=st.integers(0, 10),
    hop_by_hop=st.booleans(),
    hop_words=st.integers(0, 2),
    long=st.booleans(),
    padding=st.integers(0, 10),
    tail=ends,
)


def head_of(packet: Packet, at_ns: int) -> Head | None:
    """What a packet's head is by the fields that it was made of."""
    if packet.fragment & 0x3FFF:
        return None
    size = packet.size + packet.padding if packet.long else packet.size
    marks = packet.flags & 7
    if len(packet.data) <= 80 and not (packet.long and packet.padding):
        marks |= END if packet.tail == b"0\r\n\r\n" else 0
    key = connection_key((packet.here, packet.here_port), (packet.peer, packet.peer_port))
    return key, packet.seq, size, marks, at_ns


@given(packets, st.integers(0, 2**32 * 10**9 - 1))
@example(Packet(here="::1", peer="::2", size=0, tcp_options=0), 1)
@example(Packet(here="::1", peer="::2", hop_by_hop=True, hop_words=1, size=300), 1)
@example(Packet(here="::1", peer="::2", size=3000, flags=FIN_ACK), 1)
@example(Packet(size=300, ip_options=1, flags=FIN_ACK), 1)
@example(Packet(fragment=1), 1)
@example(Packet(fragment=0x100), 1)
def test_a_packet_of_any_shape_has_the_head_that_it_was_made_with(packet: Packet, at_ns: int) -> None:
    frame, made = slot(packet.data, at_ns), head_of(packet, at_ns)
    assert parse_one(frame) == made
    assert parse_one(bytes(FRAME_BYTES) + frame, FRAME_BYTES) == made
    assert by_columns(frame) == ([made] if made else [])


@st.composite
def damaged_frames(draw: st.DrawFn) -> bytes:
    """A frame of a packet, with some bytes of it replaced."""
    frame = bytearray(slot(draw(packets).data))
    for _ in range(draw(st.integers(0, 4))):
        frame[draw(st.integers(0, FRAME_BYTES - 1))] = draw(st.integers(0, 255))
    return bytes(frame)


@given(random_frames | st.lists(damaged_frames(), max_size=8))
def test_any_bytes_are_parsed_alike_by_both_and_within_bounds(slots: list[bytes]) -> None:
    one_by_one = [found for found in map(parse_one, slots) if found is not None]
    assert one_by_one == (by_columns(*slots) if slots else [])
    for key, seq, size, marks, at_ns in one_by_one:
        assert len(key) in (12, 36)
        assert 0 <= marks < 16
        assert 0 <= seq < 2**32
        assert 0 <= size < 2**32
        assert 0 <= at_ns < 2**63


@pytest.mark.parametrize("count", [FEW, MANY])
def test_heads_keep_the_order_of_capture(count: int) -> None:
    slots = [slot(Packet(seq=n).data, 10**9 + n) for n in range(count)]
    assert [(seq, at) for _, seq, _, _, at in heads_of(frames(*slots))] == [
        (n, 10**9 + n) for n in range(count)
    ]


def test_one_frame_that_is_not_plain_has_all_parsed_one_by_one() -> None:
    plain, options = slot(Packet().data), slot(Packet(ip_options=1).data)
    shortest = slot(Packet(size=0, tcp_options=0).data)
    assert len(list(plain_heads(frames(*[plain, shortest] * MANY)) or ())) == 2 * MANY
    assert plain_heads(frames(*[plain] * MANY, options)) is None
    assert len(list(heads_of(frames(*[plain] * MANY, options)))) == MANY + 1


def test_an_ipv4_address_mapped_into_ipv6_has_the_key_of_its_packets() -> None:
    mapped = connection_key((f"::ffff:{HOST}", HERE_PORT), (f"::ffff:{PEER}", PEER_PORT))
    assert mapped == KEY == parse_one(slot(Packet().data))[0]  # type: ignore[index]
