"""One worker's part of an open loop: its options and share; requests start when their schedule wants them."""

import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gevent
import msgspec
import pytest
from gevent.event import Event
from parsed_settings import run_info

from llm_locust.client.http.clock import ClockPair
from llm_locust.core.manifest import Manifest
from llm_locust.options.load import LoadSettings
from llm_locust.swarm.process.event_loop import wait_until
from llm_locust.swarm.users import dispatcher
from llm_locust.swarm.users.dispatcher import AHEAD_S, Alarm, Dispatcher, TurnOrder
from llm_locust.swarm.users.open_loop import OpenLoad, ScheduleClock, open_loop_class, timetable
from llm_locust.workload.arrivals import (
    Arrival,
    ListedSchedule,
    Process,
    Schedule,
    Timetable,
    TraceFile,
    constant,
)
from llm_locust.workload.trace_formats import TraceEntry
from llm_locust.workload.traces import WINDOW

# --- One worker's part of an open loop: its share, what it counts, and how it ends


pytestmark = pytest.mark.alone

#: A run of two workers at 200 requests/s.
of_two = partial(run_info, places=["a", "b"], starters=2, rate=200.0)


class Noting:
    """Sends nothing; notes what it is asked for, each of which lasts until an answer."""

    def __init__(self, answered: Event | None = None) -> None:
        self.sent: list[tuple[int, int]] = []  # k and when it was due, of this process's clock
        self.clock: ScheduleClock | None = None
        self.ended = 0
        self._answered = answered

    def follow(self, clock: ScheduleClock) -> "Noting":
        self.clock = clock
        return self

    def prepare(self, arrival: Arrival) -> str:
        return "ready"

    def slo_class(self, arrival: Arrival) -> str:
        return "even" if arrival.k % 2 == 0 else "odd"

    def send(self, arrival: Arrival, prepared: str, due_s: float) -> None:
        assert self.clock is not None
        self.sent.append((arrival.k, self.clock.realtime_ns(arrival.at_s)))
        if self._answered is not None:
            self._answered.wait()
        self.ended += 1


def loaded(sender: Noting, load: LoadSettings, index: int = 0, **fields: Any) -> OpenLoad:
    refused: list[str] = []
    part = OpenLoad(load, of_two(**fields), index, sender.follow, lambda: (0, 1), refused.append)
    part.start()
    return part


def test_the_shares_of_two_workers_are_the_schedule_and_a_late_one_has_none() -> None:
    load = LoadSettings(num_requests=41)
    whole = Schedule(Process(1.0), constant(200.0), seed=3, limit=41).before(1e6)
    shares = [timetable(load, of_two(), index).before(1e6) for index in (0, 1)]
    assert sorted(shares[0] + shares[1]) == whole
    late = timetable(load, of_two(), 2)
    assert late.before(1e6) == []
    assert late.ended


def test_requests_are_due_at_the_runs_time_less_this_clocks_offset() -> None:
    sender = Noting()
    origin_ns = time.time_ns() + 5_000_000_000
    load = LoadSettings(arrival=Process(0.0), num_requests=3)
    # This process's clock is 5 s behind the run's axis: here the schedule begins now.
    info = of_two(starters=1, origin_ns=origin_ns)
    part = OpenLoad(load, info, 0, sender.follow, lambda: (5_000_000_000, 1), lambda _: None)
    part.start()
    gevent.sleep(0.3)
    assert part.spent
    begin_ns = origin_ns - 5_000_000_000
    assert [k for k, _ in sender.sent] == [0, 1, 2]
    assert [due_ns - begin_ns for _, due_ns in sender.sent] == pytest.approx([0, 5e6, 10e6], abs=1e6)


def test_a_stopped_load_lets_what_is_under_way_end_within_its_patience() -> None:
    for patience_s in (60.0, 0.0):
        answered = Event()
        sender = Noting(answered)
        part = loaded(sender, LoadSettings(arrival=Process(0.0)), starters=1)
        while len(sender.sent) < 2:
            gevent.sleep(0.01)
        part.stop()
        begun = len(sender.sent)
        draining = gevent.spawn(part.drain, patience_s)
        gevent.sleep(0.1)
        if patience_s:
            assert not draining.ready()
            answered.set()
        draining.get(timeout=30)
        assert sender.ended == (begun if patience_s else 0)
        assert len(sender.sent) == begun, "something was sent after the stop"


