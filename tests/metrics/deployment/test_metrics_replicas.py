"""Replicas side by side."""

import pytest
from metrics_cases import columns, failed, ns, request
from msgspec import to_builtins

from llm_locust.core.record import Outcome
from llm_locust.figures.routing import course, replicas
from llm_locust.metrics.gates import Slo
from llm_locust.metrics.requests.goodput import Limits, judge
from llm_locust.metrics.requests.latency import per_request
from llm_locust.metrics.requests.throughput import Credits
from llm_locust.metrics.steady_window import find_stuck
from llm_locust.metrics.window import Window


def test_a_slow_replica_does_not_hide_in_the_pool() -> None:
    fast = [request(i / 10, (0.1, 0.2), replica="a") for i in range(8)]
    slow = [
        request(0.5, (2.0, 2.5), replica="b"),
        request(0.6, (9.0,), outcome=Outcome.TRUNCATED, replica="b"),
    ]
    c = columns(*fast, *slow, failed(0.1))
    values = per_request(c)
    limits, window = Limits(Slo(ttft_s=1.0)), Window(ns(0.0), ns(4.0), "")
    judgement = judge(c, values, limits, "sent")
    a, b = replicas(c, Credits.of(c, window), judgement, find_stuck(c, window, limits))
    assert to_builtins(a) == {
        "name": "a",
        "requests": 8,
        "share": 0.8,
        "cut_share": 0.0,
        "ttft_p50_ms": pytest.approx(100),
        "ttft_p99_ms": pytest.approx(100),
        "tpot_p50_ms": pytest.approx(100),
        "tpot_p99_ms": pytest.approx(100),
        "e2el_p50_ms": pytest.approx(200),
        "e2el_p99_ms": pytest.approx(200),
        "ci95": {
            "ttft_p50_ms": None,
            "ttft_p99_ms": None,
            "tpot_p50_ms": None,
            "tpot_p99_ms": None,
            "e2el_p50_ms": None,
            "e2el_p99_ms": None,
        },
        "at_least": {},
        "output_tokens_per_s": 4.0,
        "concurrency_mean": pytest.approx(8 * 0.2 / 4),
        "error_rate": 0.0,
        "goodput_ratio": 1.0,
        "in_flight": [],
        "outages": [],
    }
    assert (b.share, b.error_rate, b.goodput_ratio) == (0.2, 0.5, 0.0)
    assert b.ttft_p50_ms == pytest.approx(2000)


def test_without_an_slo_a_replica_has_no_goodput() -> None:
    c = columns(request(replica="a"))
    window = Window(ns(0.0), ns(1.0), "")
    (entry,) = replicas(c, Credits.of(c, window), None, find_stuck(c, window, Limits(Slo())))
    assert entry.goodput_ratio is None


def test_what_a_replica_did_over_time_is_told_in_equal_parts_of_the_window() -> None:
    c = columns(request(0.0, (2.0,), replica="a"), request(2.0, (1.0,), replica="b"))
    told = course(c, Window(ns(0.0), ns(4.0), ""))
    assert told["a"]["in_flight"] == pytest.approx([1.0] * 30 + [0.0] * 30)
    assert told["b"]["in_flight"] == pytest.approx([0.0] * 30 + [1.0] * 15 + [0.0] * 15)
    assert told["a"]["outages"] == told["b"]["outages"] == []
    assert course(c, Window(ns(0.0), ns(0.0), ""))["a"]["in_flight"] == []
