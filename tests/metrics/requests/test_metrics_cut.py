"""Durations of requests that were given up, or never sent."""

import math

import numpy as np
import pytest
from metrics_cases import columns, failed, request

from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.metrics.requests.latency import (
    Samples,
    at_least,
    cut_pace_s,
    most_gaps,
    per_request,
    with_stuck,
    with_unsent,
)
from llm_locust.metrics.stats.bootstrap import order_cells
from llm_locust.metrics.stats.censoring import Durations
from llm_locust.metrics.window import Population


def test_what_was_never_sent_leaves_open_what_counts_from_scheduled_and_nothing_else() -> None:
    found = Durations.of(np.array([1.0, 2.0]))
    left_open = with_unsent(found, "ttft_scheduled", 3)
    assert left_open.censored.tolist() == [0.0, 0.0, 0.0]
    assert left_open.observed is found.observed
    assert left_open.trend  # later ones may be longer
    assert with_unsent(found, "ttft", 3) is found
    assert with_unsent(found, "ttft_scheduled", 0) is found


def test_what_hung_from_before_leaves_open_what_it_could_change() -> None:
    found = Durations.of(np.array([1.0, 2.0]), np.array([0.5]))
    assert with_stuck(found, np.empty(0)) is found
    left_open = with_stuck(found, np.array([3.0, 0.2]))
    assert left_open.censored.tolist() == [0.2, 0.5, 3.0]
    assert math.isnan(left_open.quantile(1.0))


@pytest.mark.parametrize(("input_tokens", "bound_s"), [(500, 2 * 2.0), (4_000, 2 / 4), (None, math.nan)])
def test_a_latency_per_input_is_at_least_the_time_until_it_was_given_up_per_input(
    input_tokens: int | None, bound_s: float
) -> None:
    c = columns(request(1.0, (), ended=3.0, outcome=Outcome.CANCELLED, input_tokens=input_tokens))
    assert at_least(c, "prefill_ms_per_1k_input") == pytest.approx([bound_s], nan_ok=True)


ANSWERS = [request(0.0, (1.0,)), request(1.0, (2.0,)), request(2.0, (3.0,))]
TIMED_OUT = request(3.0, (), ended=5.5, outcome=Outcome.TIMEOUT)


@pytest.mark.parametrize(
    ("records", "censored", "infinite"),
    [
        (ANSWERS, [], 0),
        ([*ANSWERS, failed(3.0)], [], 1),
        ([*ANSWERS, TIMED_OUT], [2.5], 1),
        ([*ANSWERS, TIMED_OUT, failed(4.0)], [2.5], 2),
    ],
)
def test_the_adjusted_durations_have_each_failed_request_once_and_without_end(
    records: list[RequestRecord], censored: list[float], infinite: int
) -> None:
    c, n = columns(*records), len(records)
    population = Population.of(c, np.ones(n, np.bool_), np.arange(n))
    order, samples = order_cells(c, population.all), Samples.of(c, per_request(c), "e2el")
    plain = samples.durations(population, order)
    adjusted = samples.adjusted(population, plain, order)
    assert (plain.censored.tolist(), plain.infinite) == (censored, 0)
    assert (adjusted.censored.tolist(), adjusted.infinite) == ([], infinite)
    assert plain.observed == pytest.approx([1, 2, 3])
    assert adjusted.observed == pytest.approx([1, 2, 3])
    assert adjusted.course is not None
    assert adjusted.course.counts.tolist() == [1] * n
    assert adjusted.course.sums == pytest.approx([1, 2, 3] + [math.inf] * infinite)
    assert adjusted.course.at_most(np.array([2.0, 1e9])).sum(axis=1).tolist() == [2, 3]


