"""An agent through the eight recorded tasks of agentperf-local, against ``transformers serve``.

A server without a GPU takes minutes for the histories of whole tasks: each is cut to its first turns, as
``head -n`` does, and answers to a few tokens.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from e2e.servers import Server
from e2e.swarm import ROOT, Run, load

pytestmark = pytest.mark.e2e

AGENTS = ROOT / "locustfiles/agents.py"
TASKS = "agentperf/agentperf_local/data/replays/agentperf-default-v1/traces"
#: Four tokens of noise were no text at all in one of ten answers.
TURNS, TOKENS = 2, 24

#: Prompts have up to 30,000 tokens, as this tokenizer has one for nearly every letter.
PATIENT = ["--timeouts", "first=300s gap=300s total=600s", "-t", "800s"]


@pytest.fixture(scope="module")
def tasks(server_venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first turns of each task, in files of their own."""
    found, folder = sorted((server_venv / TASKS).glob("*.jsonl")), tmp_path_factory.mktemp("tasks")
    assert len(found) == 8, f"{server_venv / TASKS}: run `make test-e2e`, which puts the tasks there"
    for path in found:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / path.name).write_text("".join(lines[:TURNS]), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def recorded(tasks: Path) -> list[dict[str, Any]]:
    texts = [path.read_text(encoding="utf-8") for path in sorted(tasks.iterdir())]
    return [json.loads(line) for text in texts for line in text.splitlines()]


@pytest.fixture(scope="module")
def run(transformers_serve: Server, tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    arguments = ["-u", "1", "-r", "1", "--trajectories", str(tasks), "--num-requests", str(8 * TURNS)]
    arguments += ["--body", json.dumps({"max_tokens": TOKENS}), *PATIENT]
    folder = tmp_path_factory.mktemp("agents") / "run"
    return load(transformers_serve.url, folder, AGENTS, arguments, processes=1, within_s=840.0)


def walks(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The turns of each walk, in their order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(run.rows, key=lambda row: row["turn"]):
        found.setdefault(row["session"], []).append(row)
    return found


def test_every_turn_of_all_eight_tasks_is_recorded_and_answered(run: Run) -> None:
    assert Counter(row["outcome"] for row in run.rows) == {"ok": 8 * TURNS}, run.output
    assert [[row["turn"] for row in walk] for walk in walks(run).values()] == [list(range(TURNS))] * 8
    assert {row["output_tokens"] for row in run.rows} == {TOKENS}
    assert run.summary["completeness"]["complete"]
    assert run.summary["agents"]["jobs"] == 8


def test_a_later_turn_has_the_history_of_the_earlier_ones_by_the_servers_count(run: Run) -> None:
    for walk in walks(run).values():
        counts = [row["input_tokens"] for row in walk]
        assert counts == sorted(counts)
        assert counts[0] > 1000


def test_pauses_are_those_of_the_tools_and_how_late_turns_were_is_in_the_report(
    run: Run, recorded: list[dict[str, Any]]
) -> None:
    asked = sorted(row["simulated_tool_delay_ms_after"] for row in recorded[::TURNS])
    ends = [(walk[0], walk[1]) for walk in walks(run).values()]
    kept = sorted((after["scheduled_ns"] - before["ended_ns"]) / 1e6 for before, after in ends)
    assert kept == pytest.approx(asked, abs=0.2)
    late_ms = [(after["sent_ns"] - after["scheduled_ns"]) / 1e6 for _, after in ends]
    pauses = run.summary["agents"]["pauses"]
    assert pauses["n"] == 8
    assert pauses["late_ms_max"] == pytest.approx(max(late_ms), abs=0.01)
    assert pauses["late"] == sum(late > 5.0 for late in late_ms)


def test_hits_of_a_server_that_says_nothing_of_them_are_unknown_and_not_none(run: Run) -> None:
    cache = run.summary["agents"]["cache"]
    known = [row for row in run.rows if row["cached_tokens"] is not None]
    assert (cache["achieved"] is None) == (not known)
    if known:
        assert cache["achieved"] <= cache["possible"]
