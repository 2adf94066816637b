"""The contract of what reads the sockets, over both of its kinds."""

import errno
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import gevent
import pytest
from gevent.event import Event
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from scripted import chunk

from llm_locust.client.http import reader as reader_module
from llm_locust.client.http.clock import ANCILLARY_BYTES, READ, SO_TIMESTAMPNS
from llm_locust.client.http.reader import (
    BY_CHUNKS,
    BY_END,
    BY_LENGTH,
    MOST_UNREAD_BYTES,
    RING_AT_BYTES,
    Framing,
    LoopReader,
    PythonFraming,
    SocketReader,
    ThreadReader,
    Unread,
    hub_reader,
    new_framing,
    why_python,
)

pytestmark = pytest.mark.usefixtures("kernel_stamping")

WITHIN_S = 60.0
FRAMINGS: list[Callable[..., Framing]] = [PythonFraming, new_framing]


@dataclass
class Peer:
    """A connection that a reader reads, and the other end of it."""

    reader: SocketReader
    ours: socket.socket
    theirs: socket.socket
    slot: int = -1
    calls: int = 0
    called: Event = field(default_factory=Event)

    def on_ready(self) -> None:
        self.calls += 1
        self.called.set()

    def until_called(self) -> int:
        """How often it was called; waits for the first time since the last one."""
        assert self.called.wait(WITHIN_S)
        self.called.clear()
        return self.calls

    def take(self, *, drain: bool = False) -> Unread:
        return self.reader.take(self.slot, drain=drain)

    def until_taken(self, size: int) -> tuple[bytes, int]:
        """So many bytes, as calls announce them, and whether the connection is over then."""
        data, over = bytearray(), 0
        while len(data) < size and not over:
            self.until_called()
            taken = self.take()
            data += taken.data
            over = taken.over
        return bytes(data), over


@pytest.fixture(params=["c", "python"])
def reader(request: pytest.FixtureRequest) -> Iterator[SocketReader]:
    if request.param == "c" and why_python():
        pytest.skip(why_python() or "")
    made = (ThreadReader if request.param == "c" else LoopReader)(gevent.get_hub())
    yield made
    if isinstance(made, ThreadReader):
        made._reader.close()
        made._reader.close()  # a second time is nothing


@pytest.fixture
def connect(reader: SocketReader) -> Iterator[Callable[[], Peer]]:
    peers: list[Peer] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def make() -> Peer:
            ours = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
            theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ours.setblocking(False)
            if ANCILLARY_BYTES:
                ours.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            peer = Peer(reader, ours, theirs)
            peer.slot = reader.add(ours, peer.on_ready)
            peers.append(peer)
            return peer

        yield make
        for peer in peers:
            reader.drop(peer.slot)
            peer.ours.close()
            peer.theirs.close()


@pytest.fixture
def peer(connect: Callable[[], Peer]) -> Peer:
    return connect()


def reads_of(taken: Unread) -> list[tuple[int, int, int]]:
    return [*READ.iter_unpack(taken.reads)]


def test_each_read_has_its_end_and_both_its_times(peer: Peer) -> None:
    for n, data in enumerate((b"a", b"bcd"), start=1):
        before = time.time_ns(), time.monotonic_ns()
        peer.theirs.send(data)
        while peer.until_called() < n:
            pass
        taken = peer.take()
        ((end, kernel_ns, program_ns),) = reads_of(taken)
        assert (taken.data, taken.over, end) == (data, 0, len(data))
        assert before[1] <= program_ns <= time.monotonic_ns()
        if ANCILLARY_BYTES:
            assert before[0] <= kernel_ns <= time.time_ns()


def test_reads_that_are_taken_together_keep_their_own_times(peer: Peer) -> None:
    peer.reader.expect(peer.slot, new_framing(BY_LENGTH, 6))
    for data in (b"ab", b"cd", b"ef"):
        peer.theirs.send(data)
        gevent.sleep(0.01)
    assert peer.until_called() == 1
    taken = peer.take()
    assert taken.data == b"abcdef"
    ends, kernel_ns, program_ns = zip(*reads_of(taken), strict=True)
    assert ends[-1] == 6
    assert list(program_ns) == sorted(program_ns)
    assert list(kernel_ns) == sorted(kernel_ns)


def test_nothing_is_unread_after_it_was_taken(peer: Peer) -> None:
    peer.theirs.send(b"a")
    peer.until_called()
    assert peer.take().data == b"a"
    assert peer.take() == Unread(b"", b"", 0)


