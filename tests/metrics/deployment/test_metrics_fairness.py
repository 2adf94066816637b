"""How evenly replicas were used: the indices, the tests and the causes of whole runs."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from metrics_cases import batch, manifest, request
from msgspec import to_builtins
from replica_cases import NAMES, at_random, in_turn, served

from llm_locust.core.record import RequestRecord
from llm_locust.figures.fairness import AMOUNTS, deployment, gini, jain, variation
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import Question

AMOUNT_LISTS = st.lists(st.integers(0, 1000), min_size=2, max_size=20).filter(any)


def told(records: list[RequestRecord], seconds: float | None = None) -> dict[str, Any]:
    rows = batch(*records)
    facts = manifest(seconds or max(r.ended_ns - r.scheduled_ns for r in records) * 1e-9 + len(records) * 0.1)
    found: dict[str, Any] = to_builtins(
        deployment(rows, measure(rows, facts, Question(slo="", warmup_s=0.0)), facts, None)
    )
    return found


def causes(found: dict[str, Any]) -> dict[str, str]:
    return {cause["kind"]: cause["text"] for cause in found["fairness"]["causes"]}


def test_no_index_is_defined_for_one_for_unknown_ones_and_for_nothing() -> None:
    for index in (jain, gini, variation):
        assert index([5.0]) is index([]) is index([1.0, None]) is index([0.0, 0.0]) is None
        assert index([1.0, math.nan]) is None


@given(AMOUNT_LISTS)
def test_jains_index_is_between_one_replica_has_all_and_all_have_the_same(amounts: list[int]) -> None:
    index = jain(list(map(float, amounts)))
    assert index is not None
    assert 1 / len(amounts) - 1e-12 <= index <= 1 + 1e-12
    assert jain([1.0] * len(amounts)) == pytest.approx(1.0)
    assert jain([1.0, *[0.0] * (len(amounts) - 1)]) == pytest.approx(1 / len(amounts))
    assert (index > 1 - 1e-9) == (len(set(amounts)) == 1)


@given(AMOUNT_LISTS, st.floats(1e-3, 1e6))
def test_gini_is_the_mean_difference_of_pairs_whatever_the_unit(amounts: list[int], unit: float) -> None:
    k = len(amounts)
    pairs = sum(abs(x - y) for x in amounts for y in amounts)
    expected = pairs / (2 * k * sum(amounts))
    assert gini([unit * x for x in amounts]) == pytest.approx(expected, abs=1e-9)
    assert gini([1.0, *[0.0] * (k - 1)]) == pytest.approx(1 - 1 / k)


@given(AMOUNT_LISTS)
def test_jains_index_is_the_variation_in_other_words(amounts: list[int]) -> None:
    cv, index = variation(list(map(float, amounts))), jain(list(map(float, amounts)))
    assert cv is not None
    assert index == pytest.approx(1 / (1 + cv**2))


def test_random_routing_of_like_requests_is_by_chance_and_has_no_cause() -> None:
    found = told(served(at_random(), n=1600))
    fairness = found["fairness"]
    assert fairness["chance"]["requests"]["p"] > 0.01
    assert fairness["causes"] == []
    assert 0.98 < fairness["requests"] < 1
    assert (fairness["named_by"], fairness["unnamed"]) == ("header", 0)
    assert all(0 <= fairness["gini"][name] < 0.1 for name in AMOUNTS)


def test_round_robin_of_unequal_lengths_is_named() -> None:
    # Every fourth request is long, so that one replica gets all of the long ones.
    def sized(i: int) -> tuple[float, ...]:
        return tuple(0.05 + 0.02 * k for k in range(100 if i % 4 == 0 else 10))

    found = told([request(i * 0.1, sized(i), replica=NAMES[i % 4], reused=False) for i in range(1200)])
    assert found["fairness"]["requests"] == pytest.approx(1.0, abs=1e-5)
    assert found["fairness"]["output_tokens"] < 0.6
    text = causes(found)["round_robin"]
    assert "dealt out in turn" in text
    assert "output tokens" in text
    assert "in flight" in text


def test_sticky_connections_are_named_with_the_share() -> None:
    # Connections that live for 50 requests, on replicas by lot: two of the four got most of them.
    source = random.Random(4)
    homes = [source.choices(NAMES, [5, 3, 1, 1])[0] for _ in range(20)]
    records = [
        replace(record, reused=i % 50 > 0)
        for i, record in enumerate(served(lambda i: homes[i // 50], n=1000))
    ]
    found = told(records)
    text = causes(found)["sticky"]
    assert "--connection-reuse off" in text
    assert "100 % of 980 requests" in text
    assert "unknown" not in causes(found)


def test_prefix_aware_routing_is_named() -> None:
    homes = {f"p{k}": NAMES[k % 4] for k in range(12)}
    source = random.Random(2)
    records = []
    for i in range(1200):
        prompt = source.choices(list(homes), [10, *[1] * 11])[0]  # one prefix is popular
        records.append(request(i * 0.1, replica=homes[prompt], prompt_id=prompt, reused=False))
    found = causes(told(records))
    assert "prefix or the session" in found["affine"]
    assert "100 % of" in found["affine"]


def test_a_slow_replica_is_named_with_its_factor_and_share() -> None:
    slow = tuple(0.15 + 0.06 * k for k in range(10))
    fast = tuple(0.05 + 0.02 * k for k in range(10))
    found = told([request(i * 0.1, slow if i % 4 == 2 else fast, replica=NAMES[i % 4]) for i in range(400)])
    (slow_one,) = [cause for cause in found["fairness"]["causes"] if cause["kind"] == "slow"]
    assert slow_one["replica"] == "c"
    assert "3.0 times slower" in slow_one["text"]
    assert "25 % of the requests" in slow_one["text"]
    assert found["fairness"]["chance"]["ttft"]["p"] < 1e-6
    assert found["fairness"]["in_flight"] < 0.9


def test_a_replica_that_is_slow_because_it_has_most_requests_is_not_called_slow() -> None:
    slow = tuple(0.15 + 0.06 * k for k in range(10))
    fast = tuple(0.05 + 0.02 * k for k in range(10))
    found = told(
        [
            request(i * 0.1, slow if i % 2 else fast, replica="a" if i % 2 else NAMES[1 + i % 3])
            for i in range(400)
        ]
    )
    assert "slow" not in causes(found)
    assert "unknown" in causes(found)


def test_a_dead_replica_is_named_with_its_time() -> None:
    live = in_turn(NAMES[:3])
    found = told(served(lambda i: NAMES[i % 4] if i < 400 else live(i), n=800))
    assert "d stopped serving at 40.0 s" in causes(found)["out"]
    (entry,) = [entry for entry in found["replicas"] if entry["name"] == "d"]
    assert entry["outages"][0]["to_s"] is None
    assert entry["in_flight"][0] > 0 == entry["in_flight"][-1]


def test_a_slow_replica_is_named_although_another_ones_death_gave_it_more_requests() -> None:
    slow, fast = (tuple(0.05 + pace * k for k in range(10)) for pace in (0.06, 0.02))
    live = in_turn(NAMES[:2])
    picked = [NAMES[i % 3] if i < 240 else live(i) for i in range(800)]
    found = told(
        [request(i * 0.1, slow if name == "a" else fast, replica=name) for i, name in enumerate(picked)]
    )
    assert found["replicas"][0]["share"] > 1.25 / 3
    assert "c stopped serving at" in causes(found)["out"]
    assert "a is 3.0 times slower than b" in causes(found)["slow"]


def test_a_replica_that_served_only_in_a_cold_start_is_not_called_slow() -> None:
    cold, warm = ((first, first + 0.02, first + 0.04) for first in (1.0, 0.1))
    live = in_turn(NAMES[:2])
    records = [request(i * 0.1, cold, replica=NAMES[i % 3]) for i in range(120)]
    records += [request(i * 0.1, warm, replica=live(i)) for i in range(120, 800)]
    found = told(records)
    assert found["replicas"][2]["ttft_p50_ms"] == pytest.approx(1000)
    assert found["replicas"][0]["ttft_p50_ms"] == pytest.approx(100)
    assert set(causes(found)) == {"out"}


def test_round_robin_is_told_from_the_time_in_which_all_served() -> None:
    live = in_turn(NAMES[:3])
    found = told(served(lambda i: NAMES[i % 4] if i < 1200 else live(i), n=2000))
    assert found["fairness"]["dispersion"] == 0.0
    assert "requests are dealt out in turn" in causes(found)["round_robin"]


def test_addresses_stand_in_for_names_that_no_response_gives() -> None:
    records = [request(i * 0.1, peer=f"10.0.0.{i % 2}:80") for i in range(100)]
    found = told(records)
    assert [entry["name"] for entry in found["replicas"]] == ["10.0.0.0:80", "10.0.0.1:80"]
    assert found["fairness"]["named_by"] == "peer"


def test_a_run_without_replicas_has_every_key_and_nothing_in_it() -> None:
    found = told([request()], seconds=1.0)
    assert found["replicas"] == []
    full = told(served(at_random(), n=40))["fairness"]
    assert found["fairness"].keys() == full.keys()
    assert found["fairness"]["requests"] is found["fairness"]["named_by"] is None
    assert found["fairness"]["causes"] == []
    assert found["fairness"]["unnamed"] == 1
