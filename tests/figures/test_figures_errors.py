"""Failures by kind, and calls of the run to its servers."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import columns, failed
from report_cases import told

from llm_locust.core.manifest import Manifest, ServerCall
from llm_locust.figures.interventions import interventions, show as section
from llm_locust.figures.reliability import MOST_KINDS, OTHER, ErrorKind, failures
from llm_locust.metrics.window import Window, iso


def word(number: int) -> str:
    """A different word, without a digit, for each number under 26 ** 3."""
    return "".join(chr(ord("a") + number // 26**place % 26) for place in range(3))


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


S = 1_000_000_000
WINDOW = Window(110 * S, 160 * S, "run")


def manifest(*calls: ServerCall) -> Manifest:
    return Manifest(id="r", name="r", started_ns=100 * S, server_calls=list(calls))


def call(at_s: float, path: str, target: str = "a", status: int | None = 200) -> ServerCall:
    return ServerCall(at_ns=round((100 + at_s) * S), path=path, target=target, status=status)


@pytest.mark.parametrize(
    ("start_s", "stop_s", "profiled_s"),
    [(20, 40, 20), (0, 40, 30), (20, 90, 40), (0, 5, 0), (70, 90, 0), (20, None, 40)],
)
def test_the_profilers_time_is_that_within_the_window(
    start_s: float, stop_s: float | None, profiled_s: float
) -> None:
    stops = [] if stop_s is None else [call(stop_s, "/stop_profile")]
    found = interventions(manifest(call(start_s, "/start_profile"), *stops), WINDOW)
    assert found.profiled_s == pytest.approx(profiled_s)


def test_calls_of_one_moment_are_one_line_and_failures_name_their_replica() -> None:
    path = "/reset_prefix_cache"
    gone = ServerCall(at_ns=100 * S, path=path, target="c", error="timed out")
    calls = [call(0, path, "a"), call(0, path, "b"), gone]
    found = section(told(interventions=interventions(manifest(*calls), WINDOW)))
    assert found is not None
    assert [line.text for line in found.lines] == [
        "prefix cache emptied at 0 s on 2 of 3 replicas",
        "/reset_prefix_cache not done by c (timed out)",
    ]


def test_a_run_that_only_sent_requests_has_no_such_section() -> None:
    assert section(told(interventions=interventions(manifest(), WINDOW))) is None
