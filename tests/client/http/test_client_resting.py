"""Connections at rest: only after proof, read in time, and never so that what is measured changes."""

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any, cast

import gevent
import msgspec
import numpy as np
import pytest
from calls import Caller, arrived_ns, caller, token
from capturing import captures, packet_stamps
from gevent.event import Event
from scripted import (
    Script,
    ScriptedServer,
    Step,
    chunk,
    last_chunk,
    response_head,
    scripted_server,
    stream_script,
    write,
)

from llm_locust.client.http.clock import ClockPair
from llm_locust.client.http.connection import Connection
from llm_locust.client.http.polling import PollLimiter
from llm_locust.client.http.resting import SILENCE_S, Rest, Rests
from llm_locust.client.http.stamping import Stamping
from llm_locust.client.http.tcp_info import tcp_facts
from llm_locust.client.http.timeouts import Timeouts
from llm_locust.client.packets.capture import Capture, Tracked
from llm_locust.client.packets.looks import LONG_TICK_S, PATIENCE_NS, TICK_S, Looks
from llm_locust.client.packets.stream import (
    MOST_RESTING,
    MOST_RESTING_BYTES,
    MOST_UNACKED,
    UNACKED_NS,
    Stream,
)
from llm_locust.client.stream import LiveCall
from llm_locust.core.record import Outcome

MS = 1_000_000

# -- the proof, without a network ---------------------------------------------------------------


class FakeSocket:
    """A socket whose kernel says what it is told to say."""

    def __init__(self) -> None:
        self.acks, self.rtt_us, self.full_bytes = 0, 50, 0
        self.options: dict[int, int] = {}

    def getsockopt(self, level: int, name: int, size: int) -> bytes:
        assert (level, name) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        info = bytearray(size)
        struct.pack_into("=I", info, 20, self.full_bytes)
        struct.pack_into("=I", info, 68, self.rtt_us)
        struct.pack_into("=I", info, 136, self.acks + 7)  # all segments
        struct.pack_into("=I", info, 156, 7)  # those with data
        return bytes(info)

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self.options[name] = value


_NEVER_RUNG, _ROPE = os.pipe()


class FakeCapture:
    dropped = 0

    def bell(self) -> int:
        return _NEVER_RUNG

    def silence_bell(self) -> None:
        """It never rings."""

    def drain(self) -> None:
        """Nothing is captured."""

    def take_due(self) -> list[Stream]:
        return []


class FakeTracked:
    def __init__(self) -> None:
        self.stream = Stream()
        self.stream.open(0)


class Line:
    """A connection and its rest, with the packets and acknowledgements that a test makes."""

    def __init__(self) -> None:
        self.socket, self.packets = FakeSocket(), FakeTracked()
        self.rests = Rests(cast("Capture", FakeCapture()))
        self.rest = Rest(self.rests, cast(Any, self.socket), cast("Tracked", self.packets))
        self.sent = 0

    def packet(self, at_ns: int = 0, size: int = 200) -> None:
        self.packets.stream.add(self.sent, size, at_ns)
        self.sent += size

    def answer(self, acks: int, packets: int = 60, *, rest: bool = False, size: int = 200) -> bool:
        """One response; return whether it could have been read at rest."""
        self.rest.begin(tcp_facts(cast(Any, self.socket)))
        ready = self.rest.is_ready
        if rest:
            self.rest.start()
        for n in range(packets):
            self.packet(n * 20 * MS, size)
        self.socket.acks += acks
        self.rest.end(True)
        self.packets.stream.skip(self.packets.stream._arrived - self.packets.stream._read)
        return ready

    def proven(self) -> "Line":
        self.answer(acks=58)
        self.answer(acks=30)
        return self


