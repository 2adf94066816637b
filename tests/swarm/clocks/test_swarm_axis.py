"""The run's time at its master, and what exchanges tell of another clock."""

import logging
import time

import gevent
import pytest
from hypothesis import given, strategies as st

from llm_locust.client.http.clock import STEP_THRESHOLD_NS, ClockPair
from llm_locust.core.manifest import ClockFacts
from llm_locust.swarm.channel.messages import PingMessage, PongMessage
from llm_locust.swarm.clocks import (
    BUSY_FACTOR,
    DRIFT_PPM,
    OffsetEstimate,
    PingExchange,
    RunClock,
    best_of,
    drift_ns,
    pong,
    update,
)

pytestmark = pytest.mark.alone

S = 1_000_000_000
MS = 1_000_000
BEGIN = ClockPair(1_800_000_000 * S, 77 * S)


class FakeClocks:
    """Both clocks of a machine, moved by hand."""

    def __init__(self) -> None:
        self.realtime_ns, self.monotonic_ns = BEGIN.realtime_ns, BEGIN.monotonic_ns

    def read(self) -> ClockPair:
        return ClockPair(self.realtime_ns, self.monotonic_ns)

    def go(self, ns: int, step_ns: int = 0) -> None:
        """Time passes, in which realtime is stepped."""
        self.monotonic_ns += ns
        self.realtime_ns += ns + step_ns

    def axis(self) -> RunClock:
        return RunClock(read=self.read, monotonic_ns=lambda: self.monotonic_ns)


steps_ns = st.integers(-(10**18), 10**18)
beyond_threshold = steps_ns.filter(lambda ns: abs(ns) > STEP_THRESHOLD_NS)
delays_ns = st.integers(0, 10 * S)
offsets_ns = st.integers(-(10**15), 10**15)


def test_the_axis_is_realtime_while_nobody_sets_that_anew() -> None:
    axis = RunClock()
    between = time.time_ns(), axis.now_ns(), time.time_ns()
    assert between[0] - STEP_THRESHOLD_NS <= between[1] <= between[2] + STEP_THRESHOLD_NS


@given(st.lists(st.tuples(st.integers(0, 10**15), steps_ns)))
def test_the_axis_goes_on_by_monotonic_whatever_is_done_to_realtime(passing: list[tuple[int, int]]) -> None:
    clocks = FakeClocks()
    axis = clocks.axis()
    assert axis.now_ns() == BEGIN.realtime_ns
    for ns, step_ns in passing:
        before = axis.now_ns()
        clocks.go(ns, step_ns)
        axis.look()
        assert axis.now_ns() - before == ns


@given(st.lists(beyond_threshold, min_size=1))
def test_after_steps_the_offset_takes_them_back_and_they_are_counted(steps: list[int]) -> None:
    clocks = FakeClocks()
    axis = clocks.axis()
    for step_ns in steps:
        clocks.go(S, step_ns)
        assert axis.look() == step_ns
        assert clocks.realtime_ns + axis.offset_ns == axis.now_ns()
    facts = axis.facts()
    assert (facts.steps, axis.steps, facts.step_ns) == (len(steps), len(steps), sum(steps))
    assert facts.offset_ns == -sum(steps)
    assert facts.least_offset_ns <= min(0, facts.offset_ns) <= max(0, facts.offset_ns) <= facts.most_offset_ns


@pytest.mark.parametrize("noise_ns", [0, STEP_THRESHOLD_NS, -STEP_THRESHOLD_NS])
def test_what_readings_differ_by_is_no_step_and_no_offset(noise_ns: int) -> None:
    clocks = FakeClocks()
    axis = clocks.axis()
    clocks.go(S, noise_ns)
    assert axis.look() is None
    assert axis.facts() == ClockFacts(
        offset_ns=0, error_ns=STEP_THRESHOLD_NS, least_offset_ns=0, most_offset_ns=0, exchanges=0
    )


def test_clocks_that_drift_apart_are_no_step_but_the_offset_follows() -> None:
    clocks = FakeClocks()
    axis = clocks.axis()
    for _ in range(100):
        clocks.go(S, 100_000)
        assert axis.look() is None
        assert abs(clocks.realtime_ns + axis.offset_ns - axis.now_ns()) <= axis.error_ns
    assert axis.steps == 0
    assert axis.offset_ns < -9 * MS


