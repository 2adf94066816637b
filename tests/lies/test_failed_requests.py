"""A server that refuses most of what it is asked, fast.

- It answered 40 of 100 requests in 100 ms and the others with 503 in 2 ms. ``p99_ttft<500ms`` passed, on the
  40, and nothing beside it said what had become of the others. Now the percentile is of all requests, and
  those that failed are above any limit: the gate fails, and says how many failed.
- A mean that was below its limit passed likewise. It has no place for failures: where more than 1 % failed,
  it holds only if it would with each of them as slow as the slowest, and never if that is beyond chance.
- A gate that failed for too few samples was printed without its reason.
"""

from typing import Any

import pytest
from metrics_cases import failed, request
from report_cases import summary

from llm_locust.core.record import RequestRecord
from llm_locust.figures import gates
from llm_locust.figures.summary import typed


def refusing(ok: int = 40, refused: int = 60) -> list[RequestRecord]:
    answers = [request(i * 0.01, (0.1, 0.12, 0.14)) for i in range(ok)]
    return answers + [failed(5 + i * 0.01) for i in range(refused)]


def judged(gate: str, made: list[RequestRecord]) -> tuple[Any, ...]:
    (found,) = summary(made, gates=gate)["gates"]
    assert found["text"] == gate
    return found["passed"], found["value"], found["reason"], found["note"]


@pytest.mark.parametrize("metric", ["ttft", "ttfo", "tpot", "itl", "e2el", "ttft_started"])
@pytest.mark.parametrize("statistic", ["p50", "p99", "max"])
def test_an_upper_limit_on_a_latency_is_of_all_requests(metric: str, statistic: str) -> None:
    gate = f"{statistic}_{metric}<500ms"
    passed, value, reason, note = judged(gate, refusing())
    assert (passed, value, note) == (False, None, "over all requests: 60 % failed")
    assert reason is not None
    assert reason.startswith(
        f"60 % failed: the {statistic} of all requests falls on a failed one; of the others it is "
    )
    passed, value, reason, note = judged(gate, refusing(120, 0))
    assert (passed, value is None, reason, note) == (True, False, None, None)


def test_the_tables_own_percentile_stays_that_of_the_answers() -> None:
    found = summary(refusing(), gates="p99_ttft<500ms")
    assert found["latency_ms"]["ttft"]["p99"] == pytest.approx(100.0)


def test_few_failures_leave_a_percentile_where_it_is_and_are_told() -> None:
    assert judged("p50_ttft<500ms", refusing(95, 5)) == (
        True, pytest.approx(100.0), None, "over all requests: 5 % failed",
    )  # fmt: skip


def test_failures_are_samples_beyond_a_percentile() -> None:
    assert judged("p99_ttft<500ms", refusing(199, 1))[0]
    assert not judged("p99_ttft<500ms", refusing(198, 2))[0]


def test_a_mean_shows_nothing_where_many_failed() -> None:
    passed, value, reason, note = judged("mean_ttft<500ms", refusing(20, 80))
    assert (passed, value, note) == (False, pytest.approx(100.0), "of requests with an answer: 80 % failed")
    assert reason == "80 % failed, and a mean cannot include them; limit a percentile"
    assert judged("mean_ttft<500ms", refusing(99, 1))[0]


def test_a_mean_is_bounded_by_the_slowest_where_few_failed() -> None:
    passed, value, _, note = judged("mean_ttft<500ms", refusing(98, 2))
    assert (passed, value) == (True, pytest.approx(100.0))
    assert note == "2 % failed: 100 ms if each had been as slow as the slowest"
    slow = request(6.0, (30.0, 30.02), ended=40.0)
    (found,) = summary([*refusing(98, 2), slow], gates="mean_ttft<500ms")["gates"]
    assert (found["passed"], found["undecided"]) == (False, True)  # 0.4 s, and 1 s with two of 30 s
    assert found["reason"].startswith("cannot tell: 1.98 % failed, and a mean cannot include them")


def test_a_lower_limit_on_an_answers_latency_is_of_the_answers() -> None:
    assert judged("p50_ttft>1ms", refusing())[0]


@pytest.mark.parametrize("statistic", ["mean", "p50", "max"])
def test_what_is_before_the_answer_cannot_be_told_of_those_that_failed(statistic: str) -> None:
    gate = f"{statistic}_schedule_delay<500ms"
    passed, _, reason, _ = judged(gate, refusing())
    assert not passed
    assert reason.startswith("cannot tell: 60 requests failed or were given up and have no schedule_delay")
    assert judged(gate, refusing(120, 0))[0]


def test_a_gate_that_cannot_tell_is_printed_with_its_reason_and_the_failures() -> None:
    found = summary(refusing(50, 1), gates="p99_ttft<500ms mean_ttft<500ms p50_ttft<500ms")
    section = gates.show(typed(found))
    assert section is not None
    assert section.table is not None
    assert [row.cells[-1] for row in section.table.rows] == [
        "1.96 % failed: the p99 of all requests falls on a failed one; of the others it is 100 ms",
        "1.96 % failed: 100 ms if each had been as slow as the slowest",
        "over all requests: 1.96 % failed",
    ]
