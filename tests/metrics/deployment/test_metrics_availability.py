"""Whether somebody was served all the time."""

from typing import Any

import pytest
from hypothesis import given, strategies as st
from metrics_cases import batch, columns, failed, manifest, ns, request
from msgspec import to_builtins

from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.reliability import reliability
from llm_locust.figures.summarise import summarise
from llm_locust.metrics.gates import Slo
from llm_locust.metrics.requests.goodput import Limits, judge
from llm_locust.metrics.requests.latency import per_request
from llm_locust.metrics.standstill import Silences, StreamHoles
from llm_locust.metrics.window import Population, Window

TEN = Window(ns(0.0), ns(10.0), "")


def told(
    *records: RequestRecord, window: Window = TEN, slo: Slo | None = None, busy: bool = True
) -> dict[str, Any]:
    """The section; ``busy``: a request that ends long after the window is under way all the time."""
    if records and busy:
        records = (*records, request(0.0, (500.0,), request_id="all the time"))
    c = columns(*records)
    population = Population.of(c, window.scheduled(c), c.scheduled_s.argsort())
    judgement = judge(c, per_request(c), Limits(slo), "sent") if slo else None
    silences = Silences.of(c, StreamHoles.of(c), window, judgement)
    of = (batch(*records), c, population, judgement, window, silences)
    found: dict[str, Any] = to_builtins(reliability(*of))
    return found


def ends(*at: float, **fields: Any) -> list[RequestRecord]:
    """Answers that end at these times, their first event 0.1 s after they were sent."""
    return [request(end - 0.2, (0.1, 0.2), **fields) for end in at]


def test_a_second_counts_where_an_answer_ended_in_it() -> None:
    found = told(*ends(0.5, 0.9, 2.0, 9.999))
    assert (found["seconds"], found["ok_share"]) == (10, 0.3)


def test_only_seconds_with_a_request_under_way_count() -> None:
    found = told(*ends(0.5, 4.1), request(7.0, (2.5,)), busy=False)
    assert (found["seconds"], found["ok_share"]) == (6, 0.5)  # 0; 3 and 4; 7, 8 and 9
    gap = [*ends(*(0.1 * i for i in range(3, 30))), *ends(*(7 + 0.1 * i for i in range(3, 30)))]
    assert told(*gap, busy=False)["ok_share"] == 1.0


def test_failures_and_abandoned_requests_serve_nobody() -> None:
    found = told(*ends(0.5), failed(3.0), *ends(5.5, outcome=Outcome.CANCELLED))
    assert found["ok_share"] == 0.1


def test_an_answer_counts_where_it_ended_whenever_it_was_scheduled() -> None:
    found = told(request(-5.0, (6.5,)), request(1.0, (30.0,)))
    assert found["ok_share"] == 0.1


def test_what_is_left_of_a_second_at_the_end_is_no_second() -> None:
    found = told(*ends(0.5, 2.7), window=Window(ns(0.0), ns(2.9), ""))
    assert (found["seconds"], found["ok_share"]) == (2, 0.5)


def test_good_seconds_are_those_with_an_answer_within_the_slo() -> None:
    slow = request(4.0, (1.0,))
    found = told(*ends(0.5), slow, slo=Slo(ttft_s=0.5))
    assert (found["ok_share"], found["good_share"]) == (0.2, 0.1)
    assert found["longest_without_good"] == {"seconds": pytest.approx(9.5), "start_s": pytest.approx(0.5)}


def test_the_longest_span_without_an_answer_has_its_beginning() -> None:
    assert told(*ends(1.0, 2.0, 6.0, 9.0))["longest_without_ok"] == {
        "seconds": pytest.approx(4.0),
        "start_s": pytest.approx(2.0),
    }


def test_the_edges_of_the_window_end_a_span() -> None:
    assert told(*ends(7.0))["longest_without_ok"] == {"seconds": pytest.approx(7.0), "start_s": 0.0}
    assert told(*ends(2.0))["longest_without_ok"] == {
        "seconds": pytest.approx(8.0),
        "start_s": pytest.approx(2.0),
    }
    assert told(failed(5.0))["longest_without_ok"] == {"seconds": 10.0, "start_s": 0.0}


def test_the_time_between_the_windows_of_two_runs_is_nobodys() -> None:
    window = Window(ns(0.0), ns(106.0), "", gaps=((ns(4.0), ns(100.0)),))
    found = told(*ends(0.5, 3.5, 100.5), window=window)
    assert (found["seconds"], found["ok_share"]) == (10, 0.3)
    assert found["longest_without_ok"] == {"seconds": pytest.approx(5.5), "start_s": pytest.approx(100.5)}


@pytest.mark.parametrize("window", [TEN, Window(ns(0.0), ns(0.5), "")])
def test_of_nothing_asked_and_of_less_than_a_second_nothing_is_told(window: Window) -> None:
    records = [] if window is TEN else ends(0.3)
    found = told(*records, window=window, slo=Slo(ttft_s=1.0))
    shares = ("ok_share", "good_share", "longest_without_ok", "longest_without_good")
    assert [found[key] for key in shares] == [None] * 4


def test_without_an_slo_nothing_is_good_or_bad() -> None:
    found = told(*ends(0.5))
    assert found["good_share"] is found["longest_without_good"] is None


def test_retries_are_those_of_the_requests_that_are_judged() -> None:
    cancelled = request(3.0, outcome=Outcome.CANCELLED, retries=9)
    found = told(
        request(1.0, retries=2), failed(2.0, retries=1), request(2.5), cancelled, request(-1.0, retries=5)
    )
    assert found["retries"] == {"requests": 2, "total": 3, "max": 2}
    assert told()["retries"] == {"requests": 0, "total": 0, "max": None}


@given(st.lists(st.floats(0.0, 12.0), max_size=12))
def test_no_share_is_over_one_and_no_span_over_the_window(at: list[float]) -> None:
    found = told(*ends(*at), request(1.0, (99.0,)))
    assert 0 <= found["ok_share"] <= 1
    span = found["longest_without_ok"]
    assert 0 <= span["start_s"] <= span["start_s"] + span["seconds"] <= 10.0 + 1e-6
    assert not any(span["start_s"] + 1e-6 < t < span["start_s"] + span["seconds"] - 1e-6 for t in at)


def test_a_summary_has_it_over_its_window() -> None:
    facts = manifest(stopped=10.0, warmup_s=4.0, slo="ttft=1s")
    found = summarise(batch(*(request(float(i), retries=1) for i in range(10))), facts)["reliability"]
    assert (found["seconds"], found["good_share"], found["retries"]["total"]) == (6, 1.0, 6)