def test_what_is_held_back_is_told() -> None:
    sender = Noting(Event())
    part = loaded(sender, LoadSettings(max_in_flight=3), starters=2, rate=2000.0)
    assert wait_until(lambda: part.counts().held_back > 50, 30.0, poll_s=0.01)
    assert wait_until(lambda: part.counts().longest_held_ns > 100_000_000, 30.0, poll_s=0.01)
    counts = part.counts()
    assert len(sender.sent) == 2, "three of two workers: the first has two"
    assert counts.waiting == counts.held_back
    assert not part.spent
    part.drain(0.0)


def test_what_was_due_and_never_sent_is_counted_by_class_and_apart_for_the_warm_up() -> None:
    sender = Noting(Event())
    origin_ns = time.time_ns()
    manifest = Manifest(id="r", name="r", started_ns=origin_ns - 50_000_000)
    info = of_two(
        starters=1, rate=1000.0, origin_ns=origin_ns, manifest=msgspec.json.encode(manifest).decode()
    )
    load = LoadSettings(arrival=Process(0.0), max_in_flight=1)
    part = OpenLoad(load, info, 0, sender.follow, lambda: (0, 1), lambda _: None, warmup_s=0.15)
    part.start()
    gevent.sleep(0.3)
    part.stop()
    counts = part.counts()
    gevent.sleep(0.1)
    assert part.counts() == counts, "the load has ended"
    assert counts.until_ns is not None
    assert counts.until_ns == pytest.approx(counts.unsent * 1e6, abs=2e6), "as long as it was followed"
    assert len(sender.sent) == 1
    # Due are 0 ms, 1 ms ... of the schedule. The measured phase begins at 100 ms of it.
    assert counts.unsent_warmup == 99
    assert counts.unsent == 99 + sum(counts.unsent_by_class.values())
    assert 180 < counts.unsent < 500
    assert abs(counts.unsent_by_class["even"] - counts.unsent_by_class["odd"]) <= 1
    part.drain(0.0)


def test_a_load_that_is_stopped_before_its_schedule_has_followed_none_of_it() -> None:
    part = loaded(Noting(), LoadSettings(), origin_ns=time.time_ns() + 60_000_000_000)
    assert part.counts().until_ns is None
    part.stop()
    assert part.counts().until_ns == 0


def test_the_rate_follows_the_runs_axis() -> None:
    sender = Noting()
    info = of_two(starters=1, rate=0.0)
    part = OpenLoad(
        LoadSettings(arrival=Process(0.0)), info, 0, sender.follow, lambda: (0, 1), lambda _: None
    )
    part.start()
    gevent.sleep(0.05)
    part.change_rate(info["origin_ns"] + 200_000_000, 100.0)
    gevent.sleep(0.6)
    part.drain(0.0)
    assert 20 < len(sender.sent) < 60
    assert min(due_ns for _, due_ns in sender.sent) >= info["origin_ns"] + 199_000_000


