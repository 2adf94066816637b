"""Live percentiles against those of the report over the same records."""

import numpy as np
import pytest
from live_cases import Run
from metrics_cases import batch, failed, manifest, request

from llm_locust.live.check import beyond_error, live_check
from llm_locust.live.counts import NOTHING
from llm_locust.metrics.sketch import RELATIVE_ERROR
from llm_locust.metrics.summary import summarise
from llm_locust.record import RequestRecord


def records(n: int = 400) -> list[RequestRecord]:
    generator = np.random.default_rng(7)
    answers = [
        request(
            at=i * 0.02,
            late=float(generator.exponential(0.002)),
            arrivals=tuple(np.cumsum(generator.lognormal(-4, 0.6, 30)).tolist()),
        )
        for i in range(n)
    ]
    return [*answers, *(failed(at=1.0) for _ in range(20))]


def live(some: list[RequestRecord], workers: int = 3) -> Run:
    run = Run()
    for i in range(workers):
        run.ended(some[i::workers], f"w{i}")
        run.clock.tick()
    run.report()
    return run


def test_live_percentiles_are_those_of_the_records_to_the_stated_error() -> None:
    some = records()
    compared = live_check(live(some).store.total, summarise(batch(*some), manifest(stopped=20.0)))
    metrics = ("ttft", "tpot", "itl", "e2el", "ttft_scheduled", "schedule_delay")
    assert [c.metric for c in compared] == [f"{p}_{m}" for m in metrics for p in ("p50", "p95", "p99")]
    assert all(c.live == pytest.approx(c.exact, rel=RELATIVE_ERROR, abs=1e-6) for c in compared)
    assert any(c.difference > 0 for c in compared)
    assert beyond_error(compared) == []


def test_other_requests_than_the_summarys_are_not_compared() -> None:
    some = records(100)
    summary = summarise(batch(*some), manifest(stopped=20.0))
    assert live_check(live(some[1:]).store.total, summary) == []
    assert live_check(NOTHING, summary) == []


def test_a_live_number_that_is_off_is_found() -> None:
    some = records(100)
    summary = summarise(batch(*some), manifest(stopped=20.0))
    summary["latency_ms"]["ttft"]["p99"] *= 1.05
    assert [c.metric for c in beyond_error(live_check(live(some).store.total, summary))] == ["p99_ttft"]
