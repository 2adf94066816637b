"""Failures by kind."""

from datetime import datetime

import numpy as np
from hypothesis import given, strategies as st
from metrics_cases import ORIGIN_NS, columns, failed, ns

from llm_locust.core.record import Outcome
from llm_locust.figures.errors import MOST_KINDS, OTHER, ErrorKind, failures
from llm_locust.metrics.window import iso


def word(number: int) -> str:
    """A different word, without a digit, for each number under 26 ** 3."""
    return "".join(chr(ord("a") + number // 26**place % 26) for place in range(3))


def test_failures_are_grouped_by_outcome_status_and_message_the_most_frequent_first() -> None:
    c = columns(
        failed(1.0, status=None, error=None, outcome=Outcome.TIMEOUT),
        failed(2.0),
        failed(9.0),
        failed(3.0, status=500),
        failed(4.0),
    )
    first, *others = failures(c, np.arange(5))
    assert first == ErrorKind(
        outcome="http_error",
        status=503,
        message="no room",
        example="no room",
        count=3,
        first=iso(ns(2.001)),
        last=iso(ns(9.001)),
    )
    assert [(e.outcome, e.status, e.message, e.example, e.count) for e in others] == [
        ("http_error", 500, "no room", "no room", 1),
        ("timeout", None, None, None, 1),
    ]


def test_texts_that_differ_in_ids_and_numbers_are_one_kind_whose_example_is_the_earliest() -> None:
    c = columns(
        failed(5.0, error="request chatcmpl-7f8e9d0c1b2a4f5e of 10.0.0.1:80 took 7 s"),
        failed(2.0, error="request chatcmpl-0c1b2a4f5e7f8e9d of 10.0.0.2:80 took 12 s"),
        failed(9.0, error="request chatcmpl-1b2a4f5e7f8e9d0c of 10.0.0.3:80 took 3.5 s"),
    )
    (kind,) = failures(c, np.arange(3))
    assert kind.message == "request chatcmpl-<id> of <addr> took <n> s"
    assert kind.example == "request chatcmpl-0c1b2a4f5e7f8e9d of 10.0.0.2:80 took 12 s"
    assert (kind.count, kind.first, kind.last) == (3, iso(ns(2.001)), iso(ns(9.001)))


@given(st.permutations(range(6)))
def test_the_order_of_the_requests_changes_nothing(order: list[int]) -> None:
    requests = [failed(float(i // 3), error=f"attempt {9 - i}", status=500 + i % 2) for i in range(6)]
    expected = failures(columns(*requests), np.arange(6))
    assert failures(columns(*(requests[i] for i in order)), np.arange(6)) == expected
    assert [e.example for e in expected] == ["attempt 7", "attempt 8"]


def test_only_the_failed_requests_are_looked_at() -> None:
    c = columns(failed(1.0, error="not this"), failed(2.0), failed(3.0, error=None))
    assert [(e.message, e.count) for e in failures(c, np.array([1]))] == [("no room", 1)]


def test_beyond_the_listed_kinds_the_rest_is_counted() -> None:
    many = [failed(float(i), error=f"error {word(i)}") for i in range(MOST_KINDS + 30)]
    entries = failures(columns(*many), np.arange(len(many)))
    assert len(entries) == MOST_KINDS + 1
    assert entries[-1] == ErrorKind(
        outcome=OTHER,
        status=None,
        message="30 more kinds of failure",
        example=None,
        count=30,
        first=min(iso(r.ended_ns) for r in many if r.error not in {e.message for e in entries}),
        last=max(iso(r.ended_ns) for r in many if r.error not in {e.message for e in entries}),
    )
    assert sum(e.count for e in entries) == len(many)


def test_no_failures_are_no_entries() -> None:
    assert failures(columns(), np.empty(0, np.int64)) == []


def test_times_are_iso_8601_in_utc() -> None:
    text = iso(ORIGIN_NS + 123_456_789)
    assert text.endswith(".123456Z")
    assert datetime.fromisoformat(text).timestamp() * 1e9 // 1e9 == ORIGIN_NS // 10**9
