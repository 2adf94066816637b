"""Shares and their intervals, against published figures; whether groups differ by more than chance."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from llm_locust.metrics.stats.proportions import (
    Proportion,
    ProportionDifference,
    chi_square_tail,
    difference,
    equal_shares,
    hypergeometric_at_most,
    median_interval,
    same_distribution,
)

PROPORTIONS = st.integers(1, 400).flatmap(lambda n: st.integers(0, n).map(lambda hits: Proportion(hits, n)))


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_is_as_published(hits: int, n: int, low: float, high: float) -> None:
    assert Proportion(hits, n).interval() == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("a", "b", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998) 873-890, table II, method 10.
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_newcombes_interval_is_as_published(
    a: tuple[int, int], b: tuple[int, int], low: float, high: float
) -> None:
    found = difference(Proportion(*a), Proportion(*b))
    assert found.ci95 == pytest.approx((low, high), abs=5e-5)


def test_of_nothing_there_is_no_share() -> None:
    nothing = Proportion(0, 0)
    assert nothing.ratio is None
    assert nothing.interval() is None
    assert difference(nothing, Proportion(1, 2)) == ProportionDifference(None, None)
    assert difference(Proportion(1, 2), nothing) == ProportionDifference(None, None)


@given(PROPORTIONS)
def test_the_share_is_in_its_interval(p: Proportion) -> None:
    ends = p.interval()
    assert ends is not None
    assert p.ratio is not None
    assert 0 <= ends[0] <= p.ratio <= ends[1] <= 1


@given(PROPORTIONS, PROPORTIONS)
def test_the_difference_turned_round_is_the_same_with_its_sign_changed(a: Proportion, b: Proportion) -> None:
    one, other = difference(a, b), difference(b, a)
    assert one.difference is not None
    assert other.difference is not None
    assert other.ci95 is not None
    assert one.difference == pytest.approx(-other.difference)
    assert one.ci95 == pytest.approx((-other.ci95[1], -other.ci95[0]))


@pytest.mark.parametrize(
    ("x", "freedom", "tail"),
    [
        (3.841, 1, 0.05),
        (5.991, 2, 0.05),
        (7.815, 3, 0.05),
        (18.307, 10, 0.05),
        (24.996, 15, 0.05),
        (6.635, 1, 0.01),
    ],
)
def test_the_tail_is_that_of_the_printed_tables(x: float, freedom: int, tail: float) -> None:
    assert chi_square_tail(x, freedom) == pytest.approx(tail, abs=2e-5)


@given(st.floats(0, 2000), st.integers(1, 300))
def test_the_tail_is_a_probability_that_falls_with_x_and_grows_with_freedom(x: float, freedom: int) -> None:
    tail = chi_square_tail(x, freedom)
    assert 0 <= tail <= 1
    assert chi_square_tail(x + 1, freedom) <= tail + 1e-12
    assert chi_square_tail(x, freedom + 1) >= tail - 1e-12


def test_the_tail_is_the_integral_of_the_density() -> None:
    for freedom in (3, 4, 9):
        x = np.linspace(7.0, 200.0, 400_001)
        density = x ** (freedom / 2 - 1) * np.exp(-x / 2) / (2 ** (freedom / 2) * math.gamma(freedom / 2))
        assert chi_square_tail(7.0, freedom) == pytest.approx(float(np.trapezoid(density, x)), rel=1e-6)


def test_equal_shares_are_by_chance_and_one_that_has_twice_as_many_is_not() -> None:
    even, uneven = equal_shares([100, 101, 99]), equal_shares([200, 100, 100])
    assert even is not None
    assert uneven is not None
    assert even.p > 0.9
    assert uneven.statistic == pytest.approx((66.667**2 + 2 * 33.333**2) / 133.333, rel=1e-4)
    assert uneven.p < 1e-6


def test_random_routing_is_called_uneven_about_as_often_as_the_p_value_says() -> None:
    draw = np.random.default_rng(7)
    found = [equal_shares(draw.multinomial(400, [0.25] * 4).tolist()) for _ in range(2000)]
    share = np.mean([tested is not None and tested.p < 0.05 for tested in found])
    assert 0.03 < share < 0.07


def test_too_few_requests_or_replicas_tell_nothing() -> None:
    assert equal_shares([5, 4]) is None
    assert equal_shares([100]) is None
    assert equal_shares([]) is None


def test_kruskal_and_wallis_is_that_of_their_own_definition() -> None:
    a, b = np.array([1.0, 3.0, 5.0, 7.0, 9.0]), np.array([2.0, 4.0, 6.0, 8.0, 10.0])
    tested = same_distribution([a, b])
    assert tested is not None
    # Rank sums 25 and 30 of 10: H = 12/110 (625/5 + 900/5) - 33.
    assert tested.statistic == pytest.approx(12 / 110 * (125 + 180) - 33)


def test_a_shifted_latency_is_beyond_chance_and_undefined_values_do_not_count() -> None:
    draw = np.random.default_rng(1)
    fast, slow = draw.lognormal(0, 0.5, 300), draw.lognormal(0.4, 0.5, 300)
    same = same_distribution([fast, draw.lognormal(0, 0.5, 300)])
    other = same_distribution([np.append(fast, np.nan), np.append(slow, [np.nan] * 9)])
    assert same is not None
    assert other is not None
    assert same.p > 0.01 > 1e-6 > other.p
    assert other == same_distribution([fast, slow])


def test_one_group_and_one_value_tell_nothing() -> None:
    assert same_distribution([np.arange(9.0), np.array([1.0])]) is None
    assert same_distribution([np.ones(9), np.ones(9)]) is None
    assert same_distribution([]) is None


def test_the_chance_of_marked_ones_is_that_of_the_hypergeometric_distribution() -> None:
    """Fisher's tea: of 8 cups with milk first in 4, at most 0 .. 4 right among 4 that are chosen."""
    found = [hypergeometric_at_most(k, 4, 4, 8) * 70 for k in range(5)]
    assert found == pytest.approx([1, 17, 53, 69, 70])
    assert hypergeometric_at_most(0, 3, 6, 8) == 0
    ways = sum(math.comb(12, i) * math.comb(40, 20 - i) for i in range(4))
    assert hypergeometric_at_most(3, 20, 12, 52) == pytest.approx(ways / math.comb(52, 20))


@pytest.mark.parametrize("n", [6, 7, 10, 25, 100, 101])
def test_the_interval_of_a_median_holds_it_in_95_of_100_cases(n: int) -> None:
    """The ranks are those of the values, so that the chance is a sum of binomials."""
    ends = median_interval(np.append(np.random.default_rng(n).permutation(np.arange(1.0, n + 1)), np.nan))
    assert ends is not None
    low, high = map(int, ends)
    assert low + high == n + 1
    held = sum(math.comb(n, below) for below in range(low, high)) / 2**n
    narrower = sum(math.comb(n, below) for below in range(low + 2, high - 2)) / 2**n
    assert narrower < 0.95 <= held


def test_a_median_of_fewer_than_six_samples_has_no_interval() -> None:
    assert median_interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0, np.nan])) is None
