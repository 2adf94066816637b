"""Replicas side by side."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metrics_cases import columns, failed, ns, request

from llm_locust.metrics.goodput import Limits, judge
from llm_locust.metrics.latency import per_request
from llm_locust.metrics.replicas import fairness, jain, replicas
from llm_locust.metrics.slo import Slo
from llm_locust.metrics.throughput import Credits
from llm_locust.metrics.window import Window
from llm_locust.record import Outcome


def test_a_slow_replica_does_not_hide_in_the_pool() -> None:
    fast = [request(i / 10, (0.1, 0.2), replica="a") for i in range(8)]
    slow = [
        request(0.5, (2.0, 2.5), replica="b"),
        request(0.6, (9.0,), outcome=Outcome.TRUNCATED, replica="b"),
    ]
    c = columns(*fast, *slow, failed(0.1))
    values = per_request(c)
    judgement = judge(c, values, Limits(Slo(ttft_s=1.0)), "sent")
    a, b = entries = replicas(c, values, Credits.of(c, Window(ns(0.0), ns(4.0), "")), judgement)
    assert a == {
        "name": "a",
        "requests": 8,
        "share": 0.8,
        "ttft_p50_ms": pytest.approx(100),
        "ttft_p99_ms": pytest.approx(100),
        "tpot_p50_ms": pytest.approx(100),
        "output_tokens_per_s": 4.0,
        "error_rate": 0.0,
        "goodput_ratio": 1.0,
    }
    assert (b["share"], b["ttft_p50_ms"], b["error_rate"], b["goodput_ratio"]) == (
        0.2,
        pytest.approx(2000),
        0.5,
        0.0,
    )
    assert fairness(entries) == {
        "requests": pytest.approx(100 / (2 * 68)),
        "output_tokens": pytest.approx(18**2 / (2 * (16**2 + 2**2))),
    }


def test_without_an_slo_a_replica_has_no_goodput() -> None:
    c = columns(request(replica="a"))
    (entry,) = replicas(c, per_request(c), Credits.of(c, Window(ns(0.0), ns(1.0), "")), None)
    assert entry["goodput_ratio"] is None
    assert fairness([entry]) == {"requests": None, "output_tokens": None}


def test_jains_index_is_not_defined_for_one_for_unknown_ones_and_for_nothing() -> None:
    assert jain([5.0]) is jain([]) is jain([1.0, None]) is jain([0.0, 0.0]) is None


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=20).filter(any))
def test_jains_index_is_between_one_replica_has_all_and_all_have_the_same(amounts: list[int]) -> None:
    index = jain(list(map(float, amounts)))
    assert index is not None
    assert 1 / len(amounts) - 1e-12 <= index <= 1 + 1e-12
    assert jain([1.0] * len(amounts)) == pytest.approx(1.0)
    assert jain([1.0, *[0.0] * (len(amounts) - 1)]) == pytest.approx(1 / len(amounts))
    assert (index > 1 - 1e-9) == (len(set(amounts)) == 1)
