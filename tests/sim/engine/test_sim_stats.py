import re

from llm_locust.deployment.exposition import readings
from llm_locust.sim.engine.scheduler import EngineCounters
from llm_locust.sim.engine.stats import BucketHistogram, ReplicaReading, ReplicaStats, exposition

_SAMPLE = re.compile(r'(vllm:[a-z0-9_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\} ([-+0-9.einf]+)')


def reading(engine: str, ttfts_s: list[float]) -> ReplicaReading:
    stats = ReplicaStats(prompt_tokens=10, generation_tokens=20)
    stats.finished["stop"] += 3
    for ttft_s in ttfts_s:
        stats.ttft_s.observe(ttft_s)
    return ReplicaReading(engine, 4, 5, 0.25, stats, EngineCounters(7, 1_000, 640))


def test_every_line_is_a_comment_or_a_sample_under_its_own_type() -> None:
    types: dict[str, str] = {}
    for line in exposition('odd "model"\\\n', [reading("0", [0.5]), reading("1", [])]).splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types
            types[name] = kind
        elif not line.startswith("# HELP "):
            match = _SAMPLE.fullmatch(line)
            assert match, line
            assert re.sub(r"_(bucket|sum|count)$", "", match[1]) in types
            float(match[3])
    assert types["vllm:num_requests_running"] == types["vllm:kv_cache_usage_perc"] == "gauge"
    assert types["vllm:generation_tokens_total"] == "counter"
    assert types["vllm:time_to_first_token_seconds"] == "histogram"


def test_values_are_told_apart_by_engine() -> None:
    text = exposition("sim", [reading("0", []), reading("7", [])])
    assert 'vllm:num_requests_waiting{engine="7",model_name="sim"} 5\n' in text
    assert 'vllm:request_success_total{engine="0",model_name="sim",finished_reason="stop"} 3\n' in text


def test_buckets_are_cumulative_and_hold_their_upper_edge() -> None:
    text = exposition("sim", [reading("0", [0.001, 0.0011, 5000.0])])
    found = re.findall(r'time_to_first_token_seconds_bucket\{[^}]*le="([^"]+)"\} (\d+)', text)
    assert found[:2] == [("0.001", "1"), ("0.005", "2")]
    assert found[-2:] == [("2560.0", "2"), ("+Inf", "3")]
    assert "seconds_count{" in text


def test_our_own_scraper_reads_every_figure_that_vllm_tells() -> None:
    stats = ReplicaStats(prompt_tokens=10, generation_tokens=20)
    for value, histogram in enumerate((stats.ttft_s, stats.itl_s, stats.tpot_s, stats.e2el_s, stats.queue_s)):
        histogram.observe(value + 1.0)
    text = exposition("sim", [ReplicaReading("0", 4, 5, 0.25, stats, EngineCounters(7, 1_000, 640))])
    found = {r.name: r.value for r in readings(text) if not r.name.endswith("_bucket")}
    assert {name: found[name] for name in ("preemptions", "prefix_cache_queries", "prefix_cache_hits")} == {
        "preemptions": 7,
        "prefix_cache_queries": 1_000,
        "prefix_cache_hits": 640,
    }
    sums = [found[f"{name}_sum"] for name in ("ttft_s", "itl_s", "tpot_s", "e2el_s", "queue_s")]
    assert sums == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert 'vllm:request_prefill_time_seconds_count{engine="0",model_name="sim"} 0\n' in text


def test_a_histogram_puts_each_value_into_one_bucket() -> None:
    histogram = BucketHistogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 14.0)
