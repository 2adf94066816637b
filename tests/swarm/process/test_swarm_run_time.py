"""The run time is time of load: it begins with the load, and Locust's own timers do not end it earlier."""

import argparse
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llm_locust.options.arrivals import LoadSettings
from llm_locust.options.run import parse_stop_rules
from llm_locust.swarm.channel.messages import CountsMessage, LoadCounts
from llm_locust.swarm.process.stopping import RunTime
from llm_locust.swarm.run.load_watch import WATCH_INTERVAL_S, LoadWatch
from llm_locust.swarm.run.roster import Participant
from llm_locust.workload.arrivals import parse_rate

S = 1_000_000_000


@dataclass
class Clock:
    """Of a run: stands until it is slept on."""

    now_s: float = 100.0
    slept: list[float] = field(default_factory=list)

    def now_ns(self) -> int:
        return round(self.now_s * S)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


@dataclass
class FakeRun:
    """A run whose end somebody sees: at most after an hour, so that a watch without an end fails."""

    clock: Clock
    load_ends_ns: int | None
    stop_reason: str = ""
    stopped_ns: int | None = None
    open_loop: bool = False
    num_requests: int | None = None
    shares_spent: tuple[bool, ...] = ()  # of the workers
    cut_short: bool = False
    exceptions: dict[int, Any] = field(default_factory=dict)
    ended_in_order: bool = False
    rules: str = ""
    rate: str | None = None
    sweep: object = None
    failing_from_s: float = 1e9  # from then on every request fails; ten end in a second

    @property
    def info(self) -> dict[str, Any]:
        return {"rate": 1.0}

    @property
    def settings(self) -> Any:
        load = LoadSettings(
            stop_rules=parse_stop_rules(self.rules),
            num_requests=self.num_requests,
            rate=None if self.rate is None else parse_rate(self.rate),
            sweep=self.sweep,  # type: ignore[arg-type]
        )
        return SimpleNamespace(load=load)

    @property
    def roster(self) -> dict[str, Any]:
        told = [
            CountsMessage(run="r", finished=0, in_flight=0, load=LoadCounts(spent=spent))
            for spent in self.shares_spent
        ]
        if self.rules:
            told = [self._of_a_queue if self.rules[:4] == "over" else self._of_failures]
        return {f"w{i}": Participant(0, False, 0, counts) for i, counts in enumerate(told)}

    @property
    def _of_failures(self) -> CountsMessage:
        good, bad = (int(10 * s) for s in self._spans)
        return CountsMessage(run="r", finished=good + bad, in_flight=0, load=LoadCounts(ok=good, failed=bad))

    @property
    def _of_a_queue(self) -> CountsMessage:
        """Ten a second end, and from the failure on a hundred a second come."""
        good, more = self._spans
        ended = int(10 * (good + more))
        return CountsMessage(run="r", finished=ended, in_flight=int(90 * more), load=LoadCounts(ok=ended))

    @property
    def _spans(self) -> tuple[float, float]:
        gone_s = self.clock.now_s - 100.0
        return min(gone_s, self.failing_from_s), max(0.0, gone_s - self.failing_from_s)

    def cut(self, reason: str, *, in_order: bool = False) -> None:
        self.stop_reason, self.cut_short, self.ended_in_order = reason, True, in_order


def ended_at_s(
    run: FakeRun,
    users: tuple[int, ...] = (1,),
    shape: object = None,
    present: tuple[str, ...] = ("w0", "w1"),
) -> float | None:
    """When the watch ends the load of this run, on its clock; None: it does not.

    Args:
        users: how many each worker has.
        shape: what changes their number.
        present: workers that are connected.
    """
    ends: list[float] = []
    clients = {f"w{i}": SimpleNamespace(user_count=n) for i, n in enumerate(users)}
    runner = SimpleNamespace(
        target_user_count=1,
        user_count=sum(users),
        clients=clients,
        state="running",
        environment=SimpleNamespace(shape_class=shape),
    )

    def sleep(seconds: float) -> None:
        run.clock.sleep(seconds)
        if run.clock.now_s > 3600:
            run.stopped_ns = run.clock.now_ns()

    LoadWatch(
        runner,
        run,  # type: ignore[arg-type]
        look=lambda _: None,
        present=lambda worker: worker in present,
        tell=lambda *_: None,
        end=lambda: ends.append(run.clock.now_s),
        sleep=sleep,
    ).watch()
    return ends[0] if ends else None


@pytest.mark.parametrize("end_s", [100.1, 107.0, 107.13, 160.0])
def test_the_load_ends_when_its_time_is_over_and_not_when_the_watch_looks_next(end_s: float) -> None:
    run = FakeRun(Clock(), round(end_s * S))
    assert ended_at_s(run) == pytest.approx(end_s, abs=1e-6)
    assert run.stop_reason == "", "an end that was asked for needs no reason"
    assert max(run.clock.slept) <= WATCH_INTERVAL_S


