"""What ends a run: exact shares of a number of requests, and rules on how it goes."""

import heapq
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from llm_locust.options.run import (
    ErrorRate,
    Oversaturation,
    Quota,
    StopRule,
    StopWatch,
    Totals,
    parse_stop_rules,
    share,
)


@given(st.integers(0, 10**9), st.integers(1, 300))
def test_the_shares_of_all_workers_sum_up_and_differ_by_one_at_most(total: int, workers: int) -> None:
    shares = [share(total, index, workers) for index in range(workers)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


def test_a_worker_that_joins_late_has_no_share() -> None:
    assert share(100, 2, 2) == 0


def test_a_quota_lets_exactly_so_many_begin() -> None:
    quota = Quota(3)
    assert [quota.take() for _ in range(5)] == [True, True, True, False, False]
    assert quota.spent
    assert Quota(0).spent


def test_rules_become_values() -> None:
    assert parse_stop_rules("") == ()
    assert parse_stop_rules("error_rate>20% over 1m, oversaturation") == (
        ErrorRate(0.2, 60.0),
        Oversaturation(),
    )
    assert parse_stop_rules(" error_rate > 0.5% ") == (ErrorRate(0.005, 30.0),)


@pytest.mark.parametrize(
    "text", ["errors>20%", "error_rate>20", "error_rate>20% over soon", "error_rate>100%", "oversaturated"]
)
def test_a_wrong_rule_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="stop rule") as error:
        parse_stop_rules(text)
    assert repr(text) in str(error.value)


def stopped_at(rule: StopRule, seconds: int, totals: Callable[[float], Totals]) -> tuple[float, str] | None:
    """When the rule ends a run that has these totals at each time, looked at four times a second."""
    watch = StopWatch([rule])
    for step in range(4 * seconds):
        reason = watch.look(step / 4, totals(step / 4))
        if reason is not None:
            return step / 4, reason
    return None


def test_a_share_of_errors_above_the_limit_ends_the_run_once_its_time_is_seen() -> None:
    def totals(t: float) -> Totals:
        return Totals(ok=int(6 * t), failed=int(4 * t), ended=int(6 * t) + int(4 * t))

    found = stopped_at(ErrorRate(0.2, 10.0), 60, totals)
    assert found is not None
    assert found[0] == 10.0
    assert "error_rate>0.2 over 10s" in found[1]
    assert "40 failed (40.0 %)" in found[1]
    assert stopped_at(ErrorRate(0.3, 10.0), 60, totals) is None  # by chance in 2 of 100 cases


@pytest.mark.parametrize(
    ("rate", "true", "limit", "over_s", "ends"),
    [
        (1, 0.05, 0.2, 30.0, False),
        (3, 0.05, 0.2, 5.0, False),
        (1, 0.10, 0.2, 30.0, False),
        (5, 0.15, 0.2, 30.0, False),
        (10, 0.005, 0.01, 30.0, False),
        (1, 0.50, 0.2, 30.0, True),
        (5, 0.35, 0.2, 30.0, True),
        (3, 1.00, 0.2, 5.0, True),
        (10, 0.001, 0.0, 30.0, True),
    ],
)
def test_a_share_of_errors_ends_a_run_if_it_is_above_the_limit_and_not_by_chance(
    rate: float, true: float, limit: float, over_s: float, ends: bool
) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        at_s = np.cumsum(rng.exponential(1 / rate, int(rate * 700)))
        failed = np.concatenate([[0], np.cumsum(rng.random(len(at_s)) < true)])

        def totals(t: float, at_s: Any = at_s, failed: Any = failed) -> Totals:
            n = int(np.searchsorted(at_s, t))
            return Totals(n - int(failed[n]), int(failed[n]), n)

        assert (stopped_at(ErrorRate(limit, over_s), 600, totals) is not None) == ends


def test_errors_of_long_ago_do_not_end_a_run() -> None:
    def totals(t: float) -> Totals:
        return Totals(ok=int(10 * t), failed=min(19, int(10 * t)), ended=int(20 * t))

    assert stopped_at(ErrorRate(0.4, 10.0), 60, totals) is None


def test_a_share_of_too_few_requests_says_nothing() -> None:
    assert stopped_at(ErrorRate(0.1, 10.0), 60, lambda t: Totals(failed=int(t / 2), ended=int(t / 2))) is None


def queue(rate: Callable[[float], float], capacity: float, latency_s: float) -> Callable[[float], Totals]:
    """Arrivals at ``rate``, each answered after ``latency_s``, at most ``capacity`` a second."""
    step, arrived, ended = 0.05, [0.0], [0.0]
    late = round(latency_s / step)
    for n in range(1, round(400 / step)):
        arrived.append(arrived[-1] + rate(n * step) * step)
        could = arrived[n - late] if n >= late else 0.0
        ended.append(min(could, ended[-1] + capacity * step))

    def totals(t: float) -> Totals:
        n = round(t / step)
        return Totals(ok=int(ended[n]), ended=int(ended[n]), backlog=int(arrived[n]) - int(ended[n]))

    return totals


