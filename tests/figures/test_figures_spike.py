"""Spikes of the load against closed forms: a queue that fills during the peak, and drains after it."""

from dataclasses import replace
from io import StringIO
from typing import Any

import pandas as pd
import pytest
from metrics_cases import batch, failed, manifest, request, stage
from report_cases import told
from summaries import summarise, typed

from llm_locust.core.manifest import ArmFacts, StageFacts, WorkerFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.spike import show as sections
from llm_locust.figures.summary import as_json
from llm_locust.metrics.question import Question
from llm_locust.report.console import print_sections

BASE, PEAK, SERVED = 5.0, 20.0, 10.0
AT_S, OVER_S, END_S = 60.0, 90.0, 200.0
TTFT_S = 0.05


#: Fluid queue: what the peak piles up, and how long the rest of the server takes to work it off.
BACKLOG = (PEAK - SERVED) * (OVER_S - AT_S)
DRAINED_S = BACKLOG / (SERVED - BASE)


def rate(number: int, begun_s: float, ended_s: float, asked: float) -> StageFacts:
    made = stage(number, begun_s + 0.5, ended_s, kind="rate", asked=asked)
    return replace(made, measured_ns=made.begun_ns, drained_ns=None)


def due(*legs: tuple[float, float, float]) -> list[float]:
    """Equal gaps: from, to and rate of each leg."""
    return [from_s + (i + 0.5) / of for from_s, to_s, of in legs for i in range(round((to_s - from_s) * of))]


def queue(due_s: list[float]) -> list[tuple[float, float]]:
    """When each request was due and how long it waited, at a server that begins one every 1 / SERVED s."""
    rows, free_s = [], 0.0
    for at_s in due_s:
        begin_s = max(at_s, free_s)
        free_s = begin_s + 1 / SERVED
        rows.append((at_s, begin_s - at_s))
    return rows


def answered(at_s: float, wait_s: float) -> RequestRecord:
    return request(at_s, (wait_s + TTFT_S, wait_s + TTFT_S + 0.02))


def stages(end_s: float = END_S) -> list[StageFacts]:
    return [rate(0, 0.0, AT_S, BASE), rate(1, AT_S, OVER_S, PEAK), rate(2, OVER_S, end_s, BASE)]


def summary_of(
    records: list[RequestRecord], slo: str = "ttft=500ms", end_s: float = END_S, **more: Any
) -> dict[str, Any]:
    workers = [WorkerFacts(id="w1", index=0, announced=len(records), received=len(records))]
    facts = {"open_loop": True, "stages": stages(end_s), "workers": workers, **more}
    return summarise(batch(*records), manifest(end_s, **facts), Question(slo=slo))


def spike_of(records: list[RequestRecord], **more: Any) -> dict[str, Any]:
    (found,) = summary_of(records, **more)["spike"]["spikes"]
    return dict(found)


QUEUED = queue(due((0, AT_S, BASE), (AT_S, OVER_S, PEAK), (OVER_S, END_S, BASE)))
RECORDS = [answered(*row) for row in QUEUED]


def test_the_time_to_recover_is_that_of_the_fluid_queue() -> None:
    found = spike_of(RECORDS)
    # With 500 ms to the first token a request may wait for 450 ms: that much of the backlog may be left.
    within_s = (BACKLOG - SERVED * 0.45) / (SERVED - BASE)
    assert found["good"]["recovered_s"] == pytest.approx(within_s, abs=2 / BASE)
    assert found["latency"]["recovered_s"] == pytest.approx(DRAINED_S, abs=2 / BASE)
    assert found["latency_limit_ms"] == pytest.approx(50)
    assert (found["at_s"], found["seconds"]) == (pytest.approx(60), pytest.approx(30))
    assert (found["base"], found["peak"], found["stages"]) == (BASE, PEAK, [0, 1, 2])


def test_every_part_is_that_of_independent_code() -> None:
    found, frame = spike_of(RECORDS), pd.DataFrame(QUEUED, columns=["due", "wait"])
    frame["ttft"] = frame.wait + TTFT_S
    frame["missed"] = frame.ttft > 0.5 + 1e-9
    back_s = OVER_S + found["latency"]["recovered_s"]
    edges = [0.0, AT_S, OVER_S, back_s - 1e-6, END_S]
    names = ["before", "during", "recovering", "after"]
    frame["part"] = pd.cut(frame.due, edges, right=False, labels=names)
    for name, rows in frame.groupby("part", observed=False):
        part = found[str(name)]
        assert (part["requests"], part["missed"]) == (len(rows), int(rows.missed.sum())), name
        assert part["good"] == pytest.approx(1 - rows.missed.mean())
        assert part["p50_ms"] == pytest.approx(rows.ttft.quantile(0.5) * 1e3)
        assert part["p99_ms"] == pytest.approx(rows.ttft.quantile(0.99) * 1e3)
    assert found["missed"] == int(frame.missed.sum())
    assert found["after"]["p99_ms"] == pytest.approx(50)


def test_a_run_that_ends_in_the_backlog_has_a_lower_bound_and_no_time() -> None:
    end_s = 120.0
    found = spike_of([r for r, (at_s, _) in zip(RECORDS, QUEUED, strict=True) if at_s < end_s], end_s=end_s)
    for each in (found["good"], found["latency"]):
        assert each["recovered_s"] is None
        assert each["why"] is None
        # The last rolling share begins 50 requests before the end.
        assert each["at_least_s"] == pytest.approx(end_s - OVER_S - 50 / BASE, abs=1 / BASE)
    assert found["after"]["requests"] == 0
    assert found["after"]["good"] is None


