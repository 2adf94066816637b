"""The run time, what ends a run before it, and Locust's statistics over days."""

import argparse
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from warm_process import warm_code

from llm_locust.options.load import LoadSettings
from llm_locust.options.run import parse_stop_rules
from llm_locust.swarm.channel.messages import CountsMessage, LoadCounts
from llm_locust.swarm.process.stopping import RunTime
from llm_locust.swarm.run.load_control import WATCH_INTERVAL_S, LoadWatch
from llm_locust.swarm.run.roster import Participant
from llm_locust.swarm.run.run import State
from llm_locust.workload.arrivals import parse_rate

# --- The run time is time of load: it begins with the load, and Locust's own timers do not end it earlier


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
    state: State = State.LOADING
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
            run.state = State.DRAINING

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
    assert whole.stop_reason == "num-requests: 60 of 60 sent"
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


# --- A run that its process was told to end before its time is cut short, unless a person started it


COMMON = """
from types import SimpleNamespace

from llm_locust.core import EXIT_INCOMPLETE
from llm_locust.figures.verdict import RunVerdict
from llm_locust.swarm.roles import coordinator
from llm_locust.swarm.roles.coordinator import (RunCoordinator)
from llm_locust.swarm.run.run import State

CUT = "the process was told to end (SIGTERM or Ctrl-C)"

class FakeRun:
    state = State.LOADING
    report = uploaded = None
    is_part = False
    reported = "run"
    load = SimpleNamespace(num_requests=None, trace=None, sweep=None)
    settings = SimpleNamespace(
        load=load, report=SimpleNamespace(full=False, print_summary=False)
    )

    def __init__(self):
        self.reasons = []

    def cut(self, reason):
        self.reasons.append(reason)

def coordinator_of(run, *, headless=False, autostart=False, run_time=60, printed=None):
    made = RunCoordinator.__new__(RunCoordinator)
    made.run, made._printed, made._found, made._refused = run, printed, None, False
    made._options = SimpleNamespace(
        headless=headless, autostart=autostart, run_time=run_time, exit_code_on_error=1
    )
    made.environment = SimpleNamespace(shape_class=None, process_exit_code=0)
    made.finish = made._join_finishing = lambda: None
    return made

def reasons(**given):
    # Of a run that is under load when its process is told to end.
    run = FakeRun()
    coordinator_of(run, **given).on_quitting(lambda: None)
    return run.reasons
"""


def test_an_autostarted_run_that_is_ended_before_its_time_is_cut_short_as_a_headless_one() -> None:
    warm_code(
        COMMON
        + """
assert reasons(headless=True) == [CUT]
assert reasons(autostart=True) == [CUT]
assert reasons(autostart=True, run_time=None) == [], "it has no end of its own"
assert reasons() == [], "a person started it in the web UI, and ends it"
assert reasons(autostart=True, printed=FakeRun()) == [], "so is a later run of that process"
"""
    )


def test_the_report_of_an_autostarted_run_says_its_exit_code_and_the_process_ends_with_that_line() -> None:
    warm_code(
        COMMON
        + """
import io
from contextlib import redirect_stdout
from dataclasses import dataclass

from llm_locust.figures.text import Tone

@dataclass
class Answer:
    code: int
    tone: Tone = Tone.BAD

    @property
    def line(self):
        return f"exit {self.code}"

coordinator.stood_still = coordinator.hung = lambda summary: ""
coordinator.headline_of = lambda summary, found: Answer(found.code)
coordinator.print_report = lambda *_, found, full: print(found.code)

def said(*, is_at_end=False, **given):
    run, out = FakeRun(), io.StringIO()
    found = RunVerdict(EXIT_INCOMPLETE, f"it was cut short: {CUT}")
    run.report = SimpleNamespace(summary=None, verdict=found)
    with redirect_stdout(out):
        made = coordinator_of(run, **given)
        made.print_once()
        if is_at_end:
            print("tables of Locust")
            made.on_quit()
    return out.getvalue()

assert said(autostart=True) == said(headless=True) == f"{EXIT_INCOMPLETE}\\n"
assert said() == "None\\n", "the process goes on"
last = said(is_at_end=True, autostart=True).splitlines()[1:]
assert last == ["tables of Locust", "", f"exit {EXIT_INCOMPLETE}"], last
"""
    )