def test_a_queue_that_grows_without_end_ends_the_run_and_says_how_fast_it_grew() -> None:
    found = stopped_at(Oversaturation(), 120, queue(lambda _: 20.0, 12.0, 2.0))
    assert found is not None
    at_s, reason = found
    assert at_s == 60
    assert "20 requests/s came" in reason
    assert "11.6/s ended" in reason


@pytest.mark.parametrize("latency_s", [0.5, 5.0, 20.0, 60.0, 120.0])
def test_a_load_that_fills_a_server_of_long_answers_is_no_oversaturation(latency_s: float) -> None:
    assert stopped_at(Oversaturation(), 300, queue(lambda _: 20.0, 1000.0, latency_s)) is None


def test_a_rising_rate_that_the_server_follows_is_no_oversaturation() -> None:
    assert stopped_at(Oversaturation(), 300, queue(lambda t: t, 1000.0, 10.0)) is None


def test_a_rising_rate_that_outgrows_the_server_ends_the_run() -> None:
    found = stopped_at(Oversaturation(), 300, queue(lambda t: t, 50.0, 5.0))
    assert found is not None
    assert 60 < found[0] < 130


def test_a_server_that_answers_no_more_ends_the_run() -> None:
    healthy = queue(lambda _: 20.0, 1000.0, 1.0)

    def totals(t: float) -> Totals:
        if t < 60:
            return healthy(t)
        at_60 = healthy(60)
        return at_60._replace(backlog=at_60.backlog + int(20 * (t - 60)))

    found = stopped_at(Oversaturation(), 300, totals)
    assert found is not None
    assert 100 <= found[0] <= 120


def random_queue(
    seed: int, rate: Callable[[float], float], peak: float, mean_s: float, seats: int, sigma: float = 0.6
) -> Callable[[float], Totals]:
    """Arrivals of a Poisson process, answers of lognormal lengths, so many at a time."""
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(1 / peak, int(330 * peak) + 100))
    due = due[[rng.random() < rate(t) / peak for t in due.tolist()]]
    free, ends = [0.0] * seats, []
    for at_s, takes_s in zip(due, mean_s * rng.lognormal(-(sigma**2) / 2, sigma, len(due)), strict=True):
        ends.append(max(at_s, heapq.heappop(free)) + takes_s)
        heapq.heappush(free, ends[-1])
    ended_at = np.sort(ends)

    def totals(t: float) -> Totals:
        ended, arrived = int(np.searchsorted(ended_at, t)), int(np.searchsorted(due, t))
        return Totals(ok=ended, ended=ended, backlog=arrived - ended)

    return totals


@pytest.mark.parametrize(
    ("rate", "peak", "mean_s", "seats"),
    [
        (lambda _: 11.2, 11.3, 1.0, 16),
        (lambda _: 15.2, 15.3, 1.0, 16),
        (lambda _: 5.8, 5.9, 5.0, 32),
        (lambda _: 1.5, 1.6, 60.0, 128),
        (lambda t: 14.4 * min(1.0, t / 120), 14.5, 1.0, 16),
        (lambda t: 16 * (0.7 + 0.25 * math.sin(t / 38)), 16.0, 1.0, 16),
        (lambda t: 28.8 if 120 < t < 140 else 9.6, 29.0, 1.0, 16),
        (lambda t: 28.8 if 120 < t < 160 else 9.6, 29.0, 1.0, 16),
        (lambda _: 0.2, 0.3, 8.0, 4),
    ],
    ids=["70 %", "95 %", "90 % of 5 s", "70 % of 60 s", "ramp", "sine", "burst", "longer burst", "trickle"],
)
def test_a_load_that_the_server_can_answer_is_no_oversaturation(
    rate: Callable[[float], float], peak: float, mean_s: float, seats: int
) -> None:
    for seed in range(3):
        assert stopped_at(Oversaturation(), 300, random_queue(seed, rate, peak, mean_s, seats)) is None


@pytest.mark.parametrize(
    ("over", "mean_s", "seats"),
    [
        *((1.1, 1.0, 16), (1.1, 1.0, 64)),
        *((1.3, 1.0, 16), (1.3, 1.0, 64), (1.3, 20.0, 64)),
        *((2.0, 1.0, 16), (2.0, 1.0, 64), (2.0, 20.0, 64)),
    ],
)
def test_a_load_above_the_capacity_is_found_within_five_minutes(
    over: float, mean_s: float, seats: int
) -> None:
    rate = over * seats / mean_s
    for seed in range(3):
        found = stopped_at(Oversaturation(), 300, random_queue(seed, lambda _: rate, rate, mean_s, seats))
        assert found is not None


def test_without_rules_nothing_is_kept() -> None:
    watch = StopWatch([])
    assert watch.look(1.0, Totals(failed=100, ended=100)) is None