def test_a_request_that_was_given_up_is_a_part_of_those_that_lasted_longer() -> None:
    """Of three that took 1, 2 and 3 s one ended after 1.5 s: for its interval, half a request up to 2 s."""
    given_up = request(3.0, (), ended=4.5, outcome=Outcome.CANCELLED)
    c = columns(request(0.0, (1.0,)), request(1.0, (2.0,)), request(2.0, (3.0,)), given_up)
    population = Population.of(c, np.ones(4, np.bool_), np.arange(4))
    order = order_cells(c, population.all)
    course = Samples.of(c, per_request(c), "e2el").durations(population, order).course
    assert course is not None
    assert course.at_most(np.array([1.0, 2.0, 3.0])).sum(axis=1) == pytest.approx([1.0, 2.5, 4.0])
    assert course.sums == pytest.approx([1.0, 2.0, 3.0, 2.5])  # the mean of those that lasted longer
    whole = Durations.of(np.array([1.0, 2.0, 3.0]), np.array([1.5]))
    assert whole.moments()[0] == pytest.approx(course.sums.sum() / 4)


def test_a_request_that_was_given_up_may_have_no_end_where_others_have_none() -> None:
    """Cut after 1.5 s, it is one of those that took 2 and 3 s and of the one that failed: a third each."""
    given_up = request(3.0, (), ended=4.5, outcome=Outcome.CANCELLED)
    c = columns(*ANSWERS, given_up, failed(5.0))
    population = Population.of(c, np.ones(5, np.bool_), np.arange(5))
    order, samples = order_cells(c, population.all), Samples.of(c, per_request(c), "e2el")
    course = samples.adjusted(population, samples.durations(population, order), order).course
    assert course is not None
    assert course.at_most(np.array([1.0, 2.0, 3.0])).sum(axis=1) == pytest.approx([1.0, 2 + 1 / 3, 3 + 2 / 3])
    assert course.counts.tolist() == [1] * 5


def test_where_every_request_was_given_up_none_is_known_to_be_at_most_anything() -> None:
    c = columns(*(request(float(at), (), ended=9.0, outcome=Outcome.CANCELLED) for at in range(3)))
    population = Population.of(c, np.ones(3, np.bool_), np.arange(3))
    found = Samples.of(c, per_request(c), "e2el").durations(population, order_cells(c, population.all))
    assert (len(found.observed), found.censored.tolist()) == (0, [7.0, 8.0, 9.0])
    assert np.isnan(found.moments()).all()
    assert found.course is not None
    assert found.course.counts.tolist() == [1, 1, 1]
    assert found.course.at_most(np.array([1e9])).sum() == 0


@pytest.mark.parametrize(
    ("arrivals", "ended", "pace_s"),
    [
        ((1.0, 1.1, 1.2, 1.3), 1.35, 0.1),  # three gaps; the next token would have been in time
        ((1.0, 1.1, 1.2, 1.3), 2.0, 1.0 / 4),  # it would not: its gap is at least the silence
        ((1.0, 1.1), 9.0, 8.0 / 2),
        ((1.0,), 9.0, math.nan),  # of one event nothing is known
        ((), 9.0, math.nan),
        ((1.0, 1.0), 9.0, math.nan),  # both came at once: no time was spent on a token
    ],
)
def test_the_pace_of_a_cut_answer_is_that_of_its_tokens_or_of_the_silence_that_was_longer(
    arrivals: tuple[float, ...], ended: float, pace_s: float
) -> None:
    cut = request(0.0, arrivals, ended=ended, outcome=Outcome.CANCELLED)
    whole = request(0.0, arrivals, ended=ended)
    found = cut_pace_s(columns(cut, whole))
    assert found == pytest.approx([pace_s, math.nan], nan_ok=True)  # a whole answer has its TPOT


@pytest.mark.parametrize(
    ("arrivals", "asked", "gaps"),
    [
        ((1.0, 1.1), 50, 49),  # as many as were asked for, and the first has none
        ((1.0, 1.1), None, 2),  # one more than came
        ((1.0, 1.1), 1, 2),  # more came than were asked for
        ((1.0,), None, 1),
        ((), None, math.nan),  # nothing came, and nothing was asked for
    ],
)
def test_a_cut_answer_may_yet_have_the_gaps_that_were_asked_for_and_one_at_least(
    arrivals: tuple[float, ...], asked: int | None, gaps: float
) -> None:
    cut = request(0.0, arrivals, ended=2.0, outcome=Outcome.CANCELLED, asked_output_tokens=asked)
    assert most_gaps(columns(cut)) == pytest.approx([gaps], nan_ok=True)
