"""Slopes with intervals, where neighbours resemble each other; queues that grow without end."""

import math
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import wandering

from llm_locust.metrics.columns import Floats
from llm_locust.metrics.stats.trend import (
    FEWEST,
    PARTS,
    QueueCount,
    change_point,
    fit_trend,
    grows,
    level_of,
    mann_kendall,
    serial_correlation,
    student_t,
)

STEPS = np.arange(48.0)


@pytest.mark.parametrize(
    ("degrees", "confidence", "table"),
    [
        *((1, 0.95, 12.706205), (2, 0.95, 4.302653), (3, 0.95, 3.182446), (5, 0.95, 2.570582)),
        *((10, 0.99, 3.169273), (120, 0.95, 1.979930), (1e6, 0.95, 1.959966)),
        *((1, 0.998, 318.308839), (2, 0.998, 22.327125), (4, 0.998, 7.173182)),
    ],
)
def test_quantiles_of_student_are_those_of_the_tables(
    degrees: float, confidence: float, table: float
) -> None:
    assert student_t(degrees, confidence) == pytest.approx(table, rel=5e-7)


def test_quantiles_of_student_go_over_into_those_of_many_degrees() -> None:
    few, many = (student_t(degrees, 0.998) for degrees in (10_000, 10_000.1))
    assert 0 < few - many < 1e-6


@given(st.floats(-1e3, 1e3), st.floats(-1e2, 1e2))
def test_a_line_is_its_own_trend(level: float, slope: float) -> None:
    trend = fit_trend(STEPS, level + slope * STEPS)
    assert trend is not None
    assert (trend.slope, trend.level) == pytest.approx((slope, level), abs=1e-6)


@given(st.lists(st.floats(0, 1e6), min_size=FEWEST, max_size=60))
def test_slope_and_level_are_those_of_numpys_least_squares(values: list[float]) -> None:
    times = np.arange(float(len(values)))
    trend = fit_trend(times, np.array(values))
    assert trend is not None
    slope, level = np.polyfit(times, values, 1)
    assert (trend.slope, trend.level) == pytest.approx((slope, level), rel=1e-6, abs=1e-3)


def test_the_error_of_independent_values_is_that_of_the_textbook() -> None:
    values = np.random.default_rng(4).standard_normal(48)
    values -= 0.5 * np.convolve(values, [0, 1], "same")  # neighbours differ more than others: no correlation
    trend = fit_trend(STEPS, values)
    assert trend is not None
    residuals = values - np.polyval(np.polyfit(STEPS, values, 1), STEPS)
    spread = ((STEPS - STEPS.mean()) ** 2).sum()
    assert trend.correlation == 0.0
    assert trend.error == pytest.approx(math.sqrt((residuals**2).sum() / 46 / spread))


def test_values_that_are_all_alike_have_no_trend_whatever_floats_make_of_them() -> None:
    alike = np.full(48, 0.1) + 1e-17 * STEPS
    trend = fit_trend(STEPS, alike)
    assert trend is not None
    assert trend.interval(0.95) == (0.0, 0.0)
    assert not trend.is_beyond_noise(0.95)


def test_too_few_values_have_no_trend_and_unknown_ones_do_not_count() -> None:
    values = np.where(STEPS < FEWEST, STEPS, np.nan)
    assert fit_trend(STEPS, values) is not None
    assert fit_trend(STEPS[1:], values[1:]) is None


@pytest.mark.parametrize("stay", [0.0, 0.4, 0.8])
def test_the_serial_correlation_of_short_series_is_right_on_average(stay: float) -> None:
    noise = wandering(400, 47, 1.0 / -math.log(stay) if stay else 1e-9, seed=1, step_s=1.0)
    found = [serial_correlation(row - row.mean(), fitted=1) for row in noise]
    # Never below 0, so that independent values have a little on average.
    assert np.mean(found) == pytest.approx(stay, abs=0.08)


@pytest.mark.parametrize("stay", [0.0, 0.5])
def test_an_interval_holds_the_true_slope_as_often_as_it_says(stay: float) -> None:
    noise = wandering(1000, 47, 1.0 / -math.log(stay) if stay else 1e-9, seed=2, step_s=1.0)
    trends = [fit_trend(STEPS, row + 0.3 * STEPS) for row in noise]
    intervals = [trend.interval(0.95) for trend in trends if trend]
    assert np.mean([low <= 0.3 <= high for low, high in intervals]) > 0.92


def test_an_interval_that_took_correlated_values_for_independent_would_not() -> None:
    noise = wandering(500, 47, 3.0, seed=3, step_s=1.0)
    found = [trend for row in noise if (trend := fit_trend(STEPS, row))]
    naive = [
        trend.error / math.sqrt((1 + trend.correlation) / (1 - trend.correlation)) * 2 for trend in found
    ]
    assert np.mean([abs(trend.slope) > reach for trend, reach in zip(found, naive, strict=True)]) > 0.2
    assert np.mean([trend.is_beyond_noise(0.95) for trend in found]) < 0.1


def outside(values: Floats) -> bool:
    level = level_of(values[1:], 0.99)
    return level is not None and abs(values[0] - level.mean) > level.reach


@pytest.mark.parametrize("constant_s", [1e-9, 4.0])
def test_another_value_lies_within_reach_of_a_level_as_often_as_it_says(constant_s: float) -> None:
    noise = wandering(1000, 30, constant_s, seed=4, step_s=1.0)
    apart = np.concatenate([noise[:, :1], noise[:, 11:]], axis=1)  # of values long after the first
    assert np.mean([outside(row) for row in apart]) < 0.03


