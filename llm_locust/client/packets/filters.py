"""Classic BPF program that lets pass what the targets send. Pure functions over addresses."""

from collections.abc import Collection, Iterator

from llm_locust.client.packets.heads import END_BYTES, HEAD_BYTES, LAST_CHUNK

#: ``struct sock_filter``: code, jump if true, jump if false, value. Jumps count from the next instruction.
Instruction = tuple[int, int, int, int]

#: Most addresses of a family that are compared. With more, their ports alone are: the program is limited to
#: 4,096 instructions.
MOST_ADDRESSES = 256

#: Most ports that are compared; with more, every packet of the addresses passes.
MOST_PORTS = 256

_LOAD_BYTE, _LOAD_HALF, _LOAD_WORD = 0x30, 0x28, 0x20
_LOAD_HALF_AT_X = 0x48
_SET_X_TO_IP_HEAD = 0xB1  # X = 4 * (byte & 15)
_SET_X = 0x01
_LOAD_LENGTH, _LOAD_BYTE_AT_X, _LOAD_WORD_AT_X = 0x80, 0x50, 0x40
_AND, _SUBTRACT, _SHIFT_RIGHT, _SET_X_TO_A = 0x54, 0x14, 0x74, 0x07
_IF_EQUAL, _JUMP, _RETURN = 0x15, 0x05, 0x06
_TCP, _HOP_BY_HOP = 6, 0


def _do(code: int, value: int = 0) -> Instruction:
    """What is no condition does not jump."""
    return code, 0, 0, value


_PASS = _do(_RETURN, HEAD_BYTES)  # while a program is made; becomes a jump to the end
_PASS_ANY = (_RETURN, 1, 0, HEAD_BYTES)  # the same, whatever the local port
_DROP = _do(_RETURN)

#: End of a program: of a packet whose last bytes are the last chunk, fewer are passed. The length of IPv4 is
#: that of its head, unless it is longer than that can say: the link pads a short frame.
_PASSED: list[Instruction] = [
    _do(_LOAD_BYTE),
    _do(_AND, 0xF0),
    (_IF_EQUAL, 0, 2, 0x40),
    _do(_LOAD_HALF, 2),
    (_IF_EQUAL, 0, 1, 0),
    _do(_LOAD_LENGTH),
    _do(_SUBTRACT, len(LAST_CHUNK)),
    _do(_SET_X_TO_A),
    _do(_LOAD_WORD_AT_X),
    (_IF_EQUAL, 0, 3, int.from_bytes(LAST_CHUNK[:4])),
    _do(_LOAD_BYTE_AT_X, 4),
    (_IF_EQUAL, 0, 1, LAST_CHUNK[4]),
    _do(_RETURN, END_BYTES),
    _do(_RETURN, HEAD_BYTES),
]


def passes_from(
    sources: Collection[tuple[bytes, int]], blocks: Collection[int] | None = None, *, ends_only: bool = False
) -> list[Instruction]:
    """Program for cooked packets: TCP from any of these addresses (4 or 16 bytes) and any of their ports.

    Args:
        blocks: numbers of the blocks of local ports (see :mod:`~llm_locust.client.packets.ports`); None: any.
        ends_only: let pass only what ends a chunked body.
    """
    ports = sorted({port for _, port in sources})
    ipv4 = list(_of_family(sorted({a for a, _ in sources if len(a) == 4}), ports))
    ipv6 = list(_of_family(sorted({a for a, _ in sources if len(a) == 16}), ports))
    program = [
        _do(_LOAD_BYTE),
        _do(_AND, 0xF0),
        (_IF_EQUAL, 1, 0, 0x60),
        (_IF_EQUAL, 1, 2, 0x40),
        _do(_JUMP, len(ipv4) + 3),
        _do(_JUMP, 1),
        _DROP,
        *ipv4,
        _DROP,
        *ipv6,
        _DROP,
    ]
    local = list(_to_blocks(blocks))
    ends = {_PASS: len(program), _PASS_ANY: len(program) + len(local)}
    placed = [_do(_JUMP, ends[step] - at - 1) if step in ends else step for at, step in enumerate(program)]
    return placed + local + ([*_PASSED[:-1], _DROP] if ends_only else _PASSED)


def _to_blocks(blocks: Collection[int] | None) -> Iterator[Instruction]:
    """Go on if the local port is of one of these blocks. X is at the TCP head."""
    if blocks is None:
        return
    yield _do(_LOAD_HALF_AT_X, 2)
    yield _do(_SHIFT_RIGHT, 8)
    for n, block in enumerate(blocks):
        yield (_IF_EQUAL, 0, 1, block)
        yield _do(_JUMP, 2 * (len(blocks) - n - 1) + 1)
    yield _DROP


def _of_family(addresses: list[bytes], ports: list[int]) -> Iterator[Instruction]:
    """Pass what comes from these; what does not runs to the end."""
    if not addresses:
        return
    is_ipv4 = len(addresses[0]) == 4
    from_ports = list(_from_ports(ports))
    after = [*(_of_ipv4 if is_ipv4 else _of_ipv6)(from_ports)]
    if len(addresses) <= MOST_ADDRESSES:
        yield from _from_addresses(addresses, 12 if is_ipv4 else 8, len(after))
    yield from after


def _from_addresses(addresses: list[bytes], at: int, after: int) -> Iterator[Instruction]:
    """Go on if the source is one of these, else jump over ``after`` instructions."""
    tests = []
    for address in addresses:
        words = [address[i : i + 4] for i in range(0, len(address), 4)]
        rest = 2 * len(words) + 1  # instructions of this address
        test: list[Instruction] = []
        for i, word in enumerate(words):
            test.append(_do(_LOAD_WORD, at + 4 * i))
            test.append((_IF_EQUAL, 0, rest - len(test) - 1, int.from_bytes(word)))
        tests.append(test)
    total = sum(len(test) + 1 for test in tests)
    done = 0
    for test in tests:
        done += len(test) + 1
        yield from test
        yield _do(_JUMP, total - done + 1)
    yield _do(_JUMP, after)


def _of_ipv4(from_ports: list[Instruction]) -> Iterator[Instruction]:
    yield _do(_LOAD_BYTE, 9)
    yield (_IF_EQUAL, 1, 0, _TCP)
    yield _do(_JUMP, len(from_ports) + 1)
    yield _do(_SET_X_TO_IP_HEAD)
    yield from from_ports


def _of_ipv6(from_ports: list[Instruction]) -> Iterator[Instruction]:
    """Of a jumbogram, which has an extension first, the ports are not looked at."""
    yield _do(_LOAD_BYTE, 6)
    yield (_IF_EQUAL, 0, 1, _HOP_BY_HOP)
    yield _PASS_ANY
    yield (_IF_EQUAL, 1, 0, _TCP)
    yield _do(_JUMP, len(from_ports) + 1)
    yield _do(_SET_X, 40)
    yield from from_ports


def _from_ports(ports: list[int]) -> Iterator[Instruction]:
    if len(ports) > MOST_PORTS:
        yield _PASS
        return
    yield _do(_LOAD_HALF_AT_X)
    for port in ports:
        yield (_IF_EQUAL, 0, 1, port)
        yield _PASS
