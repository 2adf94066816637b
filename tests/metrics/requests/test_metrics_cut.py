"""Durations of requests that were given up, or never sent."""

import numpy as np
import pytest
from metrics_cases import columns, request

from llm_locust.core.record import Outcome
from llm_locust.metrics.requests.cut import Samples, with_unsent
from llm_locust.metrics.requests.latency import per_request
from llm_locust.metrics.stats.cells import order_cells
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


def test_a_request_that_was_given_up_is_a_part_of_those_that_lasted_longer() -> None:
    """Of three that took 1, 2 and 3 s one ended after 1.5 s: for its interval, half a request up to 2 s."""
    given_up = request(3.0, (), ended=4.5, outcome=Outcome.CANCELLED)
    c = columns(request(0.0, (1.0,)), request(1.0, (2.0,)), request(2.0, (3.0,)), given_up)
    population = Population.of(c, np.ones(4, np.bool_), np.arange(4))
    order = order_cells(c, population.all)
    course = Samples.of(c, per_request(c), "e2el").durations(population, order).course
    assert course is not None
    assert course.at_most(np.array([1.0, 2.0, 3.0])).sum(axis=1) == pytest.approx([1.0, 2.5, 4.0])