def test_the_reach_of_a_level_is_that_of_one_more_value() -> None:
    """Of 20 independent values with a variance of 20/19 about their mean, 0."""
    level = level_of(np.tile([1.0, -1.0], 10), 0.95)
    assert level is not None
    assert level.reach == pytest.approx(2.093 * math.sqrt(20 / 19 * (1 + 1 / 20)), rel=1e-3)


def test_a_level_of_few_values_is_not_known() -> None:
    assert level_of(np.array([1.0, 2.0, np.nan, 3.0, 4.0]), 0.99) is None


def test_a_level_of_values_that_are_all_alike_is_theirs() -> None:
    level = level_of(np.full(9, 0.1) + 1e-17 * np.arange(9), 0.99)
    assert level is not None
    assert level.mean == pytest.approx(0.1)
    assert level.reach == 0.0


def test_mann_kendall_of_a_rising_series_is_the_closed_form() -> None:
    rising = mann_kendall(np.arange(10.0) * 3)
    assert rising.z == pytest.approx((45 - 1) / math.sqrt(10 * 9 * 25 / 18))
    assert rising.slope == 3.0
    assert mann_kendall(-np.arange(10.0)).z == -rising.z
    assert mann_kendall(np.ones(10)).z == 0.0


def test_mann_kendall_finds_a_trend_in_correlated_values_no_more_often_than_it_should() -> None:
    noise = wandering(500, 20, 1.5, seed=5, step_s=1.0)
    assert np.mean([abs(mann_kendall(row).z) > 1.96 for row in noise]) < 0.12


def test_a_change_point_is_found_where_it_is() -> None:
    noise = np.random.default_rng(6).normal(size=(20, 20))
    steps = [change_point(0.1 * row + (np.arange(20) >= 13)) for row in noise]
    assert all(abs(found.at - 13) <= 1 for found in steps)
    assert min(found.statistic for found in steps) > 121.9


@pytest.mark.parametrize(("constant_s", "off"), [(1e-9, 0.025), (2.0, 0.05)])
def test_the_cusum_exceeds_its_published_quantile_as_often_as_published(
    constant_s: float, off: float
) -> None:
    noise = wandering(400, 200, constant_s, seed=7, step_s=1.0)
    assert np.mean([change_point(row).statistic > 40.1 for row in noise]) == pytest.approx(0.05, abs=off)
    assert change_point(np.full(20, 0.1)).statistic == 0.0


SPAN_S = 60.0


def counted(arrived: list[int], ended: list[int], backlog: int = 0) -> list[QueueCount]:
    """So many came and ended in each part, and so many were under way before the first."""
    edges = zip(accumulate(arrived, initial=backlog), accumulate(ended, initial=0), strict=True)
    return [QueueCount(*edge) for edge in edges]


@pytest.mark.parametrize(
    ("what", "arrived", "ended", "backlog", "found"),
    [
        ("a third more comes than ends", [200] * 6, [150] * 6, 0, True),
        ("all that comes ends", [200] * 6, [200] * 6, 0, False),
        ("5 % of what comes is no growth", [2000] * 6, [1900] * 6, 0, False),
        ("6 % are not yet", [2000] * 6, [1880] * 6, 0, False),
        ("7 % is", [2000] * 6, [1860] * 6, 0, True),
        ("7 % of few is noise: 42 are 1.7 deviations of 600", [100] * 6, [93] * 6, 0, False),
        ("96 are 2.8 of 1,200, whatever was queued before", [200] * 6, [184] * 6, 10, False),
        ("one part has 0.4 of the mean growth", [240, *[312] * 5], [200] * 6, 0, True),
        ("one has less", [239, 313, *[312] * 4], [200] * 6, 0, False),
        ("a burst that is over", [200, 200, 900, 200, 200, 200], [200] * 6, 0, False),
        ("ever more end: it fills up", [200] * 6, [50, 80, 110, 140, 165, 185], 0, False),
        ("more end, but too few more", [200] * 6, [120, 121, 122, 123, 124, 125], 0, True),
        ("nothing ended in the first part", [200] * 6, [0, 150, 150, 150, 150, 150], 0, False),
        ("answers longer than the span: a fifth of 900 ended", [200] * 6, [30] * 6, 900, False),
        ("a server that has turned its queue over", [200] * 6, [150] * 6, 180, True),
        ("one that has not yet: 898 are less than 5 times 180", [200] * 6, [*[150] * 5, 148], 180, False),
    ],
)
def test_a_queue_grows_where_more_comes_than_ends_in_every_part(
    what: str, arrived: list[int], ended: list[int], backlog: int, found: bool
) -> None:
    assert grows(counted(arrived, ended, backlog), SPAN_S) is found, what


parts = st.lists(st.integers(0, 1000), min_size=PARTS, max_size=PARTS)


@given(parts, parts, st.integers(0, 1000))
def test_no_queue_grows_that_does_not_grow_in_every_part(
    arrived: list[int], ended: list[int], backlog: int
) -> None:
    if any(came <= went for came, went in zip(arrived, ended, strict=True)):
        assert not grows(counted(arrived, ended, backlog), SPAN_S)


@given(parts, st.integers(1, 100))
def test_a_server_that_stands_still_after_a_first_answer_is_outgrown_whatever_comes(
    arrived: list[int], least: int
) -> None:
    """As much in each part, give or take a half: no rule may take that for noise, a burst or a ramp."""
    steady = [1000 * least + came * least // 2 for came in arrived]
    assert grows(counted(steady, [1, 0, 0, 0, 0, 0]), SPAN_S)
