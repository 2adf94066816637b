"""Rates of a window that is short beside its requests, as if they were those of a steady load.

32 users had 32 requests of 18 s, then 32 of 9 s, and the window was the 16 s from the 4th second. The report
said 2.0 requests/s, though 32 users whose requests take 9 s make 3.6, and that Little's law holds: "31.9 in
flight, 2.0/s × 9 s = 18". What crosses the window's edges was in no line.
"""

import pytest
from metrics_cases import batch, manifest, request

from llm_locust.core.record import RequestRecord
from llm_locust.figures.client import show as client
from llm_locust.figures.section import Section, Tone
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import Summary, typed
from llm_locust.figures.throughput import show as throughput


def waves(*seconds: float, users: int = 32) -> list[RequestRecord]:
    """Requests of ``users`` at once, each wave after the one before."""
    made, at_s = [], 0.0
    for each in seconds:
        made += [request(at_s + i * 1e-3, (0.5, each)) for i in range(users)]
        at_s += each + 0.1
    return made


def seen(made: list[RequestRecord], *, warmup_s: float, seconds: float) -> Summary:
    return typed(summarise(batch(*made), manifest(seconds, warmup_s=warmup_s)))


def warnings(section: Section) -> list[str]:
    return [line.text for line in section.lines if line.tone is Tone.WARN]


def test_rates_of_a_window_that_is_short_beside_its_requests_are_called_so() -> None:
    summary = seen(waves(18.0, 9.0), warmup_s=4.0, seconds=20.0)
    share = summary.littles_law.edges_share
    # In flight at the start: 14 s of 18 are in the window; at the end: 1.9 s of 9 are.
    assert share == pytest.approx(
        (14.0 - 7.1) * 32 / 16 / (summary.throughput.concurrency_mean or 0), rel=0.01
    )
    [warning] = warnings(throughput(summary))
    assert warning.startswith("not the rates of a steady load: 43")
    assert warning.endswith("a request takes 9.00 s and the window only 16.0 s: measure longer")


def test_both_sides_of_littles_law_are_equal_as_they_are_printed() -> None:
    [law] = [
        line.text
        for line in client(seen(waves(18.0, 9.0), warmup_s=4.0, seconds=20.0)).lines
        if "Little" in line.text
    ]
    in_flight, product, edges = (float(law.split(a)[1].split()[0]) for a in ("holds: ", "s = ", " + "))
    assert in_flight == pytest.approx(product + edges, abs=0.1)


def test_a_load_that_changes_in_a_long_window_is_called_so_too() -> None:
    stopped = [request(i * 0.1, (0.1, 60.0 - i * 0.1)) for i in range(300)]
    [warning] = warnings(throughput(seen(stopped, warmup_s=0.0, seconds=50.0)))
    assert "not the rates of a steady load" in warning


@pytest.mark.parametrize("warmup_s", [0.0, 5.0, 30.0])
def test_a_steady_load_has_no_such_warning(warmup_s: float) -> None:
    steady = [request(i * 0.05, (0.1, 1.0)) for i in range(2000)]
    summary = seen(steady, warmup_s=warmup_s, seconds=100.0)
    assert warnings(throughput(summary)) == []
    assert "edges" not in " ".join(line.text for line in client(summary).lines)
