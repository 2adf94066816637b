"""The client is measured before the load, at the streams of one worker."""

import argparse
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from parsed_settings import run_settings
from swarm_process import Result, locust, simulation

from llm_locust.core.manifest import CalibrationFacts
from llm_locust.doctor.calibration import Calibrated
from llm_locust.options.settings import Settings, UsageError
from llm_locust.swarm.run import preflight
from llm_locust.swarm.run.preflight import calibrate_run


class Scheduled:
    """A user class whose requests follow a schedule."""

    @staticmethod
    def follows_schedule(_: Settings) -> bool:
        return True


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of streams at which the client was measured."""
    seen: list[int] = []

    def measured(users: int, _: object) -> Calibrated:
        seen.append(users)
        return Calibrated(
            asked=users,
            streams=users,
            ttft_ms=np.full(200, 0.08),
            itl_ms=np.full(200, 0.05),
            open_ms=np.full(200, 0.01),
            tokens_per_s=20_000.0,
            wide_ratio=0.0,
            answers=200,
        )

    monkeypatch.setattr(preflight, "calibrate", measured)
    return seen


def found(
    given: dict[str, Any], *, classes: tuple[type, ...] = (object,), at_once: bool = True, **options: Any
) -> CalibrationFacts | None:
    environment: Any = SimpleNamespace(
        user_classes=list(classes), shape_class=None, parsed_options=argparse.Namespace(**options)
    )
    return calibrate_run(environment, run_settings(**given), at_once=at_once)


@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [
        ({}, {"num_users": 400}, []),
        ({"calibrate": True}, {"num_users": 400}, [400]),
        ({"calibrate": True}, {"num_users": 400, "expect_workers": 3}, [134]),
        ({"calibrate": True}, {}, [1]),
        ({"calibrate_streams": 50}, {"num_users": 400, "expect_workers": 3}, [50]),
    ],
)
def test_the_streams_are_those_of_one_worker(
    given: dict[str, Any], options: dict[str, Any], expected: list[int], streams: list[int]
) -> None:
    facts = found(given, **options)
    assert streams == expected
    assert (facts is None) == (not expected)
    if facts is not None:
        assert (facts.ttft_ms, facts.workers) == (0.08, options.get("expect_workers", 1))


@pytest.mark.parametrize(
    ("given", "known", "why"),
    [
        ({}, {"classes": (Scheduled,)}, "as many streams as the answers last"),
        ({"sweep": "users=1,2"}, {}, "the load changes"),
        ({}, {"at_once": False}, "the web UI says later"),
    ],
)
def test_where_nobody_knows_the_streams_their_number_is_asked_for(
    given: dict[str, Any], known: dict[str, Any], why: str, streams: list[int]
) -> None:
    with pytest.raises(UsageError, match=f"{why}.*--calibrate-streams N"):
        found({"calibrate": True, **given}, **known)
    assert streams == []
    found({"calibrate_streams": 7, **given}, **known)
    assert streams == [7]


def test_a_run_has_the_error_in_its_manifest_and_the_head_of_its_report(tmp_path: Any) -> None:
    load = ("--headless", "-u", "4", "-r", "4", "--num-requests", "8", "--calibrate", "--out", "run")
    asked = ("--output-tokens", "4", "--input-tokens", "8")
    with simulation(tmp_path) as sim, locust(tmp_path, *load, *asked, "-H", sim.url) as process:
        assert process.exit_code() == 0
    result = Result.read(tmp_path / "run")
    calibration = result.summary["client"]["calibration"]
    assert (calibration["streams"], calibration["astray"]) == (4, 0)
    assert calibration["answers"] > 4
    assert result.summary["requests"]["scheduled"] == 8, "its calls are in no figure"
    assert "calibrated: TTFT within" in " ".join(process.stdout.split())
    assert "TTFT within" in (tmp_path / "run" / "report.md").read_text()
