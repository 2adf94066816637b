"""Percentiles, their intervals, and the adjusted ones."""

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_locust.metrics.latency import summarise_latency
from llm_locust.metrics.percentiles import (
    PERCENTILES,
    interval_ranks,
    moments,
    needed_n,
    ordered,
    percentile,
)

samples = st.lists(st.floats(0, 1e4), min_size=1, max_size=60)


@given(samples, st.floats(0, 100))
def test_a_percentile_is_numpys_linear_one(values: list[float], percent: float) -> None:
    expected = float(np.percentile(values, percent))
    assert percentile(ordered(np.array(values)), percent) == pytest.approx(expected, rel=1e-12, abs=1e-300)


@given(samples, st.randoms())
def test_the_order_of_samples_changes_no_figure(values: list[float], random: Random) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)
    assert summarise_latency(np.array(shuffled)) == summarise_latency(np.array(values))


@given(st.lists(samples, min_size=1, max_size=5))
def test_pooled_figures_are_those_of_the_concatenation(parts: list[list[float]]) -> None:
    everything = [v for part in parts for v in part]
    pooled = summarise_latency(np.concatenate([np.array(part) for part in parts]))
    assert pooled["n"] == len(everything)
    assert pooled["mean"] == pytest.approx(sum(everything) / len(everything) * 1e3)
    assert pooled["p99"] == pytest.approx(float(np.percentile(everything, 99)) * 1e3)
    assert pooled["max"] == max(everything) * 1e3


def test_trap_13_a_percentile_is_of_the_pool_and_exact_not_an_average_and_not_a_bucket() -> None:
    fast, slow = np.full(900, 0.104), np.full(100, 1.0)
    pooled = summarise_latency(np.concatenate([fast, slow]))
    assert pooled["p50"] == pytest.approx(104.0)  # Locust's buckets would say 100
    assert pooled["p95"] == pytest.approx(1000.0)
    averaged = (summarise_latency(fast)["p95"] + summarise_latency(slow)["p95"]) / 2
    assert pooled["p95"] != pytest.approx(averaged)
    assert summarise_latency(np.full(9, 0.114))["p50"] == pytest.approx(114.0)


def test_mean_and_deviation_are_of_the_population_in_milliseconds() -> None:
    figures = summarise_latency(np.array([0.1, 0.2, np.nan, 0.6]))
    assert figures["n"] == 3
    assert figures["mean"] == pytest.approx(300)
    assert figures["std"] == pytest.approx(math.sqrt((200**2 + 100**2 + 300**2) / 3))
    assert (figures["min"], figures["max"]) == pytest.approx((100, 600))


def test_moments_of_many_slices_are_those_of_the_whole() -> None:
    values = np.sort(np.random.default_rng(1).gamma(2.0, size=2_500_000))
    assert moments(values) == pytest.approx((values.mean(), values.std()), rel=1e-12)


def at_least(n: int, p: float, k: int) -> float:
    """P(Binomial(n, p) >= k), summed exactly."""
    return math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


@pytest.mark.parametrize("n", [1, 5, 6, 7, 20, 100, 367, 368])
@pytest.mark.parametrize("percent", PERCENTILES.values())
def test_ranks_are_the_narrowest_that_leave_a_fortieth_outside_on_each_side(n: int, percent: float) -> None:
    p = percent / 100
    lower = max((k for k in range(n + 1) if 1 - at_least(n, p, k) <= 0.025), default=0)
    upper = min((k for k in range(1, n + 2) if at_least(n, p, k) <= 0.025), default=n + 1)
    expected = (lower, upper) if lower >= 1 and upper <= n else None
    assert interval_ranks(n, percent) == expected


@pytest.mark.parametrize(("percent", "needed"), [(50.0, 6), (99.0, 368), (99.9, 3688)])
def test_an_interval_needs_enough_samples(percent: float, needed: int) -> None:
    assert interval_ranks(needed - 1, percent) is None
    assert interval_ranks(needed, percent) is not None
    assert needed_n(percent) == needed


@pytest.mark.parametrize("percent", PERCENTILES.values())
def test_the_needed_number_is_where_the_interval_begins(percent: float) -> None:
    needed = needed_n(percent)
    assert interval_ranks(needed - 1, percent) is None
    assert interval_ranks(needed, percent) is not None


def test_ranks_of_a_hundred_million_samples_are_those_of_the_normal_limit() -> None:
    n, p = 100_000_000, 0.99
    ranks = interval_ranks(n, p * 100)
    assert ranks is not None
    reach = 1.959964 * math.sqrt(n * p * (1 - p))
    assert ranks == pytest.approx((n * p - reach, n * p + reach), abs=3)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    random = np.random.default_rng(7)
    held = 0
    for _ in range(400):
        low, high = summarise_latency(random.exponential(size=400))["ci95"]["p90"]
        held += low <= -math.log(0.1) * 1e3 <= high
    assert 0.92 <= held / 400 <= 1.0


def test_a_withheld_interval_leaves_its_percentile() -> None:
    figures = summarise_latency(np.linspace(0.1, 0.2, 50))
    assert figures["p99"] is not None
    assert figures["ci95"]["p99"] is None
    assert figures["ci95"]["p50"] is not None


def test_adjusted_percentiles_that_fall_on_a_failure_are_named_and_have_no_value() -> None:
    figures = summarise_latency(np.linspace(0.1, 0.2, 90), failed=10)
    assert figures["n"] == 100
    assert figures["beyond"] == ["p90", "p95", "p99", "p99_9", "max"]
    assert all(figures[key] is None for key in figures["beyond"])
    assert figures["mean"] is None
    assert figures["p50"] == pytest.approx(
        1e3 * float(np.percentile([*np.linspace(0.1, 0.2, 90), *[9] * 10], 50))
    )


def test_the_upper_end_of_an_adjusted_interval_can_be_beyond() -> None:
    low, high = summarise_latency(np.linspace(0.1, 0.2, 930), failed=70)["ci95"]["p90"]
    assert high is not None
    low, high = summarise_latency(np.linspace(0.1, 0.2, 910), failed=90)["ci95"]["p90"]
    assert low is not None
    assert high is None


def test_a_population_of_failures_alone_is_all_beyond() -> None:
    figures = summarise_latency(np.empty(0), failed=3)
    assert figures["n"] == 3
    assert figures["beyond"] == ["min", *PERCENTILES, "max"]


@given(samples, st.integers(0, 40))
def test_failures_never_make_a_percentile_smaller(values: list[float], failures: int) -> None:
    plain, adjusted = summarise_latency(np.array(values)), summarise_latency(np.array(values), failures)
    for key in PERCENTILES:
        assert key in adjusted["beyond"] or adjusted[key] >= plain[key] * (1 - 1e-12)
