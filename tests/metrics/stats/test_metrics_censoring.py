"""Percentiles and means, adjusted for failures, of durations of which some were cut before their end."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import summarise_latency

from llm_locust.metrics.stats.censoring import (
    CONFIDENCE,
    PERCENTILES,
    Durations,
    at_most,
    certified,
    certified_rank,
    certified_share,
    fewest_samples,
    later_is_longer,
    moments,
    ordered,
    parse_percentiles,
    percentile,
    positions,
    summarise,
)
from llm_locust.metrics.stats.sketch import count_durations

samples = st.lists(st.floats(0, 1e4), min_size=1, max_size=60)


@given(samples, st.floats(0, 100))
def test_a_percentile_is_numpys_linear_one(values: list[float], percent: float) -> None:
    expected = float(np.percentile(values, percent))
    assert percentile(ordered(np.array(values)), percent) == pytest.approx(expected, rel=1e-12, abs=1e-300)


@given(samples, st.randoms())
def test_the_order_of_samples_changes_no_figure_but_how_sure_it_is(
    values: list[float], random: Random
) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)
    one, other = summarise_latency(np.array(shuffled)), summarise_latency(np.array(values))
    unsure = ("ci95", "n_effective")
    assert {key: one[key] for key in one if key not in unsure} == {
        key: other[key] for key in other if key not in unsure
    }


@given(st.lists(samples, min_size=1, max_size=5))
def test_pooled_figures_are_those_of_the_concatenation(parts: list[list[float]]) -> None:
    everything = [v for part in parts for v in part]
    pooled = summarise_latency(np.concatenate([np.array(part) for part in parts]))
    assert pooled["n"] == len(everything)
    assert pooled["mean"] == pytest.approx(sum(everything) / len(everything) * 1e3)
    assert pooled["p99"] == pytest.approx(float(np.percentile(everything, 99)) * 1e3)
    assert pooled["max"] == max(everything) * 1e3


def test_trap_13_a_percentile_is_of_the_pool_and_exact_not_an_average_and_not_a_bucket() -> None:
    fast, slow = np.full(900, 0.104), np.full(100, 1.0)
    pooled = summarise_latency(np.concatenate([fast, slow]))
    assert pooled["p50"] == pytest.approx(104.0)  # Locust's buckets would say 100
    assert pooled["p95"] == pytest.approx(1000.0)
    averaged = (summarise_latency(fast)["p95"] + summarise_latency(slow)["p95"]) / 2
    assert pooled["p95"] != pytest.approx(averaged)
    assert summarise_latency(np.full(9, 0.114))["p50"] == pytest.approx(114.0)


def test_mean_and_deviation_are_of_the_population_in_milliseconds() -> None:
    figures = summarise_latency(np.array([0.1, 0.2, np.nan, 0.6]))
    assert figures["n"] == 3
    assert figures["mean"] == pytest.approx(300)
    assert figures["std"] == pytest.approx(math.sqrt((200**2 + 100**2 + 300**2) / 3))
    assert (figures["min"], figures["max"]) == pytest.approx((100, 600))


def test_moments_of_many_slices_are_those_of_the_whole() -> None:
    values = np.sort(np.random.default_rng(1).gamma(2.0, size=2_500_000))
    assert moments(values) == pytest.approx((values.mean(), values.std()), rel=1e-12)


def test_adjusted_percentiles_that_fall_on_a_failure_are_named_and_have_no_value() -> None:
    figures = summarise_latency(np.linspace(0.1, 0.2, 90), failed=10)
    assert figures["n"] == 100
    assert figures["beyond"] == ["p90", "p95", "p99", "p99_9", "max"]
    assert all(figures[key] is None for key in figures["beyond"])
    assert figures["mean"] is None
    assert figures["p50"] == pytest.approx(
        1e3 * float(np.percentile([*np.linspace(0.1, 0.2, 90), *[9] * 10], 50))
    )


def test_a_population_of_failures_alone_is_all_beyond() -> None:
    figures = summarise_latency(np.empty(0), failed=3)
    assert figures["n"] == 3
    assert figures["beyond"] == ["min", *PERCENTILES, "max"]


@given(samples, st.integers(0, 40))
def test_failures_never_make_a_percentile_smaller(values: list[float], failures: int) -> None:
    plain, adjusted = summarise_latency(np.array(values)), summarise_latency(np.array(values), failures)
    for key in PERCENTILES:
        assert key in adjusted["beyond"] or adjusted[key] >= plain[key] * (1 - 1e-12)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: nothing to compare with")
def test_a_standard_deviation_has_the_same_digits_on_any_number_of_processors() -> None:
    code = (
        "import numpy as np\n"
        "from llm_locust.metrics.stats.censoring import moments\n"
        "draw = np.random.default_rng(1)\n"
        "print([moments(np.sort(draw.lognormal(-3, 1, 40_000))) for _ in range(30)])"
    )
    texts = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    ]
    assert texts[0] == texts[1]


def test_percentiles_are_named_by_their_figures_and_come_in_their_order() -> None:
    named = {"p10": 10.0, "p50": 50.0, "p99": 99.0, "p99_9": 99.9, "p99_999999": 99.999999}
    assert parse_percentiles("99.9, 50 99,10\n50.0 99.999999") == named
    assert [*parse_percentiles("99,50")] == ["p50", "p99"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *(
            (word, f'"{word}" is no percentile')
            for word in ("0", "100", "-1", "p50", "1e1", "99.1234567", "nan")
        ),
        ("50 x", '"x" is no percentile'),
        (" , ", "0 percentiles: name 1 to 20"),
        (",".join(map(str, range(1, 22))), "21 percentiles: name 1 to 20"),
    ],
)
def test_what_is_no_percentile_is_refused_by_its_name(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse_percentiles(text)


NONE = np.empty(0)


#: Kaplan and Meier's own example (1958, section 2): eight items, four of them lost on the way.
DEATHS, LOSSES = [0.8, 3.1, 5.4, 9.2], [1.0, 2.7, 7.0, 12.1]
AFTER_EACH = [0.875, 0.7, 0.525, 0.2625]


#: Weeks in remission under 6-MP (Freireich and others 1963), and the estimate that textbooks print.
RELAPSES = [6, 6, 6, 7, 10, 13, 16, 22, 23]
IN_REMISSION = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
REMISSION = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538}
durations = st.lists(st.integers(1, 12).map(float), max_size=15)


def array(values: Any) -> Any:
    return np.array(sorted(values), dtype=np.float64)


def lasting(observed: Any, censored: Any, infinite: int = 0) -> Any:
    """The share that lasts until each observed duration, as the positions have it."""
    total = len(observed) + len(censored) + infinite
    return 1 - positions(array(observed), array(censored), infinite) * (total - 1) / total


def by_definition(observed: Any, censored: Any, infinite: int) -> list[float]:
    """The product limit, one duration after the other; of equal times those that ended come first."""
    watched, share, found = len(observed) + len(censored) + infinite, 1.0, []
    for _, is_cut in sorted([(t, 0) for t in observed] + [(t, 1) for t in censored]):
        if not is_cut:
            found.append(share)
            share *= (watched - 1) / watched
        watched -= 1
    return found


def test_the_product_limit_is_that_of_its_authors_example() -> None:
    assert lasting(DEATHS, LOSSES).tolist() == pytest.approx([1.0, *AFTER_EACH[:-1]])


def test_the_last_duration_that_was_seen_to_end_is_the_quantile_at_its_own_place() -> None:
    found = Durations.of(array([1.0, 2.0]), array([3.0]))
    assert found.quantile(0.5) == 2.0  # the median of three, whatever the third takes
    assert math.isnan(found.quantile(0.51))


def test_the_product_limit_is_that_of_the_textbooks_example() -> None:
    before = dict(zip(RELAPSES, lasting(RELAPSES, IN_REMISSION).tolist(), strict=True))
    following = dict(zip(sorted(REMISSION), [7, 10, 13, 16, 22, 23], strict=True))
    assert {t: round(before[following[t]], 3) for t in REMISSION} == REMISSION


@given(durations, durations, st.integers(0, 5))
def test_the_product_limit_is_the_one_that_is_made_step_by_step(
    observed: list[float], censored: list[float], infinite: int
) -> None:
    if len(observed) + len(censored) + infinite > 1:
        assert lasting(observed, censored, infinite).tolist() == pytest.approx(
            by_definition(observed, censored, infinite)
        )


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.floats(0, 1))
def test_without_cut_ones_it_is_the_linear_percentile_of_numpy(values: list[float], share: float) -> None:
    assert Durations.of(array(values)).quantile(share) == pytest.approx(np.quantile(values, share), rel=1e-12)
    # And so it is by the product limit, where nothing was cut before the last of them ended.
    places = positions(array(values), NONE)
    assert float(np.interp(share, places, array(values))) == pytest.approx(
        np.quantile(values, share), rel=1e-9, abs=1e-9
    )


@given(durations, durations.filter(bool), st.integers(0, 4), st.floats(0, 1), st.floats(0, 1))
def test_a_quantile_never_falls_and_is_never_below_what_it_is_at_least(
    observed: list[float], censored: list[float], infinite: int, one: float, other: float
) -> None:
    found = Durations.of(array(observed), array(censored), failed=infinite)
    low, high = (found.quantile(share) for share in sorted((one, other)))
    assert math.isnan(high) or math.isnan(low) or low <= high + 1e-9
    assert not math.isnan(low) or math.isnan(high) or math.isinf(high)
    for share, value in ((min(one, other), low), (max(one, other), high)):
        assert math.isnan(value) or value >= found.at_least(share) - 1e-9


@given(durations, durations.filter(bool), st.floats(0, 1), st.data())
def test_whatever_the_cut_ones_would_have_taken_the_bound_holds(
    observed: list[float], censored: list[float], share: float, data: st.DataObject
) -> None:
    bound = Durations.of(array(observed), array(censored)).at_least(share)
    truth = [t + data.draw(st.floats(0, 20)) for t in censored]
    assert np.quantile([*observed, *truth], share) >= bound - 1e-9


def test_a_percentile_that_the_cut_ones_leave_open_is_null_with_its_bound() -> None:
    """Ninety answers of 1 s, and ten that had waited for 12.8 s when the run ended."""
    figures = summarise(Durations.of(np.full(90, 1.0), np.full(10, 12.8)), 1e3)
    assert (figures["n"], figures["censored"]) == (90, 10)
    assert (figures["p50"], figures["p75"]) == (1000.0, 1000.0)
    assert figures["p95"] is figures["p99"] is figures["max"] is figures["mean"] is None
    assert figures["at_least"] == {
        "mean": pytest.approx(2180.0),
        **dict.fromkeys(("p95", "p99", "p99_9", "max"), pytest.approx(12800.0)),
        "p90": pytest.approx(2180.0),  # between the last answer and the first cut: numpy's interpolation
    }
    assert figures["ci95"]["p99"] is None
    assert figures["beyond"] == []


def test_the_adjusted_figures_have_infinite_ones_beyond_the_cut_ones() -> None:
    found = Durations.of(np.full(60, 1.0), np.array([0.5, 2.0]), failed=38)
    figures = summarise(found, 1e3)
    assert (figures["n"], figures["p50"], figures["p99"]) == (98, 1000.0, None)
    assert figures["beyond"] == ["p75", "p90", "p95", "p99", "p99_9", "max"]
    assert "mean" not in figures["at_least"]
    open_ = summarise(Durations.of(np.full(50, 1.0), np.full(30, 2.0), failed=20))
    assert open_["at_least"]["p75"] == 2.0
    assert "p90" in open_["beyond"]


@pytest.mark.parametrize(
    "observed", [np.array([1.0, 2.0]), count_durations(np.array([10**9, 2 * 10**9]))], ids=["kept", "counted"]
)
def test_durations_among_infinite_ones_have_no_mean_however_they_are_held(observed: Any) -> None:
    assert Durations(observed).moments() == pytest.approx((1.5, 0.5))
    assert np.isnan(Durations(observed, infinite=1).moments()).all()


def test_answers_of_twenty_seconds_have_a_mean_of_twenty_however_soon_the_run_ends() -> None:
    """Users for 60 s, answers of 2 to 38 s: those that ended within the run are the shorter ones."""
    random = np.random.default_rng(1)
    ended: list[float] = []
    cut: list[float] = []
    for _ in range(400):
        at = random.uniform(0, 5)
        while at < 60:
            lasts = random.uniform(2, 38)
            (ended if at + lasts < 60 else cut).append(min(lasts, 60 - at))
            at += lasts
    figures = summarise(Durations.of(np.array(ended), np.array(cut)))
    assert np.mean(ended) < 18
    assert figures["mean"] == pytest.approx(20.0, rel=0.02)
    assert figures["std"] == pytest.approx(36 / math.sqrt(12), rel=0.05)
    assert figures["p90"] == pytest.approx(34.4, rel=0.02)


def queue(arrivals_per_s: float, seconds: float, seed: int) -> tuple[Any, Any]:
    """When requests come to a server that serves one at a time for 1 s, and how long each waits and takes."""
    random = np.random.default_rng(seed)
    at = np.cumsum(random.exponential(1 / arrivals_per_s, int(2 * arrivals_per_s * seconds)))
    at = at[at < seconds]
    free, took = 0.0, []
    for arrival in at:
        free = max(free, arrival) + 1.0
        took.append(free - arrival)
    return at, np.array(took)


def observed_and_cut(at: Any, took: Any, end: float) -> Durations:
    seen = at + took <= end
    cut = end - at[~seen]
    trend = later_is_longer(took[seen], cut, at[seen], at[~seen])
    return Durations.of(took[seen], cut, trend=trend)


def test_in_an_overloaded_queue_later_requests_last_longer_and_the_product_limit_is_not_believed() -> None:
    at, took = queue(1.5, 60.0, seed=4)
    found = observed_and_cut(at, took, 60.0)
    assert found.trend
    truth = float(np.quantile(took, 0.99))
    assert replace(found, trend=False).quantile(0.99) < 0.8 * truth
    figures = summarise(found)
    assert figures["p50"] is figures["p99"] is figures["mean"] is None
    assert 0.5 * truth < figures["at_least"]["p99"] < truth


def test_a_steady_queue_is_not_taken_for_an_overloaded_one() -> None:
    found = [observed_and_cut(*queue(0.5, 600.0, seed), 600.0) for seed in range(300)]
    cut = [each for each in found if len(each.censored)]
    assert len(cut) > 100
    assert sum(each.trend for each in cut) <= 0.05 * len(cut)


def test_a_trend_leaves_a_percentile_that_no_ending_of_the_cut_ones_could_move() -> None:
    at = np.arange(1000.0)
    took = 1 + at / 1000
    found = Durations.of(took[:-1], np.array([1.9]), trend=True)
    figures = summarise(found)
    assert figures["p50"] == pytest.approx(1.5, rel=0.01)
    assert figures["mean"] is None


def test_equal_durations_are_no_trend() -> None:
    """Answers of exactly 20 s: the run's end cuts the last ones at any age."""
    at = np.arange(0.0, 600.0, 1.0)
    assert not later_is_longer(np.full(580, 20.0), 600 - at[580:], at[:580], at[580:])


def test_a_trend_is_found_in_a_sample_of_many_requests_too() -> None:
    at = np.arange(0.0, 6000.0, 0.01)  # of a regular pattern the sample is none
    took = np.random.default_rng(5).exponential(1.0, len(at))
    for slower, found in ((0.0, False), (0.2, True)):
        lasts = took * (1 + slower * at / 6000)
        seen = at + lasts <= 6000
        assert later_is_longer(lasts[seen], 6000 - at[~seen], at[seen], at[~seen]) == found


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
