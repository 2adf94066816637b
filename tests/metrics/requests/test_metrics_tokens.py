"""How long answers were and how their tokens came."""

from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, columns, manifest, plain, request
from summaries import summarise

from llm_locust.core.record import Outcome, RequestRecord, TokenSource
from llm_locust.figures.tokens import delivery, held_ms, length_error as length_error_of, tokens as tokens_of
from llm_locust.metrics.requests.rates import with_estimates


def tokens(*given: Any, **more: Any) -> Any:
    found: Any = plain(tokens_of(*given, **more))
    return found


def of(*records: RequestRecord) -> Any:
    """The figures of all records, each of which the window got as a whole."""
    c = columns(*records)
    return tokens(c, np.arange(len(c)), c.output_tokens)


@pytest.mark.parametrize(
    "record",
    [
        request(output_chars=None),
        request(arrivals=(0.1,), output_chars=9),
        request(arrivals=(0.1, 0.1), output_chars=9),
        request(arrivals=(), streamed=False, output_tokens=3, output_chars=9),
    ],
)
def test_an_answer_of_one_moment_or_of_unknown_length_has_no_pace_in_characters(
    record: RequestRecord,
) -> None:
    assert of(record)["chars_per_s"]["n"] == 0


@pytest.mark.parametrize(
    "records",
    [
        [request(), request(output_tokens=None)],
        [request(output_tokens=None), request(output_tokens=None, outcome=Outcome.TIMEOUT)],
    ],
    ids=["none was cut", "none was counted"],
)
def test_without_a_counted_or_without_a_cut_answer_there_is_nothing_to_estimate(
    records: list[RequestRecord],
) -> None:
    c = columns(*records)
    assert with_estimates(c, c.output_tokens) == (c, c.output_tokens)


def test_without_answers_nothing_is_known() -> None:
    result = of()
    assert result["input"].pop("error")["n"] == 0
    assert result["input"] == {"n": 0, "mean": None, "p50": None, "p99": None, "max": None}
    assert result["tokens_per_event"] is result["chars_per_token"] is None
    assert set(result["source"].values()) == {None}


@pytest.mark.parametrize(
    ("per_event", "itl_ms", "tpot_ms", "held_ms", "kind"),
    [
        (None, 20.0, 20.0, 25.0, None),
        (1.0, 20.0, 20.0, 25.0, "tokens"),
        (1.05, 20.0, 20.0, 25.0, "tokens"),
        (1.5, 30.0, 20.0, 35.0, "merged"),  # speculative decoding
        (3.0, 60.0, 20.0, 70.0, "merged"),  # a server that sends every third step
        (16.0, 320.0, 20.0, 400.0, "merged"),
        (1.0, 0.01, 20.0, 25.0, "buffered"),
        (3.0, 0.01, 20.0, 70.0, "buffered"),
        (1.0, 0.01, 0.01, 25.0, "buffered"),  # at once, when all was made
        (1.0, 0.0, 0.0, 0.5, "buffered"),
        (1.0, 0.01, 0.01, 0.2, "tokens"),  # from a server that needs no time
        (1.0, 0.01, 0.01, None, "tokens"),
        (1.0, None, None, None, "tokens"),
        (1.0, None, 20.0, 25.0, "tokens"),  # its client read late
    ],
)
def test_a_stream_that_was_held_up_on_the_way_is_told_from_one_that_was_not(
    per_event: float | None,
    itl_ms: float | None,
    tpot_ms: float | None,
    held_ms: float | None,
    kind: str | None,
) -> None:
    assert delivery(per_event, itl_ms, tpot_ms, held_ms) == kind


