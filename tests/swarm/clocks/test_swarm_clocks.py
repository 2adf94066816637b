"""A worker measures its clock against the run's: rounds, losses, steps; a simulated channel and time."""

import heapq
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator

import gevent
import pytest
from gevent.queue import Queue
from hypothesis import given, strategies as st

from llm_locust.client.http.clock import STEP_THRESHOLD_NS, ClockPair
from llm_locust.core.manifest import ClockFacts
from llm_locust.swarm import clocks
from llm_locust.swarm.channel.messages import PingMessage, PongMessage
from llm_locust.swarm.clocks import (
    FIRST_WITHIN_NS,
    LATER_NS,
    PONG_TIMEOUT_NS,
    ROUND_EXCHANGES,
    SOON_NS,
    RunClock,
    WorkerClock,
    drift_ns,
    pong,
)

pytestmark = pytest.mark.alone

S = 1_000_000_000
MS = 1_000_000

#: Of one ping: the ways there and back, and how often the pong comes (0: it is lost).
Way = tuple[int, int, int]

LOST: Way = (0, 0, 0)


class World:
    """A worker, its channel and time, which passes only in :meth:`run`.

    The axis begins at the worker's monotonic 0, ahead of its realtime by ``true_ns``.
    """

    def __init__(self, ways: Iterable[Way] = (), true_ns: int = 12_345_678_901) -> None:
        self.now_ns = 0
        self.true_ns = true_ns
        self.stepped_ns = 0
        self.cut = False
        self.pings: list[tuple[int, PingMessage]] = []  # when, what
        self.on_step_offsets: list[int | None] = []
        self._ways: Iterator[Way] = itertools.chain(ways, itertools.repeat((MS, MS, 1)))
        self._under_way: list[tuple[int, int, PongMessage]] = []
        self._tie = itertools.count()
        self.watch = WorkerClock(self._send, self._on_step, read=self.read, draw=lambda: 0.0)

    def read(self) -> ClockPair:
        return ClockPair(1_800_000_000 * S + self.now_ns + self.stepped_ns, self.now_ns)

    def step_clock(self, ns: int) -> None:
        self.stepped_ns += ns
        self.true_ns -= ns

    def axis_ns(self, at_ns: int) -> int:
        return 1_800_000_000 * S + at_ns + self.stepped_ns + self.true_ns

    def _send(self, ping: PingMessage) -> None:
        self.pings.append((self.now_ns, ping))
        there_ns, back_ns, copies = next(self._ways)
        if self.cut:
            raise ConnectionError("no master")
        received_ns = self.now_ns + there_ns
        answer = PongMessage(
            number=ping.number,
            sent_ns=ping.sent_ns,
            received_ns=self.axis_ns(received_ns),
            answered_ns=self.axis_ns(received_ns + 1000),
        )
        for copy in range(copies):
            at_ns = received_ns + 1000 + back_ns + copy * 7 * MS
            heapq.heappush(self._under_way, (at_ns, next(self._tie), answer))

    def _on_step(self) -> None:
        self.on_step_offsets.append(self.watch.offset_ns)

    def run(self, until: Callable[[], bool] | None = None, for_ns: int = 3600 * S) -> None:
        """Let time pass until the condition holds or the time is over."""
        end_ns = self.now_ns + for_ns
        while until is None or not until():
            wake_ns = self.now_ns + round(self.watch.step() * S)
            if until is not None and until():
                return
            if self._under_way and self._under_way[0][0] <= wake_ns:
                self.hear()
            elif wake_ns > end_ns:
                assert until is None, "it never came about"
                self.now_ns = end_ns
                return
            else:
                self.now_ns = wake_ns

    def hear(self) -> None:
        """Let the next pong come."""
        self.now_ns, _, answer = heapq.heappop(self._under_way)
        self.watch.on_pong(answer)

    def measure(self) -> None:
        """Let a round go by."""
        pings = len(self.pings)
        self.run(lambda: len(self.pings) > pings)
        self.run(lambda: self.watch._round is None)

    @property
    def ping_times_ns(self) -> list[int]:
        return [at_ns for at_ns, _ in self.pings]

    @property
    def miss_ns(self) -> int:
        """How far the measured offset is off."""
        assert self.watch.offset_ns is not None
        return abs(self.watch.offset_ns - self.true_ns)

    @property
    def facts(self) -> ClockFacts:
        facts = self.watch.facts()
        assert facts is not None
        return facts


def measured(ways: Iterable[Way] = ()) -> World:
    """A world whose first round is over."""
    world = World(ways)
    world.watch.begin()
    world.measure()
    return world


def test_before_the_first_round_nothing_is_known_and_before_a_run_nothing_is_sent() -> None:
    world = World()
    world.run(for_ns=100 * S)
    assert world.pings == []
    assert (world.watch.offset_ns, world.watch.error_ns, world.watch.facts()) == (None, None, None)


