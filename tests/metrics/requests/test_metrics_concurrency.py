"""Requests between sent and ended."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import columns, ns, request

from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.metrics.requests.throughput import LawRate, Spans, law_rate
from llm_locust.metrics.window import Window


def spans(*times: tuple[float, float]) -> Spans:
    return Spans.of(columns(*(request(sent, (), ended=ended) for sent, ended in times)))


def mean(s: Spans, start: float, end: float) -> float:
    return float(s.means(np.array([start, end]))[0])


def test_the_mean_is_weighted_by_time_and_counts_what_the_window_holds() -> None:
    s = spans((0.0, 4.0), (1.0, 2.0), (3.0, 9.0))
    assert mean(s, 0.0, 4.0) == pytest.approx((4 + 1 + 1) / 4)
    assert mean(s, 3.0, 5.0) == pytest.approx((1 + 2) / 2)
    assert mean(s, 9.0, 10.0) == 0.0


def test_the_peak_is_of_the_window_and_counts_what_began_before_it() -> None:
    s = spans((0.0, 10.0), (0.0, 10.0), (1.0, 2.0), (6.0, 7.0))
    assert s.peak(0.0, 10.0) == 3
    assert s.peak(2.0, 6.0) == 2
    assert s.peak(10.0, 12.0) == 0


def test_one_that_ends_does_not_meet_the_next_sent_at_that_instant() -> None:
    assert spans((0.0, 1.0), (1.0, 2.0)).peak(0.0, 2.0) == 1


def test_what_was_never_sent_does_not_count_and_what_failed_does() -> None:
    c = columns(
        request(0.0, (), ended=1.0, sent=False, outcome=Outcome.CONNECT_ERROR),
        request(0.0, (), ended=1.0, outcome=Outcome.TIMEOUT),
    )
    assert Spans.of(c).peak(0.0, 1.0) == 1


times = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda t: (min(t) / 4, max(t) / 4))


@given(st.lists(times, max_size=12), times)
def test_mean_and_peak_are_those_of_counting_instant_by_instant(
    intervals: list[tuple[float, float]], window: tuple[float, float]
) -> None:
    start, end = window[0], window[1] + 1.0
    instants = np.arange(start, end, 0.25)  # every time is a multiple: the level between two is constant
    levels = [int(sum(a <= t < b for a, b in intervals)) for t in instants.tolist()]
    s = spans(*intervals)
    assert mean(s, start, end) == pytest.approx(sum(levels) / len(levels))
    c = columns()  # edges come from whole nanoseconds, as the requests' times do
    assert s.peak(c.after_origin_s(ns(start)), c.after_origin_s(ns(end))) == max(levels)


def law_of(records: list[RequestRecord], start: float, end: float) -> LawRate | None:
    """The rate of output tokens."""
    c = columns(*records)
    return law_rate(c, Window(ns(start), ns(end), "test"), c.output_tokens)


def users(times: np.ndarray, tokens: np.ndarray) -> list[RequestRecord]:
    """A closed loop: each row is a user, who asks again as soon as the answer is there."""
    ends = np.cumsum(times, axis=1)
    return [
        request(end - time, (), ended=end, output_tokens=int(n))
        for end, time, n in zip(ends.flat, times.flat, tokens.flat, strict=True)
    ]


@pytest.mark.parametrize(("start", "end"), [(0.0, 4.0), (0.5, 3.9), (1.9, 2.1)])
def test_the_rate_by_littles_law_is_that_of_the_load_wherever_the_window_begins(
    start: float, end: float
) -> None:
    """Four users in step, 20 tokens in 2 s: 40 tokens/s, though 80 or none end in a window."""
    found = law_of(users(np.full((4, 4), 2.0), np.full((4, 4), 20)), start, end)
    assert found is not None
    assert (found.rate, found.error) == pytest.approx((40.0, 0.0))
    assert found.answers == pytest.approx((end - start) / 2)


def test_the_error_of_that_rate_is_the_spread_of_the_rates_of_many_runs() -> None:
    rng, rates, errors = np.random.default_rng(1), [], []
    for _ in range(150):
        shape = (10, 40)
        found = law_of(users(rng.gamma(4.0, 0.25, shape), rng.integers(10, 100, shape)), 5.0, 15.0)
        assert found is not None
        rates.append(found.rate)
        errors.append(found.error)
    assert np.mean(rates) == pytest.approx(10 * 54.5, rel=0.01)  # ten users, 1 s an answer
    assert np.mean(errors) == pytest.approx(np.std(rates), rel=0.15)


def test_answers_without_tokens_are_a_rate_of_zero_and_not_an_undefined_one() -> None:
    found = law_of(users(np.full((2, 4), 1.0), np.zeros((2, 4))), 0.0, 4.0)
    assert found == LawRate(0.0, 0.0, 4.0)


@pytest.mark.parametrize(
    ("lasted_s", "cut_s"),
    [
        ([1.0, 2.0, 1.5], [2.0]),  # the longest was cut: no mean
        ([1.0, 2.0], [0.5, 0.6, 0.7]),  # most were
        ([0.0, 0.0], []),  # refused at once: none was ever in flight
    ],
)
def test_a_mean_time_that_is_not_known_gives_no_rate(lasted_s: list[float], cut_s: list[float]) -> None:
    made = [request(0.0, (), ended=each, output_tokens=5) for each in lasted_s]
    made += [request(0.0, (), ended=each, outcome=Outcome.CANCELLED) for each in cut_s]
    found = law_of(made, 0.0, 3.0)
    assert found is not None
    assert math.isnan(found.rate)
    assert math.isnan(found.error)
    assert found.answers == pytest.approx(3.0 / max(float(np.mean([*lasted_s, *cut_s])), 1e-9))


def test_a_window_in_which_nothing_was_sent_or_that_has_gaps_has_no_such_rate() -> None:
    made = users(np.full((1, 4), 1.0), np.full((1, 4), 5))
    assert law_of(made, 10.0, 12.0) is None
    c = columns(*made)
    with_gap = Window(ns(0.0), ns(4.0), "test", gaps=((ns(1.0), ns(2.0)),))
    assert law_rate(c, with_gap, c.output_tokens) is None
