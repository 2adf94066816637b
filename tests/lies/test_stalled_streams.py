"""Gates on the pace of streams that stalled.

- Twenty of 120 streams stopped after two tokens, for nine seconds, until the run's end cut them.
  ``max_itl<1s``, ``p99_tpot<1s`` and ``certified p90_tpot<1s`` passed: a request that was given up is in
  neither latency. Now each gap that was cut, and the pace up to the cut, is a sample of them.
- Five streams that were cut in mid-answer at a good pace made the same gates fail.
- ``p99_prefill_ms_per_1k_input<20s`` passed although twenty requests hung before their first token: without
  usage their input was unknown. Now it cannot tell.
"""

from typing import Any

import pytest
from metrics_cases import request
from report_cases import summary

from llm_locust.core.record import Outcome, RequestRecord

WELL = [request(i * 0.05) for i in range(100)]
PACE = ["max_itl<1s", "p99_itl<1s", "mean_itl<500ms", "max_tpot<1s", "p99_tpot<1s", "mean_tpot<500ms"]
PREFILL = ["max_prefill_ms_per_1k_input<20s", "p99_prefill_ms_per_1k_input<20s"]


def stalled(n: int, *arrivals: float, **known: Any) -> list[RequestRecord]:
    return [request(5 + i * 0.01, arrivals, ended=14.0, outcome=Outcome.CANCELLED, **known) for i in range(n)]


def judged(gate: str, made: list[RequestRecord]) -> tuple[bool, str | None]:
    (found,) = summary(made, gates=gate)["gates"]
    return found["passed"], found["reason"]


@pytest.mark.parametrize("gate", PACE)
def test_streams_that_stalled_break_limits_on_the_pace(gate: str) -> None:
    passed, reason = judged(gate, [*WELL, *stalled(20, 0.05, 0.07)])
    assert not passed
    assert " is not < " in str(reason)
    assert judged(gate, WELL)[0]


@pytest.mark.parametrize("gate", PACE)
def test_streams_that_were_cut_at_a_good_pace_do_not(gate: str) -> None:
    assert judged(gate, [*WELL, *stalled(20, *(0.05 + 0.4 * i for i in range(22)))])[0]


def test_a_stream_that_stalled_after_one_token_has_no_pace() -> None:
    passed, reason = judged("p90_tpot<1s", [*WELL, *stalled(20, 0.05)])
    assert not passed
    assert str(reason).startswith("cannot tell: 20 requests were given up and have no tpot")


def test_who_left_before_the_first_token_has_no_pace_to_be_judged() -> None:
    assert all(judged(gate, [*WELL, *stalled(20)])[0] for gate in PACE)


def test_a_certified_pace_falls_on_streams_that_stalled() -> None:
    passed, reason = judged("certified p90_tpot<1s", [*WELL, *stalled(20, 0.05, 0.07)])
    assert not passed
    assert str(reason).endswith("is not < 1,000 ms")
    assert judged("certified p90_tpot<1s", WELL)[0]


@pytest.mark.parametrize("gate", PREFILL)
def test_the_prefill_of_requests_that_hung_cannot_be_told_without_their_input(gate: str) -> None:
    passed, reason = judged(gate, [*WELL, *stalled(20, input_tokens=None)])
    assert not passed
    assert str(reason).startswith("cannot tell: 20 requests were given up and have no ")
    assert judged(gate, WELL)[0]


def test_fewer_than_lie_beyond_a_percentile_leave_it_where_it_is() -> None:
    assert judged("p90_tpot<1s", [*WELL, *stalled(5, 0.05, 0.07)])[0]
