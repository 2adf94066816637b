"""Certified percentiles against the figures that MLPerf prints, and against exact binomial sums."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from llm_locust.metrics.stats.censoring import (
    CONFIDENCE,
    Durations,
    at_most,
    certified,
    certified_rank,
    certified_share,
    fewest_samples,
)

#: Least numbers of samples that MLPerf Inference states for each percentile.
FEWEST = {50: 11, 75: 24, 80: 31, 90: 64, 95: 130, 97: 219, 99: 662, 99.9: 6_636, 99.99: 66_381}


@pytest.mark.parametrize("percent", FEWEST)
def test_the_least_numbers_of_samples_are_those_of_mlperf(percent: float) -> None:
    fewest = fewest_samples(percent)
    assert fewest == FEWEST[percent]
    assert (certified_rank(fewest - 1, percent), certified_rank(fewest, percent)) == (None, 1)


def test_the_rank_among_10_000_samples_is_that_of_mlperf() -> None:
    assert certified_rank(10_000, 99) == 77


@given(n=st.integers(1, 60), share=st.fractions(Fraction(1, 100), Fraction(99, 100)), data=st.data())
def test_the_tail_is_the_exact_sum(n: int, share: Fraction, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    exact = sum(math.comb(n, i) * share**i * (1 - share) ** (n - i) for i in range(k + 1))
    assert at_most(k, n, float(share)) == pytest.approx(float(exact), rel=1e-9)


@given(n=st.integers(64, 100_000), percent=st.sampled_from([90.0, 95.0, 99.0]))
def test_no_higher_rank_certifies(n: int, percent: float) -> None:
    rank = certified_rank(n, percent)
    if rank is None:
        return
    share = (100 - percent) / 100
    assert at_most(rank, n, share) < 1 - CONFIDENCE <= at_most(rank + 1, n, share)


@pytest.mark.parametrize(("n", "percent"), [(64, 90.0), (1_000, 95.0), (10_000, 99.0)])
def test_the_bound_is_below_a_limit_if_and_only_if_the_certified_share_is(n: int, percent: float) -> None:
    share = certified_share(n, percent)
    assert share is not None
    assert share > percent / 100
    for below in (round(share * n), round(share * n) - 1):
        durations = np.repeat([1.0, 3.0], [below, n - below])
        assert (certified(Durations.of(durations), percent) < 2.0) == (below / n >= share)


@pytest.mark.parametrize("n", [0, 1, 63])
def test_of_too_few_samples_nothing_is_certified(n: int) -> None:
    assert certified_share(n, 90.0) is None
    assert math.isnan(certified(Durations.of(np.ones(n)), 90.0))


def test_the_bound_holds_in_99_of_100_runs() -> None:
    rng, runs = np.random.default_rng(4), 4_000
    truth = -math.log(0.05)  # p95 of an exponential distribution with mean 1
    draws = np.sort(rng.exponential(size=(runs, 300)), axis=1)
    below = sum(certified(Durations.of(draw), 95.0) < truth for draw in draws)
    # The binomial distribution of 4,000 with 0.01 is above 65 in one case of 10,000.
    assert 1 <= below <= 65


def test_cut_and_failed_durations_are_the_longest() -> None:
    observed, rank = np.arange(1.0, 101.0), certified_rank(102, 90.0)
    assert rank == certified_rank(104, 90.0) == 3
    assert certified(Durations.of(observed, np.full(2, 0.5)), 90.0) == observed[-1]
    assert certified(Durations.of(observed, failed=2), 90.0) == observed[-1]
    assert certified(Durations.of(observed, np.full(3, 0.5), failed=1), 90.0) == math.inf
