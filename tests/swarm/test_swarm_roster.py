"""Who takes part in a run, what is lost with a worker, and what the verdict gets of it."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from metrics_cases import batch, failed, manifest, request
from summaries import summarise, typed

from llm_locust.core.manifest import ClockFacts, NodeHealth, WorkerFacts
from llm_locust.core.record import RequestRecord
from llm_locust.figures.summary import Summary
from llm_locust.figures.verdict import RunVerdict, verdict
from llm_locust.options.load import LoadSettings
from llm_locust.swarm.channel.collector import Inbox
from llm_locust.swarm.channel.messages import (
    PROTOCOL,
    CountsMessage,
    LoadCounts,
    RateMessage,
    RunInfo,
    StageMessage,
    place_key,
)
from llm_locust.swarm.run.finishing import RunEnd, exit_verdict, without_gates
from llm_locust.swarm.run.roster import SILENT_S, Roster
from llm_locust.swarm.run.run import ActiveRun
from llm_locust.swarm.users.open_loop import Scheduled, Span, scheduled
from llm_locust.workload.arrivals import Process, TraceFile, parse_rate

# --- Who takes part in a run: places, last words, what the manifest says of each worker


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


# --- What a worker that is gone had still to send is counted, and the run says so


S = 1_000_000_000
ORIGIN_NS = 100 * S
EVEN = LoadSettings(arrival=Process(0.0), rate=parse_rate("20"))


def info(**fields: Any) -> RunInfo:
    found: dict[str, Any] = {"id": "r", "seed": 3, "protocol": PROTOCOL, "starters": 2, "rate": 20.0}
    return cast(RunInfo, found | {"origin_ns": ORIGIN_NS, "trace_scale": None} | fields)


@dataclass
class Clock:
    at_s: float = 0.0

    def now_ns(self) -> int:
        return ORIGIN_NS + round(self.at_s * S)


def lost_counts(**load: Any) -> CountsMessage:
    return CountsMessage(run="r", finished=9, in_flight=0, load=LoadCounts(**load))


def run_of(load: LoadSettings, *, open_loop: bool = True, warmup_s: float = 0.0) -> ActiveRun:
    """A run of the workers a and b that began at the schedule's start, at 0 s."""
    clock = Clock()
    settings: Any = SimpleNamespace(load=load, run=SimpleNamespace(warmup_s=warmup_s))
    nothing: Any = None
    return ActiveRun(
        info=info(),
        name="r",
        path=Path("r"),
        settings=settings,
        workers_expected=2,
        collector=nothing,
        roster=Roster("r", ("a", "b"), clock.now_ns),
        clock=clock,  # type: ignore[arg-type]
        health=nothing,
        started_ns=ORIGIN_NS,
        open_loop=open_loop,
    )


def ended(run: ActiveRun, at_s: float, **load: Any) -> ActiveRun:
    """The run after its end, which the worker a saw."""
    run.clock.at_s = at_s  # type: ignore[attr-defined]
    run.stopped()
    run.roster.done("a", lost_counts(until_ns=round(at_s * S), **load), stopped=True)
    run.note_undelivered()
    return run


def unsent(run: ActiveRun) -> dict[str, tuple[int, int]]:
    return {f.id: (f.unsent, f.unsent_warmup) for f in run.roster.facts({})}


def test_the_rest_of_the_schedule_of_a_worker_that_left_is_unsent_and_cuts_the_run_short() -> None:
    run = run_of(EVEN, warmup_s=3.0)
    run.roster.done("b", lost_counts(until_ns=1 * S, unsent=2, unsent_warmup=2), stopped=False)
    ended(run, 16.0)
    # b has the odd ones of 20 a second: 1.05 s, 1.15 s ... 15.95 s; 20 of them are before 3 s.
    assert unsent(run) == {"a": (0, 0), "b": (150 + 2, 20 + 2)}
    assert run.cut_short
    assert run.stop_reason.startswith("150 requests were never sent: worker b was gone before the end")


def test_of_a_lost_worker_what_was_due_after_its_last_sign_of_life_is_unsent() -> None:
    run = run_of(EVEN)
    run.clock.at_s = 6.0  # type: ignore[attr-defined]
    run.roster.heard("b", lost_counts())
    ended(run, 16.0)
    assert unsent(run) == {"a": (0, 0), "b": (100, 0)}
    assert run.stop_reason.startswith("100 requests were never sent: worker b was gone")