def test_a_round_measures_the_offset_by_its_shortest_exchange() -> None:
    ways = [(9 * MS, MS, 1), (300_000, 100_000, 1), *[(5 * MS, 5 * MS, 1)] * 6]
    world = measured(ways)
    assert len(world.pings) == ROUND_EXCHANGES
    assert world.watch.error_ns == 200_000
    assert world.watch.offset_ns == world.true_ns + 100_000
    assert world.facts == ClockFacts(
        offset_ns=world.true_ns + 100_000,
        error_ns=200_000,
        least_offset_ns=world.true_ns + 100_000,
        most_offset_ns=world.true_ns + 100_000,
        exchanges=ROUND_EXCHANGES,
    )


def test_a_ping_is_sent_when_the_pong_of_the_one_before_came() -> None:
    world = measured([(MS, 2 * MS, 1)] * 8)
    gaps = [b - a for a, b in itertools.pairwise(world.ping_times_ns)]
    assert gaps == [3 * MS + 1000] * 7
    assert [ping.number for _, ping in world.pings] == list(range(1, 9))


def test_rounds_are_made_at_the_beginning_after_five_seconds_and_then_every_thirty() -> None:
    world = World()
    world.watch.begin()
    world.run(for_ns=130 * S)
    starts_s = [at // S for at in world.ping_times_ns[::ROUND_EXCHANGES]]
    assert starts_s == [0, 5, 35, 65, 95, 125]
    assert world.facts.exchanges == len(world.pings)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_first_pings_of_many_workers_are_spread_over_the_first_second(share: float) -> None:
    sent: list[int] = []
    now_ns = 0

    def read() -> ClockPair:
        return ClockPair(now_ns, now_ns)

    watch = WorkerClock(lambda _: sent.append(now_ns), lambda: None, read=read, draw=lambda: share)
    watch.begin()
    while not sent:
        now_ns += round(watch.step() * S)
    assert sent == [round(share * FIRST_WITHIN_NS)]
    assert sent[0] < S


def test_after_a_lost_pong_the_round_goes_on_with_the_time_out() -> None:
    world = measured([(MS, MS, 1), LOST, LOST])
    gaps = [b - a for a, b in itertools.pairwise(world.ping_times_ns)]
    assert gaps[1:3] == [PONG_TIMEOUT_NS] * 2
    assert world.facts.exchanges == ROUND_EXCHANGES - 2
    assert world.miss_ns == 0


def test_a_pong_that_comes_late_or_twice_changes_nothing() -> None:
    late = (PONG_TIMEOUT_NS, 3 * MS, 1)
    world = measured([late, (MS, MS, 3), late])
    assert world.facts.exchanges == ROUND_EXCHANGES - 2
    assert (world.miss_ns, world.watch.error_ns) == (0, MS)


def test_a_round_without_a_pong_brings_nothing_and_is_soon_made_again() -> None:
    world = measured([LOST] * ROUND_EXCHANGES)
    assert world.watch.facts() is None
    over_ns = world.now_ns
    world.measure()
    assert world.ping_times_ns[ROUND_EXCHANGES] == over_ns + SOON_NS
    assert world.miss_ns == 0


def test_a_later_round_without_a_pong_adds_the_drift_to_the_error_and_is_soon_made_again() -> None:
    world = measured([(MS, MS, 1)] * 2 * ROUND_EXCHANGES + [LOST] * ROUND_EXCHANGES)
    world.measure()
    measured_ns = world.now_ns
    world.measure()
    over_ns = world.now_ns
    assert world.watch.error_ns == MS + drift_ns(over_ns - measured_ns)
    world.measure()
    assert world.ping_times_ns[3 * ROUND_EXCHANGES] == over_ns + SOON_NS
    assert (world.miss_ns, world.watch.error_ns) == (0, MS)


def test_a_ping_that_cannot_be_sent_is_lost_at_once() -> None:
    world = World()
    world.cut = True
    world.watch.begin()
    world.measure()
    assert (world.now_ns, len(world.pings)) == (0, ROUND_EXCHANGES)
    assert world.watch.facts() is None
    world.cut = False
    world.measure()
    assert world.ping_times_ns[-ROUND_EXCHANGES] == SOON_NS
    assert world.miss_ns == 0


ways = st.tuples(st.integers(0, 3 * S), st.integers(0, 3 * S), st.integers(0, 3))


@given(st.lists(ways, max_size=40), st.integers(-(10**15), 10**15))
def test_however_pongs_are_delayed_lost_or_doubled_the_true_offset_is_within_the_error(
    ways: list[Way], true_ns: int
) -> None:
    world = World(ways, true_ns)
    world.watch.begin()
    while len(world.pings) <= len(ways):
        world.measure()
        if world.watch.offset_ns is not None:
            assert world.watch.error_ns is not None
            assert world.miss_ns <= world.watch.error_ns
    assert world.watch.offset_ns is not None


def test_a_round_on_a_busy_channel_leaves_the_estimate_with_the_drift_in_its_error() -> None:
    world = measured([(MS, MS, 1)] * 8 + [(150 * MS, 0, 1)] * 8)
    before_ns = world.now_ns
    world.measure()
    assert world.miss_ns == 0
    assert world.watch.error_ns == MS + drift_ns(world.now_ns - before_ns)
    facts = world.watch.facts()
    assert facts is not None
    assert facts.error_ns == 75 * MS, "what was dropped said so, and may have been right"
    world.measure()
    assert world.watch.error_ns == MS


@given(st.integers(-(10**17), 10**17).filter(lambda ns: abs(ns) > STEP_THRESHOLD_NS))
def test_a_step_changes_the_offset_by_exactly_the_step_and_is_told_before(step_ns: int) -> None:
    world = measured()
    before = world.watch.offset_ns
    assert before is not None
    world.step_clock(step_ns)
    assert world.watch.look() == step_ns
    assert world.watch.offset_ns == before - step_ns
    assert world.on_step_offsets == [before]
    facts = world.facts
    assert (facts.steps, facts.step_ns) == (1, step_ns)
    assert (facts.least_offset_ns, facts.most_offset_ns) == tuple(sorted([before, before - step_ns]))


def test_a_step_is_noticed_within_half_a_second_logged_once_and_measured_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = measured()
    world.run(for_ns=20 * S)
    pings, stepped_at_ns = len(world.pings), world.now_ns
    world.step_clock(3600 * S)
    with caplog.at_level(logging.WARNING):
        world.measure()
        world.run(for_ns=100 * S)
    assert world.ping_times_ns[pings] - stepped_at_ns <= S // 2
    starts_ns = world.ping_times_ns[pings::ROUND_EXCHANGES]
    assert (starts_ns[1] - starts_ns[0]) // S == SOON_NS // S
    assert (starts_ns[2] - starts_ns[1]) // S == LATER_NS // S
    assert world.miss_ns == 0
    assert [r.getMessage() for r in caplog.records] == [
        "this machine's clock was stepped by +3600.000000 s; no latency changes by it"
    ]


@pytest.mark.parametrize("heard_first", [False, True])
@pytest.mark.parametrize("exchanges", range(1, ROUND_EXCHANGES + 1))
def test_a_step_during_a_round_makes_it_begin_anew(exchanges: int, heard_first: bool) -> None:
    # The first pongs have the shortest ways: were they kept, their offset of before the step would count.
    world = World([(MS, MS, 1)] * exchanges + [(5 * MS, 5 * MS, 1)] * 8)
    world.watch.begin()
    world.run(lambda: len(world.pings) == exchanges)
    world.step_clock(-2 * S)
    if heard_first:  # the pong comes before anybody has looked at the clocks
        world.hear()
    world.measure()
    assert len(world.pings) == exchanges + ROUND_EXCHANGES
    assert (world.miss_ns, world.watch.error_ns) == (0, 5 * MS)
    assert world.facts.exchanges == ROUND_EXCHANGES + exchanges - 1
    assert world.facts.steps == 1


def test_a_step_between_runs_corrects_what_is_known_and_one_before_the_first_run_sends_nothing() -> None:
    world = World()
    world.step_clock(S)
    world.run(for_ns=10 * S)
    assert world.pings == []
    assert world.on_step_offsets == [None]
    assert world.watch.facts() is None


def test_a_new_run_counts_anew_keeps_what_is_known_and_measures_again() -> None:
    world = measured()
    world.step_clock(S)
    world.run(for_ns=10 * S)
    pings = len(world.pings)
    world.watch.begin()
    known = world.watch.offset_ns
    assert known == world.true_ns
    assert world.facts == ClockFacts(
        offset_ns=known, error_ns=MS, least_offset_ns=known, most_offset_ns=known, exchanges=0
    )
    begun_ns = world.now_ns
    world.measure()
    assert world.ping_times_ns[pings] == begun_ns
    assert world.facts.exchanges == ROUND_EXCHANGES


def test_a_run_that_begins_during_a_round_begins_its_own() -> None:
    world = World([(MS, MS, 2)] * 4)
    world.watch.begin()
    world.run(lambda: len(world.pings) == 3)
    world.watch.begin()
    world.measure()
    assert len(world.pings) == 3 + ROUND_EXCHANGES
    assert world.facts.exchanges == ROUND_EXCHANGES
    assert world.miss_ns == 0


def test_a_worker_and_a_master_in_greenlets_of_their_own_come_to_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nothing but the run's beginning and the pongs wakes the worker.
    monkeypatch.setattr(clocks, "LOOK_INTERVAL_S", 3600.0)
    monkeypatch.setattr(clocks, "PONG_TIMEOUT_NS", 3600 * S)
    axis = RunClock()
    to_master: Queue[PingMessage] = Queue()
    watch = WorkerClock(to_master.put, lambda: None, draw=lambda: 0.0)

    def master() -> None:
        for ping in to_master:
            watch.on_pong(pong(ping, axis, axis.now_ns()))

    answering, watching = gevent.spawn(master), gevent.spawn(watch.run)
    try:
        gevent.idle()
        watch.begin()
        with gevent.Timeout(120):
            while watch.offset_ns is None:
                gevent.sleep(0.001)
    finally:
        answering.kill()
        watching.kill()
    facts = watch.facts()
    assert facts is not None
    assert facts.exchanges == ROUND_EXCHANGES
    assert abs(facts.offset_ns) <= facts.error_ns + STEP_THRESHOLD_NS
