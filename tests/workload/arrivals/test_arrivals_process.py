"""Arrival processes in unit time: the laws of the gaps, held against their closed forms."""

from itertools import islice

import numpy as np
import pytest
from numpy.typing import NDArray

from llm_locust.workload.arrivals import Process, unit_times
from llm_locust.workload.arrivals.schedule import BLOCK

N = 40_000


def times(cv: float, n: int = N, seed: int = 1, stream: str = "") -> NDArray[np.float64]:
    blocks = islice(unit_times(Process(cv), seed, stream), -(-n // BLOCK))
    return np.concatenate(list(blocks))[:n]


def gaps(cv: float, n: int = N, seed: int = 1) -> NDArray[np.float64]:
    return np.diff(times(cv, n, seed), prepend=0.0)


def exponential_cdf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return -np.expm1(-x)


def gamma_4_cdf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of a gamma law of shape 4 and mean 1, which has CV 0.5: an Erlang law."""
    y = 4 * x
    return np.asarray(1 - np.exp(-y) * (1 + y + y**2 / 2 + y**3 / 6))


def distance(sample: NDArray[np.float64], cdf: NDArray[np.float64]) -> float:
    """The Kolmogorov-Smirnov statistic of a sample, given the law's CDF at the sorted sample."""
    n = len(sample)
    return float(max(np.max(np.arange(1, n + 1) / n - cdf), np.max(cdf - np.arange(n) / n)))


def critical(n: int) -> float:
    """The distance that a sample of the law itself passes once in a thousand times, for a large n."""
    return float(np.sqrt(-np.log(0.001 / 2) / (2 * n)))


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_poisson_gaps_pass_kolmogorov_smirnov_against_the_exponential_law(seed: int) -> None:
    sample = np.sort(gaps(1.0, seed=seed))
    assert distance(sample, exponential_cdf(sample)) < critical(N)
    assert distance(sample, gamma_4_cdf(sample)) > 10 * critical(N)


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_gamma_gaps_of_cv_one_half_pass_kolmogorov_smirnov_against_shape_four(seed: int) -> None:
    sample = np.sort(gaps(0.5, seed=seed))
    assert distance(sample, gamma_4_cdf(sample)) < critical(N)
    assert distance(sample, exponential_cdf(sample)) > 10 * critical(N)


@pytest.mark.parametrize("cv", [0.1, 0.5, 1.0, 2.0, 4.0])
def test_gaps_have_mean_one_and_the_asked_cv_and_do_not_depend_on_each_other(cv: float) -> None:
    sample = gaps(cv)
    excess_kurtosis = 6 * cv**2
    assert sample.mean() == pytest.approx(1, abs=5 * cv / np.sqrt(N))
    assert sample.var() == pytest.approx(cv**2, rel=5 * np.sqrt((excess_kurtosis + 2) / N))
    centred = sample - sample.mean()
    assert abs(np.mean(centred[1:] * centred[:-1])) < 5 * cv**2 / np.sqrt(N)


@pytest.mark.parametrize("cv", [0.1, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0])
@pytest.mark.parametrize("s", [0.1, 1.0, 10.0])
def test_gaps_have_the_laplace_transform_of_a_gamma_law(cv: float, s: float) -> None:
    """E exp(-s·gap) is (1 + s·cv²) ** (-1/cv²). It is bounded, so that the largest CV can be judged by it."""

    def transform(s: float) -> float:
        return float((1 + s * cv**2) ** (-1 / cv**2))

    error = np.sqrt((transform(2 * s) - transform(s) ** 2) / N)
    drawn = Process(cv).gaps(np.random.default_rng(4), N)
    assert np.exp(-s * drawn).mean() == pytest.approx(transform(s), abs=5 * error)


def test_constant_gaps_are_exactly_one_from_zero_on() -> None:
    assert np.array_equal(times(0.0, 3 * BLOCK), np.arange(3 * BLOCK))


def test_one_seed_gives_one_sequence_and_another_seed_or_stream_another() -> None:
    first = times(1.0)
    assert np.array_equal(first, times(1.0))
    assert not np.any(first == times(1.0, seed=2))
    chat, code = times(1.0, stream="chat"), times(1.0, stream="code")
    independent = np.corrcoef(np.diff(chat), np.diff(code))[0, 1]
    assert abs(independent) < 5 / np.sqrt(N)


@pytest.mark.parametrize("cv", [0.001, 0.5, 1.0, 20.0, 100.0])
def test_times_never_go_back_across_blocks_either(cv: float) -> None:
    found = times(cv, 20 * BLOCK)
    assert found[0] >= 0
    assert np.all(np.isfinite(found))
    assert np.all(np.diff(found) >= 0)


def test_a_long_sequence_is_not_worn_down_by_the_rounding_of_its_sum() -> None:
    """After a million arrivals the float is the exact sum of the gaps, rounded once."""
    blocks = 250
    seeds = np.random.SeedSequence(3, spawn_key=(int.from_bytes(b"arrivals", "big"),))
    rng = np.random.Generator(np.random.Philox(seeds))
    exact = np.longdouble(0)
    for _ in range(blocks):
        exact += Process(1.0).gaps(rng, BLOCK).astype(np.longdouble).sum()
    assert times(1.0, blocks * BLOCK, seed=3)[-1] == pytest.approx(float(exact), abs=1e-9)


@pytest.mark.parametrize("cv", [-1.0, 1e-9, 101.0, float("nan"), float("inf")])
def test_a_cv_out_of_bounds_is_refused_with_its_value(cv: float) -> None:
    with pytest.raises(ValueError, match=rf"CV {cv:g} is not in 0.001 .. 100"):
        Process(cv)
