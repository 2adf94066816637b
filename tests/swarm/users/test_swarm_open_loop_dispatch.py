"""Requests start when their schedule wants them, whatever becomes of those before."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import gevent
import pytest
from gevent.event import Event

from llm_locust.client.http.clock import ClockPair
from llm_locust.swarm.open_loop.dispatch import AHEAD_S, Dispatcher, ScheduleClock, TurnOrder
from llm_locust.workload.arrivals import Arrival, ListedSchedule, Process, Schedule, Timetable, constant
from llm_locust.workload.traces import TraceEntry

pytestmark = pytest.mark.alone


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
    clock = ScheduleClock.beginning_at(1_500_000, lambda: next(pairs))
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