def test_a_step_is_told_while_the_offset_is_still_the_old_one_and_logged_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clocks = FakeClocks()
    told: list[int] = []
    axis = RunClock(lambda: told.append(axis.offset_ns), read=clocks.read, monotonic_ns=lambda: 0)
    with caplog.at_level(logging.WARNING):
        for step_ns in (-2500 * MS, 0, 0):
            clocks.go(S, step_ns)
            axis.look()
    assert told == [0]
    assert axis.offset_ns == 2500 * MS
    assert [r.getMessage() for r in caplog.records] == [
        "this machine's clock was stepped by -2.500000 s; the run's time goes on without the step"
    ]


@given(beyond_threshold)
def test_who_is_told_of_a_step_may_look_and_still_finds_the_offset_of_before(step_ns: int) -> None:
    """A batch that is closed for a step looks for its offset: that of after put it off by the step."""
    clocks, told = FakeClocks(), list[int]()

    def close_batch() -> None:
        assert axis.look() is None
        told.append(axis.offset_ns)

    axis = RunClock(close_batch, read=clocks.read, monotonic_ns=lambda: clocks.monotonic_ns)
    clocks.go(S, step_ns)
    assert axis.look() == step_ns
    assert told == [0]
    assert axis.offset_ns == -step_ns
    assert axis.steps == 1


def test_a_new_run_counts_anew_and_stays_on_the_axis() -> None:
    clocks = FakeClocks()
    axis = clocks.axis()
    clocks.go(S, 3 * S)
    axis.look()
    axis.begin()
    assert axis.facts() == ClockFacts(
        offset_ns=-3 * S,
        error_ns=STEP_THRESHOLD_NS,
        least_offset_ns=-3 * S,
        most_offset_ns=-3 * S,
        exchanges=0,
    )
    assert axis.now_ns() == BEGIN.realtime_ns + S


def test_watching_notices_a_step() -> None:
    clocks = FakeClocks()
    noticed = gevent.event.Event()
    axis = RunClock(noticed.set, read=clocks.read, monotonic_ns=lambda: 0)
    watching = gevent.spawn(axis.watch, 0.001)
    clocks.go(S, S)
    try:
        assert noticed.wait(120)
    finally:
        watching.kill()


def test_a_pong_says_when_the_ping_came_and_when_it_was_answered() -> None:
    clocks = FakeClocks()
    axis = clocks.axis()
    received_ns = axis.now_ns()
    clocks.go(5 * MS)
    assert pong(PingMessage(number=7, sent_ns=11), axis, received_ns) == PongMessage(
        number=7,
        sent_ns=11,
        received_ns=BEGIN.realtime_ns,
        answered_ns=BEGIN.realtime_ns + 5 * MS,
    )


def exchange(offset_ns: int, there_ns: int, held_ns: int, back_ns: int, step_ns: int = 0) -> PingExchange:
    """Of a worker whose clock is behind the axis by ``offset_ns``, and is stepped on the way back."""
    received_ns = BEGIN.realtime_ns + offset_ns + there_ns
    elapsed_ns = there_ns + held_ns + back_ns
    heard = ClockPair(BEGIN.realtime_ns + elapsed_ns + step_ns, BEGIN.monotonic_ns + elapsed_ns)
    return PingExchange(BEGIN, received_ns, received_ns + held_ns, heard)