def test_workers_that_a_ctrl_c_ends_with_the_run_have_not_gone_before_its_end() -> None:
    run = run_of(EVEN)
    run.roster.done("b", lost_counts(until_ns=15 * S), stopped=False)
    ended(run, 16.0)
    assert unsent(run) == {"a": (0, 0), "b": (0, 0)}
    assert (run.stop_reason, run.cut_short) == ("", False)


def test_a_worker_that_joined_late_has_no_share_to_leave_behind() -> None:
    run = run_of(EVEN)
    run.roster.done("b", lost_counts(until_ns=15 * S), stopped=True)
    run.clock.at_s = 3.0  # type: ignore[attr-defined]
    run.roster.done("late", lost_counts(until_ns=4 * S), stopped=False)
    ended(run, 16.0)
    assert unsent(run)["late"] == (0, 0)
    assert not run.cut_short


def test_a_rate_that_was_changed_counts_as_it_was() -> None:
    run = run_of(LoadSettings(arrival=Process(0.0)))
    run.note_rate(RateMessage(run="r", at_ns=ORIGIN_NS + 6 * S, rate=40.0))
    run.note_rate(RateMessage(run="another", at_ns=ORIGIN_NS, rate=4000.0))
    run.roster.done("b", lost_counts(until_ns=1 * S), stopped=False)
    assert unsent(ended(run, 11.0))["b"][0] == 50 + 100


def test_the_drains_of_a_sweep_have_no_schedule() -> None:
    run = run_of(LoadSettings(arrival=Process(0.0)))
    run.info["rate"] = 0.0
    for step, at_s, rate in (("load", 0, 20.0), ("drain", 10, 20.0), ("load", 15, 40.0)):
        run.note_rate(StageMessage(run="r", stage=0, step=step, at_ns=ORIGIN_NS + at_s * S, rate=rate))  # type: ignore[arg-type]
    run.roster.done("b", lost_counts(until_ns=5 * S), stopped=False)
    assert unsent(ended(run, 20.0))["b"][0] == 50 + 100


def test_of_a_count_of_requests_the_reason_says_how_many_were_not_sent() -> None:
    of_users = LoadSettings(num_requests=300)
    run = run_of(of_users, open_loop=False)
    run.stop_reason = "num-requests: the workers that are left have sent their shares of 300"
    run.roster.done("b", lost_counts(share_left=97), stopped=False)
    ended(run, 16.0, spent=True)
    assert run.cut_short
    assert run.stop_reason.startswith("97 requests were never sent: worker b was gone before the end")
    of_a_rate = run_of(LoadSettings(arrival=Process(0.0), rate=parse_rate("20"), num_requests=300))
    of_a_rate.roster.done("b", lost_counts(until_ns=1 * S), stopped=False)
    ended(of_a_rate, 14.5, spent=True)  # the last request is due at 14.95 s
    assert unsent(of_a_rate)["b"][0] == 150 - 10
    assert of_a_rate.cut_short


def test_a_run_that_ends_by_its_time_before_its_count_is_not_cut_short() -> None:
    run = run_of(LoadSettings(num_requests=300), open_loop=False)
    run.roster.done("b", lost_counts(share_left=97), stopped=False)
    ended(run, 16.0, share_left=90)
    assert not run.cut_short


def test_a_share_that_was_sent_before_its_worker_left_is_whole() -> None:
    run = run_of(LoadSettings(num_requests=300), open_loop=False)
    run.roster.done("b", lost_counts(spent=True), stopped=False)
    ended(run, 16.0, spent=True)
    assert not run.cut_short


def test_a_fault_that_ended_the_run_stays_its_reason() -> None:
    run = run_of(EVEN)
    run.cut("the process was told to end (SIGTERM or Ctrl-C)")
    run.roster.done("b", lost_counts(until_ns=1 * S), stopped=False)
    ended(run, 16.0)
    assert run.stop_reason.startswith("the process was told to end")
    assert not run.ended_in_order, "another part of a restartable run follows"


def test_of_a_trace_the_rest_to_its_end_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:00:{k:02d}.000000,9,9" for k in range(40)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    load = LoadSettings(arrival=TraceFile(path), trace_scale=1.0)
    # The second worker has 1 s, 3 s ... 39 s.
    assert scheduled(load, info(trace_scale=1.0), 1, {}, Span(10.0, math.inf), 20.0) == Scheduled(15, 5)
    path.write_text(path.read_text() + "\nnoon,9,9")
    assert scheduled(load, info(trace_scale=1.0), 1, {}, Span(10.0, math.inf), 0.0).requests <= 15