def test_a_connection_rests_after_a_response_whose_packets_were_sent_unacknowledged() -> None:
    line = Line()
    assert not line.answer(acks=58)  # two of 60 packets came before the acknowledgement of the one before
    assert not line.answer(acks=30)
    assert line.socket.options[socket.TCP_QUICKACK] == 0
    assert line.answer(acks=25, rest=True)
    assert line.answer(acks=25, rest=True)
    assert (line.rests.rested, line.rests.withdrawn) == (2, 0)


def test_a_late_acknowledgement_does_not_end_the_second_step() -> None:
    """Linux goes back to acknowledging each packet, after headers that come long before the first token."""
    line = Line()
    line.rest.begin(tcp_facts(cast(Any, line.socket)))
    line.rest.delay_acks()
    assert not line.socket.options
    line.rest.end(True)
    line.answer(acks=58)
    line.rest.begin(tcp_facts(cast(Any, line.socket)))
    line.socket.options.clear()
    line.rest.delay_acks()
    assert line.socket.options == {socket.TCP_QUICKACK: 0}


@pytest.mark.parametrize("acks", [59, 60, 100])
def test_a_server_that_may_have_waited_for_every_acknowledgement_proves_nothing(acks: int) -> None:
    line = Line()
    assert not any(line.answer(acks=acks) for _ in range(20))
    assert socket.TCP_QUICKACK not in line.socket.options


def test_the_packets_at_the_end_of_an_answer_alone_do_not_let_it_rest() -> None:
    line = Line()
    assert not any(line.answer(acks=60 - 5) for _ in range(20))


@pytest.mark.parametrize("of", [{"size": 1000}, {"packets": 15, "acks": 2}])
def test_large_packets_and_short_answers_prove_nothing(of: dict[str, Any]) -> None:
    line = Line()
    assert not any(line.answer(**{"acks": 20, **of}) for _ in range(5))


def test_a_long_round_trip_is_too_much_in_flight() -> None:
    line = Line()
    line.socket.rtt_us = 30_000
    assert not any(line.answer(acks=20) for _ in range(5))


def test_a_response_at_rest_without_the_proof_is_the_last_one() -> None:
    line = Line().proven()
    line.answer(acks=57, rest=True)
    assert (line.rests.rested, line.rests.withdrawn) == (1, 1)
    assert not any(line.answer(acks=20) for _ in range(20))
    assert line.rests.withdrawn == 1


@pytest.mark.parametrize(
    ("packets", "acks", "withdrawn"), [(20, 14, 0), (31, 29, 0), (20, 19, 1), (40, 34, 1)]
)
def test_a_short_response_that_cannot_prove_much_ends_no_rest(
    packets: int, acks: int, withdrawn: int
) -> None:
    """Unless nothing of it was sent before an acknowledgement."""
    line = Line().proven()
    line.answer(acks, packets, rest=True)
    assert line.rests.withdrawn == withdrawn
    assert line.answer(acks=30) == (not withdrawn)


def test_a_short_response_is_no_proof_either() -> None:
    line = Line()
    assert not any(line.answer(acks=14, packets=20) for _ in range(20))


