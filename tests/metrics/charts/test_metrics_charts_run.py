"""All that a report draws: distributions, the slowest requests, workers, and that parts do not matter."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from metrics_cases import ORIGIN_NS, batch, columns, failed, manifest, ns, request

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import RecordBatch, Requests
from llm_locust.core.record import Outcome
from llm_locust.figures.charts import RunCharts, run_charts
from llm_locust.figures.charts.distributions import LEVELS, RequestDetails, levels_of
from llm_locust.figures.charts.run import PHASES, slow_request, slowest
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import Question

SLO = "ttft=100ms tpot=30ms"


def made(n: int = 120) -> RecordBatch:
    """Two workers, the second of which sees everything 10 ms later."""
    first = [request(i * 0.05, (0.05, 0.07, 0.09 + 0.001 * i), request_id=f"a{i}") for i in range(n)]
    second = [request(i * 0.05, (0.06, 0.08, 0.10), request_id=f"b{i}") for i in range(n)]
    return RecordBatch.concat([batch(*first, failed(1.0), worker="w1"), batch(*second, worker="w2")])


def charts(requests: Requests, **facts: Any) -> RunCharts:
    known = manifest(**facts)
    return run_charts(requests, known, measure(requests, known, Question(slo=SLO, warmup_s=0.0)))


class InSmallParts:
    """The same requests, seven at a time."""

    def __init__(self, whole: RecordBatch) -> None:
        self.whole = whole

    def __len__(self) -> int:
        return len(self.whole)

    def parts(self, columns: Sequence[str] = SCHEMA.names) -> Iterator[RecordBatch]:
        for start in range(0, len(self), 7):
            yield RecordBatch(self.whole.table.select(list(columns)).slice(start, 7))


def test_levels_are_numpy_percentiles_as_far_as_single_samples_reach() -> None:
    values = np.sort(np.random.default_rng(1).exponential(size=1_000))
    found = levels_of(values)
    told = ~np.isnan(found)
    assert found[told] == pytest.approx(np.percentile(values, LEVELS[told]))
    assert LEVELS[told][-2] == pytest.approx(99.9)
    assert found[-1] == values[-1]
    assert np.isnan(levels_of(np.empty(0))).all()


def test_in_what_parts_records_are_read_changes_nothing() -> None:
    whole = made()
    np.testing.assert_equal(asdict(charts(InSmallParts(whole))), asdict(charts(whole)))


def test_each_worker_is_told_by_its_own_requests() -> None:
    workers = {w.name: w for w in charts(made()).workers}
    assert workers["w1"].requests == 121
    assert workers["w1"].error_rate == 1 / 121
    assert workers["w1"].ttft_p50_ms == pytest.approx(50)
    assert workers["w2"].ttft_p50_ms == pytest.approx(60)


def test_only_metrics_with_samples_have_a_distribution() -> None:
    assert set(charts(made()).distributions) == {"ttft", "tpot", "itl", "e2el"}
    assert "ttft_scheduled" in charts(made(), open_loop=True).distributions
    assert charts(batch(failed(0.0))).distributions == {}


def test_the_windows_are_on_the_axis_of_the_charts() -> None:
    found = charts(made(), stopped=5.0, started_ns=ORIGIN_NS - 1_000_000_000)
    ((start_s, end_s),) = found.windows_s
    assert [start_s, end_s] == pytest.approx([1.0, 6.0])


def test_the_slowest_requests_come_longest_first() -> None:
    found = charts(made()).slowest
    assert [r.request_id for r in found[:3]] == ["a119", "a118", "a117"]
    assert found[0].worker == "w1"
    assert found[0].total_s == pytest.approx(0.209)
    assert found[0].longest_gap_s == pytest.approx(0.139)


def test_a_run_without_requests_has_charts_without_points() -> None:
    found = charts(batch())
    assert (found.requests, found.slowest, found.curves, found.surface) == (0, (), (), None)
    assert found.ttft_by_input.n == 0


def phases(headers_s: float = np.nan, **fields: Any) -> list[float]:
    c = columns(request(**fields))
    found = slow_request(c, 0, RequestDetails("r", headers_s, np.nan), "w1")
    assert sum(found.phases.values()) == pytest.approx(found.total_s)
    return [round(found.phases[phase], 6) for phase in PHASES]


def test_a_request_s_time_is_told_by_what_it_was_waiting_for() -> None:
    told = phases(headers_s=0.3, arrivals=(0.3, 0.8), late=0.2, started_ns=ns(0.1), ended=1.1)
    assert told == [0.1, 0.1, 0.1, 0.2, 0.5, 0.1]


def test_what_never_came_was_waited_for_to_the_end() -> None:
    nothing = phases(arrivals=(), ended=10.0, outcome=Outcome.TIMEOUT)
    assert nothing == [0, 0, 10, 0, 0, 0]
    headers = phases(headers_s=2.0, arrivals=(), ended=10.0, outcome=Outcome.TIMEOUT)
    assert headers == [0, 0, 2, 8, 0, 0]
    unsent = phases(arrivals=(), ended=3.0, sent=False, outcome=Outcome.CONNECT_ERROR)
    assert unsent == [0, 3, 0, 0, 0, 0]


def test_the_slowest_are_counted_from_scheduled() -> None:
    c = columns(request(0.0, (1.0,)), request(0.0, (0.5,), late=2.0), request(0.0, (0.7,)))
    assert slowest(c, np.arange(3)).tolist() == [1, 0, 2]