@given(offsets_ns, delays_ns, delays_ns, delays_ns)
def test_however_delays_are_shared_the_true_offset_is_within_the_error(
    offset_ns: int, there_ns: int, held_ns: int, back_ns: int
) -> None:
    one = exchange(offset_ns, there_ns, held_ns, back_ns)
    assert one.usable
    assert one.round_trip_ns == there_ns + back_ns
    assert abs(one.estimate.offset_ns - offset_ns) <= one.estimate.error_ns
    assert one.estimate.error_ns == max(1, -(-(there_ns + back_ns) // 2))


@given(offsets_ns, delays_ns, delays_ns, st.integers(-STEP_THRESHOLD_NS, STEP_THRESHOLD_NS))
def test_the_error_also_bounds_what_the_two_readings_of_a_pair_differ(
    offset_ns: int, there_ns: int, back_ns: int, noise_ns: int
) -> None:
    clean = exchange(offset_ns, there_ns, 0, back_ns)
    misread = ClockPair(clean.heard.realtime_ns, clean.heard.monotonic_ns + noise_ns)
    one = PingExchange(clean.sent, clean.received_ns, clean.answered_ns, misread)
    assert abs(one.estimate.offset_ns - offset_ns) <= one.estimate.error_ns


@given(st.integers(0, S))
def test_delays_that_are_equal_leave_the_offset_exact(delay_ns: int) -> None:
    assert exchange(123, delay_ns, 5, delay_ns).estimate.offset_ns == 123


@given(beyond_threshold, delays_ns)
def test_an_exchange_during_which_realtime_was_stepped_does_not_count(step_ns: int, delay_ns: int) -> None:
    assert not exchange(0, delay_ns, 0, delay_ns, step_ns).usable


def test_an_exchange_that_was_held_for_longer_than_it_took_does_not_count() -> None:
    held = exchange(0, 100, 0, 100)
    assert not PingExchange(held.sent, held.received_ns, held.answered_ns + 201, held.heard).usable


@given(st.lists(st.tuples(delays_ns, delays_ns, st.sampled_from([0, 0, S])), max_size=8))
def test_the_usable_exchange_with_the_shortest_round_trip_counts(ways: list[tuple[int, int, int]]) -> None:
    best = best_of(exchange(42, there, 9, back, step) for there, back, step in ways)
    sums = [there + back for there, back, step in ways if not step]
    assert (None if best is None else best.error_ns) == (max(1, (min(sums) + 1) // 2) if sums else None)


def test_the_drift_allowance_is_rounded_up() -> None:
    assert drift_ns(0) == 0
    assert drift_ns(1) == 1
    assert drift_ns(S) == S * DRIFT_PPM // 1_000_000


def estimates_of(offset_ns: int) -> st.SearchStrategy[OffsetEstimate]:
    """Estimates that hold this true offset within their error."""
    return st.tuples(st.integers(1, S), st.integers(-S, S)).map(
        lambda drawn: OffsetEstimate(offset_ns + max(-drawn[0], min(drawn[0], drawn[1])), drawn[0])
    )


@given(st.data(), offsets_ns, st.integers(0, 3600 * S), st.floats(-1, 1))
def test_while_clocks_drift_no_faster_than_allowed_the_true_offset_stays_within_the_error(
    data: st.DataObject, true_ns: int, elapsed_ns: int, share: float
) -> None:
    now_true_ns = true_ns + int(share * drift_ns(elapsed_ns))
    old = data.draw(st.none() | estimates_of(true_ns))
    new = data.draw(st.none() | estimates_of(now_true_ns))
    known = update(old, new, elapsed_ns)
    if known is None:
        assert (old, new) == (None, None)
    else:
        assert abs(known.offset_ns - now_true_ns) <= known.error_ns


def test_a_new_estimate_is_taken_up_to_four_times_the_error_and_the_drift() -> None:
    old = OffsetEstimate(1000, 50_000)
    bound_ns = BUSY_FACTOR * 50_000 + drift_ns(30 * S)
    at_bound, beyond = OffsetEstimate(2000, bound_ns), OffsetEstimate(2000, bound_ns + 1)
    assert update(old, at_bound, 30 * S) == at_bound
    assert update(old, beyond, 30 * S) == OffsetEstimate(1000, 50_000 + drift_ns(30 * S))


def test_a_busy_channel_that_stays_busy_is_believed_in_time() -> None:
    known: OffsetEstimate | None = OffsetEstimate(0, 50_000)
    busy = OffsetEstimate(1000, 200 * MS)
    rounds = 0
    while known != busy:
        known = update(known, busy, 30 * S)
        rounds += 1
    assert 10 < rounds < 20


def test_an_old_estimate_that_contradicts_the_new_one_gives_way() -> None:
    old, busy = OffsetEstimate(0, 50_000), OffsetEstimate(100 * MS, 20 * MS)
    assert update(old, busy, S) == busy
    agreeing = OffsetEstimate(20 * MS, 20 * MS)
    assert update(old, agreeing, S) == old.aged(S)


def test_a_round_that_brought_nothing_only_adds_the_drift() -> None:
    assert update(OffsetEstimate(5, 10), None, S) == OffsetEstimate(5, 10 + drift_ns(S))
    assert update(None, None, S) is None


@given(offsets_ns, steps_ns)
def test_a_step_changes_the_offset_by_exactly_the_step(offset_ns: int, step_ns: int) -> None:
    assert OffsetEstimate(offset_ns, 9).stepped(step_ns) == OffsetEstimate(offset_ns - step_ns, 9)
