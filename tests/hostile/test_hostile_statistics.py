"""What a worker that lies can put into Locust's own statistics. (Locust patches the process that imports it:
each test has its own.)"""

from warm_process import warm_code

COMMON = """
import itertools
import logging
from types import SimpleNamespace

import psutil
from locust.event import Events
from locust.stats import RequestStats, setup_distributed_stats_event_listeners

from llm_locust.swarm.channel import channel
from llm_locust.swarm.channel.channel import MOST_NAMES, MOST_SECONDS, MOST_TIMES, OTHERS, Reported, coarse

runner = SimpleNamespace(stats=RequestStats(), exceptions={})
bounds = Reported(runner)
events = Events()
setup_distributed_stats_event_listeners(events, runner.stats)
times = itertools.count(1_800_000_000)

def entry(name="n", method="POST", response_times={7: 1}, seconds={1_800_000_000: 1}):
    return {
        "name": name, "method": method, "last_request_timestamp": float(next(times)), "start_time": 1.8e9,
        "num_requests": sum(response_times.values()), "num_none_requests": 0, "num_failures": 0,
        "total_response_time": 7.0, "max_response_time": 7.0, "min_response_time": 7.0,
        "total_content_length": 1, "response_times": dict(response_times), "num_reqs_per_sec": dict(seconds),
        "num_fail_per_sec": dict(seconds),
    }

def report(entries, errors={}):
    total = entry("Aggregated", "", entries[0]["response_times"])
    data = {"stats": entries, "stats_total": total, "errors": dict(errors)}
    bounds.bound_stats(data)
    events.worker_report.fire(client_id="w", data=data)
    bounds.after()

def error(text):
    seen = {"first_seen": 1.8e9, "last_seen": 1.8e9}
    return {"method": "POST", "name": "n", "error": text, "occurrences": 1, **seen}

rss = psutil.Process().memory_info
"""


def run(code: str) -> None:
    warm_code(COMMON + code)


def test_names_beyond_a_number_are_one_and_no_count_is_lost() -> None:
    run("""
said = []
logging.getLogger(channel.__name__).addFilter(lambda record: said.append(record.getMessage()))
for i in range(0, 2000, 100):
    report([entry(f"name {j}") for j in range(i, i + 100)])
report([entry("name 3"), entry("name 1999")])
entries = runner.stats.entries
assert len(entries) == MOST_NAMES + 1, len(entries)
assert sum(e.num_requests for e in entries.values()) == 2002
assert entries["name 3", "POST"].num_requests == 2
assert entries[OTHERS, ""].num_requests == 1501
assert bounds.folded == 1501
assert len(said) == 1 and "more than 500 names" in said[0], said
""")


def test_few_names_are_left_as_they_are() -> None:
    run("""
times_ms = {7: 2, 0.25: 1, 123_456: 3}
report([entry("chat", response_times=times_ms), entry("chat", None)])
report([entry("chat", response_times=times_ms)])
assert set(runner.stats.entries) == {("chat", "POST"), ("chat", "")}
assert runner.stats.entries["chat", "POST"].response_times == {7: 4, 0.25: 2, 123_456: 6}
assert runner.stats.entries["chat", "POST"].response_times_cache
assert bounds.folded == 0
""")


def test_long_names_and_texts_are_cut() -> None:
    run("""
report([entry("n" * 4096, "M" * 4096)], {"k": error("e" * 100_000)})
((name, method),) = runner.stats.entries
assert len(name) == len(method) == 200
assert len(runner.stats.errors["k"].error) == 4096
""")


def test_a_worker_that_lies_about_everything_costs_bounded_memory() -> None:
    run("""
def attack(rounds):
    for i in rounds:
        lies = [
            entry(
                f"{j}",
                response_times={k + i / 1000 + j: 1 for k in range(40)},
                seconds={i * 40 + k: 1 for k in range(40)},
            )
            for j in range(i % 5 * 200, i % 5 * 200 + 200)
        ]
        report(lies, {f"{i} {k}": error(f"{i} {k} " + "e" * 5000) for k in range(100)})
        for k in range(50):
            bounds.bound_exception(data := {"msg": "m", "traceback": f"{i} {k} " + "t" * 50_000})
            row = {"count": 0, **data}
            runner.exceptions.setdefault(hash(data["traceback"]), row)["count"] += 1

attack(range(3))
before = rss().rss
attack(range(3, 60))
grown = (rss().rss - before) / 2**20
stats = runner.stats
assert grown < 100, grown
assert len(stats.entries) == MOST_NAMES + 1
assert len(stats.errors) <= 1000 and len(runner.exceptions) <= 501
assert sum(row["count"] for row in runner.exceptions.values()) == 60 * 50
assert sum(e.occurrences for e in stats.errors.values()) == 60 * 100
assert sum(e.num_requests for e in stats.entries.values()) == 60 * 200 * 40
assert sum(sum(e.response_times.values()) for e in stats.entries.values()) == 60 * 200 * 40
assert max(len(e.num_reqs_per_sec) for e in stats.entries.values()) <= MOST_SECONDS
assert len(stats.total.response_times) <= MOST_TIMES + 731
""")


def test_coarse_times_have_two_digits_and_keep_their_counts() -> None:
    run("""
odd = {1e300: 1, -5: 1, float("nan"): 1, float("inf"): 1}
found = coarse({0: 1, 99: 1, 99.6: 2, 147: 1, 3432: 1, 58_760: 1, **odd})
assert found == {0: 3, 99: 1, 100: 2, 150: 1, 3400: 1, 59_000: 1, 10**9: 2}, found
every = coarse({k: 1 for k in range(300_000)})
assert len(every) <= 731 and sum(every.values()) == 300_000
""")