def test_a_trace_that_goes_wrong_midway_refuses_the_run(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:00:00.{k:06d},9,9" for k in range(WINDOW + 300)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows, "noon,9,9"]))
    load, refused, sender = LoadSettings(arrival=TraceFile(path), trace_scale=100.0), list[str](), Noting()
    part = OpenLoad(load, of_two(starters=1), 0, sender.follow, lambda: (0, 1), refused.append)
    part.start()
    gevent.sleep(1.0)
    (reason,) = refused
    assert f"{path}:{WINDOW + 302}" in reason
    assert "noon" in reason
    assert not part.spent
    part.drain(0.0)


def test_the_class_that_follows_a_schedule_is_found() -> None:
    class Closed: ...

    class Open:
        @classmethod
        def follows_schedule(cls, settings: object) -> bool:
            return settings == "open"

    assert open_loop_class([Closed], "open") is None
    assert open_loop_class([Closed, Open], "closed") is None
    assert open_loop_class([Closed, Open], "open") is Open


# --- Requests start when their schedule wants them, whatever becomes of those before


class Times:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() - self._begin


class FakeSender:
    """Notes what is made ready and sent; ``lasts`` is how long a request takes."""

    def __init__(self, now_s: Callable[[], float], lasts: Callable[[int], None] = lambda k: None) -> None:
        self.prepared: list[tuple[int, float]] = []
        self.sent: list[tuple[int, float, float]] = []  # k, due, begun
        self.ended: list[int] = []
        self._now_s = now_s
        self._lasts = lasts

    def prepare(self, arrival: Arrival | TraceEntry) -> int:
        self.prepared.append((arrival.k, self._now_s()))
        return arrival.k

    def slo_class(self, arrival: Arrival | TraceEntry) -> str:
        return ""

    def send(self, arrival: Arrival | TraceEntry, prepared: int, due_s: float) -> None:
        assert prepared == arrival.k
        self.sent.append((arrival.k, due_s, self._now_s()))
        self._lasts(arrival.k)
        self.ended.append(arrival.k)


def at(*times_s: float) -> ListedSchedule[Arrival]:
    return ListedSchedule([Arrival(k, at_s) for k, at_s in enumerate(times_s)])


def turn(k: int, at_s: float, after: Sequence[str] = (), gap_s: float = 0.0) -> TraceEntry:
    return TraceEntry(
        k=k,
        at_s=at_s,
        input_tokens=9,
        output_tokens=1,
        session="s",
        id=f"t{k}",
        after=tuple(after),
        gap_s=gap_s,
    )


@contextmanager
def running(dispatcher: Dispatcher[Arrival, int]) -> Iterator["gevent.Greenlet[[], None]"]:
    greenlet = gevent.spawn(dispatcher.run)
    try:
        yield greenlet
    finally:
        dispatcher.kill()
        greenlet.join(120)
        assert greenlet.ready(), "the dispatcher does not end"


def test_every_request_is_sent_once_and_none_before_its_time() -> None:
    now_s = Times()
    sender = FakeSender(now_s)
    schedule = Schedule(Process(1.0), constant(400.0), seed=1, limit=200)
    expected = Schedule(Process(1.0), constant(400.0), seed=1, limit=200).before(1e6)
    dispatcher = Dispatcher(schedule, sender, now_s)
    gevent.spawn(dispatcher.run).join(120)
    assert dispatcher.spent
    assert [(k, due_s) for k, due_s, _ in sender.sent] == [(k, at_s) for k, at_s in expected]
    assert all(begun_s >= due_s for _, due_s, begun_s in sender.sent)


def test_requests_are_made_ready_ahead_and_not_at_their_time() -> None:
    now_s = Times()
    sender = FakeSender(now_s)
    gevent.spawn(Dispatcher(at(0.3, 0.31, 0.32), sender, now_s).run).join(120)
    begun = {k: begun_s for k, _, begun_s in sender.sent}
    assert len(begun) == 3
    assert all(0.3 - AHEAD_S <= ready_s < begun[k] - 0.01 for k, ready_s in sender.prepared)


def test_a_request_that_does_not_end_holds_no_other_up() -> None:
    now_s, never = Times(), Event()
    sender = FakeSender(now_s, lambda k: None if k else never.wait() and None)
    dispatcher = Dispatcher(at(0.0, 0.01, 0.02), sender, now_s)
    with running(dispatcher):
        gevent.sleep(0.1)
        assert sender.ended == [1, 2]
        assert dispatcher.in_flight == 1
        assert not dispatcher.spent
        never.set()
        gevent.sleep(0.05)
        assert dispatcher.spent


def test_late_requests_are_all_sent_at_once_and_know_their_time() -> None:
    now_s = Times()
    sender = FakeSender(now_s)
    late = ListedSchedule([Arrival(k, -5.0 + k * 0.01) for k in range(300)])
    gevent.spawn(Dispatcher(late, sender, now_s).run).join(120)
    assert sorted(k for k, _, _ in sender.sent) == list(range(300))
    assert max(begun_s for _, _, begun_s in sender.sent) < 1
    assert sorted(due_s for _, due_s, _ in sender.sent) == sorted(-5.0 + k * 0.01 for k in range(300))


def test_what_max_in_flight_holds_back_is_sent_in_order_and_counted() -> None:
    now_s, under_way, most = Times(), [0], [0]

    def lasts(_: int) -> None:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        gevent.sleep(0.02)
        under_way[0] -= 1

    sender = FakeSender(now_s, lasts)
    dispatcher = Dispatcher(at(*[0.0] * 10), sender, now_s, max_in_flight=2)
    gevent.spawn(dispatcher.run).join(120)
    assert most[0] == 2
    assert [k for k, _, _ in sender.sent] == list(range(10))
    assert dispatcher.held_back == 8
    assert dispatcher.waiting == 0
    assert 0.06 < dispatcher.longest_wait_s < 1


def test_one_that_is_still_held_back_counts_with_its_wait_so_far() -> None:
    now_s, never = Times(), Event()
    dispatcher = Dispatcher(
        at(0.0, 0.0), FakeSender(now_s, lambda _: never.wait() and None), now_s, max_in_flight=1
    )
    with running(dispatcher):
        gevent.sleep(0.1)
        assert (dispatcher.waiting, dispatcher.held_back) == (1, 1)
        assert dispatcher.longest_wait_s >= 0.09
        dispatcher.stop()
        never.set()
        gevent.sleep(0.05)
        assert dispatcher.waiting == 1, "nothing is sent after the stop"


def test_a_change_of_the_rate_takes_effect_while_the_dispatcher_rests() -> None:
    now_s = Times()
    sender = FakeSender(now_s)
    schedule = Schedule(Process(0.0), constant(0.0), seed=1)
    dispatcher = Dispatcher(schedule, sender, now_s)
    with running(dispatcher):
        gevent.sleep(0.05)
        schedule.change_rate(0.1, 100.0)
        dispatcher.wake()
        gevent.sleep(1.0)
        dispatcher.stop()
    assert not [due_s for _, due_s, _ in sender.sent if due_s < 0.1]
    assert 60 <= len(sender.sent) <= 110


def test_an_error_of_one_request_is_told_and_keeps_no_other() -> None:
    class Faulty(FakeSender):
        def prepare(self, arrival: Arrival | TraceEntry) -> int:
            if arrival.k == 1:
                raise ValueError("no prompt")
            return super().prepare(arrival)

        def send(self, arrival: Arrival | TraceEntry, prepared: int, due_s: float) -> None:
            if arrival.k == 2:
                raise OSError("no socket")
            super().send(arrival, prepared, due_s)

    now_s, told = Times(), list[str]()
    sender = Faulty(now_s)
    dispatcher = Dispatcher(at(0.0, 0.2, 0.2, 0.2), sender, now_s, on_error=lambda e: told.append(str(e)))
    gevent.spawn(dispatcher.run).join(120)
    assert sorted(told) == ["no prompt", "no socket"]
    assert sender.ended == [0, 3]
    assert dispatcher.spent
    assert dispatcher.in_flight == 0


def test_a_turn_waits_for_the_ones_it_depends_on_and_then_its_gap() -> None:
    now_s = Times()
    sender = FakeSender(now_s, lambda k: gevent.sleep(0.15 if k == 0 else 0.0))
    entries = [turn(0, 0.0), turn(1, 0.05, ["t0"], gap_s=0.05), turn(2, 0.06), turn(3, 0.9, ["t1", "t2"])]
    timetable: Timetable[TraceEntry] = ListedSchedule(entries)
    dispatcher = Dispatcher(timetable, sender, now_s, turns=TurnOrder())
    gevent.spawn(dispatcher.run).join(120)
    sent = {k: (due_s, begun_s) for k, due_s, begun_s in sender.sent}
    assert sender.ended == [2, 0, 1, 3]
    assert sent[1][0] == pytest.approx(0.2, abs=0.05)
    assert sent[2][0] == 0.06
    assert sent[3][0] == 0.9, "a turn whose own time comes later is not early"
    assert dispatcher.spent


def test_turns_of_a_failed_predecessor_are_not_held_for_ever() -> None:
    turns = TurnOrder()
    first, second = turn(0, 0.0), turn(1, 1.0, ["t0"], gap_s=2.0)
    assert turns.due_s(first) == 0.0
    assert turns.due_s(second) is None
    assert len(turns) == 1
    assert [(f.due_s, f.entry) for f in turns.over(first, 5.0)] == [(7.0, second)]
    assert len(turns) == 0
    assert turns.due_s(turn(2, 4.0, ["t0"], gap_s=2.0)) == 7.0


def test_an_instant_of_the_schedule_is_told_by_the_clock_as_it_is_set_now() -> None:
    pairs = iter([ClockPair(1_000_000, 400_000), ClockPair(9_001_000, 401_000)])
    clock = ScheduleClock(1_500_000, lambda: next(pairs))
    assert clock.realtime_ns(1.0) == 1_000_000_000 + 900_000 + 8_600_000


def test_ten_thousand_requests_a_second_start_in_time_and_cost_little() -> None:
    now_s = Times()
    sender = FakeSender(now_s)
    schedule = Schedule(Process(1.0), constant(10_000.0), seed=1, limit=10_000)
    begin = time.process_time()
    gevent.spawn(Dispatcher(schedule, sender, now_s).run).join(120)
    cost_s = time.process_time() - begin
    late_s = sorted(begun_s - due_s for _, due_s, begun_s in sender.sent)
    assert len(late_s) == 10_000
    assert cost_s < 1.0, "a bound for a busy machine"


# --- A timer of the event loop that is finer than the loop's own


PATIENCE_S = 120.0


class Bell:
    """When an alarm rang, in seconds after this was made."""

    def __init__(self) -> None:
        self.rung_s: list[float] = []
        self._began_s = time.monotonic()
        self._rang = Event()

    def ring(self) -> None:
        self.rung_s.append(time.monotonic() - self._began_s)
        self._rang.set()

    def wait(self) -> float:
        assert self._rang.wait(PATIENCE_S), "it did not ring"
        self._rang.clear()
        return self.rung_s[-1]


@pytest.fixture
def bell() -> Bell:
    return Bell()


@pytest.fixture(params=["timerfd", "loop"])
def alarm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, bell: Bell) -> Iterator[Alarm]:
    """Of both kinds: as on Linux, and as elsewhere."""
    if request.param == "loop":
        monkeypatch.setattr(dispatcher, "_timerfd", lambda: None)
    made = Alarm(bell.ring)
    yield made
    made.close()


