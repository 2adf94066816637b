"""The chart of what each replica had under way."""

from typing import Any

import pytest
from metrics_cases import batch, request
from msgspec.structs import replace
from replica_cases import NAMES, at_random, in_turn, served
from report_cases import manifest

from llm_locust.core.record import RequestRecord
from llm_locust.figures.charts import run_charts
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import typed
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import Question
from llm_locust.report.html.chart import Chart
from llm_locust.report.html.over_time import MOST_SHOWN, in_flight

SECONDS = 80


def charts(made: list[RequestRecord], **changes: Any) -> list[Chart]:
    rows = batch(*made)
    known = manifest(len(rows), stopped_ns=manifest(0).started_ns + SECONDS * 1_000_000_000)
    summary = typed(summarise(rows, known))
    summary = replace(summary, replicas=[replace(each, **changes) for each in summary.replicas])
    run = run_charts(rows, known, measure(rows, known, Question(warmup_s=0.0)))
    return in_flight(run, summary)


def dead_at_30s(i: int) -> str:
    live = in_turn(NAMES[:3])
    return NAMES[i % 4] if i < 300 else live(i)


def test_each_replica_is_a_line_on_the_time_of_the_window() -> None:
    (chart,) = charts(served(at_random()))
    (data,) = chart.data
    assert [series.name for series in chart.series] == list(NAMES)
    times = data.columns["time of the window (s)"]
    assert (times[0], times[-1]) == pytest.approx((SECONDS / 120, SECONDS - SECONDS / 120), rel=1e-4)
    assert {len(column) for column in data.columns.values()} == {60}
    assert chart.marks == ()


def test_the_time_at_which_one_stopped_and_came_back_is_marked() -> None:
    (chart,) = charts(served(dead_at_30s))
    (mark,) = chart.marks
    assert (mark.axis, mark.text) == ("x", "d out")
    assert mark.at == pytest.approx(30.0, abs=0.5)
    (back,) = charts(served(lambda i: dead_at_30s(i) if i < 500 else NAMES[i % 4]))
    assert [m.text for m in back.marks] == ["d out", "d back"]
    assert back.marks[1].at == pytest.approx(50.3, abs=0.5)


def test_of_many_replicas_those_that_a_cause_names_are_shown_first() -> None:
    many = [f"r{i:02}" for i in range(20)]
    slow, fast = (tuple(0.05 + pace * k for k in range(10)) for pace in (0.06, 0.02))
    made = [request(i * 0.1, slow if i % 20 == 17 else fast, replica=many[i % 20]) for i in range(800)]
    (chart,) = charts(made)
    assert [series.name for series in chart.series] == [*many[: MOST_SHOWN - 1], "r17"]
    assert chart.reading.endswith("12 more are in summary.json.")


def test_one_replica_or_none_has_no_such_chart() -> None:
    assert charts(served(lambda _: "a")) == []
    assert charts(served(lambda _: None)) == []
    assert charts(served(at_random()), in_flight=[]) == []  # the window is empty
