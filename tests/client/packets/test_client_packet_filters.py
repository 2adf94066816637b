"""The filter of a capture: interpreted instruction by instruction, on packets from everywhere."""

from ipaddress import ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packet_bytes import Packet

from llm_locust.client.packets.filters import MOST_ADDRESSES, Instruction, passes_from
from llm_locust.client.packets.heads import END_BYTES, HEAD_BYTES

MOST_INSTRUCTIONS = 4096  # BPF_MAXINSNS


def accepts(program: list[Instruction], packet: bytes) -> bool:
    return passed_bytes(program, packet) > 0


def passed_bytes(program: list[Instruction], packet: bytes) -> int:
    """Run classic BPF as its manual defines it: a load beyond the packet ends it, and nothing passes."""
    accumulator = index = at = 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        match code:
            case 0x30 | 0x28 | 0x20 | 0x50 | 0x48 | 0x40:
                size = {0x10: 1, 0x08: 2, 0x00: 4}[code & 0x18]
                begin = value + (index if code & 0x40 else 0)
                if begin + size > len(packet):
                    return 0
                accumulator = int.from_bytes(packet[begin : begin + size])
            case 0xB1:
                if value >= len(packet):
                    return 0
                index = 4 * (packet[value] & 15)
            case 0x01:
                index = value
            case 0x07:
                index = accumulator
            case 0x80:
                accumulator = len(packet)
            case 0x14:
                accumulator -= value
            case 0x74:
                accumulator >>= value
            case 0x54:
                accumulator &= value
            case 0x15:
                assert 0 <= if_true < 256
                assert 0 <= if_false < 256
                at += if_true if accumulator == value else if_false
            case 0x05:
                at += value
            case 0x06:
                return value
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


def source(host: str, port: int) -> tuple[bytes, int]:
    return ip_address(host).packed, port


IPV4 = ("10.0.0.1", "10.0.0.2", "10.0.1.2", "192.168.0.1")
IPV6 = ("2001:db8::1", "2001:db8::2", "2001:db8:1::1", "fe80::1")
PORTS = (80, 443, 8000, 65535)
hosts = st.sampled_from(IPV4 + IPV6)
sources = st.sets(st.tuples(hosts, st.sampled_from(PORTS)), max_size=6)


EVERYBODY = {(host, port) for host in IPV4 + IPV6 for port in PORTS[:2]}


@given(sources, hosts, st.sampled_from(PORTS), st.integers(0, 10), st.sampled_from([6, 17]))
@example(EVERYBODY, IPV4[0], 80, 0, 17)
@example(EVERYBODY, IPV6[0], 80, 0, 17)
@example(EVERYBODY, IPV4[3], 443, 1, 6)
@example(EVERYBODY, IPV6[2], 443, 0, 6)
@example(EVERYBODY, IPV6[3], 80, 0, 6)
@example({(IPV4[0], 17)}, IPV4[0], 17, 0, 17)  # a port that is the protocol's number
@example({(IPV6[0], 17)}, IPV6[0], 17, 0, 17)
@example({(IPV6[0], 80), (IPV6[1], 80)}, "2001:db8:1::2", 80, 0, 6)  # ends as a target does
def test_what_the_targets_send_passes_and_nothing_from_elsewhere(
    targets: set[tuple[str, int]], host: str, port: int, ip_options: int, protocol: int
) -> None:
    here = "::1" if ":" in host else "10.9.9.9"
    packet = Packet(
        peer=host, here=here, peer_port=port, ip_options=ip_options, protocol=protocol, here_port=80
    ).data
    passed = accepts(passes_from({source(*target) for target in targets}), packet)
    if protocol == 6 and (host, port) in targets:
        assert passed
    elif protocol != 6 or host not in {h for h, _ in targets} or port not in {p for _, p in targets}:
        assert not passed


def test_nothing_passes_before_the_first_target() -> None:
    assert not accepts(passes_from(set()), Packet().data)


@given(sources, st.binary(max_size=80))
def test_any_bytes_end_it(targets: set[tuple[str, int]], packet: bytes) -> None:
    assert accepts(passes_from({source(*target) for target in targets}), packet) in (True, False)


