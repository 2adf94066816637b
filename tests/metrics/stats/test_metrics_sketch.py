"""The live histograms: how near their percentiles are, and that parts add up to the whole."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from llm_locust.metrics.stats.sketch import BUCKETS, SKETCH_ERROR, Sketch, Tally

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]

PERCENTS = (0.0, 1.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0)

DISTRIBUTIONS: dict[str, Draw] = {
    "constant": lambda g, n: np.full(n, 0.02),
    "uniform": lambda g, n: g.uniform(0.05, 2.0, n),
    "normal": lambda g, n: g.normal(0.5, 0.02, n),
    "exponential": lambda g, n: g.exponential(0.05, n),
    "lognormal": lambda g, n: g.lognormal(-3, 1.2, n),
    "pareto": lambda g, n: 0.01 * (1 + g.pareto(1.1, n)),
    "weibull": lambda g, n: 0.3 * g.weibull(0.5, n),
    "gamma": lambda g, n: g.gamma(2.0, 0.01, n),
    "beta": lambda g, n: 10 * g.beta(0.5, 0.5, n),
    "two peaks": lambda g, n: np.where(g.random(n) < 0.9, g.normal(0.05, 0.001, n), g.normal(30, 1, n)),
    "whole milliseconds": lambda g, n: np.round(g.uniform(0.001, 0.4, n), 3),
    "powers of two": lambda g, n: np.array([2.0**k for k in g.integers(-25, 15, n).tolist()]),
    "log-uniform from nanoseconds to days": lambda g, n: np.exp(g.uniform(-20.7, 13.5, n)),
    "one in a hundred late": lambda g, n: np.where(g.random(n) < 0.01, 60.0, 0.02 + 1e-4 * g.random(n)),
    "mostly nothing": lambda g, n: np.where(g.random(n) < 0.7, 0.0, g.exponential(0.01, n)),
}

durations = st.lists(st.integers(0, 10**14).map(lambda ns: ns * 1e-9) | st.just(float("nan")), max_size=40)


def same(a: Sketch, b: Sketch) -> bool:
    return (
        np.array_equal(a.buckets, b.buckets) and np.array_equal(a.ends, b.ends) and a.total_ns == b.total_ns
    )


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_every_percentile_is_within_the_stated_error(name: str) -> None:
    for n in (1, 2, 17, 5000):
        values = DISTRIBUTIONS[name](np.random.default_rng(n), n)
        sketch = Sketch.of(values)
        told = [sketch.percentile(p) for p in PERCENTS]
        np.testing.assert_allclose(told, np.percentile(values, PERCENTS), rtol=SKETCH_ERROR, atol=1e-9)


def test_the_stated_error_is_at_most_one_per_cent() -> None:
    assert SKETCH_ERROR <= 0.01


@given(durations)
def test_several_percentiles_at_once_are_those_of_one_after_the_other(values: list[float]) -> None:
    sketch = Sketch.of(np.array(values, dtype=np.float64))
    np.testing.assert_equal(sketch.percentiles(PERCENTS), [sketch.percentile(p) for p in PERCENTS])


@given(durations, st.sampled_from(PERCENTS))
def test_percentiles_of_any_samples_are_within_the_stated_error(values: list[float], percent: float) -> None:
    known = np.array([v for v in values if v == v])
    told = Sketch.of(np.array(values, dtype=np.float64)).percentile(percent)
    if not len(known):
        assert np.isnan(told)
        return
    np.testing.assert_allclose(told, np.percentile(known, percent), rtol=SKETCH_ERROR, atol=1e-9)


@given(st.lists(durations, max_size=6), st.randoms(use_true_random=False))
def test_parts_merged_in_any_order_are_the_sketch_of_the_whole(
    parts: list[list[float]], order: Random
) -> None:
    whole = Sketch.of(np.array([v for part in parts for v in part], dtype=np.float64))
    sketches = [Sketch.of(np.array(part, dtype=np.float64)) for part in parts]
    order.shuffle(sketches)
    assert same(Sketch.merge(sketches), whole)
    while len(sketches) > 1:  # and in any grouping
        a, b = sketches.pop(), sketches.pop(0)
        sketches.append(Sketch.merge([a, b]))
    assert same(Sketch.merge(sketches), whole)


@given(durations)
def test_count_and_sum_are_exact(values: list[float]) -> None:
    sketch = Sketch.of(np.array(values, dtype=np.float64))
    known = [v for v in values if v == v]
    assert len(sketch) == len(known)
    assert sketch.total_ns == sum(round(v * 1e9) for v in known)
    if known:
        assert sketch.moments()[0] == pytest.approx(np.mean(known), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("longest_s", [1, 3000], ids=["a second", "an hour"])
def test_the_deviation_is_near_that_of_the_samples(longest_s: float) -> None:
    values = np.random.default_rng(1).lognormal(-3, 0.5, 20_000)
    values *= longest_s / values.max()
    assert Sketch.of(values).moments()[1] == pytest.approx(values.std(), rel=0.02)


@given(durations)
def test_a_sketch_survives_its_way_through_a_message(values: list[float]) -> None:
    sketch = Sketch.of(np.array(values, dtype=np.float64))
    steps, counts = sketch.tally.packed()
    assert same(Sketch.counted(Tally.unpacked(steps, counts, BUCKETS), sketch.total_ns), sketch)


@pytest.mark.parametrize(
    ("steps", "counts"),
    [([1, 2], [1]), ([-1], [1]), ([1, 0], [1, 1]), ([5, -2], [1, 1]), ([BUCKETS], [1]), ([3], [0])],
)
def test_what_is_no_tally_is_refused(steps: list[int], counts: list[int]) -> None:
    with pytest.raises(ValueError, match=r"codes|count"):
        Tally.unpacked(steps, counts, BUCKETS)


def test_a_part_of_a_tally_counts_its_codes_from_0() -> None:
    tally = Tally.of(np.array([9, 3, 3, 5, 8, 9]))
    part = tally.between(3, 9)
    assert (part.codes.tolist(), part.counts.tolist()) == ([0, 2, 5], [2, 1, 1])
    assert not len(tally.between(6, 8).codes)


def test_samples_at_or_below_a_limit_are_counted_up_to_it() -> None:
    sketch = Sketch.of(np.array([0.0, 0.01, 0.02, 0.02, 0.5, 7.0]))
    assert sketch.at_most([1e-6, 0.015, 0.025, 1.0, 10.0]) == [1, 2, 4, 5, 6]
    assert Sketch.of(np.empty(0)).at_most([1.0]) == [0]


def test_no_samples_have_no_moments_and_no_percentiles() -> None:
    empty = Sketch.of(np.empty(0))
    assert np.isnan([*empty.moments(), *empty.percentiles([50.0, 99.0]), empty.percentile(50.0)]).all()


def test_negative_durations_count_as_none_and_endless_ones_as_the_longest() -> None:
    sketch = Sketch.of(np.array([-1.0, 1e9]))
    assert len(sketch) == 2
    assert sketch[0] == 0
    assert sketch[1] == pytest.approx(2.0**20, rel=0.02)


def test_a_rank_beyond_the_samples_is_an_error() -> None:
    with pytest.raises(IndexError, match="rank 1 of 1 samples"):
        Sketch.of(np.array([1.0]))[1]