def test_when_the_last_was_read_is_told_without_taking_it(peer: Peer) -> None:
    assert peer.reader.last_ns(peer.slot) == 0
    for data in (b"a", b"b"):
        before_ns = time.monotonic_ns()
        peer.theirs.send(data)
        peer.until_called()
        last_ns = peer.reader.last_ns(peer.slot)
        assert before_ns < last_ns <= time.monotonic_ns()
    taken = peer.take()
    assert (taken.data, reads_of(taken)[-1][2]) == (b"ab", last_ns)
    assert peer.reader.last_ns(peer.slot) == 0
    peer.theirs.close()
    peer.until_called()
    assert peer.reader.last_ns(peer.slot) == 0


@pytest.mark.parametrize(
    ("kind", "length", "parts"),
    [
        (BY_LENGTH, 10, [b"01234", b"56789"]),
        (BY_CHUNKS, 0, [chunk(b"a"), chunk(b"b") + b"0\r\n", b"X: y\r\n", b"\r\n"]),
        (BY_CHUNKS, 0, [b"5", b"\r\n0123", b"4\r\n", b"0\r\n\r\n"]),
    ],
)
def test_a_whole_response_calls_once(peer: Peer, kind: int, length: int, parts: list[bytes]) -> None:
    peer.reader.expect(peer.slot, new_framing(kind, length))
    for part in parts:
        gevent.sleep(0.005)
        assert peer.calls == 0
        peer.theirs.send(part)
    assert peer.until_called() == 1
    assert peer.take().data == b"".join(parts)


def test_what_was_taken_before_is_a_part_of_the_response(peer: Peer) -> None:
    """The framing goes on from where it is; what has come since belongs to it too."""
    peer.theirs.send(b"01234")
    assert peer.until_called() == 1
    framing = new_framing(BY_LENGTH, 10)
    taken = peer.take()
    framing.feed(taken.data, 0, taken.reads)
    peer.theirs.send(b"56")
    assert peer.until_called() == 2, "nothing is expected yet"
    peer.reader.expect(peer.slot, framing)
    gevent.sleep(0.01)
    assert peer.calls == 2
    peer.theirs.send(b"789")
    assert peer.until_called() == 3
    assert peer.take().data == b"56789"
    peer.reader.expect(peer.slot, None)
    peer.theirs.send(b"x")
    assert peer.until_called() == 4


@pytest.mark.parametrize("data", [b"0123456789", b"0123456789more"])
def test_a_response_that_is_there_before_it_is_expected_calls(peer: Peer, data: bytes) -> None:
    peer.theirs.send(data)
    peer.until_called()
    peer.reader.expect(peer.slot, new_framing(BY_LENGTH, 10))
    peer.until_called()
    assert peer.take().data == data


def test_what_is_no_chunk_calls_at_once(peer: Peer) -> None:
    peer.reader.expect(peer.slot, new_framing(BY_CHUNKS))
    peer.theirs.send(b"not a size")
    peer.until_called()
    assert peer.take().data == b"not a size"


def test_a_long_response_calls_when_enough_is_unread(peer: Peer) -> None:
    peer.reader.expect(peer.slot, new_framing(BY_END))
    data = os.urandom(3 * RING_AT_BYTES)
    sender = threading.Thread(target=peer.theirs.sendall, args=(data,))
    sender.start()
    peer.until_called()
    taken = peer.take()
    assert len(taken.data) + len(taken.reads) >= RING_AT_BYTES
    assert data.startswith(taken.data)
    sender.join()


def test_nobody_who_takes_nothing_fills_the_memory_and_nothing_is_lost(peer: Peer) -> None:
    data = os.urandom(24 << 20)
    sender = threading.Thread(target=peer.theirs.sendall, args=(data,))
    sender.start()
    peer.until_called()
    gevent.sleep(0.3)
    assert sender.is_alive(), "the server is held back"
    first = peer.take().data
    assert MOST_UNREAD_BYTES / 2 < len(first) < 2 * MOST_UNREAD_BYTES
    rest, over = peer.until_taken(len(data) - len(first))
    sender.join()
    assert (first + rest == data, over) == (True, 0)


def test_the_end_of_a_connection_calls_and_counts_after_its_bytes(peer: Peer) -> None:
    peer.reader.expect(peer.slot, new_framing(BY_END))
    peer.theirs.send(b"last")
    peer.theirs.close()
    peer.until_called()
    assert peer.take()[::2] == (b"last", 1)
    assert peer.take() == Unread(b"", b"", 1), "it stays over"