def test_a_load_whose_time_was_over_at_its_start_ends_at_once() -> None:
    assert ended_at_s(FakeRun(Clock(), 0)) == 100.0


def test_a_load_without_a_run_time_goes_on() -> None:
    assert ended_at_s(FakeRun(Clock(), None)) is None


def test_a_count_that_workers_without_users_share_ends_the_load_and_cuts_the_run_short() -> None:
    def of(*spent: bool) -> FakeRun:
        return FakeRun(Clock(), None, num_requests=60, shares_spent=spent)

    stuck = of(True, False)
    assert ended_at_s(stuck, users=(1, 0)) is not None
    assert stuck.stop_reason.startswith("num-requests: worker w1 has no user to send its share of 60 with: ")
    assert stuck.cut_short
    done = of(True, True)
    assert ended_at_s(done, users=(1, 0)) is not None
    assert not done.cut_short
    assert ended_at_s(of(False, False), users=(1, 0)) is None
    assert ended_at_s(of(True, False), users=(0, 1)) is None
    assert ended_at_s(of(True, False), users=(1, 0), shape=object()) is None
    assert ended_at_s(of(True, False), users=(0, 0)) is None  # they are still to be started


def test_a_count_of_which_a_worker_that_is_gone_has_some_left_was_not_sent_to_its_end() -> None:
    whole = FakeRun(Clock(), None, num_requests=60, shares_spent=(True, True))
    assert ended_at_s(whole) is not None
    assert whole.stop_reason == "num-requests: 60 were asked for, and no worker has one left"
    lacking = FakeRun(Clock(), None, num_requests=60, shares_spent=(True, False))
    assert ended_at_s(lacking, present=("w0",)) is not None
    assert lacking.stop_reason == "num-requests: 60 requests were not sent to the end: a worker is gone"


def stopped_by(rules: str, **load: Any) -> FakeRun:
    """A run of an hour, whose server fails after a minute, once a rule has ended it."""
    run = FakeRun(Clock(), 3600 * S, rules=rules, failing_from_s=60.0, **load)
    ended_s = ended_at_s(run)
    assert ended_s is not None
    assert 160 <= ended_s <= 225
    assert run.stop_reason.startswith(rules.partition(">")[0])
    return run


def test_a_run_that_a_stop_rule_ends_is_cut_short_and_over() -> None:
    for rules in ("error_rate>20% over 2s", "oversaturation"):
        run = stopped_by(rules)
        assert run.cut_short, "gates hold for what was before"
        assert run.ended_in_order, "no further part of a restartable run follows"


def test_a_stop_rule_that_finds_what_a_run_of_several_loads_looks_for_cuts_nothing_short() -> None:
    steps = "steps:5@60s,100@60s"
    assert not stopped_by("oversaturation", rate=steps).cut_short
    assert stopped_by("error_rate>20% over 2s", rate=steps).cut_short
    assert not stopped_by("error_rate>20% over 2s", sweep=object()).cut_short


def environment(run_time: object, *, shape: object = None, web_ui: object = None) -> Any:
    options = argparse.Namespace(run_time=run_time)
    return SimpleNamespace(parsed_options=options, shape_class=shape, web_ui=web_ui)


def never() -> None:
    raise AssertionError("nothing started in the web UI")


def test_locust_arms_no_timer_of_its_own_and_the_options_have_the_run_time_again() -> None:
    around = environment(60)
    taken = RunTime(around, never)
    taken.take()
    assert around.parsed_options.run_time is None
    assert taken.give_back() == 60
    assert repr(around.parsed_options.run_time) == "60", "the manifest has what Locust parsed"
    assert taken.give_back() is None, "a second run of the process is one of the web UI"


@pytest.mark.parametrize("around", [environment(None), environment(60, shape=object())])
def test_no_run_time_and_that_of_a_load_shape_stay_as_locust_has_them(around: Any) -> None:
    before = around.parsed_options.run_time
    taken = RunTime(around, never)
    taken.take()
    assert around.parsed_options.run_time == before
    assert taken.give_back() is None


def test_the_timer_of_the_web_ui_asks_here_before_it_ends_a_load() -> None:
    class WebUi:
        """As Locust's: the timer calls a bound method that stops the runner."""

        def _stop_runners(self) -> None:
            never()

        def fire(self) -> None:
            self._stop_runners()

    fired: list[str] = []
    web_ui = WebUi()
    around = environment(30, web_ui=web_ui)
    taken = RunTime(around, lambda: fired.append("here"))
    web_ui.fire()
    assert (fired, taken.of_web_run_s) == (["here"], 30.0)
    around.parsed_options.run_time = None
    assert taken.of_web_run_s is None


def test_locust_has_what_is_taken_over() -> None:
    found = find_spec("locust")  # not imported: that would patch the standard library here
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent
    assert "spawn_later(options.run_time, " in (folder / "main.py").read_text()
    assert "spawn_later(run_time, self._stop_runners)" in (folder / "web.py").read_text()
