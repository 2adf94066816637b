"""Which requests and which span a run is judged by."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import ORIGIN_NS, batch, columns, failed, manifest, ns, request

from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.metrics.steady_window import asked_load, steady_window
from llm_locust.metrics.window import Population, Window, run_window


def test_the_run_is_from_the_first_scheduled_request_after_warm_up_to_the_stop() -> None:
    c = columns(request(2.0), request(1.0), request(9.0, ended=14.0))
    window = run_window(c, manifest(stopped=10.0), warmup_s=3.0)
    assert (window.start_ns, window.end_ns) == (ns(4.0), ns(10.0))
    assert window.seconds == 6.0
    assert "3 s warm-up" in window.rule


def test_without_a_stop_the_last_end_is_just_inside() -> None:
    c = columns(request(1.0, ended=3.0), request(2.0, ended=5.0))
    window = run_window(c, manifest(stopped=None), warmup_s=0.0)
    assert window.end_ns == ns(5.0) + 1
    assert window.ended(c).all()


def test_a_run_without_requests_begins_at_its_start() -> None:
    assert run_window(columns(), manifest(10.0), 2.0).start_ns == ns(2.0)
    assert run_window(columns(), manifest(None), 2.0).seconds == 0.0


def test_a_warm_up_longer_than_the_run_leaves_an_empty_window() -> None:
    window = run_window(columns(request(0.0)), manifest(10.0), 60.0)
    assert window.seconds == 0.0
    assert not window.scheduled(columns(request(60.0))).any()


@given(st.integers(0, 10**15), st.integers(0, 10**13))
def test_the_start_is_inside_and_the_end_outside_to_the_nanosecond(start: int, length: int) -> None:
    window = Window(ORIGIN_NS + start, ORIGIN_NS + start + length + 2, "")
    edges = [window.start_ns - 1, window.start_ns, window.end_ns - 1, window.end_ns]
    c = columns(*(replace(request(), scheduled_ns=edge, ended_ns=edge) for edge in edges))
    assert window.scheduled(c).tolist() == [False, True, True, False]
    assert window.ended(c).tolist() == [False, True, True, False]


def test_the_population_is_what_was_scheduled_inside_whenever_it_ended() -> None:
    c = columns(
        request(0.5, ended=5.0),  # warm-up, though it ended inside
        request(1.0),
        request(9.9, ended=30.0),  # ended in the drain
        failed(5.0),
        request(6.0, outcome=Outcome.CANCELLED),
        request(10.0),
    )
    scheduled = Window(ns(1.0), ns(10.0), "").scheduled(c)
    population = Population.of(c, scheduled, np.arange(len(c)))
    assert population.ok.tolist() == [1, 2]
    assert population.failed.tolist() == [3]
    assert population.cancelled.tolist() == [4]
    assert population.judged.tolist() == [1, 2, 3]
    assert population.all.tolist() == [1, 2, 3, 4]


def steady(*records: RequestRecord, seconds: float = 100.0) -> Window:
    load = asked_load(batch(*records), manifest(seconds), ns(0.0))
    return steady_window(load, columns(*records), Window(ns(0.0), ns(seconds), "run"))


def test_steady_takes_the_plateau_without_ramp_and_drain() -> None:
    """Eleven users join a second apart, stay until 90, and leave a second apart."""
    window = steady(*(request(float(i), (90.0,), ended=90.0 + i, user=i) for i in range(11)))
    assert window.start_ns == ns(9.0)  # ten of eleven are within 10 %
    assert window.end_ns == ns(91.0)
    assert window.rule == "steady: load within 10 % of 11 users"


def test_steady_is_not_broken_by_the_instant_between_two_requests() -> None:
    window = steady(*(request(float(i), (0.98,), user=7) for i in range(100)))
    assert window.seconds == pytest.approx(100.0)


def test_steady_without_any_request_is_the_run() -> None:
    window = steady()
    assert (window.start_ns, window.end_ns) == (ns(0.0), ns(100.0))
    assert window.rule == "run (no steady span: nothing was sent)"
    assert steady(request(user=1), seconds=0.0).seconds == 0.0
