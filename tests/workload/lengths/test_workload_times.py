"""Times as distributions."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from llm_locust.workload.lengths import LONGEST_S, TimesError, parse_times


def drawn(text: str, n: int = 20_000) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    times, rng = parse_times(text), np.random.default_rng(1)
    return np.array([times.draw_s(rng) for _ in range(n)])


@pytest.mark.parametrize(
    ("text", "mean", "median"),
    [
        ("2s", 2.0, 2.0),
        ("uniform:1s,5s", 3.0, 3.0),
        ("uniform:5s,5s", 5.0, 5.0),
        ("exponential:3s", 3.0, 3 * math.log(2)),
        ("lognormal:400ms,0", 0.4, 0.4),
        ("lognormal:400ms,0.5", 0.4 * math.exp(0.125), 0.4),
        ("normal:25s,4s", 25.0, 25.0),
        ("lognormal:mean=45s,sd=40s", 45.0, 45 / math.sqrt(1 + (40 / 45) ** 2)),
    ],
)
def test_draws_have_the_mean_and_the_median_of_their_law(text: str, mean: float, median: float) -> None:
    times = drawn(text)
    assert times.mean() == pytest.approx(mean, rel=0.03)
    assert np.median(times) == pytest.approx(median, rel=0.03)


def test_uniform_times_stay_in_their_bounds() -> None:
    times = drawn("uniform: 250ms, 1m")
    assert 0.25 <= times.min() < 0.5
    assert 59 < times.max() <= 60


@pytest.mark.parametrize("law", ["normal:25s,12s", "lognormal:mean=15s,sd=55s", "exponential:20s"])
def test_draws_beyond_a_limit_are_set_to_it(law: str) -> None:
    free, times = drawn(law), drawn(f"{law},min=5s,max=60s")
    assert np.array_equal(times, np.clip(free, 5, 60))


def test_no_draw_is_negative() -> None:
    assert drawn("normal:1s,10s").min() == 0


def test_no_draw_is_longer_than_a_day() -> None:
    assert drawn("lognormal:2m,10", 2_000).max() == drawn("24h", 1)[0] == LONGEST_S


@given(st.floats(0, 1_000), st.floats(0, 1_000), st.integers(0, 2**32))
def test_equal_generators_draw_equal_times(low: float, more: float, seed: int) -> None:
    times = parse_times(f"uniform:{low:.3f}s,{low + more + 0.001:.3f}s")
    assert times.draw_s(np.random.default_rng(seed)) == times.draw_s(np.random.default_rng(seed)) >= 0


def test_distributions_are_equal_when_their_texts_are() -> None:
    assert parse_times("exponential:3s") == parse_times("exponential:3s") != parse_times("exponential:4s")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("3", "'3': a number without a unit"),
        ("", "'': not a duration"),
        ("soon", "'soon': not a duration"),
        ("-1s", "'-1s': not a duration"),
        ("2d", 'unknown unit "d"'),
        ("86401s", "'86401s' is longer than a day"),
        ("uniform:5s", "'5s' should be LOW,HIGH"),
        ("uniform:5s,1s", "HIGH 1s is below LOW 5s"),
        ("exponential:1s,2s", "'1s,2s' should be MEAN"),
        ("lognormal:4s,fast", "SIGMA 'fast' is not a number in 0 .. 10"),
        ("lognormal:4s,-1", "SIGMA '-1' is not a number in 0 .. 10"),
        ("lognormal:4s,nan", "SIGMA 'nan' is not a number"),
        ("lognormal:4,1", "MEDIAN '4': a number without a unit"),
        ("lognormal:mean=4s", "sd ''"),
        ("lognormal:4s,mean=4s,sd=1s", "'4s' should be left out"),
        ("lognormal:mean=0s,sd=1s", "mean must be above 0"),
        ("normal:4s,1s,min=5s,max=2s", "max is below min"),
        ("normal:4s,1s,max=5s,max=9s", "max= is given twice, with '5s' and '9s'"),
        ("normal:4s,1s,least=2s", "normal has no least"),
        ("gamma:1s", "no distribution 'gamma'; allowed are 2s, uniform:LOW,HIGH"),
    ],
)
def test_an_error_says_what_is_wrong_and_what_is_allowed(text: str, why: str) -> None:
    with pytest.raises(TimesError) as error:
        parse_times(text)
    assert why in str(error.value)
    assert repr(text) in str(error.value)
    assert "\n" not in str(error.value)
