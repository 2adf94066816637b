"""How sure goodput is: intervals of its ratio and its rates."""

import math
from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, failed, manifest, ns, request

from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.goodput_intervals import goodput_intervals
from llm_locust.metrics.stats.bootstrap import CELLS
from llm_locust.metrics.stats.trend import student_t
from llm_locust.metrics.window import Window

N = 2 * CELLS
#: What is the same in each cell leaves one degree of freedom less than cells.
T = student_t(CELLS - 1, 0.95)

#: Two a second: one that is answered within the second, and one that fails.
HALF = [each for at in range(CELLS) for each in (request(at + 0.1), failed(at + 0.6))]


def of(*records: RequestRecord, slo: str = "ttft=1s", missing: int = 0) -> dict[str, Any]:
    """In a window that has a cell for each second."""
    rows = batch(*records)
    window = Window(ns(0.0), ns(float(CELLS)), "")
    m = measure(rows, manifest(), Question(slo=slo, window=window))
    return goodput_intervals(m, m.population(np.arange(len(m.c))).all, np.arange(len(m.c)), missing)


def own_error(share: float, end: float, n: int) -> float:
    """How many errors of its own an end is away from a share, with half a sample for continuity."""
    return (abs(share - end) - 0.5 / n) / math.sqrt(end * (1 - end) / n)


@pytest.mark.parametrize("missing", [0, CELLS])
def test_a_ratio_that_is_the_same_all_along_is_worth_all_of_its_requests(missing: int) -> None:
    found = of(*HALF, missing=missing)
    n = N + missing
    assert found["n_effective"] == {"ratio": n}
    low, high = found["ci95"]["ratio"]
    assert low < CELLS / n < high
    assert [own_error(CELLS / n, end, n) for end in (low, high)] == pytest.approx([T, T])


def test_rates_that_are_the_same_all_along_have_an_interval_of_no_width() -> None:
    ends = of(*HALF)["ci95"]
    assert ends["requests_per_s"] == pytest.approx([1.0, 1.0])
    assert ends["output_tokens_per_s"] == pytest.approx([3.0, 3.0])


def test_where_all_failed_the_ratio_may_be_as_high_as_none_of_so_many_allow() -> None:
    found = of(*(failed(0.5 * at) for at in range(N)))
    assert found["n_effective"] == {"ratio": N}
    low, high = found["ci95"]["ratio"]
    assert low == 0.0
    assert own_error(0.0, high, N) == pytest.approx(T)
    assert found["ci95"]["requests_per_s"] is found["ci95"]["output_tokens_per_s"] is None


UNKNOWN = {
    "ci95": dict.fromkeys(("ratio", "requests_per_s", "output_tokens_per_s")),
    "n_effective": {"ratio": None},
}


@pytest.mark.parametrize(
    ("records", "slo"),
    [
        (HALF, ""),
        ([request()], "ttft=1s"),
        ([request(1.0, (), ended=1.1, outcome=Outcome.CANCELLED)], "ttft=1s"),
    ],
    ids=["no SLO", "one request", "none that is judged"],
)
def test_without_requests_that_can_be_told_apart_nothing_is_known(
    records: list[RequestRecord], slo: str
) -> None:
    assert of(*records, slo=slo) == UNKNOWN


def test_a_ratio_of_too_few_requests_has_a_size_and_no_interval() -> None:
    found = of(*HALF[:40])
    assert found["n_effective"]["ratio"] == 40
    assert found["ci95"]["ratio"] is None
