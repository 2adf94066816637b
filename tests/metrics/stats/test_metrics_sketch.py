"""Histograms: how near their percentiles are, and that parts add up to the whole."""

import math
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from llm_locust.metrics.stats import sketch
from llm_locust.metrics.stats.censoring import PERCENTILES, ordered, percentile, summarise_ascending
from llm_locust.metrics.stats.sketch import (
    BUCKETS,
    RELATIVE_ERROR,
    SKETCH_ERROR,
    Buckets,
    Histogram,
    Sketch,
    Tally,
    count_durations,
    merge,
)

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


durations_of_histogram = st.lists(
    st.integers(0, 10**4) | st.integers(0, 10**9) | st.integers(0, 2**60), max_size=40
)


def counted(values: list[int]) -> Histogram:
    return count_durations(np.array(values, dtype=np.int64))


def same_of_histogram(a: Histogram, b: Histogram) -> bool:
    figures = [(h.total_ns, h.squares, h.least_ns, h.most_ns, h.counts.tolist()) for h in (a, b)]
    return figures[0] == figures[1]


@given(durations_of_histogram)
def test_every_sample_is_told_within_the_stated_error(values: list[int]) -> None:
    told = counted(values)
    assert len(told) == len(values)
    for rank, true_ns in enumerate(sorted(values)):
        assert told[rank] == pytest.approx(true_ns * 1e-9, rel=RELATIVE_ERROR, abs=0)


@given(durations_of_histogram)
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


@given(st.lists(durations_of_histogram, max_size=5))
def test_histograms_of_parts_add_up_to_that_of_the_whole(parts: list[list[int]]) -> None:
    assert same_of_histogram(
        merge([counted(part) for part in parts]), counted([v for part in parts for v in part])
    )


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


def test_a_rank_beyond_the_samples_is_an_error_of_histogram() -> None:
    with pytest.raises(IndexError, match="rank 2 of 2 samples"):
        counted([1, 2])[2]


def test_the_stated_error_is_a_thousandth_at_most() -> None:
    assert RELATIVE_ERROR <= 0.001


values = st.floats(0, 2.0**40, width=32) | st.integers(0, 2**40).map(float)
shapes = st.builds(Buckets, st.integers(0, 12), st.integers(-30, 0), st.integers(1, 50), below=st.booleans())


@given(shapes, st.lists(values, min_size=1, max_size=40))
def test_a_value_is_in_the_bucket_that_begins_at_or_before_it(buckets: Buckets, found: list[float]) -> None:
    edges, some = buckets.edges(0, len(buckets)), np.array(found)
    assert len(edges) == len(buckets) + 1
    assert (np.diff(edges) > 0).all()
    expected = np.clip(np.searchsorted(edges, some.astype(np.float32), side="right") - 1, 0, len(buckets) - 1)
    assert buckets.of(some).tolist() == expected.tolist()


@given(st.integers(0, 12), st.integers(-30, 0), st.integers(1, 50))
def test_an_octave_has_buckets_of_one_width(kept_bits: int, first: int, end: int) -> None:
    buckets = Buckets(kept_bits, first, end)
    each = 1 << kept_bits
    edges = buckets.edges(0, len(buckets))
    assert (edges[0], edges[-1]) == (2.0**first, 2.0**end)
    last_octave = np.linspace(2.0 ** (end - 1), 2.0**end, each + 1)
    assert edges[-each - 1 :].tolist() == pytest.approx(last_octave.tolist(), rel=1e-12)


@given(st.lists(st.integers(2, 10**15), min_size=1, max_size=60))
def test_histogram_and_sketch_tell_the_same_of_each_sample(durations_ns: list[int]) -> None:
    told = count_durations(np.array(durations_ns, np.int64))
    live = Sketch.of(np.array(durations_ns) * 1e-9)
    together = (1 + sketch.RELATIVE_ERROR) * (1 + sketch.SKETCH_ERROR) - 1
    assert len(told) == len(live)
    for rank in range(len(told)):
        assert live[rank] == pytest.approx(told[rank], rel=together, abs=0)
    assert live.total_ns == told.total_ns
