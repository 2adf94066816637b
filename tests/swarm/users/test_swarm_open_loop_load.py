"""One worker's part of an open loop: its share, what it counts, and how it ends."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import gevent
import msgspec
import pytest
from gevent.event import Event
from run_infos import run_info

from llm_locust.core.manifest import Manifest
from llm_locust.options.arrivals import LoadSettings
from llm_locust.swarm.open_loop.dispatch import ScheduleClock
from llm_locust.swarm.open_loop.load import OpenLoad, open_loop_class, timetable
from llm_locust.workload.arrivals import Arrival, Process, Schedule, TraceFile, constant
from llm_locust.workload.traces.trace import WINDOW

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
    gevent.sleep(0.3)
    counts = part.counts()
    assert len(sender.sent) == 2, "three of two workers: the first has two"
    assert counts.waiting == counts.held_back > 50
    assert counts.longest_held_ns > 100_000_000
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