@pytest.mark.parametrize(
    ("complete", "later", "lost", "withdrawn"),
    [(True, 0, 0, 1), (True, 1, 0, 0), (False, 0, 0, 0), (True, 0, 1, 0)],
    ids=["its end", "a pause", "a call given up", "a ring that was full"],
)
def test_a_response_whose_end_is_only_noticed_by_the_silence_after_it_is_the_last_one(
    complete: bool, later: int, lost: int, withdrawn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last chunk was split, or has trailers: every answer would end 50 to 100 ms late."""
    line = Line().proven()
    line.rest.begin(tcp_facts(cast(Any, line.socket)))
    line.rest.start()
    for n in range(60):
        line.packet(1 + n)
    monkeypatch.setattr(FakeCapture, "dropped", lost)
    line.rests._sweep()
    assert not line.rest.asleep
    line.packets.stream.skip(60 * 200)
    assert not line.rest.start()  # nor does it again in this exchange
    for n in range(later):
        line.packet(100 + n)
    line.socket.acks += 30
    line.rest.end(complete)
    line.packets.stream.skip(later * 200)
    assert line.rests.withdrawn == withdrawn
    assert line.answer(acks=30) == (not withdrawn)


@pytest.mark.parametrize(("packets", "acks", "proven"), [(60, 51, True), (60, 52, False), (16, 7, True)])
def test_eight_packets_that_nobody_waited_to_send_are_the_proof(
    packets: int, acks: int, proven: bool
) -> None:
    line = Line()
    line.answer(acks, packets)
    assert line.answer(acks=30) == proven


def test_what_rested_is_told_with_the_facts_of_the_stamps() -> None:
    line = Line().proven()
    line.answer(acks=30, rest=True)
    line.answer(acks=57, rest=True)
    counts: Any = SimpleNamespace(packets=5, dropped=1, unseen_reads=2)
    facts = Stamping("packet", counts, line.rests).facts()
    assert (facts.packets, facts.dropped, facts.unseen_reads) == (5, 1, 2)
    assert (facts.rested, facts.rests_withdrawn) == (2, 1)
    assert Stamping("packet", counts).facts().rested == 0


@pytest.mark.parametrize(("due_ns", "seen_ns"), [(0, 50 * MS + 7), (3, 3)])
def test_what_is_read_in_silence_was_due_when_the_silence_was_long_enough(due_ns: int, seen_ns: int) -> None:
    line, seen = Line().proven(), list[int]()
    line.rest.begin(tcp_facts(cast(Any, line.socket)))
    line.rest.start()
    line.packet(7)
    line.packets.stream.due_ns = due_ns
    line.rest.read = lambda: seen.append(line.packets.stream.due_ns)
    line.rest.on_silence()
    assert (seen, line.rest.asleep) == ([seen_ns], False)


def test_the_kernel_wakes_the_loop_at_sixteen_kibibytes_and_no_read_is_due_at_first() -> None:
    line = Line().proven()
    line.packets.stream.due_ns = 1
    line.rest.begin(tcp_facts(cast(Any, line.socket)))
    line.rest.start()
    assert (line.socket.options[18], line.packets.stream.due_ns) == (16_384, 0)
    line.packet()
    line.packets.stream.due_ns = 1
    line.rest.read = lambda: line.packets.stream.skip(200)
    line.rest.on_due()
    assert (line.rest.asleep, line.packets.stream.due_ns) == (True, 0)
    line.rest.stop()


def test_packets_that_were_lost_before_a_rest_wake_nobody_and_those_since_wake_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line, other = Line().proven(), FakeTracked()
    second = Rest(line.rests, cast(Any, line.socket), cast("Tracked", other))
    monkeypatch.setattr(FakeCapture, "dropped", 1)
    for rest, packets in ((line.rest, line.packets), (second, other)):
        rest.begin(tcp_facts(cast(Any, line.socket)))
        rest.is_ready = True
        rest.start()
        packets.stream.add(packets.stream._next, 1, time.time_ns())
        if rest is line.rest:
            line.rests._sweep()
            assert line.rest.asleep
            monkeypatch.setattr(FakeCapture, "dropped", 2)
    line.rests._sweep()
    assert (line.rest.asleep, second.asleep) == (False, False)


def test_the_capture_is_looked_at_again_and_again_while_a_connection_rests() -> None:
    looked, enough = list[int](), Event()

    def look() -> None:
        looked.append(1)
        if len(looked) == 3:
            enough.set()

    looks, stream = Looks(cast("Capture", FakeCapture()), look, lambda: None, 60.0), Stream()
    looks.begin(stream, is_patient=True)
    assert enough.wait(120)
    looks.end(stream)
    assert (TICK_S, LONG_TICK_S, PATIENCE_NS) == (0.004, 0.016, 12_000_000)


def test_packets_that_come_twice_again_and_again_end_it() -> None:
    line, rested = Line().proven(), 0
    for _ in range(20):
        if line.answer(acks=30, rest=False):
            line.rest.begin(tcp_facts(cast(Any, line.socket)))
            line.rest.start()
            line.packets.stream.add(line.sent - 200, 200, 0)  # sent again
            for _ in range(60):
                line.packet()
            line.socket.acks += 30
            line.rest.end(True)
            rested += 1
    assert line.rests.withdrawn == 1
    assert rested == line.rests.rested == 3


def test_the_kernel_wakes_the_loop_again_when_the_rest_is_over() -> None:
    line = Line().proven()
    line.rest.begin(tcp_facts(cast(Any, line.socket)))
    line.rest.start()
    assert line.socket.options[18] > 1  # SO_RCVLOWAT
    line.rest.stop()
    assert line.socket.options[18] == 1


def resting_stream() -> Stream:
    stream = Stream()
    stream.open(0)
    stream.resting = True
    return stream


@pytest.mark.parametrize(
    ("gap_ns", "unread"), [(UNACKED_NS, MOST_RESTING), (10 * MS, MOST_UNACKED), (0, MOST_UNACKED)]
)
def test_a_read_is_due_before_a_window_of_unacknowledged_packets_can_be_full(
    gap_ns: int, unread: int
) -> None:
    stream = resting_stream()
    for n in range(unread):
        assert not stream.due_ns
        stream.add(100 * n, 100, 1 + n * gap_ns)
    assert stream.due_ns == 1 + (unread - 1) * gap_ns


@pytest.mark.parametrize(
    ("full_bytes", "size", "is_patient"),
    [(536, 200, True), (1200, 200, True), (1201, 200, False), (536, 60, False), (0, 200, False)],
    ids=["usual", "six packets", "more than six", "tiny packets", "unknown"],
)
def test_looks_are_rare_only_while_the_kernel_acknowledges_in_time_what_is_unread(
    full_bytes: int, size: int, is_patient: bool
) -> None:
    line = Line()
    line.socket.full_bytes = full_bytes
    line.answer(acks=58, size=size)
    line.answer(acks=30, size=size)
    line.rest.begin(tcp_facts(cast(Any, line.socket)))
    assert line.rest.start()
    looks = line.rests._looks
    assert looks._tick_s == (LONG_TICK_S if is_patient else TICK_S)
    assert line.packets.stream.patience_ns == (PATIENCE_NS if is_patient else 0)
    line.rest.stop()


def test_one_connection_that_cannot_wait_makes_looks_frequent_as_long_as_it_rests() -> None:
    looks, swept = (
        Looks(cast("Capture", FakeCapture()), lambda: None, lambda: swept.append(1), 0.05),
        list[int](),
    )
    patient, hasty = Stream(), Stream()
    looks.begin(patient, is_patient=True)
    assert looks._tick_s == LONG_TICK_S
    looks.begin(hasty, is_patient=False)
    assert looks._tick_s == TICK_S
    assert patient.patience_ns == PATIENCE_NS  # of what came since the last tick, which was to be late
    for _ in range(12):  # 48 ms
        looks._on_tick()
        # Looks are frequent: 12 ms more would hide that the process is late.
        assert (patient.patience_ns, hasty.patience_ns) == (0, 0)
    assert (looks._tick_s, swept) == (TICK_S, [1])
    looks.end(hasty)
    while len(swept) < 2:
        looks._on_tick()
    assert looks._tick_s == LONG_TICK_S
    assert (patient.patience_ns, hasty.patience_ns) == (PATIENCE_NS, 0)
    for _ in range(3):
        looks._on_tick()
    assert len(swept) == 3
    looks.end(patient)
    assert looks._timer is None


def test_a_read_is_due_after_many_bytes_and_after_a_packet_that_came_twice() -> None:
    stream = resting_stream()
    stream.add(0, MOST_RESTING_BYTES, 5)
    assert stream.due_ns == 5
    stream = resting_stream()
    stream.add(0, 10, 5)
    assert not stream.add(0, 10, 7)
    assert stream.due_ns == 7


def test_a_bell_wakes_what_is_due_without_waiting_for_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_locust.client.packets.looks.TICK_S", 60.0)
    line, woken = Line().proven(), Event()
    heard, rope = os.pipe()
    capture = cast(Any, line.rests._capture)
    capture.bell, capture.take_due = lambda: heard, lambda: [line.packets.stream]
    capture.silence_bell = lambda: os.read(heard, 1)
    line.rest.read = woken.set
    line.rest.begin(tcp_facts(cast(Any, line.socket)))
    line.rest.start()
    for _ in range(3):
        os.write(rope, b"x")
        assert woken.wait(30)
        woken.clear()
    line.rest.stop()
    os.write(rope, b"x")
    gevent.sleep(0)
    assert not woken.is_set()
    os.close(rope)
    os.close(heard)


def test_a_bell_that_rings_without_end_is_heard_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_locust.client.packets.looks.TICK_S", 60.0)
    monkeypatch.setattr("llm_locust.client.packets.looks.BELL_S", 0.02)
    line, enough, heard_s = Line().proven(), Event(), list[float]()
    heard, rope = os.pipe()
    loop, capture = gevent.get_hub().loop, cast(Any, line.rests._capture)

    def look() -> list[Stream]:
        heard_s.append(loop.now())
        if len(heard_s) == 4:
            enough.set()
        return []

    capture.bell, capture.take_due = lambda: heard, look
    line.rest.begin(tcp_facts(cast(Any, line.socket)))
    line.rest.start()
    os.write(rope, b"x")  # nobody takes it: it rings again as soon as it is listened to
    assert enough.wait(30)
    line.rest.stop()
    assert (np.diff(heard_s[:4]) > 0.019).all()  # times of the loop itself
    os.close(rope)
    os.close(heard)


@pytest.mark.parametrize("look", ["_look", "_sweep"])
def test_an_error_of_one_connection_does_not_keep_the_others_from_their_turn(
    look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, reported, read = Line().proven(), list[object](), list[int]()
    other = FakeTracked()
    second = Rest(line.rests, cast(Any, line.socket), cast("Tracked", other))
    monkeypatch.setattr(gevent.get_hub(), "handle_error", lambda _, kind, *__: reported.append(kind))

    def fail() -> None:
        raise ZeroDivisionError

    line.rest.read, second.read = fail, lambda: read.append(1)
    for rest in (line.rest, second):
        rest.begin(tcp_facts(cast(Any, line.socket)))
        rest.is_ready = True
        assert rest.start()
    cast(Any, line.rests._capture).take_due = lambda: [line.packets.stream, other.stream]
    getattr(line.rests, look)()
    assert (reported, read) == ([ZeroDivisionError], [1])
    line.rests.close()


def test_whether_a_rest_is_of_use_is_asked_only_if_it_may_be() -> None:
    """That costs a look at every target, and is asked after each packet."""

    class Polls:
        asked = 0

        @property
        def are_grouped(self) -> bool:
            self.asked += 1
            return False

    line, polls = Line(), Polls()
    exchange = SimpleNamespace(on_packets=lambda *_: 5, complete=False, in_chunks=True, last_read_ns=1)
    connection = cast(Any, SimpleNamespace(_rest=line.rest, _polls=polls, _unwatched=False))
    connection._waits_for_end, connection.sent = True, ClockPair(0, 0)
    Connection._process_packets(connection, cast(Any, exchange), b"bytes", [(5, 1)], 1, 0)
    assert polls.asked == 0
    line.rest.is_ready = True
    Connection._process_packets(connection, cast(Any, exchange), b"bytes", [(5, 1)], 1, 0)
    assert polls.asked == 1


def test_nothing_is_read_at_rest_in_a_turn_that_has_no_time_to_decode_it() -> None:
    connection = cast(Any, SimpleNamespace(_packets=FakeTracked(), _pause=None, reads=0))

    def read() -> bool:
        connection.reads += 1
        return False

    connection._on_readable = read
    Connection._read_at_rest(connection)
    connection._pause = object()
    Connection._read_at_rest(connection)
    assert connection.reads == 1


def test_nothing_rests_once_the_capture_is_closed() -> None:
    line = Line().proven()
    Stamping("packet", None, line.rests).close()
    line.rest.begin(tcp_facts(cast(Any, line.socket)))
    assert not line.rest.start()
    assert line.rests._looks._bell is None


def test_a_connection_that_still_rests_is_awake_when_its_capture_closes() -> None:
    """Else the loop would watch a descriptor that is another's by then, and nobody would read it."""
    line = Line().proven()
    line.rest.begin(tcp_facts(cast(Any, line.socket)))
    line.rest.start()
    Stamping("packet", None, line.rests).close()
    assert not line.rest.asleep
    assert line.socket.options[18] == 1
    assert line.rests._looks._bell is None


def test_a_ring_that_was_full_wakes_every_connection() -> None:
    line, read = Line().proven(), []
    line.rest.read = lambda: read.append(line.rest.asleep)
    line.rest.begin(tcp_facts(cast(Any, line.socket)))
    line.rest.start()
    line.packet(time.time_ns())
    line.rests._sweep()
    assert not read
    FakeCapture.dropped = 1
    try:
        line.rests._sweep()
    finally:
        FakeCapture.dropped = 0
    assert read == [True]
    assert not line.rest.asleep


def test_a_clock_that_was_set_back_makes_no_silent_connection_a_lively_one() -> None:
    line, read = Line().proven(), []
    line.rest.read = lambda: read.append(line.rest.asleep)
    line.rest.begin(tcp_facts(cast(Any, line.socket)))
    line.rest.start()
    line.packet(time.time_ns() + 3600 * 1000 * MS)
    line.rests._sweep()
    assert read == [True]


def test_a_connection_does_not_rest_while_a_captured_packet_is_not_read() -> None:
    """The capture sees a packet before the socket has it; no further one would make that read due."""
    line = Line().proven()
    line.rest.begin(tcp_facts(cast(Any, line.socket)))
    line.packet()
    assert not line.rest.start()
    line.packets.stream.skip(200)
    assert line.rest.start()
    line.packet()
    line.rest.on_due()  # the read found nothing yet
    assert not line.rest.asleep


def test_packets_that_came_twice_begin_the_proof_again() -> None:
    line = Line().proven()
    assert line.answer(acks=30, rest=True)
    line.rest.begin(tcp_facts(cast(Any, line.socket)))
    line.rest.start()
    line.packets.stream.add(line.sent - 200, 200, 0)
    for _ in range(60):
        line.packet()
    line.socket.acks += 30
    line.rest.end(True)
    line.packets.stream.skip(line.packets.stream._arrived - line.packets.stream._read)
    assert not line.answer(acks=30)
    assert line.answer(acks=30)


def test_a_packet_that_is_looked_for_in_the_hub_does_not_switch_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under Locust ``time.sleep`` is gevent's, which raises in the hub: the bytes of that read were lost."""
    monkeypatch.setattr(time, "sleep", gevent.sleep)
    capture = cast(Any, FakeCapture())
    capture.enter, capture.unseen_reads = lambda *_: None, 0
    tracked, found = Tracked(capture, b""), list[Any]()
    tracked.stream.open(0)
    gevent.get_hub().loop.run_callback(lambda: found.append(tracked.pieces(10)))
    gevent.sleep(0.01)
    assert found == [None]
    assert capture.unseen_reads == 1


def test_a_program_is_late_by_the_time_since_a_read_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line().proven()
    now_ns, offset_ns = 10_000 * MS, 7 * MS
    monkeypatch.setattr("llm_locust.client.http.resting.time.time_ns", lambda: now_ns + offset_ns)
    line.packets.stream.due_ns = now_ns + offset_ns - 3 * MS
    stamps = [now_ns + offset_ns - ago for ago in (50 * MS, 30 * MS, 3 * MS, 1 * MS)]
    sent = ClockPair(now_ns + offset_ns - 90 * MS, now_ns - 90 * MS)
    times = line.rest.times([(0, at) for at in stamps], now_ns, now_ns - 40 * MS, sent)
    assert [now_ns - at for at in times] == [40 * MS, 27 * MS, 0, 0]


@pytest.mark.parametrize("step_ms", [-3600_000, -1500, 0, 1500, 3600_000])
@pytest.mark.parametrize("stepped_at", [0, 20, 50])
@pytest.mark.parametrize("due_at", [None, 49])
def test_a_clock_that_is_set_during_a_rest_moves_no_packet(
    step_ms: int, stepped_at: int, due_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set back, it put all packets at the time of the read."""
    line, sent, now_ns = Line(), ClockPair(10**18, 5000 * MS), 6010 * MS
    offset_ns = sent.offset_ns + step_ms * MS
    monkeypatch.setattr("llm_locust.client.http.resting.time.time_ns", lambda: now_ns + offset_ns)
    came_ns = [(5020 + 20 * n) * MS for n in range(50)]
    stamps = [at + (sent.offset_ns if n < stepped_at else offset_ns) for n, at in enumerate(came_ns)]
    late_ns = 0
    if due_at is not None:
        line.packets.stream.due_ns, late_ns = stamps[due_at], now_ns - came_ns[due_at]
    times = line.rest.times([(0, at) for at in stamps], now_ns, sent.monotonic_ns, sent)
    assert times == [at + late_ns for at in came_ns]


def test_a_small_step_puts_packets_in_no_other_order(monkeypatch: pytest.MonkeyPatch) -> None:
    line, sent, now_ns = Line(), ClockPair(10**18, 5000 * MS), 5100 * MS
    monkeypatch.setattr(
        "llm_locust.client.http.resting.time.time_ns", lambda: now_ns + sent.offset_ns - 30 * MS
    )
    stamps = [sent.realtime_ns + at * MS for at in (40, 60, 50, 70)]
    times = line.rest.times([(0, at) for at in stamps], now_ns, 5010 * MS, sent)
    assert [at // MS - 5000 for at in times] == [40, 60, 60, 70]


# -- against a server ---------------------------------------------------------------------------


@pytest.fixture
def by_packet() -> Iterator[Stamping]:
    with packet_stamps() as stamping, closing(PollLimiter(lambda: 0.001)):
        yield stamping
        assert (stamping.facts().dropped, stamping.facts().unseen_reads) == (0, 0)


@contextmanager
def asking(server: ScriptedServer, stamping: Stamping, **of: Any) -> Iterator[Caller]:
    with caller(server.url, stamping=stamping, **of) as ask:
        yield ask
        assert ask.client.in_flight == 0


def until_rested(ask: Caller, stamping: Stamping, script: Script, responses: int = 40) -> None:
    """Ask on one connection until responses were read at rest: a busy machine proves it late."""
    assert stamping.rests is not None
    before = stamping.rests.rested
    for _ in range(responses):
        ask.ask(script)
        if stamping.rests.rested >= before + 2:
            return


def lateness_ns(server: ScriptedServer, ask: Caller) -> np.ndarray:
    """Time from the server's writing of each event to its arrival."""
    served = {r.header("X-Request-Id"): r for r in server.wait_ended(len(ask.answers))}
    late = []
    for answer in ask.answers:
        record = answer.record
        assert (record.outcome, record.kernel_stamps, record.early_ns) == (Outcome.OK, True, None)
        late.append(arrived_ns(record) - np.array(served[record.request_id].write_ns[1:-1]))
    return np.concatenate(late)


@captures
@pytest.mark.parametrize("gap_ms", [1, 6])
def test_a_server_that_does_not_wait_is_read_at_rest_and_every_event_has_its_time(
    server: ScriptedServer, by_packet: Stamping, gap_ms: float
) -> None:
    script = stream_script(ttft_ms=15, gap_ms=gap_ms, tokens=40)
    with asking(server, by_packet) as ask:
        until_rested(ask, by_packet, script)
        late_ns = lateness_ns(server, ask)
    assert by_packet.rests is not None
    if gap_ms > 1:
        assert by_packet.rests.rested >= 1
    assert (late_ns >= 0).all()
    assert np.percentile(late_ns, 75) < 1 * MS  # a full window would hold most of them back


@captures
def test_a_server_that_waits_for_acknowledgements_is_never_read_at_rest(by_packet: Stamping) -> None:
    script = stream_script(ttft_ms=15, gap_ms=6, tokens=40)
    with scripted_server(nodelay=False) as server, asking(server, by_packet) as ask:
        for _ in range(5):
            record = ask.ask(script).record
            assert (record.outcome, len(record.arrivals_ns)) == (Outcome.OK, 40)
    assert by_packet.rests is not None
    assert (by_packet.rests.rested, by_packet.rests.withdrawn) == (0, 0)


def breaking(*last: Step) -> Script:
    """Eight events, then something else than a last chunk."""
    events = [write(20 + 6 * n, chunk(token())) for n in range(8)]
    return [write(0, response_head()), *events, *last]


@captures
def test_what_ends_a_response_at_rest_is_noticed(server: ScriptedServer, by_packet: Stamping) -> None:
    """A silent server, the end of the connection, a last chunk with trailers, a call that is broken off."""
    good = stream_script(ttft_ms=15, gap_ms=6, tokens=40)
    with asking(server, by_packet, timeouts=Timeouts(first_s=5, gap_s=0.4, total_s=20)) as ask:
        for script, outcome, error in (
            (breaking(Step(stall=True)), Outcome.TIMEOUT, "no event for 0.4 s"),
            (breaking(Step(at_ms=80, close=True)), Outcome.TRUNCATED, "closed by the peer"),
            (breaking(Step(at_ms=80, reset=True)), Outcome.TRUNCATED, "reset"),
        ):
            until_rested(ask, by_packet, good, 12)
            record = ask.ask(script).record
            assert (record.outcome, len(record.arrivals_ns)) == (outcome, 8)
            assert error in (record.error or "")
        until_rested(ask, by_packet, good, 12)
        job = ask.spawn(breaking(Step(stall=True)))
        gevent.sleep(0.1)
        ask.client.abandon_calls()
        job.join()
        assert len(ask.answers[-1].record.arrivals_ns) >= 1
        until_rested(ask, by_packet, good, 12)
        trailers = write(80, last_chunk()[:-2] + b"X-Took: 1\r\n\r\n")
        record = ask.ask(breaking(trailers)).record
        assert (record.status, len(record.arrivals_ns)) == (200, 8)


@captures
def test_a_call_read_piece_by_piece_does_not_rest(server: ScriptedServer, by_packet: Stamping) -> None:
    script = stream_script(ttft_ms=15, gap_ms=6, tokens=40)
    with asking(server, by_packet) as ask:
        until_rested(ask, by_packet, script)
        assert by_packet.rests is not None
        rested = by_packet.rests.rested
        body = msgspec.json.encode({"script": list(script)})
        call = ask.call()
        route = ask.client.routes.choose(call)
        live = LiveCall(ask.client, route, ask.client.request(route, "/chat/completions", body, call), call)
        live.open(keep_body=True)
        pieces = 0
        while live.read():
            pieces += 1
        live.conclude()
    assert by_packet.rests.rested == rested
    assert pieces > 10


def test_the_silence_that_ends_a_rest_is_shorter_than_any_time_limit_that_is_of_use() -> None:
    assert SILENCE_S <= 0.05
