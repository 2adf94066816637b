"""When a replica stopped serving, and came back."""

import numpy as np
import pytest
from metrics_cases import columns, failed, ns, request
from replica_cases import at_random

from llm_locust.core.batch import Labels
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.reliability import OutageSpan, in_flight, outages, signs
from llm_locust.metrics.columns import Part, groups
from llm_locust.metrics.window import Window

WINDOW = Window(ns(0.0), ns(100.0), "")


def times(outage: OutageSpan) -> list[float | None]:
    return [outage.from_s, outage.to_s]


def found(*records: RequestRecord, window: Window = WINDOW) -> dict[str, list[OutageSpan]]:
    c = columns(*records)
    every = signs(c, np.flatnonzero(c.replica.codes >= 0))
    return {name: outages(c, rows, lambda: every, window) for name, rows in groups(c.replica)}


def steady(replica: str, times: list[float]) -> list[RequestRecord]:
    return [request(t, replica=replica) for t in times]


EVERY = [i / 5 for i in range(500)]


def test_a_replica_that_dies_midway_is_told_with_the_time_of_its_last_token() -> None:
    a, b = steady("a", EVERY), steady("b", [t for t in EVERY if t < 40])
    out = found(*a, *b)
    assert out["a"] == []
    (outage,) = out["b"]
    assert times(outage) == [pytest.approx(39.89), None]
    assert outage.seconds == pytest.approx(60.11)
    assert outage.others == pytest.approx(2 * 60 * 5, abs=3)


def test_one_that_comes_back_is_told_with_both_times() -> None:
    b = steady("b", [t for t in EVERY if not 30 <= t < 45])
    (outage,) = found(*steady("a", EVERY), *b)["b"]
    assert times(outage) == [pytest.approx(29.89), pytest.approx(45.05)]


def test_one_that_comes_late_has_no_beginning() -> None:
    (outage,) = found(*steady("a", EVERY), *steady("b", [t for t in EVERY if t >= 20]))["b"]
    assert times(outage) == [None, pytest.approx(20.05)]


def test_a_pause_of_all_is_nobodys_outage() -> None:
    paused = [t for t in EVERY if not 30 <= t < 50]
    assert found(*steady("a", paused), *steady("b", paused)) == {"a": [], "b": []}


def test_a_single_replica_has_no_others_to_serve_meanwhile() -> None:
    assert found(*steady("a", [t for t in EVERY if t < 40])) == {"a": []}


def test_a_long_answer_is_being_served_all_the_time() -> None:
    slow = [request(t, (1.0, 10.0, 19.0), replica="b") for t in np.arange(0, 80, 2.0)]
    gap = [request(0.0, (0.1, *np.arange(1.0, 99.0, 1.0).tolist()), replica="c")]
    assert found(*steady("a", EVERY), *slow, *gap) == {"a": [], "b": [], "c": []}


def test_a_rare_replica_is_not_out_between_its_requests() -> None:
    rare = steady("b", [float(t) for t in range(3, 100, 7)])
    assert found(*steady("a", EVERY), *rare)["b"] == []


def test_random_routing_makes_no_outage() -> None:
    pick = at_random(3)
    assert not any(found(*(request(t, replica=pick(0)) for t in EVERY)).values())


def test_failures_without_a_token_are_no_sign_of_life_and_broken_streams_are() -> None:
    dead = [failed(t, replica="b") for t in EVERY if t >= 40]
    broken = [request(t, replica="b", outcome=Outcome.TRUNCATED) for t in EVERY if t >= 40]
    b = steady("b", [t for t in EVERY if t < 40])
    assert len(found(*steady("a", EVERY), *b, *dead)["b"]) == 1
    assert found(*steady("a", EVERY), *b, *broken)["b"] == []


def test_time_outside_of_the_window_is_nobodys_outage() -> None:
    b = steady("b", [t for t in EVERY if t < 40])
    assert found(*steady("a", EVERY), *b, window=Window(ns(0), ns(39.0), ""))["b"] == []
    two = Window(ns(0), ns(100.0), "", ((ns(39.0), ns(99.0)),))
    assert found(*steady("a", EVERY), *b, window=two)["b"] == []


def test_requests_in_flight_are_means_over_time_in_each_part() -> None:
    c: Part = columns(request(0.0, (5.0,)), request(5.0, (2.5,)), request(8.0, sent=False, arrivals=()))
    assert isinstance(c.replica, Labels)
    assert in_flight(c, np.arange(3), Window(ns(0), ns(10), ""), 4) == pytest.approx([1, 1, 1, 0])