@pytest.mark.parametrize("process", ["poisson", "gamma"])
def test_what_two_workers_have_in_a_span_is_the_schedule_of_one(process: str) -> None:
    load = LoadSettings(arrival=Process(1.0 if process == "poisson" else 2.0), rate=parse_rate("50"))
    span = Span(130.0, 400.0)
    both = [scheduled(load, info(), index, {}, span, 0.0).requests for index in (0, 1)]
    whole = scheduled(load, info(starters=1), 0, {}, span, 0.0).requests
    assert sum(both) == whole > 10_000


# --- What the process that ran a load adds to the verdict on its records


def summary(records: list[RequestRecord], **of_run: Any) -> Summary:
    return typed(summarise(batch(*records), manifest(**of_run)))


CUT = RunVerdict(4, "the run was cut short")
FAILED = without_gates(3)
BROKEN = RunVerdict(1, "1 of 1 gates failed")

#: What happened, and the code and reason that it gives; the first in each pair of rows rules over the second.
ENDS: dict[str, tuple[dict[str, Any], int, str]] = {
    "refused": ({"is_refused": True, "has_run": False, "judged": None}, 2, "the run was refused"),
    "no web server": (
        {"has_run": False, "was_to_run": False, "judged": None, "has_crashed": True},
        2,
        "no load was sent",
    ),
    "refused with a report": ({"is_refused": True, "judged": CUT, "given": 7}, 2, "the run was refused"),
    "no load": ({"has_run": False, "judged": None, "given": 7}, 2, "no load was sent"),
    "none was asked for": ({"has_run": False, "was_to_run": False, "judged": None}, 0, ""),
    "none was asked for, and a listener's code": (
        {"has_run": False, "was_to_run": False, "judged": None, "given": 7},
        7,
        "the locustfile has set it",
    ),
    "no report": ({"judged": None, "has_crashed": True, "given": 7}, 4, "there is no report"),
    "cut short": ({"judged": CUT, "has_crashed": True, "is_uploaded": False}, 4, "the run was cut short"),
    "a part failed": ({"judged": BROKEN, "has_crashed": True, "is_uploaded": False}, 4, "a part of the load"),
    "not uploaded": ({"judged": BROKEN, "is_uploaded": False}, 4, "the run was not copied"),
    "uploaded": ({"judged": BROKEN, "is_uploaded": True, "given": 7}, 1, "1 of 1 gates failed"),
    "failures": ({"judged": FAILED}, 1, "3 requests failed"),
    "failures with a code": ({"judged": FAILED, "code_on_error": 7, "given": 8}, 7, "3 requests failed"),
    "failures that are accepted": ({"judged": FAILED, "code_on_error": 0}, 0, ""),
    "failures that are accepted, and a listener's code": (
        {"judged": FAILED, "code_on_error": 0, "given": 8},
        8,
        "the locustfile has set it",
    ),
    "a server that stood still": ({"judged": without_gates(0, "it stood still")}, 1, "it stood still"),
    "a broken gate": ({"judged": BROKEN, "code_on_error": 0}, 1, "1 of 1 gates failed"),
    "all well": ({"judged": RunVerdict(0), "is_uploaded": True, "given": 0}, 0, ""),
}


@pytest.mark.parametrize(("facts", "code", "reason"), ENDS.values(), ids=ENDS)
def test_a_process_ends_with_the_first_code_that_applies(
    facts: dict[str, Any], code: int, reason: str
) -> None:
    found = exit_verdict(RunEnd(**facts))
    assert found.code == code
    assert found.reason.startswith(reason)


@pytest.mark.parametrize(("gates", "asked", "code"), [("rps>0", 7, 7), ("rps>0", 0, 0), ("rps>99", 0, 1)])
def test_the_code_that_was_asked_for_is_that_of_failures_beside_gates_and_of_no_broken_gate(
    gates: str, asked: int, code: int
) -> None:
    found = verdict(summary([request(), failed(1.0)], gates=gates), manifest(gates=gates))
    assert exit_verdict(RunEnd(judged=found, code_on_error=asked)).code == code
