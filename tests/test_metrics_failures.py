"""Failures by kind."""

from datetime import datetime

import numpy as np
from metrics_cases import ORIGIN_NS, columns, failed, ns

from llm_locust.metrics.failures import MOST_KINDS, OTHER, failures, iso
from llm_locust.record import Outcome


def test_failures_are_grouped_by_outcome_status_and_message_the_most_frequent_first() -> None:
    c = columns(
        failed(1.0, status=None, error=None, outcome=Outcome.TIMEOUT),
        failed(2.0),
        failed(9.0),
        failed(3.0, status=500),
        failed(4.0),
    )
    first, *others = failures(c, np.arange(5))
    assert first == {
        "outcome": "http_error",
        "status": 503,
        "message": "no room",
        "count": 3,
        "first": iso(ns(2.001)),
        "last": iso(ns(9.001)),
    }
    assert [(e["outcome"], e["status"], e["message"], e["count"]) for e in others] == [
        ("http_error", 500, "no room", 1),
        ("timeout", None, None, 1),
    ]


def test_beyond_the_listed_kinds_the_rest_is_counted() -> None:
    many = [failed(float(i), error=f"error {i}") for i in range(MOST_KINDS + 30)]
    entries = failures(columns(*many), np.arange(len(many)))
    assert len(entries) == MOST_KINDS + 1
    assert entries[-1]["outcome"] == OTHER
    assert entries[-1]["message"] == "30 more kinds of failure"
    assert sum(e["count"] for e in entries) == len(many)


def test_no_failures_are_no_entries() -> None:
    assert failures(columns(), np.empty(0, np.int64)) == []


def test_times_are_iso_8601_in_utc() -> None:
    text = iso(ORIGIN_NS + 123_456_789)
    assert text.endswith(".123456Z")
    assert datetime.fromisoformat(text).timestamp() * 1e9 // 1e9 == ORIGIN_NS // 10**9