def test_requests_that_the_end_of_the_run_cut_do_not_make_it_recover() -> None:
    """Answers that would have come after the end: waiting is a lower bound of their latency."""
    end_s = 130.0
    rows = [(at_s, wait_s) for at_s, wait_s in QUEUED if at_s < end_s]
    records = [
        answered(at_s, wait_s)
        if at_s + wait_s + 1 < end_s
        else request(at_s, (), ended=end_s + 2, outcome=Outcome.CANCELLED, output_tokens=None)
        for at_s, wait_s in rows
    ]
    found = spike_of(records, end_s=end_s)
    assert found["good"]["recovered_s"] is found["latency"]["recovered_s"] is None
    assert found["good"]["at_least_s"] > 25


def test_without_an_slo_the_latency_tells_and_good_is_what_succeeds() -> None:
    summary = summary_of(RECORDS, slo="")
    (found,) = summary["spike"]["spikes"]
    assert summary["spike"]["judged_by"] == "outcome"
    assert found["good"]["recovered_s"] == 0
    assert found["latency"]["recovered_s"] == pytest.approx(DRAINED_S, abs=2 / BASE)
    assert "never fell" in shown(summary)


def test_failures_count_against_both() -> None:
    """A server that refuses all requests for 10 s after the peak, and answers the others at once."""
    rows = due((0, AT_S, BASE), (AT_S, OVER_S, PEAK), (OVER_S, END_S, BASE))
    found = spike_of([failed(at_s) if AT_S <= at_s < 100 else answered(at_s, 0) for at_s in rows], slo="")
    for each in (found["good"], found["latency"]):
        # Before, 300 of 300 were good, and 285 within their 95th percentile: 0 and 4 bad ones may be left.
        assert each["recovered_s"] == pytest.approx(10, abs=5 / BASE)
    assert found["missed"] >= 600 + 45


def test_several_spikes_on_one_load_have_the_base_before_the_first() -> None:
    legs = [
        (0.0, 60.0, BASE),
        (60.0, 70.0, PEAK),
        (70.0, 80.0, BASE),
        (80.0, 90.0, PEAK),
        (90.0, END_S, BASE),
    ]
    records = [answered(*row) for row in queue(due(*legs))]
    found = summary_of(records, stages=[rate(i, *leg) for i, leg in enumerate(legs)])["spike"]["spikes"]
    assert [each["stages"] for each in found] == [[0, 1, 2], [0, 3, 4]]
    # 100 requests pile up, of which 50 are left when the second peak begins; then 150 drain at 5 a second.
    assert found[0]["latency"]["recovered_s"] is None
    assert found[1]["latency"]["recovered_s"] == pytest.approx(30, abs=2 / BASE)


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([answered(*row) for row in QUEUED if row[0] >= 55], "25 requests before it are too few"),
        (
            [failed(at) if at < AT_S and i % 3 else answered(at, w) for i, (at, w) in enumerate(QUEUED)],
            "half",
        ),
        ([answered(at, w) if at >= AT_S else failed(at) for at, w in QUEUED], "is not a result: none of its"),
    ],
)
def test_what_was_not_good_before_has_no_time_to_recover(records: list[RequestRecord], why: str) -> None:
    summary = summary_of(records)
    (found,) = summary["spike"]["spikes"]
    for each in (found["good"], found["latency"]):
        assert each["recovered_s"] is each["at_least_s"] is None
        assert why in each["why"]
    assert "no time to recover" in shown(summary)


def test_a_base_in_the_warm_up_says_so() -> None:
    warm = [replace(each, measured_ns=max(each.begun_ns, stages()[1].begun_ns)) for each in stages()]
    found = spike_of(RECORDS, stages=warm)
    assert "warm-up" in found["good"]["why"]
    assert found["before"]["requests"] == 0


def test_steps_that_do_not_come_back_arms_and_parts_of_a_run_have_none() -> None:
    up = [rate(0, 0.0, AT_S, 5.0), rate(1, AT_S, OVER_S, 20.0), rate(2, OVER_S, END_S, 30.0)]
    assert "spike" not in summary_of(RECORDS, stages=up)
    assert "spike" not in summary_of(RECORDS, options={"sweep": "rate=5,20,5"})
    assert not list(sections(told()))
    arms = [ArmFacts(name=name, url=f"http://{name}", share=0.5) for name in "ab"]
    half = [replace(r, arm="ab"[i % 2]) for i, r in enumerate(RECORDS)]
    assert "spike" not in summary_of(half, arms=arms)


def shown(summary: dict[str, Any]) -> str:
    return "\n".join(line.text for section in sections(typed(summary)) for line in section.lines)


def test_the_report_has_the_time_the_cost_and_calls_a_bound_a_bound() -> None:
    text = shown(summary_of(RECORDS))
    assert "the share of good requests was back 59." in text
    assert "TTFT from scheduled (50.0 ms, its p95 before) was back" in text
    cut = [r for r, (at_s, _) in zip(RECORDS, QUEUED, strict=True) if at_s < 120]
    assert "it takes at least 20.1 s, a lower bound" in shown(summary_of(cut, end_s=120.0))
    found = typed(summary_of(RECORDS))
    assert typed(as_json(found)) == found
    page = StringIO()
    print_sections(sections(found), page, 80)
    lines = page.getvalue().splitlines()
    assert any(line.startswith("until all was back") for line in lines)
    assert max(map(len, lines)) <= 80