#: When each token event of an answer comes, in seconds after it was sent.
_DELIVERIES = {
    "even, an event each": ([0.2 + 0.02 * i for i in range(40)], 40, "tokens"),
    "speculative decoding": ([0.2 + 0.03 * i + 0.002 * (i % 3) for i in range(18)], 40, "merged"),
    "every fourth step": ([0.2 + 0.08 * i for i in range(10)], 40, "merged"),
    "all at once, in the end": ([1.0] * 40, 40, "buffered"),
    "all at once, by a burst of packets": ([1.0 + 5e-5 * i for i in range(40)], 40, "buffered"),
    "a buffer that is emptied when full": ([0.4 * (1 + i // 13) for i in range(40)], 40, "buffered"),
    "Nagle's algorithm": ([0.2 + 0.2 * (i // 10) for i in range(40)], 40, "buffered"),
    "a buffer, with several tokens an event": ([0.4 * (1 + i // 5) for i in range(20)], 60, "buffered"),
    "a server that needs no time": ([0.004] * 40, 40, "tokens"),
    "a short answer at once": ([0.3] * 3, 3, "tokens"),
}


@pytest.mark.parametrize(("arrivals", "n", "kind"), _DELIVERIES.values(), ids=_DELIVERIES)
def test_uneven_gaps_are_what_a_buffer_makes_and_several_tokens_an_event_are_not(
    arrivals: list[float], n: int, kind: str
) -> None:
    made = [request(0.1 * i, arrivals=tuple(arrivals), output_tokens=n) for i in range(20)]
    assert summarise(batch(*made), manifest())["tokens"]["delivery"] == kind


@pytest.mark.parametrize(("lag_ms", "kind"), [(0.02, "buffered"), (3.0, "buffered"), (15.0, "tokens")])
def test_a_client_that_was_late_by_less_than_events_are_apart_has_not_merged_them(
    lag_ms: float, kind: str
) -> None:
    arrivals = tuple(0.4 + 0.2 * (i // 10) for i in range(40))  # 15 ms a token
    lag_ns = round(lag_ms * 1e6)
    made = [request(0.1 * i, arrivals=arrivals, output_tokens=40, client_lag_ns=lag_ns) for i in range(20)]
    assert summarise(batch(*made), manifest())["tokens"]["delivery"] == kind


def test_how_long_an_answer_took_for_each_event_is_that_of_streams_of_some_length() -> None:
    c = columns(
        *(request(arrivals=(at,) * 10) for at in (0.1, 0.2, 0.9)),
        request(arrivals=(5.0,) * 3),
        request(arrivals=(5.0,) * 10, streamed=False),
    )
    assert held_ms(c, np.arange(5)) == pytest.approx(20.0)
    assert held_ms(c, np.array([3, 4])) is None


def test_the_error_of_the_asked_lengths_stands_beside_the_input() -> None:
    c = columns(
        request(asked_input_tokens=100, input_tokens=110),
        request(asked_input_tokens=100, input_tokens=100),
        request(asked_input_tokens=None, input_tokens=7),
    )
    error = tokens(c, np.arange(3), c.output_tokens)["input"]["error"]
    assert error["n"] == 2
    assert error["mean_relative"] == pytest.approx(0.05)
    assert error["share_within_1_percent"] == 0.5


@pytest.mark.parametrize(("unread", "kind"), [(None, "buffered"), (0.05, "buffered"), (0.5, "unread")])
def test_no_buffer_is_blamed_for_tokens_in_a_field_that_is_not_read(unread: float | None, kind: str) -> None:
    assert delivery(2.1, 0.0, 20.0, None, unread) == kind
    assert delivery(1.0, 20.0, 20.0, None, unread) == "tokens"


def test_what_does_not_fit_about_counts_is_counted_by_its_kind() -> None:
    by_events: dict[str, Any] = {"token_source": TokenSource.EVENTS}
    result = of(
        request(count_fault="fewer_than_events", **by_events),
        request(count_fault="reasoning_left_out"),
        request(count_fault="reasoning_left_out", **by_events),
        request(count_fault="more_than_bytes"),  # the total told a better one
        request(count_fault="other_total"),
        request(unread="b"),
        request(unread="a"),
        request(unread="a"),
    )
    faults = result["faults"]
    assert faults.pop("not_used") == 3 / 8
    assert {fault: n for fault, n in faults.items() if n} == {
        "fewer_than_events": 1,
        "more_than_bytes": 1,
        "reasoning_left_out": 2,
        "other_total": 1,
    }
    assert result["unread"] == {"field": "a", "share": 3 / 8}


def test_a_first_event_of_many_tokens_counts_as_one_with_one() -> None:
    result = of(request(output_tokens=22, opening_tokens=20, came_tokens=22), request())
    assert (result["tokens_per_event"], result["opening"]) == (1.0, 20)


def test_events_of_a_summary_are_none_that_bring_its_tokens() -> None:
    summary = request(output_tokens=502, hidden_tokens=500, first_answer_ns=70_000_000)
    assert of(summary, request())["tokens_per_event"] == of(request())["tokens_per_event"] == 1.0
    assert of(summary)["tokens_per_event"] is None


def length_error(*given: Any, **more: Any) -> Any:
    found: Any = plain(length_error_of(*given, **more))
    return found


NAN = np.nan


def test_the_error_is_relative_to_what_was_asked_and_keeps_its_sign_in_the_mean() -> None:
    error = length_error(np.array([100.0, 200.0, 400.0]), np.array([110.0, 200.0, 398.0]))
    assert error["n"] == 3
    assert error["mean_relative"] == pytest.approx((0.1 + 0 - 0.005) / 3)
    assert error["p50"] == pytest.approx(0.005)
    assert error["p99"] == pytest.approx(0.1 - 0.02 * 0.095)
    assert error["share_within_1_percent"] == pytest.approx(2 / 3)


def test_requests_of_which_either_is_unknown_do_not_count() -> None:
    error = length_error(np.array([100.0, NAN, 50.0]), np.array([NAN, 10.0, 50.0]))
    assert (error["n"], error["mean_relative"], error["share_within_1_percent"]) == (1, 0.0, 1.0)


def test_an_error_of_one_percent_is_within_it() -> None:
    assert length_error(np.array([100.0, 100.0]), np.array([101.0, 102.0]))["share_within_1_percent"] == 0.5


def test_without_a_known_pair_every_figure_is_undefined() -> None:
    undefined = {"n": 0, "mean_relative": None, "p50": None, "p99": None, "share_within_1_percent": None}
    assert length_error(np.array([]), np.array([])) == undefined
    assert length_error(np.array([NAN]), np.array([3.0])) == undefined
