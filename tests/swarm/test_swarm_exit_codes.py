"""Bad runs that reach their end: none of them exits with 0, and the last line of the report says why."""

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from swarm_process import in_parallel, locust, simulation

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
