"""Live percentiles held against the records, to the stated error; and what cannot be compared."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from live_cases import Run
from metrics_cases import batch, failed, manifest, request, requests
from summaries import summarise

from llm_locust.core.record import RequestRecord
from llm_locust.figures.latency import METRICS, LiveCheck, LiveEnd, remarks as live_check
from llm_locust.figures.text import Tone
from llm_locust.live.snapshot import live_end
from llm_locust.metrics.question import PLAIN, Question
from llm_locust.metrics.requests import gaps
from llm_locust.metrics.stats.sketch import SKETCH_ERROR


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


def live(some: list[RequestRecord], workers: int = 3) -> LiveEnd:
    run = Run()
    for i in range(workers):
        run.ended(some[i::workers], f"w{i}")
        run.clock.tick()
    run.report()
    return live_end(run.store)


def check(end: LiveEnd, some: list[RequestRecord], question: Question = PLAIN) -> dict[str, Any]:
    told: dict[str, Any] = summarise(batch(*some), manifest(stopped=20.0), question, live=end)["live_check"]
    return told


def test_live_percentiles_are_those_of_the_records_to_the_stated_error() -> None:
    some = records()
    found = check(live(some), some)
    assert found["within"] is True
    assert (found["reason"], found["unequal"]) == (None, [])
    assert found["requests"] == {"live": 420, "records": 420}
    assert list(found["latency_ms"]) == list(METRICS)
    assert found["latency_ms"]["itl"]["n"] == 400 * 29
    assert 0 < found["largest"]["difference"] <= SKETCH_ERROR
    for told in found["latency_ms"].values():
        for live_ms, exact_ms in (told["p50"], told["p95"], told["p99"]):
            assert live_ms == pytest.approx(exact_ms, rel=SKETCH_ERROR, abs=1e-6)


@settings(max_examples=settings().max_examples // 4)  # each of a run and its whole summary
@given(st.lists(requests(), max_size=30), st.integers(1, 4))
def test_whatever_requests_there_are_and_however_workers_share_them(
    some: list[RequestRecord], workers: int
) -> None:
    assert check(live(some, workers), some)["within"] is True


def test_a_warm_up_is_in_both_and_so_are_its_gaps() -> None:
    some = records()
    found = check(live(some), some, Question(warmup_s=3.0))
    assert found["within"] is True
    assert found["latency_ms"]["itl"]["n"] == 400 * 29


def test_the_window_changes_nothing() -> None:
    some = records()
    whole = check(live(some), some)
    assert check(live(some), some, Question(window="steady")) == whole


def test_the_error_of_gaps_that_were_counted_is_allowed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "EXACT_GAPS", 100)
    some = records()
    assert check(live(some), some)["within"] is True


def test_a_percentile_that_is_off_is_named() -> None:
    some = records(100)
    end = live(some)
    ttft = end.latency_ms["ttft"]
    assert ttft.p99 is not None
    end.latency_ms["ttft"] = replace(ttft, p99=ttft.p99 * 1.05)
    found = check(end, some)
    assert found["within"] is False
    assert (found["largest"]["metric"], found["largest"]["place"]) == ("ttft", "p99")
    assert found["largest"]["difference"] == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize(("kept", "why"), [(417, "3 fewer requests"), (430, "10 more requests")])
def test_other_numbers_of_requests_are_said_and_no_alarm(kept: int, why: str) -> None:
    some = records(410)
    of_records = some[:420]
    found = check(live(some[:kept]), of_records)
    assert found["within"] is None
    assert why in found["reason"]
    assert found["requests"] == {"live": kept, "records": 420}


def test_the_same_number_of_requests_with_other_samples_is_an_alarm() -> None:
    some = records(100)
    end = live(some)
    end.latency_ms["tpot"] = replace(end.latency_ms["tpot"], n=99)
    found = check(end, some)
    assert (found["within"], found["unequal"]) == (False, ["tpot"])


def test_after_a_reset_nothing_is_compared() -> None:
    some = records(100)
    found = check(replace(live(some), resets=1), some)
    assert found["within"] is None
    assert "were reset" in found["reason"]
    assert (found["latency_ms"], found["largest"], found["unequal"]) == ({}, None, [])


def test_without_live_figures_and_of_a_selection_there_is_no_check() -> None:
    some = records(10)
    assert summarise(batch(*some), manifest())["live_check"] == {}
    assert summarise(batch(*some), manifest(), rows_of_run=99, live=live(some))["live_check"] == {}


def test_a_run_of_nothing_is_within() -> None:
    found = check(live([]), [])
    assert (found["within"], found["largest"]) == (True, None)
    assert found["latency_ms"]["ttft"] == {"n": 0, "p50": None, "p95": None, "p99": None}


LARGEST = {"metric": "ttft", "place": "p99", "live_ms": 105.0, "exact_ms": 100.0, "difference": 0.05}


def partial_check(**part: Any) -> LiveCheck:
    known: dict[str, Any] = {"within": True, "reason": None, "unequal": [], "largest": LARGEST}
    rest = {"relative_error": 0.01, "requests": {"live": 9, "records": 9}, "latency_ms": {}}
    return msgspec.convert(known | rest | part, LiveCheck)


def told(**part: Any) -> tuple[str, Tone]:
    (line,) = live_check(partial_check(**part))
    return line.text, line.tone


def test_what_is_within_the_stated_error_is_said_faintly() -> None:
    assert told(largest=LARGEST | {"difference": 0.0042}) == (
        "live percentiles matched the records to within 0.42 %",
        Tone.FAINT,
    )


def test_what_is_beyond_it_is_a_warning_with_the_percentile_that_is_furthest_off() -> None:
    assert told(within=False) == (
        "live percentiles differ from the records by 5.0 % (p99 TTFT: live 105, records 100 ms)",
        Tone.WARN,
    )


def test_other_samples_are_a_warning() -> None:
    text, tone = told(within=False, unequal=["tpot"])
    assert (text, tone) == (
        "the live view and the records have different numbers of samples: tpot",
        Tone.WARN,
    )


def test_what_could_not_be_compared_has_its_reason_and_is_no_alarm() -> None:
    text, tone = told(within=None, reason="the live figures cover 3 fewer requests", largest=None)
    assert text == "live percentiles not compared: the live figures cover 3 fewer requests"
    assert tone is Tone.FAINT


def test_without_a_check_or_a_sample_nothing_is_said() -> None:
    assert not [*live_check(None), *live_check(partial_check(largest=None))]
