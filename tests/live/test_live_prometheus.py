"""What a scrape gives, and what servers say of themselves in the live store."""

from dataclasses import replace

import numpy as np
import pytest
from live_cases import START_S, Run, observation, worker
from metrics_cases import failed, request
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from llm_locust.core.manifest import HealthCell
from llm_locust.live.prometheus import registry
from llm_locust.live.series import MOST_LINES, Charts
from llm_locust.live.state import MISSING, LiveRun, Waiting
from llm_locust.live.store import MOST_SERVERS, LiveStore
from llm_locust.metrics.catalogue import PACE_S, TO_FIRST_TOKEN_S, TO_LAST_TOKEN_S
from llm_locust.metrics.server_series import ServerNow
from llm_locust.swarm.web.series_feed import Feed

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
HUNG = (Waiting("chat", "", True, 1e4),)
CHAT = {"name": "chat", "class": "", "replica": "", "model": "m"}


def scrape(store: LiveStore) -> Samples:
    text = generate_latest(registry(store)).decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    found = {(s.name, frozenset(s.labels.items())): s.value for s in samples}
    assert len(found) == len(samples), "a series stands there twice"
    return found


def one(samples: Samples, name: str, /, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def filled(n: int = 500) -> tuple[Run, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    generator = np.random.default_rng(3)
    run, ttft_s = Run(), generator.lognormal(-2, 0.7, n)
    run.ended([*(request(arrivals=(t, t + 0.02)) for t in ttft_s), failed(), failed()])
    run.report()
    run.store.observe(
        observation(7, worker("a", in_flight=5, cpu_percent=30.0, waiting=HUNG), worker("b", MISSING))
    )
    run.clock.tick(2)
    return run, ttft_s


def test_nothing_is_told_before_the_first_run() -> None:
    assert scrape(LiveStore(lambda: 0.0)) == {}


def test_histograms_add_up_and_have_exact_sums() -> None:
    run, ttft_s = filled()
    samples = scrape(run.store)
    counts = [
        one(samples, "llm_locust_ttft_seconds_bucket", **CHAT, le=str(limit)) for limit in TO_FIRST_TOKEN_S
    ]
    assert counts == sorted(counts)
    assert one(samples, "llm_locust_ttft_seconds_bucket", **CHAT, le="+Inf") == 500
    assert one(samples, "llm_locust_ttft_seconds_count", **CHAT) == 500
    assert one(samples, "llm_locust_ttft_seconds_sum", **CHAT) == pytest.approx(ttft_s.sum(), abs=1e-6)
    # A limit is met to the sketch's error: no sample further off is on the wrong side.
    for limit, n in zip(TO_FIRST_TOKEN_S, counts, strict=True):
        assert (ttft_s <= limit / 1.008).sum() <= n <= (ttft_s <= limit * 1.008).sum()


@pytest.mark.parametrize("percent", [50, 95, 99])
def test_a_quantile_read_from_the_buckets_is_within_one_of_the_truth(percent: float) -> None:
    run, ttft_s = filled()
    samples = scrape(run.store)
    counts = [
        one(samples, "llm_locust_ttft_seconds_bucket", **CHAT, le=str(limit)) for limit in TO_FIRST_TOKEN_S
    ]
    told = np.searchsorted(counts, 500 * percent / 100)
    assert abs(told - np.searchsorted(TO_FIRST_TOKEN_S, np.percentile(ttft_s, percent))) <= 1


def test_counters_tell_outcomes_tokens_and_good_requests() -> None:
    run, ttft_s = filled()
    samples = scrape(run.store)
    assert one(samples, "llm_locust_requests_total", **CHAT, outcome="ok") == 500
    assert one(samples, "llm_locust_requests_total", **CHAT, outcome="http_error") == 2
    assert one(samples, "llm_locust_output_tokens_total", **CHAT) == 1000
    assert one(samples, "llm_locust_input_tokens_total", **CHAT) == 5000
    assert one(samples, "llm_locust_good_requests_total", **CHAT) == (ttft_s <= 0.1).sum()
    assert one(samples, "llm_locust_missed_requests_total") == 0


def test_gauges_tell_the_load_and_the_client() -> None:
    samples = scrape(filled()[0].store)
    assert one(samples, "llm_locust_users") == 7
    assert one(samples, "llm_locust_concurrency") == 5
    assert one(samples, "llm_locust_hung_users") == 1
    assert one(samples, "llm_locust_workers") == 1
    assert one(samples, "llm_locust_workers_lost") == 1
    assert one(samples, "llm_locust_worker_cpu_max_ratio") == pytest.approx(0.3)
    assert one(samples, "llm_locust_client_lag_seconds") == pytest.approx(20e-6, rel=0.01)
    assert one(samples, "llm_locust_client_verdict", verdict="ok") == 1
    assert one(samples, "llm_locust_client_verdict", verdict="invalid") == 0
    for cause in ("starved", "busy", "late"):
        assert one(samples, "llm_locust_client_late", cause=cause) == 0
    assert one(samples, "llm_locust_run_info", run="run", model="m") == 1


def test_a_late_client_is_told_with_its_cause() -> None:
    run = Run()
    run.ended([request(end_lag_ns=100_000_000)] * 5)
    run.report()
    run.clock.tick(10.0)
    cell = HealthCell(at_s=0.0, seconds=9.0, cpu_percent=10.0, run_queue_percent=60.0)
    run.store.observe(observation(4, worker(now=cell)))
    samples = scrape(run.store)
    assert one(samples, "llm_locust_client_verdict", verdict="invalid") == 1
    told = [one(samples, "llm_locust_client_late", cause=cause) for cause in ("starved", "busy", "late")]
    assert told == [1, 0, 0]


def test_without_an_slo_there_are_no_good_requests_to_count() -> None:
    run = Run()
    run.store.begin(LiveRun(id="run", model="m"))
    run.ended([request()])
    run.report()
    assert not any("good" in name for name, _ in scrape(run.store))


def test_foreign_text_in_labels_stays_text() -> None:
    run, name = Run(), 'a"b\\c\n<script>'
    run.ended([request(name=name, replica="r\n# HELP x")])
    run.report()
    labels = {"name": name, "class": "", "replica": "r\n# HELP x", "model": "m"}
    assert one(scrape(run.store), "llm_locust_requests_total", **labels, outcome="ok") == 1


@pytest.mark.parametrize("limits_s", [TO_FIRST_TOKEN_S, PACE_S, TO_LAST_TOKEN_S])
def test_limits_of_buckets_ascend_in_steps_of_less_than_three(limits_s: tuple[float, ...]) -> None:
    steps = np.array(limits_s[1:]) / np.array(limits_s[:-1])
    assert (steps > 1).all()
    assert (steps < 3).all()


def second(run: Run, *servers: ServerNow) -> None:
    run.store.observe_servers(servers)
    run.clock.tick()


def replica(name: str = "a:8000", running: float = 3.0) -> ServerNow:
    return ServerNow(name=name, up=True, running=running, kv_cache_usage=0.25)


def test_a_cell_has_the_mean_of_what_was_said_in_it_and_only_what_was_said() -> None:
    run = Run()
    for running in (2.0, 4.0, 7.0, 7.0):
        second(run, replica(running=running))
    run.clock.tick(2)
    columns = Charts().series(run.store, "5m").columns
    assert columns["server:running:a:8000"] == [3.0, 7.0]
    assert columns["server:kv_cache_usage:a:8000"] == [0.25, 0.25]
    assert not any("waiting" in name for name in columns)


def test_a_server_that_gives_no_page_leaves_a_gap() -> None:
    run = Run()
    gone = ServerNow(name="a:8000", up=False)
    for server in (replica(), replica(), gone, gone):
        second(run, server, replica("b:8000"))
    run.clock.tick(2)
    columns = Charts().series(run.store, "5m").columns
    assert columns["server:running:a:8000"] == [3.0, None]
    assert columns["server:running:b:8000"] == [3.0, 3.0]


def test_a_server_that_falls_silent_and_one_that_is_back_are_marked_once() -> None:
    run = Run()
    gone = ServerNow(name="a:8000", up=False)
    for server in (gone, replica(), replica(), gone, gone, replica()):
        second(run, server)
    assert [(mark.kind, mark.text) for mark in run.store.marks] == [
        ("answers", "server a:8000 is back"),
        ("silent", "server a:8000 gives no metrics"),
        ("answers", "server a:8000 is back"),
    ]


def test_of_many_servers_the_extremes_and_the_middle_are_told_from_then_on() -> None:
    run = Run()
    charts = Charts()
    for _ in range(2):
        second(run, *(replica(f"s{i}", float(i)) for i in range(MOST_LINES)))
    run.clock.tick(40)
    assert f"server:running:s{MOST_LINES - 1}" in charts.series(run.store, "run").columns
    for _ in range(2):
        second(run, *(replica(f"s{i}", float(i)) for i in range(MOST_LINES + 1)))
    run.clock.tick(40)
    columns = charts.series(run.store, "run").columns
    told = [name for name in columns if name.startswith("server:running:")]
    assert told == [f"server:running:{place}" for place in ("highest", "median", "lowest")]
    assert columns["server:running:highest"] == [MOST_LINES - 1.0, float(MOST_LINES)]


def test_a_server_with_a_role_has_it_before_its_name_also_if_it_becomes_known_late() -> None:
    run = Run()
    second(run, ServerNow(name="d:8000", up=False), replace(replica("p:8000"), role="prefill"))
    roles = (("p:8000", "prefill"), ("d:8000", "decode"))
    for _ in range(3):
        second(run, *(replace(replica(name), role=role) for name, role in roles))
    run.clock.tick(2)
    columns = Charts().series(run.store, "5m").columns
    assert {"server:running:decode d:8000", "server:running:prefill p:8000"} <= columns.keys()
    assert run.store.content.servers == {"prefill p:8000": True, "decode d:8000": True}


def test_extremes_are_those_of_servers_of_one_role() -> None:
    run = Run()
    servers = [replace(replica(f"p{i}", float(i)), role="prefill") for i in range(MOST_LINES)]
    for _ in range(2):
        second(run, *servers, replace(replica("d", 99.0), role="decode"))
    run.clock.tick(40)
    columns = Charts().series(run.store, "run").columns
    assert columns["server:running:prefill highest"] == [MOST_LINES - 1.0]
    assert columns["server:running:decode lowest"] == [99.0]


def test_servers_are_bounded_however_many_names_come() -> None:
    run = Run()
    for i in range(3 * MOST_SERVERS):
        second(run, replica(f"pod-{i}"))
    names = {name for _, cell in run.store.content.run.between(0, float("inf")) for name in cell.servers}
    assert names == {f"pod-{i}" for i in range(MOST_SERVERS)}


def test_what_comes_after_the_stop_is_left_out_and_a_reset_forgets() -> None:
    run = Run()
    second(run, replica())
    run.store.reset()
    assert not list(run.store.content.run.between(START_S - 10, float("inf")))
    run.store.stop()
    second(run, replica())
    assert not list(run.store.content.run.between(START_S - 10, float("inf")))


def test_a_page_that_polls_is_told_a_new_server_with_everything() -> None:
    run = Run()
    feed = Feed(run.store, keep_s=0)
    for _ in range(4):
        second(run, replica())
    run.clock.tick(2)
    first = feed.answer("5m")
    for _ in range(4):
        second(run, replica(), replica("b:8000"))
    run.clock.tick(2)
    answer = feed.answer("5m", first["token"])
    assert answer["full"]
    assert {"server:running:a:8000", "server:running:b:8000"} <= set(answer["columns"])
