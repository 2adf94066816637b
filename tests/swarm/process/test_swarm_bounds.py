"""Locust's statistics over days. (Locust patches the process that imports it: each test has its own.)"""

from warm_process import warm_code

COMMON = """
import random
import time
from types import SimpleNamespace

import gevent
from locust.env import Environment
from locust.html import get_html_report
from locust.stats import RequestStats, StatsError
from locust.util.date import format_utc_timestamp

from llm_locust.swarm.process import bounds
from llm_locust.swarm.process.bounds import (
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
    warm_code(COMMON + code)


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
bounds.PASS_INTERVAL_S = 0.01
environment = Environment()
environment.create_local_runner()
keeper = bounds.keep_bounded(environment)
for _ in range(2):
    environment.stats.clear_all()
    environment.stats.history = [row(NOW + 5 * i) for i in range(2 * MOST_ROWS)]
    with gevent.Timeout(120):
        while len(environment.stats.history) > MOST_ROWS:
            gevent.sleep(0.01)
assert not keeper.dead
keeper.kill()
""")
