"""Tokens in time for somebody who reads along."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import columns, failed, request

from llm_locust.core.record import RequestRecord
from llm_locust.metrics import columns as ragged
from llm_locust.metrics.requests.gaps import on_time_ratio, summarise_on_time
from llm_locust.metrics.stats.bootstrap import Order


def ratio(record: RequestRecord, ttft: float = 0.5, tpot: float = 0.1) -> float:
    return float(on_time_ratio(columns(record), np.array([0]), ttft, tpot)[0])


def test_tokens_up_to_and_at_their_deadline_are_in_time() -> None:
    assert ratio(request(arrivals=(0.5, 0.6, 0.7))) == 1.0
    assert ratio(request(arrivals=(0.1, 0.6, 0.7))) == 1.0  # an early start is a reserve


def test_a_late_token_sets_the_clock_back_to_its_arrival() -> None:
    assert ratio(request(arrivals=(0.5, 0.9, 1.0, 1.1))) == 0.75
    assert ratio(request(arrivals=(0.5, 0.9, 1.1, 1.2))) == 0.5


def test_of_an_event_with_many_tokens_only_the_first_can_be_late() -> None:
    assert ratio(request(arrivals=(0.5, 2.0), output_tokens=10)) == pytest.approx(0.9)


def test_with_fewer_tokens_than_events_each_event_is_a_part_of_one() -> None:
    assert ratio(request(arrivals=(0.5, 0.9, 1.0, 1.1), output_tokens=2)) == pytest.approx(0.25)


def test_any_number_of_tokens_in_a_damaged_file_has_a_ratio() -> None:
    assert ratio(request(arrivals=(0.5, 0.6), output_tokens=2**62)) == 1.0


def test_without_a_token_there_is_no_ratio() -> None:
    assert math.isnan(ratio(failed()))
    assert math.isnan(ratio(request(streamed=False)))
    counted = request(arrivals=(), ended=1.0, output_tokens=5)  # but none was seen to come
    ratios = on_time_ratio(columns(counted, request(arrivals=(0.5, 0.9))), np.array([0, 1]), 0.5, 0.1)
    assert ratios == pytest.approx([np.nan, 0.5], nan_ok=True)


def test_the_share_of_a_run_is_the_mean_of_its_requests_with_their_jerky_end() -> None:
    shares = np.random.default_rng(1).permutation(np.append(np.linspace(0.5, 1.0, 401), np.nan))
    found = summarise_on_time(shares, Order.even(402))
    on_time = found["on_time"]
    assert found["on_time_ratio"] == on_time["mean"] == pytest.approx(0.75)
    assert (on_time["n"], on_time["p1"], on_time["p5"]) == (401, pytest.approx(0.505), pytest.approx(0.525))
    low, high = on_time["ci95"]["mean"]
    assert low < 0.75 < high
    assert set(summarise_on_time(shares)["on_time"]["ci95"].values()) == {None}, "in no order"


def test_without_limits_on_the_pace_nothing_is_in_time_or_late() -> None:
    found = summarise_on_time(None)
    assert found["on_time_ratio"] is None
    assert found["on_time"]["n"] == 0


def by_the_book(arrivals_ms: list[int], ttft_ms: int, tpot_ms: int) -> float:
    deadline, in_time = ttft_ms, 0
    for at in arrivals_ms:
        in_time += at <= deadline
        deadline = (at if at > deadline else deadline) + tpot_ms
    return in_time / len(arrivals_ms)


gaps = st.lists(st.integers(0, 300), min_size=1, max_size=10)


@pytest.mark.parametrize("piece", [1, 7, 1 << 21])
def test_many_requests_are_judged_as_each_alone(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged, "PIECE", piece)

    @given(st.lists(gaps, min_size=1, max_size=6), st.integers(1, 500), st.integers(1, 200))
    def holds(many: list[list[int]], ttft_ms: int, tpot_ms: int) -> None:
        arrivals = [np.cumsum(g).tolist() for g in many]
        c = columns(*(request(arrivals=tuple(ms / 1000 for ms in a)) for a in arrivals))
        ratios = on_time_ratio(c, np.arange(len(many)), ttft_ms / 1000, tpot_ms / 1000)
        assert ratios == pytest.approx([by_the_book(a, ttft_ms, tpot_ms) for a in arrivals])

    holds()
