"""The run cut into spans: the axis, and what is told of each span, against pandas."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from metrics_cases import columns, failed, request

from llm_locust.core.record import Outcome
from llm_locust.figures.charts.course import (
    MOST_BINS,
    TimeAxis,
    failures_over_time,
    percentiles_over_time,
    rates_over_time,
)
from llm_locust.metrics.catalogue import ttft
from llm_locust.metrics.columns import Part

AXIS = TimeAxis(start_s=0.0, width_s=2.0, bins=5)


def run(n: int = 400) -> Part:
    """``n`` answers of three tokens over 10 s, whose TTFT grows from 50 ms on; one in ten failed."""
    every = 10 / n
    return columns(
        *(
            request(i * every, (0.05 + 0.001 * i, 0.5, 0.52))
            if i % 10
            else failed(i * every, Outcome.TIMEOUT if i % 20 else Outcome.HTTP_ERROR)
            for i in range(n)
        )
    )


def test_the_axis_covers_the_whole_run_in_round_spans() -> None:
    axis = TimeAxis.of(run(), started_s=-0.5)
    assert axis.start_s == -0.5
    assert axis.width_s == 1.0
    assert axis.edges_s[-1] > run().ended_s.max() >= axis.edges_s[-2]


def test_the_axis_begins_with_the_first_request_where_that_is_before_the_start() -> None:
    assert TimeAxis.of(run(), started_s=3.0).start_s == 0.0


def test_a_run_without_requests_has_an_axis_of_one_span() -> None:
    assert TimeAxis.of(columns(), 0.0).bins == 1


@given(st.floats(0.001, 1e7), st.integers(1, 50))
def test_no_run_has_more_spans_than_can_be_drawn(length_s: float, n: int) -> None:
    c = columns(*(request(length_s * i / n) for i in range(n)))
    axis = TimeAxis.of(c, 0.0)
    assert 1 <= axis.bins <= MOST_BINS + 1
    assert (axis.index(c.ended_s) >= 0).all()


def test_a_time_on_an_edge_is_of_the_span_that_begins_there() -> None:
    found = AXIS.index(np.array([-0.1, 0.0, 1.999, 2.0, 9.999, 10.0, np.nan]))
    assert found.tolist() == [-1, 0, 0, 1, 4, -1, -1]


def test_percentiles_are_those_of_the_ok_requests_that_ended_in_each_span() -> None:
    c = run()
    found = percentiles_over_time(AXIS, c, ttft(c))
    frame = pd.DataFrame({"at": c.ended_s // 2, "ttft": ttft(c)})[c.ok]
    by_span = frame[frame["at"] < 5].groupby("at")["ttft"]
    assert found["n"].tolist() == by_span.count().tolist()
    for key, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert found[key] == pytest.approx(by_span.quantile(q).to_numpy(), rel=1e-12)


def test_a_span_in_which_no_request_ended_has_no_percentile() -> None:
    c = columns(request(0.0))
    found = percentiles_over_time(AXIS, c, ttft(c))
    assert found["n"].tolist() == [1, 0, 0, 0, 0]
    assert np.isnan(found["p50"][1:]).all()


def test_rates_are_per_second_of_a_span() -> None:
    c = columns(request(0.0, (0.5, 1.0)), request(0.5, (0.5, 3.0)), failed(4.1))
    rates = rates_over_time(AXIS, c, np.array([2.0, 1, 0, 0, 0]))
    assert rates["sent"].tolist() == [1.0, 0, 0.5, 0, 0]
    assert rates["ok"].tolist() == [0.5, 0.5, 0, 0, 0]
    assert rates["failed"].tolist() == [0, 0, 0.5, 0, 0]
    assert rates["input_tokens"].tolist() == [10.0, 0, 0, 0, 0]
    assert rates["output_tokens"].tolist() == [1.0, 0.5, 0, 0, 0]
    assert rates["concurrency"][:2] == pytest.approx([(1.0 + 1.5) / 2, 1.5 / 2])


def test_failures_are_counted_by_outcome_and_cancelled_requests_are_none() -> None:
    c = columns(
        failed(1.0),
        failed(1.5),
        failed(3.0, Outcome.TIMEOUT),
        request(1.0, outcome=Outcome.CANCELLED),
        request(1.0),
    )
    found = failures_over_time(AXIS, c)
    assert {key: counts.tolist() for key, counts in found.items()} == {
        "http_error": [2, 0, 0, 0, 0],
        "timeout": [0, 1, 0, 0, 0],
    }
