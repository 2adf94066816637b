"""The block bootstrap knows how far a figure may be off, also where neighbours resemble each other."""

import math
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from llm_locust.metrics.stats.bootstrap import (
    CELLS,
    StandardError,
    block_length,
    longest_block,
    standard_error,
)

Floats = NDArray[np.float64]


def noise(seed: int, memory: float = 0.0, n: int = CELLS) -> Floats:
    """An autoregressive series of variance 1, each value having ``memory`` of the one before."""
    steps = np.random.default_rng(seed).normal(size=n) * math.sqrt(1 - memory**2)
    return np.fromiter(accumulate(steps, lambda before, step: memory * before + step), float, n)


def true_error(memory: float, n: int = CELLS) -> float:
    """The standard deviation of the mean of such a series, by its long-run variance."""
    return math.sqrt((1 + memory) / (1 - memory) / n)


def errors(memory: float, runs: int = 60) -> Floats:
    """The standard errors of the mean that a bootstrap of many such series gives."""
    found = [standard_error(noise(seed, memory), np.ones(CELLS)) for seed in range(runs)]
    return np.array([error.value for error in found if error is not None])


def drawn_error(values: Floats, length: int, draws: int = 20_000) -> float:
    """The standard deviation of the mean of a run put together of random blocks, by drawing them."""
    rng, n = np.random.default_rng(0), len(values)
    starts = rng.integers(0, n, (draws, n // length, 1))
    means = values[(starts + np.arange(length)).reshape(draws, -1) % n].mean(axis=1)
    blocks = n / length
    return float(means.std()) * math.sqrt(blocks / (blocks - 1))


@pytest.mark.parametrize("memory", [0.0, 0.8])
def test_the_error_is_that_of_all_draws_of_blocks(memory: float) -> None:
    values = noise(3, memory, 240)
    found = standard_error(values, np.ones(240))
    assert found is not None
    length = block_length(values - values.mean())
    if 240 % length:
        length = next(d for d in range(length, 240) if 240 % d == 0)
    assert found.value == pytest.approx(drawn_error(values, length), rel=0.08)


def test_blocks_that_do_not_fit_into_the_run_are_told() -> None:
    short = standard_error(noise(1, 0.995), np.ones(CELLS))
    apart = standard_error(noise(1, 0.0), np.ones(CELLS))
    assert short is not None
    assert apart is not None
    assert not short.settled
    assert apart.settled
    assert longest_block(4) == 1
    few = standard_error(np.arange(4.0), np.ones(4))
    assert few is not None
    assert not few.settled


def test_the_error_of_independent_values_is_the_textbooks() -> None:
    assert errors(memory=0.0).mean() == pytest.approx(1 / math.sqrt(CELLS), rel=0.08)


@pytest.mark.parametrize("memory", [0.5, 0.8, 0.9])
def test_values_that_resemble_their_neighbours_count_as_fewer(memory: float) -> None:
    found = errors(memory)
    assert 0.7 * true_error(memory) < float(np.median(found)) < 1.25 * true_error(memory)
    assert float(np.median(found)) > 1.4 / math.sqrt(CELLS)


@pytest.mark.parametrize(("memory", "share"), [(0.0, 0.912), (0.5, 0.912), (0.9, 0.87)])
def test_the_interval_of_a_mean_holds_it_about_as_often_as_it_says(memory: float, share: float) -> None:
    """The true mean is 0. In 300 runs 95 % come out as 91.2 % once in a thousand times."""
    held = {0.95: 0, 0.998: 0}
    for seed in range(300):
        values = noise(seed, memory)
        error = standard_error(values, np.ones(CELLS))
        assert error is not None
        for confidence in held:
            held[confidence] += abs(float(values.mean())) <= error.reach(confidence)
    assert held[0.95] / 300 > share
    assert held[0.998] / 300 > 0.985


def test_blocks_are_as_long_as_the_memory_of_the_series() -> None:
    def lengths(memory: float) -> float:
        return float(np.mean([block_length(noise(seed, memory)) for seed in range(40)]))

    assert lengths(0.0) < 6 < lengths(0.5) < lengths(0.9) <= CELLS / 5


def test_a_series_without_any_difference_has_no_error_and_blocks_of_one() -> None:
    assert block_length(np.ones(CELLS)) == 1
    error = standard_error(np.full(CELLS, 3.0), np.ones(CELLS))
    assert error is not None
    assert error.value == pytest.approx(0, abs=1e-12)


def test_a_single_cell_says_nothing_of_how_cells_differ() -> None:
    weights = np.zeros(CELLS)
    assert standard_error(weights, weights) is None
    weights[3] = 5
    assert standard_error(weights, weights) is None


def test_a_ratio_of_sums_has_the_error_of_the_ratio() -> None:
    rng = np.random.default_rng(1)
    counts = rng.poisson(20, CELLS).astype(float)
    sums = 3 * counts + rng.normal(size=CELLS)
    error = standard_error(sums, counts)
    assert error is not None
    # The counts vary by far more than the ratio, which is 3 in every cell but for the noise added.
    assert error.value == pytest.approx(math.sqrt(CELLS) / counts.sum(), rel=0.25)


def test_degrees_of_freedom_are_those_of_the_blocks() -> None:
    even, uneven = (standard_error(noise(1, m), np.ones(CELLS)) for m in (0.0, 0.9))
    assert even is not None
    assert uneven is not None
    assert even.degrees > 4 * uneven.degrees
    assert uneven.degrees >= 4
    few = standard_error(np.arange(4.0), np.ones(4))
    assert few is not None
    assert few.degrees == 3


@given(st.integers(0, 50), st.floats(0.001, 1000))
def test_the_error_has_the_unit_of_its_figure(seed: int, scale: float) -> None:
    values, ones = noise(seed, 0.5, 64), np.ones(64)
    plain, scaled = (standard_error(k * values, ones) for k in (1.0, scale))
    assert plain is not None
    assert scaled is not None
    assert scaled.value == pytest.approx(scale * plain.value, rel=1e-9)


def test_an_interval_is_wider_of_fewer_degrees_and_of_more_confidence() -> None:
    error = StandardError(2.0, 10)
    assert error.reach(0.95) == pytest.approx(2 * 2.228, rel=1e-3)
    assert error.reach(0.998) > error.reach(0.95) > StandardError(2.0, 200).reach(0.95)
