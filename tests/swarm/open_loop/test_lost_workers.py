"""What a worker that is gone had still to send is counted, and the run says so."""

import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llm_locust.options.arrivals import LoadSettings
from llm_locust.swarm.channel.messages import (
    PROTOCOL,
    CountsMessage,
    LoadCounts,
    RateMessage,
    RunInfo,
    StageMessage,
)
from llm_locust.swarm.open_loop.load import Scheduled, Span, scheduled
from llm_locust.swarm.roles.lost_workers import note_rate, note_undelivered
from llm_locust.swarm.run.roster import Roster
from llm_locust.swarm.run.run import ActiveRun
from llm_locust.workload.arrivals import Process, TraceFile, parse_rate

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


def counts(**load: Any) -> CountsMessage:
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
    run.roster.done("a", counts(until_ns=round(at_s * S), **load), stopped=True)
    note_undelivered(run)
    return run


def unsent(run: ActiveRun) -> dict[str, tuple[int, int]]:
    return {f.id: (f.unsent, f.unsent_warmup) for f in run.roster.facts({})}


def test_the_rest_of_the_schedule_of_a_worker_that_left_is_unsent_and_cuts_the_run_short() -> None:
    run = run_of(EVEN, warmup_s=3.0)
    run.roster.done("b", counts(until_ns=1 * S, unsent=2, unsent_warmup=2), stopped=False)
    ended(run, 16.0)
    # b has the odd ones of 20 a second: 1.05 s, 1.15 s ... 15.95 s; 20 of them are before 3 s.
    assert unsent(run) == {"a": (0, 0), "b": (150 + 2, 20 + 2)}
    assert run.cut_short
    assert run.stop_reason.startswith("150 requests were never sent: worker b was gone before the end")


def test_of_a_lost_worker_what_was_due_after_its_last_sign_of_life_is_unsent() -> None:
    run = run_of(EVEN)
    run.clock.at_s = 6.0  # type: ignore[attr-defined]
    run.roster.heard("b", counts())
    ended(run, 16.0)
    assert unsent(run) == {"a": (0, 0), "b": (100, 0)}
    assert run.stop_reason.startswith("100 requests were never sent: worker b was gone")


def test_workers_that_a_ctrl_c_ends_with_the_run_have_not_gone_before_its_end() -> None:
    run = run_of(EVEN)
    run.roster.done("b", counts(until_ns=15 * S), stopped=False)
    ended(run, 16.0)
    assert unsent(run) == {"a": (0, 0), "b": (0, 0)}
    assert (run.stop_reason, run.cut_short) == ("", False)


def test_a_worker_that_joined_late_has_no_share_to_leave_behind() -> None:
    run = run_of(EVEN)
    run.roster.done("b", counts(until_ns=15 * S), stopped=True)
    run.clock.at_s = 3.0  # type: ignore[attr-defined]
    run.roster.done("late", counts(until_ns=4 * S), stopped=False)
    ended(run, 16.0)
    assert unsent(run)["late"] == (0, 0)
    assert not run.cut_short


def test_a_rate_that_was_changed_counts_as_it_was() -> None:
    run = run_of(LoadSettings(arrival=Process(0.0)))
    note_rate(run, RateMessage(run="r", at_ns=ORIGIN_NS + 6 * S, rate=40.0))
    note_rate(run, RateMessage(run="another", at_ns=ORIGIN_NS, rate=4000.0))
    run.roster.done("b", counts(until_ns=1 * S), stopped=False)
    assert unsent(ended(run, 11.0))["b"][0] == 50 + 100


def test_the_drains_of_a_sweep_have_no_schedule() -> None:
    run = run_of(LoadSettings(arrival=Process(0.0)))
    run.info["rate"] = 0.0
    for step, at_s, rate in (("load", 0, 20.0), ("drain", 10, 20.0), ("load", 15, 40.0)):
        note_rate(run, StageMessage(run="r", stage=0, step=step, at_ns=ORIGIN_NS + at_s * S, rate=rate))  # type: ignore[arg-type]
    run.roster.done("b", counts(until_ns=5 * S), stopped=False)
    assert unsent(ended(run, 20.0))["b"][0] == 50 + 100


def test_of_a_count_of_requests_the_reason_says_how_many_were_not_sent() -> None:
    of_users = LoadSettings(num_requests=300)
    run = run_of(of_users, open_loop=False)
    run.stop_reason = "num-requests: the workers that are left have sent their shares of 300"
    run.roster.done("b", counts(share_left=97), stopped=False)
    ended(run, 16.0, spent=True)
    assert run.cut_short
    assert run.stop_reason.startswith("97 requests were never sent: worker b was gone before the end")
    of_a_rate = run_of(LoadSettings(arrival=Process(0.0), rate=parse_rate("20"), num_requests=300))
    of_a_rate.roster.done("b", counts(until_ns=1 * S), stopped=False)
    ended(of_a_rate, 14.5, spent=True)  # the last request is due at 14.95 s
    assert unsent(of_a_rate)["b"][0] == 150 - 10
    assert of_a_rate.cut_short


def test_a_run_that_ends_by_its_time_before_its_count_is_not_cut_short() -> None:
    run = run_of(LoadSettings(num_requests=300), open_loop=False)
    run.roster.done("b", counts(share_left=97), stopped=False)
    ended(run, 16.0, share_left=90)
    assert not run.cut_short


def test_a_share_that_was_sent_before_its_worker_left_is_whole() -> None:
    run = run_of(LoadSettings(num_requests=300), open_loop=False)
    run.roster.done("b", counts(spent=True), stopped=False)
    ended(run, 16.0, spent=True)
    assert not run.cut_short


def test_a_fault_that_ended_the_run_stays_its_reason() -> None:
    run = run_of(EVEN)
    run.cut("the process was told to end (SIGTERM or Ctrl-C)")
    run.roster.done("b", counts(until_ns=1 * S), stopped=False)
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
