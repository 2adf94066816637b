"""The log of what happened to replicas."""

import json
import time
from pathlib import Path

import pytest

from llm_locust.sim.faults import EventLog, events_path
from llm_locust.sim.truth import TruthError


def test_each_event_is_a_line_and_an_object_with_its_time(tmp_path: Path) -> None:
    lines: list[str] = []
    path = events_path(tmp_path / "truth.jsonl")
    with EventLog(path, lines.append) as events:
        before_ns = time.time_ns()
        events.begin()
        events.add("plan", "replica-2", "kill")
        events.add("plan", "replica-1", "slow", 2.5)
    assert [line.rpartition(" at ")[0] for line in lines] == [
        "plan: replica-2 killed",
        "plan: replica-1 slowed 2.5x",
    ]
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert path.name == "truth.jsonl.events.jsonl"
    assert [(w["who"], w["replica"], w["action"], w["factor"]) for w in written] == [
        ("plan", "replica-2", "kill", None),
        ("plan", "replica-1", "slow", 2.5),
    ]
    assert before_ns <= written[0]["time_ns"] <= written[1]["time_ns"] <= time.time_ns()


def test_without_a_file_events_are_lines_alone() -> None:
    lines: list[str] = []
    with EventLog(None, lines.append) as events:
        events.add("gateway", "replica-0", "out")
    assert lines[0].startswith("gateway: replica-0 out of rotation at 0.0")


def test_a_file_that_cannot_be_written_is_one_line_before_the_start() -> None:
    with pytest.raises(TruthError, match=r"event log /nowhere/e: No such file or directory; name a file"):
        EventLog(Path("/nowhere/e"), lambda line: None)


def test_a_disk_that_fills_is_told_once_and_lines_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with EventLog(Path("/dev/full"), lines.append) as events:
        events.add("plan", "replica-0", "kill")
        events.add("plan", "replica-0", "start")
    assert capsys.readouterr().err == (
        "event log /dev/full: No space left on device; nothing more is written to it\n"
    )
    assert len(lines) == 2
