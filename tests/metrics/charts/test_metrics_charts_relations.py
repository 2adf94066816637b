"""Points, groups and a line: how TTFT goes with length, and TPOT with load."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from metrics_cases import columns, request

from llm_locust.figures.charts.distributions import (
    FEWEST_POINTS,
    MOST_DRAWN,
    load_while_streaming,
    relation,
    theil_sen,
    ttft_by_input,
)
from llm_locust.metrics.requests.latency import per_request

RNG = np.random.default_rng(5)


def test_the_slope_is_the_median_of_the_slopes_of_all_pairs() -> None:
    x, y = RNG.integers(0, 30, 40).astype(float), RNG.normal(size=40)
    line = theil_sen(x, y)
    assert line is not None
    pairs = itertools.combinations(range(40), 2)
    slopes = [(y[j] - y[i]) / (x[j] - x[i]) for i, j in pairs if x[i] != x[j]]
    assert line.slope == pytest.approx(np.median(slopes))
    assert line.intercept == pytest.approx(np.median(y - line.slope * x))
    assert line.low <= line.slope <= line.high


def test_a_line_is_found_beside_outliers() -> None:
    x = np.arange(100.0)
    y = 3 + 0.5 * x
    y[::5] += 1_000
    line = theil_sen(x, y)
    assert line is not None
    assert line.slope == pytest.approx(0.5, abs=0.2)
    assert not line.is_flat


def test_the_interval_holds_the_true_slope_in_nineteen_of_twenty_samples() -> None:
    held = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        x = rng.uniform(0, 10, 50)
        line = theil_sen(x, 2 * x + rng.standard_exponential(50))
        assert line is not None
        held += line.low <= 2 <= line.high
    assert held >= 180


def test_too_few_points_and_points_above_each_other_have_no_line() -> None:
    few = np.arange(FEWEST_POINTS - 1.0)
    assert theil_sen(few, few) is None
    assert theil_sen(np.ones(50), np.arange(50.0)) is None


def test_groups_are_percentiles_of_all_requests_and_not_of_the_sample() -> None:
    x, y = RNG.permutation(5_000).astype(float), RNG.exponential(size=5_000)
    found = relation(x, y)
    assert found.n == 5_000
    assert len(found.x) == MOST_DRAWN
    assert found.group_n.sum() == 5_000
    frame = pd.DataFrame({"group": (x // 250).astype(int), "x": x, "y": y}).groupby("group")
    assert found.group_x == pytest.approx(frame["x"].median().to_numpy())
    assert found.group_p50 == pytest.approx(frame["y"].median().to_numpy())
    assert found.group_p95 == pytest.approx(frame["y"].quantile(0.95).to_numpy())


@given(st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=1, max_size=300))
def test_equal_values_are_in_one_group(values: list[float]) -> None:
    found = relation(np.array(values), np.zeros(len(values)))
    assert len(found.group_x) <= 3
    assert found.group_n.sum() in (0, len(values))


def test_unknown_values_are_no_points() -> None:
    found = relation(np.array([1.0, np.nan, 3.0]), np.array([1.0, 2.0, np.nan]))
    assert found.n == 1
    assert relation(np.array([np.nan]), np.array([1.0])).n == 0


def test_what_hardly_varied_says_nothing() -> None:
    steady = relation(RNG.uniform(39.5, 40, 500), RNG.exponential(size=500))
    assert steady.is_narrow
    assert not relation(RNG.uniform(10, 40, 500), RNG.exponential(size=500)).is_narrow


def test_prefill_cost_comes_back_as_the_slope() -> None:
    c = columns(*(request(i * 0.01, (0.04 + 2e-5 * i, 1.0), input_tokens=i + 1) for i in range(300)))
    line = ttft_by_input(c, per_request(c), np.arange(300)).line
    assert line is not None
    assert line.slope == pytest.approx(2e-5, rel=1e-6)
    assert line.intercept == pytest.approx(0.04 - 2e-5, rel=1e-6)


def test_load_is_the_mean_concurrency_between_first_and_last_token() -> None:
    # The first streams from 1 to 3 s; the second is under way from 2 to 6 s.
    c = columns(request(0.0, (1.0, 3.0)), request(2.0, (2.0, 4.0)), request(9.0, (0.5,)))
    assert load_while_streaming(c)[:2] == pytest.approx([1.5, 1.0])
    assert np.isnan(load_while_streaming(c)[2])
