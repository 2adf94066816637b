"""Gates on the pace of streams that stalled.

- Twenty of 120 streams stopped after two tokens, for nine seconds, until the run's end cut them.
  ``max_itl<1s``, ``p99_tpot<1s`` and ``certified p90_tpot<1s`` passed: a request that was given up is in
  neither latency. Now they cannot tell.
- ``p99_prefill_ms_per_1k_input<20s`` passed although twenty requests hung before their first token: without
  usage their input was unknown. Now it cannot tell.
"""

from typing import Any

import pytest
from metrics_cases import request
from report_cases import summary

from llm_locust.core.record import Outcome, RequestRecord

WELL = [request(i * 0.05) for i in range(100)]
PACE = ["max_itl<1s", "p99_itl<1s", "mean_itl<1s", "max_tpot<1s", "p99_tpot<1s", "mean_tpot<1s"]
PREFILL = ["max_prefill_ms_per_1k_input<20s", "p99_prefill_ms_per_1k_input<20s"]


def stalled(n: int, *arrivals: float, **known: Any) -> list[RequestRecord]:
    return [request(5 + i * 0.01, arrivals, ended=14.0, outcome=Outcome.CANCELLED, **known) for i in range(n)]


def judged(gate: str, made: list[RequestRecord]) -> tuple[bool, str | None]:
    (found,) = summary(made, gates=gate)["gates"]
    return found["passed"], found["reason"]


@pytest.mark.parametrize("gate", PACE)
def test_the_pace_of_streams_that_stalled_cannot_be_told(gate: str) -> None:
    passed, reason = judged(gate, [*WELL, *stalled(20, 0.05, 0.07)])
    assert not passed
    assert str(reason).startswith("cannot tell: 20 requests were given up and have no ")
    assert judged(gate, WELL)[0]


def test_a_certified_pace_falls_on_streams_that_stalled() -> None:
    passed, reason = judged("certified p90_tpot<1s", [*WELL, *stalled(20, 0.05, 0.07)])
    assert not passed
    assert str(reason).endswith("falls on a request that failed or was given up")
    assert judged("certified p90_tpot<1s", WELL)[0]


@pytest.mark.parametrize("gate", PREFILL)
def test_the_prefill_of_requests_that_hung_cannot_be_told_without_their_input(gate: str) -> None:
    passed, reason = judged(gate, [*WELL, *stalled(20, input_tokens=None)])
    assert not passed
    assert str(reason).startswith("cannot tell: 20 requests were given up and have no ")
    assert judged(gate, WELL)[0]


def test_fewer_than_lie_beyond_a_percentile_leave_it_where_it_is() -> None:
    assert judged("p90_tpot<1s", [*WELL, *stalled(5, 0.05, 0.07)])[0]
