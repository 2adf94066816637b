"""Requests between sent and ended."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from metrics_cases import columns, ns, request

from llm_locust.core.record import Outcome
from llm_locust.metrics.requests.concurrency import Spans


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
