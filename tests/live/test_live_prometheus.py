"""What a scrape gives: valid text, true totals, quantiles as near as the buckets."""

import numpy as np
import pytest
from live_cases import Run, observation, worker
from metrics_cases import failed, request
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from llm_locust.core.manifest import HealthCell
from llm_locust.live.prometheus import registry
from llm_locust.live.state import MISSING, LiveRun, Waiting
from llm_locust.live.store import LiveStore
from llm_locust.metrics.catalogue import PACE_S, TO_FIRST_TOKEN_S, TO_LAST_TOKEN_S

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