# --- Locust's statistics over days. (Locust patches the process that imports it: each test has its own.)


STATISTICS = """
import random
import time
from types import SimpleNamespace

import gevent
from locust.env import Environment
from locust.html import get_html_report
from locust.stats import RequestStats, StatsError
from locust.util.date import format_utc_timestamp

from llm_locust.swarm.process import patches
from llm_locust.swarm.process.patches import (
    MOST_ERRORS, MOST_GONE_LOGS, MOST_ROWS, RECENT_ROWS, bound_statistics, capped, forget_seconds, thinned
)

NOW = int(time.time())

def shown(stats):
    return [entry.to_dict() for entry in (stats.total, *stats.entries.values())]

def after_hours(hours):
    # As after a run with some requests and failures in each second.
    stats, draw = RequestStats(), random.Random(1)
    for entry in (stats.total, stats.get("chat", "chat"), stats.get("long", "chat")):
        entry.start_time, entry.last_request_timestamp = NOW - 3600.0 * hours, NOW + 0.5
        entry.num_requests, entry.num_failures = 100_000, 1_000
        for second in range(NOW - 3600 * hours, NOW + 1):
            entry.num_reqs_per_sec[second] = draw.randrange(50)
            entry.num_fail_per_sec[second] = draw.randrange(5)
    return stats

def row(at):
    return {"time": format_utc_timestamp(at), "current_rps": [format_utc_timestamp(at), at]}

def errors_of(counts):
    errors = {}
    for i, count in enumerate(counts):
        error = StatsError("chat", "chat", f"kind {i}", count, 100.0 + i, 200.0 + i)
        errors[StatsError.create_key("chat", "chat", error.error)] = error
    return errors
"""


def run(code: str) -> None:
    warm_code(STATISTICS + code)


def test_forgotten_seconds_change_no_figure_that_locust_shows() -> None:
    run("""
stats = after_hours(2)
before = shown(stats)
assert before[1]["current_rps"] > 0 and before[1]["current_fail_per_sec"] > 0
forget_seconds(stats)
assert shown(stats) == before
for entry in (stats.total, *stats.entries.values()):
    assert 12 < len(entry.num_reqs_per_sec) < 100 and 12 < len(entry.num_fail_per_sec) < 100
""")


def test_statistics_without_a_request_are_left_alone() -> None:
    run("""
stats = RequestStats()
forget_seconds(stats)
assert shown(stats) == shown(RequestStats())
""")


def test_requests_after_forgotten_seconds_are_counted_as_ever() -> None:
    run("""
stats = after_hours(1)
forget_seconds(stats)
before = stats.get("chat", "chat").num_requests
stats.log_request("chat", "chat", 12, 34)
stats.log_error("chat", "chat", "boom")
entry = stats.get("chat", "chat")
assert entry.num_requests == before + 1
assert sum(entry.num_fail_per_sec.values()) > 0 and len(stats.errors) == 1
""")


def test_a_week_of_history_stays_small_covers_the_run_and_is_whole_for_the_recent_past() -> None:
    run("""
rows = [row(NOW + 5 * i) for i in range(7 * 24 * 720)]
history = []
for i, each in enumerate(rows):
    history.append(each)
    if i % 6 == 5:
        history = thinned(history)
        assert len(history) <= MOST_ROWS
assert history[0] is rows[0] and history[-1] is rows[-1]
assert history[-RECENT_ROWS:] == rows[-RECENT_ROWS:]
times = [each["current_rps"][1] for each in history]
assert times == sorted(set(times))
assert max(b - a for a, b in zip(times, times[1:])) <= 15 * 60
assert len(history) > RECENT_ROWS + 400
""")


def test_a_history_of_a_clock_that_was_set_back_ends_up_small_too() -> None:
    run("""
history = [row(NOW + (1 if i % 2 else -1)) for i in range(MOST_ROWS + 1)]
assert len(thinned(history)) <= RECENT_ROWS + 1
""")


def test_a_short_history_and_few_errors_stay_the_same_objects() -> None:
    run("""
history, errors = [row(NOW)], errors_of([1] * MOST_ERRORS)
assert thinned(history) is history and capped(errors) is errors
""")


