"""The block bootstrap knows how far a figure may be off, also where neighbours resemble each other."""

import math
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llm_locust.metrics.bootstrap import CELLS, DRAWS, Resampler, StandardError, block_draws, block_length

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
    found = [Resampler(seed).standard_error(noise(seed, memory), np.ones(CELLS)) for seed in range(runs)]
    return np.array([error.value for error in found if error is not None])


@given(st.integers(1, 60), st.integers(1, 60))
def test_a_draw_is_as_long_as_the_run(cells: int, length: int) -> None:
    draws = block_draws(np.random.default_rng(0), cells, min(length, cells))
    assert draws.shape == (DRAWS, cells)
    assert (draws.sum(axis=1) == cells).all()
    assert (draws >= 0).all()


def test_every_cell_is_drawn_as_often_as_any_other() -> None:
    draws = block_draws(np.random.default_rng(0), 40, 7)
    assert draws.mean(axis=0) == pytest.approx(np.ones(40), abs=5 / math.sqrt(DRAWS))


def test_cells_of_a_block_are_neighbours_and_the_last_is_one_of_the_first() -> None:
    (draw, *_) = block_draws(np.random.default_rng(3), 12, 6)
    changes = np.count_nonzero(np.diff(np.append(draw, draw[0])))
    assert changes <= 4  # two blocks have two ends each
    assert (block_draws(np.random.default_rng(0), 12, 12) == 1).all()


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
        error = Resampler(seed).standard_error(values, np.ones(CELLS))
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
    error = Resampler(0).standard_error(np.full(CELLS, 3.0), np.ones(CELLS))
    assert error is not None
    assert error.value == pytest.approx(0, abs=1e-12)


def test_a_single_cell_says_nothing_of_how_cells_differ() -> None:
    weights = np.zeros(CELLS)
    assert Resampler(0).standard_error(weights, weights) is None
    weights[3] = 5
    assert Resampler(0).standard_error(weights, weights) is None


def test_a_ratio_of_sums_has_the_error_of_the_ratio() -> None:
    rng = np.random.default_rng(1)
    counts = rng.poisson(20, CELLS).astype(float)
    sums = 3 * counts + rng.normal(size=CELLS)
    error = Resampler(0).standard_error(sums, counts)
    assert error is not None
    # The counts vary by far more than the ratio, which is 3 in every cell but for the noise added.
    assert error.value == pytest.approx(math.sqrt(CELLS) / counts.sum(), rel=0.25)


def test_degrees_of_freedom_are_those_of_the_blocks() -> None:
    even, uneven = (Resampler(0).standard_error(noise(1, m), np.ones(CELLS)) for m in (0.0, 0.9))
    assert even is not None
    assert uneven is not None
    assert even.degrees > 4 * uneven.degrees
    assert uneven.degrees >= 4
    few = Resampler(0).standard_error(np.arange(4.0), np.ones(4))
    assert few is not None
    assert few.degrees == 3


def test_the_same_seed_gives_the_same_error_and_another_one_a_like_one() -> None:
    values, ones = noise(1, 0.5), np.ones(CELLS)
    first, again, other = (Resampler(seed).standard_error(values, ones) for seed in (7, 7, 8))
    assert first == again
    assert first is not None
    assert other is not None
    assert first.value != other.value
    assert first.value == pytest.approx(other.value, rel=0.15)


@given(st.integers(0, 50), st.floats(0.001, 1000))
def test_the_error_has_the_unit_of_its_figure(seed: int, scale: float) -> None:
    values, ones = noise(seed, 0.5, 64), np.ones(64)
    plain, scaled = (Resampler(0).standard_error(k * values, ones) for k in (1.0, scale))
    assert plain is not None
    assert scaled is not None
    assert scaled.value == pytest.approx(scale * plain.value, rel=1e-9)


def test_an_interval_is_wider_of_fewer_degrees_and_of_more_confidence() -> None:
    error = StandardError(2.0, 10)
    assert error.reach(0.95) == pytest.approx(2 * 2.228, rel=1e-3)
    assert error.reach(0.998) > error.reach(0.95) > StandardError(2.0, 200).reach(0.95)
