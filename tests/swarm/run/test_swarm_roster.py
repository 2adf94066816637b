"""Who takes part in a run: places, last words, what the manifest says of each worker."""

from dataclasses import dataclass, field
from random import Random

import pytest

from llm_locust.core.manifest import ClockFacts, NodeHealth, WorkerFacts
from llm_locust.swarm.channel.messages import CountsMessage, LoadCounts
from llm_locust.swarm.delivery.collector import Inbox
from llm_locust.swarm.run.roster import SILENT_S, Roster, place_key

RUN = "20261121-roster"
WORKERS = ("host-b_2", "host-a_1", "host-c_3")


@dataclass
class Time:
    """A run's axis that stands until it is moved."""

    ns: int = field(default=1_000_000_000)

    def now_ns(self) -> int:
        return self.ns

    def pass_s(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


def counts(finished: int, in_flight: int = 0, run: str = RUN, dropped: int = 0) -> CountsMessage:
    return CountsMessage(
        run=run,
        finished=finished,
        in_flight=in_flight,
        unsent=0,
        dropped=dropped,
        load=LoadCounts(ok=finished),
        clock=ClockFacts(offset_ns=5, error_ns=2, least_offset_ns=4, most_offset_ns=6, exchanges=8),
        health=NodeHealth(hub_lag_ms_p99=0.5, hub_lag_ms_max=4.0, cpu_percent_max=30.0, rss_mib_max=99.0),
    )


def inbox(rows: int, finished: int | None = None, in_flight: int | None = None) -> Inbox:
    made = Inbox()
    made.rows, made.finished, made.in_flight = rows, finished, in_flight
    return made


def facts_of(roster: Roster, worker: str, box: Inbox | None = None) -> WorkerFacts:
    (facts,) = (f for f in roster.facts({} if box is None else {worker: box}) if f.id == worker)
    return facts


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def roster(time: Time) -> Roster:
    return Roster(RUN, WORKERS, time.now_ns)


def test_places_are_those_of_the_names_in_order_however_they_connected(time: Time) -> None:
    shuffled = list(WORKERS)
    Random(1).shuffle(shuffled)
    assert Roster(RUN, shuffled, time.now_ns).places == [place_key(worker) for worker in sorted(WORKERS)]


def test_a_worker_that_joins_late_comes_behind_and_is_marked(roster: Roster, time: Time) -> None:
    time.pass_s(3)
    roster.heard("host-0_late")
    facts = {f.id: f for f in roster.facts({})}
    assert facts["host-0_late"].index == 3
    assert facts["host-0_late"].late
    assert facts["host-0_late"].joined_ns == time.ns
    assert not any(facts[worker].late for worker in WORKERS)


def test_every_index_is_given_once(roster: Roster) -> None:
    for n in range(200):
        roster.heard(f"late-{n}")
    assert [f.index for f in roster.facts({})] == list(range(203))


def test_a_worker_without_a_last_word_is_lost(roster: Roster) -> None:
    roster.done("host-a_1", counts(10), stopped=True)
    assert {f.id: f.lost for f in roster.facts({})} == {
        "host-a_1": False,
        "host-b_2": True,
        "host-c_3": True,
    }


def test_a_last_word_before_the_stop_means_that_the_worker_left(roster: Roster) -> None:
    roster.done("host-a_1", counts(10), stopped=False)
    roster.done("host-b_2", counts(10), stopped=True)
    roster.done("host-a_1", counts(10), stopped=True)  # asked again at the stop, it says so again
    roster.done("host-b_2", counts(10), stopped=True)
    assert {f.id: f.left for f in roster.facts({})} == {
        "host-a_1": True,
        "host-b_2": False,
        "host-c_3": False,
    }


def test_announced_is_what_was_said_last_by_a_report_or_with_a_batch(roster: Roster) -> None:
    roster.heard("host-a_1", counts(90, in_flight=10))
    by_report = facts_of(roster, "host-a_1", box=inbox(rows=80, finished=80, in_flight=9))
    assert (by_report.announced, by_report.in_flight, by_report.missing) == (90, 10, 10)
    by_batch = facts_of(roster, "host-a_1", box=inbox(rows=150, finished=150, in_flight=8))
    assert (by_batch.announced, by_batch.in_flight, by_batch.unrecorded) == (150, 8, 8)


def test_a_worker_that_never_said_a_word_has_announced_nothing(roster: Roster) -> None:
    facts = facts_of(roster, "host-c_3")
    assert facts.announced is None
    assert facts.unrecorded == 0
    assert facts.clock is None
    assert facts.health.hub_lag_ms_max is None


def test_clock_and_health_are_those_of_the_last_report(roster: Roster) -> None:
    roster.heard("host-a_1", counts(1, dropped=3))
    facts = facts_of(roster, "host-a_1")
    assert facts.clock is not None
    assert (facts.clock.offset_ns, facts.clock.error_ns) == (5, 2)
    assert facts.health.hub_lag_ms_max == 4.0
    assert facts.dropped == 3


def test_counts_of_another_run_are_not_taken(roster: Roster) -> None:
    roster.heard("host-a_1", counts(1_000, run="an earlier one"))
    assert facts_of(roster, "host-a_1").announced is None


def test_the_end_waits_for_workers_that_are_there_or_were_a_moment_ago(roster: Roster, time: Time) -> None:
    roster.done("host-a_1", counts(1), stopped=True)
    assert sorted(roster.awaited(lambda _: False)) == ["host-b_2", "host-c_3"]
    time.pass_s(SILENT_S - 1)
    roster.heard("host-c_3")
    time.pass_s(2)
    assert roster.awaited(lambda _: False) == ["host-c_3"]
    assert sorted(roster.awaited(lambda worker: worker != "host-c_3")) == ["host-b_2", "host-c_3"]
