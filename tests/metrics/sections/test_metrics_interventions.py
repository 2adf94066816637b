"""What a run did to its servers beside the load, and what the report says of it."""

import pytest
from report_cases import told

from llm_locust.core.manifest import Manifest, ServerCall
from llm_locust.figures.interventions import FailedCall, interventions, show as section
from llm_locust.metrics.window import Window

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


def test_a_profiler_that_did_not_start_ran_for_no_time() -> None:
    found = interventions(manifest(call(20, "/start_profile", status=404)), WINDOW)
    assert found.profiled_s == 0
    assert found.calls[0].failed == [FailedCall(target="a", status=404, error=None)]


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