def test_it_rings_once_and_not_before_its_time(alarm: Alarm, bell: Bell) -> None:
    alarm.ring_in(0.05)
    assert bell.wait() >= 0.049
    gevent.sleep(0.1)
    assert len(bell.rung_s) == 1


def test_it_can_be_asked_again_and_again(alarm: Alarm, bell: Bell) -> None:
    for _ in range(20):
        before = len(bell.rung_s)
        alarm.ring_in(0.001)
        bell.wait()
        assert len(bell.rung_s) == before + 1


def test_a_new_time_takes_the_place_of_the_one_before(alarm: Alarm, bell: Bell) -> None:
    alarm.ring_in(0.02)
    alarm.ring_in(0.2)
    assert bell.wait() >= 0.19
    alarm.ring_in(60.0)
    alarm.ring_in(0.01)
    bell.wait()
    assert len(bell.rung_s) == 2


def test_a_time_that_is_over_rings_at_once(alarm: Alarm, bell: Bell) -> None:
    for seconds in (0.0, -5.0):
        alarm.ring_in(seconds)
        bell.wait()


@pytest.mark.skipif(dispatcher._timerfd() is None, reason="without timer descriptors there is no such order")
def test_it_rings_before_the_sockets_that_are_read_in_its_turn(bell: Bell) -> None:
    called: list[str] = []

    def ring() -> None:
        called.append("alarm")
        bell.ring()

    def read(ours: socket.socket) -> None:
        called.append("socket" if ours.recv(1) else "")

    alarm = Alarm(ring)
    pairs = [socket.socketpair() for _ in range(3)]
    watchers = [gevent.get_hub().loop.io(ours.fileno(), 1) for ours, _ in pairs]
    for watcher, (ours, _) in zip(watchers, pairs, strict=True):
        watcher.start(read, ours)
    gevent.sleep(0.01)  # the loop watches all of them
    alarm.ring_in(0.001)
    assert alarm._fd is not None
    assert select.select([alarm._fd], [], [], PATIENCE_S)[0]  # it is due first, which libev alone puts last
    for _, theirs in pairs:
        theirs.send(b"x")
    bell.wait()
    gevent.sleep(0.01)
    assert called == ["alarm", *["socket"] * len(pairs)]
    for watcher, pair in zip(watchers, pairs, strict=True):
        watcher.close()
        for end in pair:
            end.close()
    alarm.close()


def test_one_that_is_to_be_quiet_or_is_closed_does_not_ring(alarm: Alarm, bell: Bell) -> None:
    alarm.ring_in(0.02)
    alarm.quiet()
    gevent.sleep(0.1)
    alarm.ring_in(0.02)
    alarm.close()
    gevent.sleep(0.1)
    assert bell.rung_s == []