def test_a_reset_is_told_by_its_number(peer: Peer) -> None:
    peer.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.theirs.close()
    peer.until_called()
    assert peer.take().over == -errno.ECONNRESET


def test_draining_reads_what_is_in_the_socket_without_waiting_for_a_call(peer: Peer) -> None:
    peer.theirs.send(b"ab")
    peer.theirs.close()
    data, over = b"", 0
    for _ in range(1000):
        taken = peer.take(drain=True)
        data, over = data + taken.data, taken.over
        if over:
            break
        time.sleep(0.001)  # the loop does not turn meanwhile
    assert (data, over) == (b"ab", 1)


def test_a_dropped_socket_calls_no_more_and_its_slot_may_be_another_ones(connect: Callable[[], Peer]) -> None:
    first = connect()
    first.theirs.send(b"a")
    first.until_called()
    first.reader.drop(first.slot)
    first.theirs.send(b"b")
    second = connect()
    second.theirs.send(b"c")
    second.until_called()
    assert (second.take().data, first.calls) == (b"c", 1)
    with pytest.raises(KeyError):
        first.take()
    first.reader.drop(first.slot)  # a second time is nothing
    assert second.take().over == 0


def test_many_connections_at_once_each_get_their_own(connect: Callable[[], Peer]) -> None:
    peers = [connect() for _ in range(200)]
    for n, peer in enumerate(peers):
        peer.reader.expect(peer.slot, new_framing(BY_LENGTH, 8))
        peer.theirs.send(b"%08d" % n)
    for n, peer in enumerate(peers):
        assert peer.until_taken(8)[0] == b"%08d" % n


def test_the_fault_of_one_call_is_no_other_ones(
    connect: Callable[[], Peer], capfd: pytest.CaptureFixture[str]
) -> None:
    bad, good = connect(), connect()

    def fail() -> None:
        bad.called.set()
        raise RuntimeError("a defect")

    bad.reader.drop(bad.slot)
    bad.slot = bad.reader.add(bad.ours, fail)
    bad.theirs.send(b"x")
    good.theirs.send(b"y")
    bad.until_called()
    good.until_called()
    assert "a defect" in capfd.readouterr().err


@pytest.mark.parametrize("reader", ["c"], indirect=True)
def test_connections_that_come_and_go_while_the_thread_reads_them(connect: Callable[[], Peer]) -> None:
    """Drops race the reads of their slots: each byte is its connection's, and none is read after the drop."""
    stop = threading.Event()
    peers = [connect() for _ in range(8)]

    def flood() -> None:
        """One thread: eight have the interpreter no longer, and keep the loop waiting for it."""
        with suppress(OSError):
            while not stop.is_set():
                for n, peer in enumerate(peers):
                    peer.theirs.send(bytes([n]) * 100)

    sender = threading.Thread(target=flood)
    sender.start()
    taken_bytes = [0] * len(peers)
    try:
        for turn in range(2000):
            peer = peers[turn % len(peers)]
            peer.reader.drop(peer.slot)
            peer.slot = peer.reader.add(peer.ours, peer.on_ready)
            for n, other in enumerate(peers):
                taken = other.take(drain=turn % 3 == 0)
                assert set(taken.data) <= {n}
                assert not taken.data or reads_of(taken)[-1][0] == len(taken.data)
                taken_bytes[n] += len(taken.data)
            if turn % 50 == 0:
                gevent.sleep(0.001)
    finally:
        stop.set()
        for peer in peers:
            peer.theirs.shutdown(socket.SHUT_RDWR)
        sender.join()
    assert min(taken_bytes) > 1000, "the race was one"


def test_a_child_process_has_a_reader_of_its_own() -> None:
    """A fork has no thread of its parent's; what it inherits is given up, and its parent reads on."""
    program = """
import os, socket, gevent
from llm_locust.client.http.reader import hub_reader
def ask():
    listener = socket.create_server(("127.0.0.1", 0))
    ours = socket.create_connection(listener.getsockname()); ours.setblocking(False)
    theirs, _ = listener.accept()
    called = gevent.event.Event()
    slot = hub_reader().add(ours, called.set)
    theirs.send(b"x")
    assert called.wait(30)
    assert hub_reader().take(slot).data == b"x"
    return slot, ours, theirs, called
import gevent.event
kept = ask()
child = gevent.os.fork()
if child == 0:
    ask()
    os._exit(7)
assert os.waitstatus_to_exitcode(gevent.os.waitpid(child, 0)[1]) == 7
kept[3].clear(); kept[2].send(b"y")
assert kept[3].wait(30)
assert hub_reader().take(kept[0]).data == b"y"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_signals_are_none_of_the_thread() -> None:
    """It would take one from the event loop, which then acts on it only when it wakes for something else."""
    program = """