@pytest.mark.parametrize(("here", "peer"), [("10.0.0.9", IPV4[0]), ("::1", IPV6[0])])
@pytest.mark.parametrize("size", [5, 200, 60_000])
@pytest.mark.parametrize(
    ("tail", "is_end"),
    [(b"0\r\n\r\n", True), (b"\n\n\r\n", False), (b"1\r\n\r\n", False), (b"0\r\n\r\r", False)],
)
def test_less_passes_of_a_packet_that_ends_a_chunked_body(
    here: str, peer: str, size: int, tail: bytes, is_end: bool
) -> None:
    program = passes_from({source(peer, 8000)})
    for long in (False, True):  # longer than the head can say
        packet = Packet(peer=peer, here=here, size=size, tail=tail, long=long).data
        assert passed_bytes(program, packet) == (END_BYTES if is_end else HEAD_BYTES)


@given(sources, hosts, st.sampled_from(PORTS), st.sampled_from([b"", b"0\r\n\r\n"]))
def test_of_the_same_packets_only_ends_pass_where_these_are_asked_for(
    targets: set[tuple[str, int]], host: str, port: int, tail: bytes
) -> None:
    packet = Packet(peer=host, here="::1" if ":" in host else "10.9.9.9", peer_port=port, tail=tail).data
    program, ends = (passes_from({source(*t) for t in targets}, ends_only=only) for only in (False, True))
    assert accepts(ends, packet) == (accepts(program, packet) and bool(tail))


@pytest.mark.parametrize("padding", [1, 6, 40])
def test_padding_of_the_link_hides_no_end(padding: int) -> None:
    packet = Packet(peer=IPV4[0], size=5, tail=b"0\r\n\r\n", tcp_options=0, padding=padding).data
    assert passed_bytes(passes_from({source(IPV4[0], 8000)}), packet) == END_BYTES


@given(st.sets(st.integers(128, 237), max_size=110), st.integers(0, 65_535), st.booleans())
def test_of_blocks_of_local_ports_only_their_packets_pass(blocks: set[int], port: int, ipv6: bool) -> None:
    here, peer = ("::1", IPV6[0]) if ipv6 else ("10.0.0.9", IPV4[0])
    padding = 0 if ipv6 else 6  # only short frames are padded
    program = passes_from({source(peer, 8000)}, sorted(blocks))
    assert len(program) <= MOST_INSTRUCTIONS
    for local in {port, *(256 * block + port % 256 for block in list(blocks)[:3])}:
        for tail, most in ((b"", HEAD_BYTES), (b"0\r\n\r\n", END_BYTES)):
            packet = Packet(peer=peer, here=here, here_port=local, tail=tail, padding=padding).data
            assert passed_bytes(program, packet) == (most if local >> 8 in blocks else 0)


def test_a_jumbogram_of_a_target_passes() -> None:
    packet = Packet(peer=IPV6[0], here="::1", hop_by_hop=True, long=True).data
    for blocks in (None, [], [3], [3, 4, 5]):  # its ports are not looked at
        assert passed_bytes(passes_from({source(IPV6[0], 1)}, blocks), packet) == HEAD_BYTES
    assert not accepts(passes_from({source(IPV6[1], 1)}), packet)


@pytest.mark.parametrize("many", [MOST_ADDRESSES, MOST_ADDRESSES + 1, 5000])
def test_many_targets_fit_and_pass(many: int) -> None:
    ipv4 = [str(ip_address("10.1.0.0") + n) for n in range(many)]
    ipv6 = [str(ip_address("2001:db8::") + n) for n in range(many)]
    program = passes_from({source(host, 8000) for host in ipv4 + ipv6})
    assert len(program) <= MOST_INSTRUCTIONS
    for host, here in ((ipv4[-1], "10.0.0.1"), (ipv6[-1], "::1")):
        assert accepts(program, Packet(peer=host, here=here, peer_port=8000).data)
        assert not accepts(program, Packet(peer=host, here=here, peer_port=8001).data)
        assert not accepts(program, Packet(peer=host, here=here, peer_port=8000, protocol=17).data)


@pytest.mark.parametrize("many", [256, 257])
def test_many_ports_fit_and_pass(many: int) -> None:
    program = passes_from({source("10.0.0.1", port) for port in range(1, many + 1)})
    assert len(program) <= MOST_INSTRUCTIONS
    for port, passes in ((1, True), (7, True), (many, True), (many + 1, many > 256)):
        assert accepts(program, Packet(peer="10.0.0.1", peer_port=port).data) == passes