def test_beyond_the_listed_errors_the_most_frequent_stay_and_the_rest_is_one_with_the_true_sum() -> None:
    run("""
counts = [1] * 600 + [7] * 100
errors = errors_of(counts)
bound = capped(errors)
assert len(bound) == MOST_ERRORS
other = list(bound.values())[-1]
assert sum(error.occurrences for error in bound.values()) == sum(counts)
assert sum(error.occurrences == 7 for error in bound.values()) == 100
assert "more than 500 kinds" in other.to_name() and other.occurrences == 201
assert other.first_seen == 100.0 + 399 and other.last_seen == 200.0 + 599

bound.update((k, e) for k, e in errors_of([1] * 800 + [50]).items() if k not in bound)
again = capped(bound)
assert len(again) == MOST_ERRORS
assert sum(error.occurrences for error in again.values()) == sum(e.occurrences for e in bound.values())
assert sum("more than" in error.to_name() for error in again.values()) == 1
assert any(error.occurrences == 50 for error in again.values())
""")


def test_reports_of_workers_still_add_up_in_bounded_errors() -> None:
    run("""
from locust.event import Events
from locust.stats import setup_distributed_stats_event_listeners

events, stats = Events(), RequestStats()
setup_distributed_stats_event_listeners(events, stats)
stats.errors = capped(errors_of([2] * 700))
worker = RequestStats(use_response_times_cache=False)
worker.log_error("chat", "chat", "kind 3")
worker.errors.update(capped(errors_of([1] * 600)))
data = {"stats": worker.serialize_stats(), "stats_total": worker.total.get_stripped_report(),
        "errors": worker.serialize_errors()}
events.worker_report.fire(client_id="w", data=data)
total = sum(error.occurrences for error in stats.errors.values())
assert total == 1400 + sum(error["occurrences"] for error in data["errors"].values()), total
""")


def test_seconds_are_kept_where_locusts_json_output_will_print_them() -> None:
    run("""
for options, kept in (({}, False), ({"json": True}, True), ({"json_file": "out"}, True)):
    environment = Environment(parsed_options=SimpleNamespace(**options))
    environment.create_local_runner()
    environment.stats = after_hours(1)
    bound_statistics(environment)
    assert (len(environment.stats.total.num_reqs_per_sec) > 3600) is kept, options
""")


def test_logs_of_workers_that_left_are_forgotten_but_for_the_last() -> None:
    run("""
environment = Environment()
runner = environment.create_master_runner("127.0.0.1", 0)
there = list(runner.clients)
for i in range(MOST_GONE_LOGS + 50):
    environment.update_worker_logs({"worker_id": f"gone {i}", "logs": ["bye"]})
from locust.runners import WorkerNode
runner.clients["here"] = WorkerNode("here")
environment.worker_logs = {"here": ["hello"], **environment.worker_logs}
bound_statistics(environment)
assert len(environment.worker_logs) == MOST_GONE_LOGS + 1
assert "here" in environment.worker_logs and "gone 49" not in environment.worker_logs
assert f"gone {MOST_GONE_LOGS + 49}" in environment.worker_logs
""")


def test_locusts_report_is_made_of_bounded_statistics() -> None:
    run("""
environment = Environment()
environment.create_local_runner()
environment.stats = after_hours(1)
environment.stats.history = [row(NOW + 5 * i) for i in range(3 * MOST_ROWS)]
environment.stats.errors = errors_of([1] * 3000)
bound_statistics(environment)
page = get_html_report(environment)
assert page.count("kind ") >= MOST_ERRORS - 1 and "more than 500 kinds" in page
assert len(environment.stats.history) <= MOST_ROWS
""")


def test_statistics_are_bounded_again_and_again_also_those_of_a_new_run() -> None:
    run("""
patches.PASS_INTERVAL_S = 0.01
environment = Environment()
environment.create_local_runner()
keeper = patches.keep_bounded(environment)
for _ in range(2):
    environment.stats.clear_all()
    environment.stats.history = [row(NOW + 5 * i) for i in range(2 * MOST_ROWS)]
    with gevent.Timeout(120):
        while len(environment.stats.history) > MOST_ROWS:
            gevent.sleep(0.01)
assert not keeper.dead
keeper.kill()
""")