import os, re, signal
from pathlib import Path
from llm_locust.client.http.reader import hub_reader, why_python
before = os.listdir("/proc/self/task")
hub_reader()
threads = set(os.listdir("/proc/self/task")) - set(before)
assert len(threads) == (why_python() is None)
for thread in threads:
    (blocked,) = re.findall("SigBlk:(.*)", Path(f"/proc/self/task/{thread}/status").read_text())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        assert int(blocked, 16) >> (number - 1) & 1, number
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_python_reads_where_it_is_asked_to_or_nothing_else_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_LOCUST_READER", "python")
    assert why_python() == "LLM_LOCUST_READER=python asks for it"
    monkeypatch.setattr(reader_module, "_READERS", {})
    assert isinstance(hub_reader(), LoopReader)
    monkeypatch.delenv("LLM_LOCUST_READER")
    monkeypatch.setattr(reader_module, "_NATIVE", False)
    assert "was not built" in (why_python() or "")
    assert isinstance(new_framing(BY_END), PythonFraming)


# Where a response ends


def fed(make: Callable[..., Framing], kind: int, length: int, parts: list[bytes]) -> tuple[object, ...]:
    framing, body, ends, used = make(kind, length), b"", list[int](), 0
    for part in parts:
        got, moved, taken = framing.feed(part, 0, READ.pack(len(part), 5, 6))
        ends += [end for end, *_ in READ.iter_unpack(moved)]
        body, used = body + got, used + taken
    return body, ends, used if framing.error is None else None, framing.done, framing.error


