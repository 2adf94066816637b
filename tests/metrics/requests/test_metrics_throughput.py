"""What a window is credited with."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import columns, failed, ns, request, requests

from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.metrics.requests.throughput import Credits, arrived_share, rate_per_s, throughput
from llm_locust.metrics.window import Window

SECOND_TO_SIXTH = Window(ns(2.0), ns(6.0), "test")


def of(*records: RequestRecord, window: Window = SECOND_TO_SIXTH) -> dict[str, float | None]:
    c = columns(*records)
    return throughput(c, Credits.of(c, window), np.arange(len(c)))


def test_tokens_count_where_they_arrive_so_a_request_across_an_edge_counts_in_part() -> None:
    result = of(request(1.0, (0.5, 1.0, 1.5, 5.0)))  # at 1.5, 2.0, 2.5, 6.0
    assert result["output_tokens_per_s"] == pytest.approx(2 / 4)
    assert result["requests_per_s"] == 0.0  # it ended at 6.0, just outside
    assert result["input_tokens_per_s"] == 0.0  # its first token was before


def test_tokens_of_events_that_hold_several_are_spread_over_them_evenly() -> None:
    result = of(request(1.0, (0.5, 1.5, 2.5), output_tokens=12))
    assert result["output_tokens_per_s"] == pytest.approx(8 / 4)


def test_input_counts_whole_at_the_first_token_event() -> None:
    result = of(request(1.0, (1.0, 9.0), input_tokens=100))
    assert result["input_tokens_per_s"] == pytest.approx(100 / 4)
    assert result["total_tokens_per_s"] == pytest.approx((100 + 1) / 4)


def test_an_answer_without_events_counts_whole_at_its_end() -> None:
    inside = request(1.0, (), ended=5.0, streamed=False, output_tokens=40)
    outside = request(1.0, (), ended=6.0, streamed=False, output_tokens=40)
    result = of(inside, outside)
    assert result["output_tokens_per_s"] == pytest.approx(40 / 4)
    assert result["input_tokens_per_s"] == pytest.approx(10 / 4)


def test_inputs_count_when_their_answer_has_come_and_are_unknown_where_no_request_has_any() -> None:
    inside = request(1.0, (), ended=5.0, streamed=False, inputs=32)
    outside = request(1.0, (), ended=6.0, streamed=False, inputs=32)
    result = of(inside, outside, failed(3.0, inputs=8), request(2.0))
    assert result["inputs_per_s"] == pytest.approx(32 / 4)
    assert of(failed(3.0, inputs=8))["inputs_per_s"] == 0.0
    assert of(request(2.0))["inputs_per_s"] is None


def test_tokens_of_failed_and_cancelled_requests_were_served_too() -> None:
    result = of(
        request(2.0, (0.1, 0.2), outcome=Outcome.TRUNCATED), request(2.0, (0.1,), outcome=Outcome.CANCELLED)
    )
    assert result["output_tokens_per_s"] == pytest.approx(3 / 4)
    assert result["requests_per_s"] == 0.0


def test_a_failure_without_an_answer_gives_no_input_tokens() -> None:
    assert of(failed(3.0, input_tokens=500), request(3.0))["input_tokens_per_s"] == pytest.approx(10 / 4)


def test_trap_14_numerator_and_denominator_are_of_one_window() -> None:
    """A server of 10 tokens/s, a token every 0.1 s: ramp, warm-up and drain change nothing."""
    stream = [request(float(i), tuple((k + 0.5) / 10 for k in range(10))) for i in range(20)]
    for window in (Window(ns(0.0), ns(20.0), ""), Window(ns(3.3), ns(7.9), ""), Window(ns(0.7), ns(1.2), "")):
        assert of(*stream, window=window)["output_tokens_per_s"] == pytest.approx(10.0)


def test_an_empty_window_has_no_rates_and_no_requests_are_a_true_0() -> None:
    rates: dict[str, Any] = of(request(), window=Window(ns(1.0), ns(1.0), ""))
    assert {*rates.pop("ci95").values(), *rates.values()} == {None}
    assert of()["output_tokens_per_s"] == 0.0
    assert of()["concurrency_peak"] == 0


def test_answers_of_unknown_length_are_not_0_tokens() -> None:
    unknown = request(3.0, (), ended=4.0, streamed=False, output_tokens=None, input_tokens=None)
    result = of(unknown)
    assert result["requests_per_s"] == pytest.approx(1 / 4)
    assert result["output_tokens_per_s"] is None
    assert result["input_tokens_per_s"] is None
    assert result["total_tokens_per_s"] is None


def test_characters_are_credited_as_tokens_are() -> None:
    assert of(request(1.0, (0.5, 1.5), output_chars=30))["output_chars_per_s"] == pytest.approx(15 / 4)


@pytest.mark.parametrize(
    ("at_s", "share"),
    [
        *(((2.0,), 1.0), ((6.0,), 0.0), ((2.0, 6.0), 0.5), ((1.0, 2.0), 0.5), ((6.0, 7.0), 0.0)),
        *(((1.0, 6.0), 0.0), ((1.0, 2.0, 6.0), 1 / 3), ((5.0, 6.0), 0.5), ((0.5, 1.0), 0.0)),
    ],
)
def test_a_window_has_its_first_moment_and_not_its_last(at_s: tuple[float, ...], share: float) -> None:
    assert arrived_share(columns(request(0.0, at_s)), SECOND_TO_SIXTH).tolist() == [share]


def test_an_arrival_on_an_edge_is_judged_to_the_nanosecond() -> None:
    c = columns(request(0.1, (0.2,)))  # 0.1 + 0.2 is not 0.3 in floats
    assert arrived_share(c, Window(ns(0.3), ns(1.0), "")).tolist() == [1.0]
    assert arrived_share(c, Window(ns(0.0), ns(0.3), "")).tolist() == [0.0]


@given(st.lists(requests(), max_size=10), st.integers(0, 9000), st.integers(1, 5000))
def test_the_share_is_that_of_counting_events_one_by_one(
    records: list[RequestRecord], start_ms: int, length_ms: int
) -> None:
    window = Window(ns(start_ms / 1000), ns((start_ms + length_ms) / 1000), "")
    shares = arrived_share(columns(*records), window)
    for record, share in zip(records, shares, strict=True):
        if len(record.arrivals_ns):
            assert record.sent_ns is not None
            times = [record.sent_ns + int(a) for a in record.arrivals_ns]
        else:
            times = [record.ended_ns]
        assert share == pytest.approx(np.mean([window.start_ns <= t < window.end_ns for t in times]))


@given(st.lists(requests(), max_size=10), st.lists(st.integers(0, 20_000), min_size=1, max_size=4))
def test_windows_side_by_side_get_every_token_once(records: list[RequestRecord], cuts_ms: list[int]) -> None:
    c = columns(*records)
    edges = [ns(t / 1000) for t in sorted({0, 30_000, *cuts_ms})]
    parts = [arrived_share(c, Window(a, b, "")) for a, b in pairwise(edges)]
    assert np.sum(parts, axis=0) == pytest.approx(np.ones(len(c)))


def test_a_rate_does_not_depend_on_the_order_of_requests() -> None:
    amounts = np.array([1e16, 1.0, 1.0, 1.0])  # 1e16 + 1 is 1e16 in floats
    finished = np.ones(4, dtype=np.bool_)
    assert rate_per_s(amounts, finished, 7.0) == rate_per_s(amounts[::-1], finished, 7.0)
