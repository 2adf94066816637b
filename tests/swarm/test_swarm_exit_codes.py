"""Bad runs end with their code and its reason; a client is measured before the load."""

import argparse
import json
import signal
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from parsed_settings import run_settings
from swarm_process import Result, in_parallel, locust, simulation

from llm_locust.core.manifest import CalibrationFacts
from llm_locust.doctor.calibration import Calibrated
from llm_locust.options.settings import Settings, UsageError
from llm_locust.swarm.run import checks
from llm_locust.swarm.run.checks import calibrate_run

# --- Bad runs that reach their end: none of them exits with 0, and the last line of the report says why


RAISING = """
from locust import task

from llm_locust import ChatUser


class Asker(ChatUser):
    @task
    def one(self):
        self.chat("hello")
        raise KeyError("<b>missing</b>\\x1b[31m")
"""

BLOCKED = """
import gevent
from locust import task

from llm_locust import ChatUser


class Asker(ChatUser):
    @task
    def one(self):
        gevent.sleep(3600)
        self.chat("hello")
"""

USUAL = ("--headless", "-u", "2", "-r", "10", "--out", "run", "--drain", "5s", "--output-tokens", "4")


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    said: str
    page: str
    summary: dict[str, Any]


def _run(
    folder: Path, locustfile: str, *options: str, signalled: bool = False, faults: str = "http_500=0%"
) -> Ended:
    (folder / "asker.py").write_text(locustfile)
    with simulation(folder / "sim", "--faults", faults) as sim:
        whole = [*USUAL, *options, "-H", sim.url]
        with locust(folder, *whole, locustfile=folder / "asker.py") as process:
            if signalled:
                sim.wait_entries(3)
                process.signal(signal.SIGTERM)
            code = process.exit_code()
        run = folder / "run"
        summary = json.loads((run / "summary.json").read_text())
        return Ended(code, process.stdout, (run / "report.html").read_text(), summary)


FINE = RAISING.replace("        raise", "        return\n        raise")

RUNS = {
    "raising": lambda folder: _run(folder, RAISING, "--num-requests", "6", "--gate", "error_rate<1%"),
    "blocked": lambda folder: _run(folder, BLOCKED, "-t", "3s", "--gate", "error_rate<=100%"),
    "told to end": lambda folder: _run(folder, FINE, "-t", "600s", "--gate", "rps>0", signalled=True),
    "all failed": lambda folder: _run(
        folder, FINE, *("--num-requests", "6", "--exit-code-on-error", "0"), faults="http_500=100%"
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    ended: dict[str, Ended] = in_parallel(tmp_path_factory.mktemp("codes"), RUNS)
    return ended


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("raising", 3, "INVALID: the locustfile raised "),
        ("all failed", 3, "INVALID: none of the 6 requests succeeded"),
        ("blocked", 3, "INVALID: nothing was measured: "),
        (
            "told to end",
            4,
            "INCOMPLETE: the run was cut short: the process was told to end (SIGTERM or Ctrl-C)",
        ),
    ],
)
def test_a_bad_run_does_not_exit_with_0_and_says_why(
    name: str, code: int, reason: str, runs: dict[str, Ended]
) -> None:
    assert runs[name].code == code, runs[name].said
    said = " ".join(runs[name].said.split())
    assert reason in said
    assert f" · exit {code}" in said


def test_an_exception_of_a_task_is_in_the_head_of_all_reports_and_fit_to_be_shown(
    runs: dict[str, Ended],
) -> None:
    run = runs["raising"]
    (kind,) = run.summary["run"]["task_exceptions"]
    assert kind["error"].startswith("KeyError: ")
    assert kind["where"] == "asker.py:11 in one"
    assert kind["count"] >= 5
    head = run.said.split("Latency")[0]
    assert "INVALID: the locustfile raised" in head
    assert "asker.py:11 in one" in " ".join(head.split())
    assert "\x1b" not in run.said
    assert "<b>missing" not in run.page
    assert "&lt;b&gt;missing" in run.page


# --- The client is measured before the load, at the streams of one worker


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

    monkeypatch.setattr(checks, "calibrate", measured)
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