@st.composite
def chunked(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A chunked body and its bytes on the wire."""
    pieces = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=6))
    extension = draw(st.sampled_from([b"", b";a=b", b" ;x", b"  "]))
    zeros = draw(st.sampled_from([b"", b"000"]))
    trailer = draw(st.sampled_from([b"", b"A: b\r\n", b"A: b\r\nC: d\r\n"]))
    wire = b"".join(zeros + b"%x%b\r\n%b\r\n" % (len(p), extension, p) for p in pieces)
    return b"".join(pieces), wire + b"0\r\n" + trailer + b"\r\n"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize("make", FRAMINGS)
@given(made=chunked(), extra=st.binary(max_size=5), places=st.lists(st.integers(0, 500), max_size=9))
def test_chunks_are_their_body_however_they_are_split(
    make: Callable[..., Framing], made: tuple[bytes, bytes], extra: bytes, places: list[int]
) -> None:
    body, wire = made
    got, ends, used, done, error = fed(make, BY_CHUNKS, 0, cut(wire + extra, places))
    assert (got, used, done, error) == (body, len(wire), True, None)
    assert isinstance(ends, list)
    assert ends[-1] == len(body)
    assert not fed(make, BY_CHUNKS, 0, cut(wire[:-1], places))[3]


_PARTS = st.sampled_from(
    [
        b"5\r\n",
        b"01234",
        b"\r\n",
        b"0\r\n",
        b"\r",
        b"\n",
        b";x=y",
        b"A: b\r\n",
        b"fffffffffffffff",
        b"g",
        b" ",
    ]
)


@given(
    kind=st.sampled_from([BY_LENGTH, BY_CHUNKS, BY_CHUNKS, BY_END]),
    length=st.integers(0, 40),
    parts=st.lists(_PARTS | st.binary(max_size=9), max_size=12),
    places=st.lists(st.integers(0, 200), max_size=9),
)
def test_both_framings_are_one(kind: int, length: int, parts: list[bytes], places: list[int]) -> None:
    pieces = cut(b"".join(parts), places)
    assert fed(PythonFraming, kind, length, pieces) == fed(new_framing, kind, length, pieces)
    together = fed(PythonFraming, kind, length, [b"".join(pieces)])
    assert fed(new_framing, kind, length, pieces)[::3] == (together[0], together[3])


@pytest.mark.parametrize("make", FRAMINGS)
@pytest.mark.parametrize("before", [b"1;", b"0\r\nA: "])
def test_framing_without_end_is_given_up(make: Callable[..., Framing], before: bytes) -> None:
    framing = make(BY_CHUNKS)
    for data in (before, *[b"x" * 10_000] * 40):
        framing.feed(data, 0, READ.pack(len(data), 0, 0))
    assert framing.error == "chunk extensions or trailers have more than 256 KiB"


@pytest.mark.parametrize("make", FRAMINGS)
@pytest.mark.parametrize("of", [(3, 0), (-1, 0), (BY_LENGTH, -1)])
def test_no_other_framing_can_be_made(make: Callable[..., Framing], of: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="no such framing"):
        make(*of)


@pytest.mark.parametrize("make", FRAMINGS)
@pytest.mark.parametrize(("begin", "reads"), [(-1, b""), (4, b""), (0, b"123")])
def test_reads_that_are_not_those_of_the_bytes_are_refused(
    make: Callable[..., Framing], begin: int, reads: bytes
) -> None:
    with pytest.raises(ValueError, match="not those of these bytes"):
        make(BY_END).feed(b"abc", begin, reads)


# Any order of what can happen


class Reading(RuleBasedStateMachine):
    """A reader, and connections whose peers write, end and reset, in any order: what was taken of each is
    what
    its peer wrote, in order, and whoever waits is called."""

    kind: type[ThreadReader] | type[LoopReader] = LoopReader

    def __init__(self) -> None:
        super().__init__()
        self.reader = self.kind(gevent.get_hub())
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.peers: list[Peer] = []
        self.written: list[bytes] = []
        self.taken: list[bytes] = []

    @rule()
    def connect(self) -> None:
        if len(self.peers) < 6:
            ours = socket.create_connection(self.listener.getsockname())
            theirs, _ = self.listener.accept()
            ours.setblocking(False)
            peer = Peer(self.reader, ours, theirs)
            peer.slot = self.reader.add(ours, peer.on_ready)
            self.peers.append(peer)
            self.written.append(b"")
            self.taken.append(b"")

    @precondition(lambda self: self.peers)
    @rule(n=st.integers(0, 5), data=st.binary(min_size=1, max_size=300))
    def write(self, n: int, data: bytes) -> None:
        n %= len(self.peers)
        with suppress(OSError):
            self.peers[n].theirs.send(data)
            self.written[n] += data

    @precondition(lambda self: self.peers)
    @rule(
        n=st.integers(0, 5),
        kind=st.sampled_from([None, BY_LENGTH, BY_CHUNKS, BY_END]),
        size=st.integers(0, 400),
    )
    def expect(self, n: int, kind: int | None, size: int) -> None:
        peer = self.peers[n % len(self.peers)]
        self.reader.expect(peer.slot, None if kind is None else new_framing(kind, size))

    @precondition(lambda self: self.peers)
    @rule(n=st.integers(0, 5), drain=st.booleans())
    def take(self, n: int, drain: bool) -> None:
        n %= len(self.peers)
        last_ns = self.reader.last_ns(self.peers[n].slot)
        taken = self.peers[n].take(drain=drain)
        assert not last_ns or last_ns in [read_ns for _, _, read_ns in reads_of(taken)]
        assert [end for end, *_ in reads_of(taken)][-1:] == ([len(taken.data)] if taken.data else [])
        self.taken[n] += taken.data
        assert self.written[n].startswith(self.taken[n])

    @precondition(lambda self: self.peers)
    @rule(n=st.integers(0, 5))
    def end(self, n: int) -> None:
        with suppress(OSError):
            self.peers[n % len(self.peers)].theirs.shutdown(socket.SHUT_WR)

    @precondition(lambda self: self.peers)
    @rule(n=st.integers(0, 5))
    def drop(self, n: int) -> None:
        n %= len(self.peers)
        peer = self.peers.pop(n)
        self.reader.drop(peer.slot)
        peer.ours.close()
        peer.theirs.close()
        del self.written[n], self.taken[n]

    @rule()
    def turn(self) -> None:
        gevent.sleep(0)

    def teardown(self) -> None:
        for n, peer in enumerate(self.peers):
            self.reader.expect(peer.slot, None)
            while len(self.taken[n]) < len(self.written[n]):
                assert peer.called.wait(WITHIN_S), "nobody was called for what is unread"
                peer.called.clear()
                self.taken[n] += peer.take().data
            assert self.taken[n] == self.written[n]
            self.reader.drop(peer.slot)
            peer.ours.close()
            peer.theirs.close()
        self.listener.close()
        if isinstance(self.reader, ThreadReader):
            self.reader._reader.close()


@pytest.mark.parametrize("name", ["c", "python"])
def test_whatever_happens_in_whatever_order_each_gets_its_own_bytes(name: str) -> None:
    if name == "c" and why_python():
        pytest.skip(why_python() or "")

    class Machine(Reading):
        kind = ThreadReader if name == "c" else LoopReader

    run_state_machine_as_test(Machine)
