"""When the share of good requests is back after a change of the load."""

import numpy as np
import pytest

from llm_locust.figures.reliability import ROLLING, recovery
from llm_locust.metrics.stats.proportions import Proportion

ALL_GOOD = Proportion(400, 400)
AT_S = np.arange(1000) / 10


@pytest.mark.parametrize("bad_until", [120, 500, 900])
def test_it_ends_with_the_last_bad_request_where_all_were_good_before(bad_until: int) -> None:
    good = np.arange(1000) >= bad_until
    # All 50 must be good: the interval before begins at 99.05 %.
    assert recovery(AT_S, good, ALL_GOOD, 0.0).seconds == pytest.approx(bad_until / 10)
    assert recovery(AT_S, good, ALL_GOOD, 5.0).seconds == pytest.approx(bad_until / 10 - 5)


def test_the_order_of_the_records_does_not_matter() -> None:
    order = np.random.default_rng(1).permutation(1000)
    good = (AT_S < 20) | (AT_S >= 40)
    assert recovery(AT_S[order], good[order], ALL_GOOD, 0.0).seconds == pytest.approx(40)


def test_a_second_fall_counts_and_a_share_that_stays_low_is_not_back() -> None:
    twice = (AT_S < 10) | ((AT_S >= 20) & (AT_S < 60)) | (AT_S >= 70)
    assert recovery(AT_S, twice, ALL_GOOD, 0.0).seconds == pytest.approx(70)
    assert recovery(AT_S, AT_S < 60, ALL_GOOD, 0.0).seconds is None
    assert recovery(AT_S, np.arange(1000) % 2 == 0, ALL_GOOD, 0.0).seconds is None


def test_without_a_fall_it_took_no_time_and_too_few_requests_tell_nothing() -> None:
    good = np.ones(1000, np.bool_)
    assert recovery(AT_S, good, ALL_GOOD, 0.0).seconds == 0
    assert recovery(AT_S, ~good, Proportion(0, 400), 0.0).seconds is None
    assert recovery(AT_S, good, Proportion(ROLLING - 1, ROLLING - 1), 0.0).seconds is None
    assert recovery(AT_S, good, ALL_GOOD, 95.1).seconds is None
    assert recovery(AT_S, good, ALL_GOOD, 95.0).seconds == 0


def test_a_share_so_low_before_that_nothing_is_a_fall_does_not_recover_at_once() -> None:
    none = np.zeros(1000, np.bool_)
    few = slice(0, 190)  # of 200 in a row the widest rolling share would show a fall
    assert recovery(AT_S[few], none[few], Proportion(120, 1000), 0.0).seconds is None
    assert recovery(AT_S[few], ~none[few], Proportion(120, 1000), 0.0).seconds is None
    assert recovery(AT_S, none, Proportion(120, 1000), 0.0).seconds is None
    assert recovery(AT_S, AT_S > 50, Proportion(500, 1000), 0.0).seconds == pytest.approx(
        50, abs=ROLLING / 10
    )


def test_chance_alone_is_rarely_a_fall() -> None:
    rng, at_s = np.random.default_rng(7), np.arange(5000) / 50
    found = [
        recovery(at_s, rng.random(5000) < 0.9, Proportion(round(rng.binomial(1000, 0.9)), 1000), 0.0).seconds
        for _ in range(100)
    ]
    assert sum(each != 0 for each in found) <= 10  # 5 % at most, by Bonferroni


def test_a_partial_fall_is_found_to_within_half_a_rolling_share() -> None:
    """A share of 98 % that falls to 50 % and comes back at 60 s."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        good = rng.random(1000) < np.where((AT_S >= 10) & (AT_S < 60), 0.5, 0.98)
        found = recovery(AT_S, good, Proportion(980, 1000), 0.0).seconds
        assert found is not None
        assert found == pytest.approx(60, abs=ROLLING / 10)


@pytest.mark.parametrize(("before", "after"), [(0.95, 0.8), (0.95, 0.88), (0.99, 0.95)])
def test_a_shallow_fall_to_the_end_is_neither_no_fall_nor_a_recovery(before: float, after: float) -> None:
    """With rolling shares of 50 alone, 95 % that became 88 % for good were 0 s, or any time."""
    at_s, unseen = np.arange(2000) / 10, 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        share = Proportion(int(rng.binomial(1000, before)), 1000)
        unseen += recovery(at_s, rng.random(2000) < after, share, 0.0).at_least_s is None
    assert unseen <= 6


def test_a_shallow_fall_ends_where_it_ends_to_within_a_wide_rolling_share() -> None:
    at_s, found = np.arange(10_000) / 10, []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        good = rng.random(10_000) < np.where(at_s < 500, 0.88, 0.95)
        found.append(recovery(at_s, good, Proportion(950, 1000), 0.0).seconds or 0.0)
    assert np.median(found) == pytest.approx(500, abs=80)


def test_what_is_not_known_says_why_and_what_was_not_back_has_a_lower_bound() -> None:
    good = np.ones(1000, np.bool_)
    late = recovery(AT_S, AT_S < 60, ALL_GOOD, 0.0)
    assert late.at_least_s == pytest.approx(95)
    assert late.seconds is None
    assert late.why is None
    for before, since_s, why in (
        (Proportion(0, 400), 0.0, "no request before it was good"),
        (Proportion(49, 49), 0.0, "49 requests before it are too few: 50 are needed"),
        (ALL_GOOD, 95.15, "48 requests after it are too few: 50 are needed"),
    ):
        found = recovery(AT_S, good, before, since_s)
        assert (found.seconds, found.at_least_s, found.why) == (None, None, why)
