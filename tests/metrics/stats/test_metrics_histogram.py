"""Durations counted in bins: what is exact, and how far off the rest may be."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from llm_locust.metrics.stats.censoring import PERCENTILES, ordered, percentile, summarise_ascending
from llm_locust.metrics.stats.sketch import RELATIVE_ERROR, Histogram, count_durations, merge

durations = st.lists(st.integers(0, 10**4) | st.integers(0, 10**9) | st.integers(0, 2**60), max_size=40)


def counted(values: list[int]) -> Histogram:
    return count_durations(np.array(values, dtype=np.int64))


def same(a: Histogram, b: Histogram) -> bool:
    figures = [(h.total_ns, h.squares, h.least_ns, h.most_ns, h.counts.tolist()) for h in (a, b)]
    return figures[0] == figures[1]


@given(durations)
def test_every_sample_is_told_within_the_stated_error(values: list[int]) -> None:
    told = counted(values)
    assert len(told) == len(values)
    for rank, true_ns in enumerate(sorted(values)):
        assert told[rank] == pytest.approx(true_ns * 1e-9, rel=RELATIVE_ERROR, abs=0)


@given(durations)
def test_moments_least_and_greatest_are_exact(values: list[int]) -> None:
    figures = summarise_ascending(counted(values), scale=1e9)
    if not values:
        assert figures["mean"] is figures["std"] is figures["min"] is None
        return
    mean = sum(values) / len(values)
    # Of integers, so that nothing is lost where all are large and near to each other.
    variance = (len(values) * sum(v * v for v in values) - sum(values) ** 2) / len(values) ** 2
    assert figures["mean"] == pytest.approx(mean, rel=1e-12)
    assert figures["std"] == pytest.approx(math.sqrt(variance), rel=1e-12)
    assert (figures["min"], figures["max"]) == pytest.approx((min(values), max(values)), rel=1e-12)


@given(st.lists(durations, max_size=5))
def test_histograms_of_parts_add_up_to_that_of_the_whole(parts: list[list[int]]) -> None:
    assert same(merge([counted(part) for part in parts]), counted([v for part in parts for v in part]))


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_within_the_stated_error(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ns = np.concatenate([rng.lognormal(16.8, 0.5, 30_000), rng.normal(5e8, 1e5, 900), np.zeros(50)])
    ns = np.rint(ns).astype(np.int64)
    true, told = ordered(ns * 1e-9), count_durations(ns)
    for percent in PERCENTILES.values():
        for infinite in (0, 40):
            near = pytest.approx(percentile(true, percent, infinite), rel=RELATIVE_ERROR)
            assert percentile(told, percent, infinite) == near


def test_more_than_one_slice_is_counted_whole() -> None:
    ns = np.full((1 << 20) + 5, 20_000_001, dtype=np.int64)
    told = count_durations(ns)
    assert len(told) == len(ns)
    assert told.moments() == pytest.approx((0.020000001, 0.0))
    assert told[len(ns) // 2] == pytest.approx(0.020000001)


def test_a_rank_beyond_the_samples_is_an_error() -> None:
    with pytest.raises(IndexError, match="rank 2 of 2 samples"):
        counted([1, 2])[2]


def test_the_stated_error_is_a_thousandth_at_most() -> None:
    assert RELATIVE_ERROR <= 0.001
