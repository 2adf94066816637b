"""What a window is credited with, and requests between sent and ended."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import batch, columns, failed, manifest, ns, plain, request, requests
from msgspec import structs
from summaries import summarise, typed

from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.inputs import images as images_of, inputs as inputs_of
from llm_locust.figures.summary import Summary
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.latency import per_request
from llm_locust.metrics.requests.rates import (
    Credits,
    LawRate,
    Spans,
    arrived_share,
    law_rate,
    rate_per_s,
    throughput,
)
from llm_locust.metrics.window import Window

SECOND_TO_SIXTH = Window(ns(2.0), ns(6.0), "test")


def of(*records: RequestRecord, window: Window = SECOND_TO_SIXTH) -> dict[str, float | None]:
    c = columns(*records)
    return structs.asdict(throughput(c, Credits.of(c, window), np.arange(len(c))))


def test_inputs_count_when_their_answer_has_come_and_are_unknown_where_no_request_has_any() -> None:
    inside = request(1.0, (), ended=5.0, streamed=False, inputs=32)
    outside = request(1.0, (), ended=6.0, streamed=False, inputs=32)
    result = of(inside, outside, failed(3.0, inputs=8), request(2.0))
    assert result["inputs_per_s"] == pytest.approx(32 / 4)
    assert of(failed(3.0, inputs=8))["inputs_per_s"] == 0.0
    assert of(request(2.0))["inputs_per_s"] is None


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


def spans(*times: tuple[float, float]) -> Spans:
    return Spans.of(columns(*(request(sent, (), ended=ended) for sent, ended in times)))


def mean(s: Spans, start: float, end: float) -> float:
    return float(s.means(np.array([start, end]))[0])


times = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda t: (min(t) / 4, max(t) / 4))


def test_what_was_never_sent_does_not_count_and_what_failed_does() -> None:
    c = columns(
        request(0.0, (), ended=1.0, sent=False, outcome=Outcome.CONNECT_ERROR),
        request(0.0, (), ended=1.0, outcome=Outcome.TIMEOUT),
    )
    assert Spans.of(c).peak(0.0, 1.0) == 1


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
        times, tokens = rng.gamma(4.0, 0.25, shape)[:, :26], rng.integers(10, 100, shape)[:, :26]
        assert (times[:, :-1].sum(axis=1) > 15.0).all()  # the others begin after the window
        found = law_of(users(times, tokens), 5.0, 15.0)
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


def inputs(*given: Any, **more: Any) -> Any:
    found: Any = plain(inputs_of(*given, **more))
    return found


def of_of_inputs(*records: RequestRecord) -> Any:
    c = columns(*records)
    return inputs(c, np.flatnonzero(c.ok), Credits.of(c, Window(ns(2.0), ns(6.0), "test")))


def asked(count: int, name: str, tokens: int | None) -> RequestRecord:
    return request(1.0, (), ended=5.0, streamed=False, inputs=count, name=name, input_tokens=tokens)


def test_a_run_whose_requests_ask_for_one_answer_has_no_inputs() -> None:
    assert of_of_inputs(request(2.0), failed(3.0)) is None


def test_inputs_are_those_of_requests_that_have_some_in_all_and_by_name() -> None:
    records = [asked(32, "embed", 320), asked(8, "rerank", None), request(2.0, name="chat")]
    found = of_of_inputs(*records, failed(3.0, inputs=8, name="embed"))
    assert found is not None
    assert found["inputs_per_s"] == pytest.approx(40 / 4)
    assert found["per_request"] == {
        "n": 2,
        "mean": 20.0,
        "p50": 20.0,
        "p99": pytest.approx(31.76),
        "max": 32.0,
    }
    assert found["tokens_per_input"] == pytest.approx(10)  # of those whose tokens are known
    assert found["by_name"].keys() == {"embed", "rerank"}
    assert found["by_name"]["embed"]["inputs_per_s"] == pytest.approx(32 / 4)
    assert found["by_name"]["rerank"]["tokens_per_input"] is None
    assert of_of_inputs(records[0], records[2]) == found["by_name"]["embed"] | {"by_name": {}}


def images(*given: Any, **more: Any) -> Any:
    found: Any = plain(images_of(*given, **more))
    return found


def of_of_images(*records: RequestRecord) -> Any:
    c = columns(*records)
    ok = np.flatnonzero(c.ok)
    return images(c, ok, Credits.of(c, Window(ns(2.0), ns(6.0), "test")), per_request(c)["ttft"])


def test_images_count_when_their_prompt_has_been_read() -> None:
    found = of_of_images(
        request(1.0, (0.5, 9.0), images=8, pixels=800),  # read before the window
        request(1.0, (1.5, 9.0), images=3, pixels=300),
        request(5.0, (0.5, 9.0), images=1, pixels=500),
        request(5.0, (1.5,), images=8, pixels=800),  # after it
        failed(3.0, images=16, pixels=1),
        request(3.0, (0.5,)),
    )
    assert found is not None
    assert found["images_per_s"] == pytest.approx(4 / 4)
    assert found["pixels_per_s"] == pytest.approx(800 / 4)
    assert found["per_request"]["n"] == 4
    assert found["pixels_per_image"] == pytest.approx(2400 / 20)


def test_a_run_without_images_has_no_figures_of_them_and_one_that_read_none_has_zero() -> None:
    assert of_of_images(request(3.0)) is None
    found = of_of_images(failed(3.0, images=8))
    assert found is not None
    assert (found["images_per_s"], found["per_request"]["mean"], found["by_number"]) == (0.0, None, [])


def test_pixels_are_unknown_where_one_image_has_no_known_size() -> None:
    found = of_of_images(request(3.0, images=1, pixels=100), request(3.0, images=1))
    assert found is not None
    assert (found["images_per_s"], found["pixels_per_s"], found["pixels_per_image"]) == (0.5, None, None)


def test_ttft_and_tokens_stand_by_the_number_of_images() -> None:
    numbers = (None, 1, 2, 3, 4, 5, 64, 65)
    records = [request(3.0, (0.1 * (i + 1),), images=n, input_tokens=n) for i, n in enumerate(numbers)]
    found = of_of_images(*records, request(3.0, (), ended=3.5, streamed=False, inputs=4))
    assert found is not None
    rows = {row["images"]: row for row in found["by_number"]}
    assert list(rows) == ["0", "1", "2", "3-4", "5-8", "33-64", "65+"]
    assert rows["3-4"]["requests"] == 2
    assert rows["3-4"]["ttft_ms"]["p50"] == pytest.approx(450)
    assert rows["3-4"]["input_tokens_mean"] == pytest.approx(3.5)
    assert rows["65+"]["ttft_ms"]["p99"] == pytest.approx(800)


def summary(requests: int, n: int = 2) -> Summary:
    made = [
        request(1 + i / requests, (0.05, 0.07), images=n, pixels=n * 10_000, request_id=f"{i}")
        for i in range(requests)
    ]
    return typed(summarise(batch(*made), manifest(10.0), Question()))
