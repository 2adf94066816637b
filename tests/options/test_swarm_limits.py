"""What ends a run: exact shares of a number of requests, and rules on how it goes."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_locust.options.stop_rules import (
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
        return Totals(ok=int(7 * t), failed=int(3 * t), ended=int(7 * t) + int(3 * t))

    found = stopped_at(ErrorRate(0.2, 10.0), 60, totals)
    assert found is not None
    assert found[0] == 10.0
    assert "error_rate>0.2 over 10s" in found[1]
    assert "30 failed (30.0 %)" in found[1]
    assert stopped_at(ErrorRate(0.3, 10.0), 60, totals) is None


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
    assert 30 <= at_s < 45
    assert "20 requests/s came" in reason
    assert "11.2/s ended" in reason


@pytest.mark.parametrize("latency_s", [0.5, 5.0, 20.0, 60.0, 120.0])
def test_a_load_that_fills_a_server_of_long_answers_is_no_oversaturation(latency_s: float) -> None:
    assert stopped_at(Oversaturation(), 300, queue(lambda _: 20.0, 1000.0, latency_s)) is None


def test_a_rising_rate_that_the_server_follows_is_no_oversaturation() -> None:
    assert stopped_at(Oversaturation(), 300, queue(lambda t: t, 1000.0, 10.0)) is None


def test_a_rising_rate_that_outgrows_the_server_ends_the_run() -> None:
    found = stopped_at(Oversaturation(), 300, queue(lambda t: t, 50.0, 5.0))
    assert found is not None
    assert 60 < found[0] < 100


def test_a_server_that_answers_no_more_ends_the_run() -> None:
    healthy = queue(lambda _: 20.0, 1000.0, 1.0)

    def totals(t: float) -> Totals:
        if t < 60:
            return healthy(t)
        at_60 = healthy(60)
        return at_60._replace(backlog=at_60.backlog + int(20 * (t - 60)))

    found = stopped_at(Oversaturation(), 300, totals)
    assert found is not None
    assert 80 <= found[0] <= 92


def test_without_rules_nothing_is_kept() -> None:
    watch = StopWatch([])
    assert watch.look(1.0, Totals(failed=100, ended=100)) is None
