"""The client's error against a server of known times, in the head of every report."""

import io
from pathlib import Path
from typing import Any

import pytest
from report_cases import manifest, records, summary

from llm_locust.core.manifest import CalibrationFacts
from llm_locust.figures.client import calibration_text
from llm_locust.figures.summary import typed
from llm_locust.metrics.question import Question
from llm_locust.report.console import print_report
from llm_locust.report.inputs import _pooled_manifest
from llm_locust.report.markdown import markdown
from llm_locust.report.sections.contents import heading
from llm_locust.report.sections.headline import verdict

KNOWN: dict[str, Any] = {
    "asked": 400,
    "streams": 400,
    "ttft_n": 1200,
    "ttft_ms": 0.08,
    "itl_ms": 0.05,
    "open_ms": 0.01,
    "tokens_per_s": 20_000.0,
    "answers": 1200,
}


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({}, "TTFT within 0.08 ms (p99) at 400 streams, 20,000 tokens/s; ITL within 0.05 ms"),
        ({"ttft_n": 3}, "TTFT within 0.08 ms (largest of 3) at 400 streams"),
        ({"asked": 9000}, "at 400 streams of 9,000 asked for, 20,000 tokens/s"),
        ({"workers": 4}, "ITL within 0.05 ms (one of 4 workers, on the master's machine)"),
        ({"ttft_ms": None}, "TTFT not known"),
        ({"ttft_ms": None, "itl_ms": None, "tokens_per_s": None}, "ITL not known"),
        ({"ttft_ms": 0.0}, "TTFT within 0.001 ms"),
        ({"astray": 2, "why": "timeout:\x1b no token"}, "2 of 1,200 answers not as the server wrote them; "),
        ({"answers": 0, "why": "no time was left"}, "not calibrated: no time was left"),
    ],
)
def test_the_error_is_one_line_with_its_load(known: dict[str, Any], text: str) -> None:
    said = calibration_text(CalibrationFacts(**(KNOWN | known)))
    assert text in said
    assert said.isprintable()


def reported(**known: Any) -> dict[str, Any]:
    """The summary of a run that was calibrated."""
    return summary(records(bad=0), calibration=CalibrationFacts(**(KNOWN | known)))


def test_the_head_of_every_report_has_the_line() -> None:
    line = "calibrated: TTFT within 0.08 ms (p99) at 400 streams, 20,000 tokens/s; ITL within 0.05 ms"
    found = typed(reported())
    assert line in [each.text for each in heading(found).lines]
    assert line in markdown(found)
    file = io.StringIO()
    print_report(found, Path("runs/first"), file, 160, found=verdict(found))
    lines = file.getvalue().splitlines()
    assert next(i for i, each in enumerate(lines) if line in each) < next(
        i for i, each in enumerate(lines) if each.startswith("PASS")
    )
    for other in (typed(summary()), typed(reported(answers=0, why="no time"))):
        assert not any("calibrated: TTFT" in each.text for each in heading(other).lines)


def test_a_large_error_is_in_the_line_of_the_client_and_fails_nothing() -> None:
    found = reported(ttft_ms=3.2)
    assert found["client"]["verdict"] == "suspect"
    assert "within 3.2 ms only (p99)" in found["client"]["reasons"][0]
    assert verdict(typed(found)).code in (0, None)


def test_several_runs_have_the_worst_of_theirs() -> None:
    errors: list[float | None] = [0.08, 0.0, None]
    runs = [
        manifest(1, id=f"r{i}", calibration=CalibrationFacts(**(KNOWN | {"ttft_ms": error_ms})))
        for i, error_ms in enumerate(errors)
    ]
    for of, worst in ((runs[:2], runs[0]), (runs, runs[2]), ([manifest(1, id="none"), runs[1]], runs[1])):
        assert _pooled_manifest(of, Question()).calibration == worst.calibration
