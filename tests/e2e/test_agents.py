"""An agent through the eight recorded tasks of agentperf-local, against ``transformers serve``.

The first turns of each task as they are recorded, and the last one of the longest with its 160 kB of history;
the answers have a few tokens.
"""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from e2e.servers import Server
from e2e.swarm import ROOT, Run, load

pytestmark = pytest.mark.e2e

AGENTS = ROOT / "locustfiles/agents.py"
#: How many are sent of a task, which tells its walk from the others. Long histories have few; one is whole.
TURNS = {"django__django-14500": 7, "django__django-15851": 8, "sphinx-doc__sphinx-10614": 6} | {
    "task_k8s_debugging": 4,
    "task_meeting_council_budget": 3,
    "task_meeting_council_votes": 2,
    "task_meeting_searchable_index": 1,
    "task_skill_search": 5,
}
TO_THE_END = "task_meeting_council_votes"
ALL, TOKENS = sum(TURNS.values()), 8

PATIENT = ["--timeouts", "first=300s gap=300s total=600s", "-t", "800s"]


@pytest.fixture(scope="module")
def recorded(tasks: Path) -> dict[int, list[dict[str, Any]]]:
    """The turns of each task that are sent, by their number."""
    texts = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in tasks.glob("*.jsonl")}
    assert texts.keys() == TURNS.keys()
    return {
        n: [
            json.loads(line)
            for line in (texts[task][:: len(texts[task]) - 1] if task == TO_THE_END else texts[task][:n])
        ]
        for task, n in TURNS.items()
    }


@pytest.fixture(scope="module")
def run(
    serve_of_long_histories: Server,
    recorded: dict[int, list[dict[str, Any]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    folder = tmp_path_factory.mktemp("agents")
    (folder / "tasks").mkdir()
    for n, turns in recorded.items():
        (folder / f"tasks/{n}.jsonl").write_text("\n".join(map(json.dumps, turns)))
    arguments = ["-u", "1", "-r", "1", "--trajectories", str(folder / "tasks"), "--num-requests", str(ALL)]
    arguments += ["--body", json.dumps({"max_tokens": TOKENS}), *PATIENT]
    return load(serve_of_long_histories.url, folder / "run", AGENTS, arguments, workers=0)


def walks(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The turns of each walk, in their order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(run.rows, key=lambda row: row["turn"]):
        found.setdefault(row["session"], []).append(row)
    return found


def test_every_turn_of_all_eight_tasks_is_recorded_and_answered(run: Run) -> None:
    assert Counter(row["outcome"] for row in run.rows) == {"ok": ALL}, run.output
    turns = [[row["turn"] for row in walk] for walk in walks(run).values()]
    assert sorted(turns) == sorted(list(range(n)) for n in TURNS.values())
    assert {row["output_tokens"] for row in run.rows} == {TOKENS}
    assert run.summary["completeness"]["complete"]
    assert run.summary["agents"]["jobs"] == len(TURNS)


def test_a_turn_has_the_whole_history_of_its_recording_by_the_servers_count(
    run: Run, recorded: dict[int, list[dict[str, Any]]]
) -> None:
    """A few characters a token, as the server counts them, in each turn of each task alike."""
    for walk in walks(run).values():
        for row, turn in zip(walk, recorded[len(walk)], strict=True):
            assert 2 < len(str(turn["messages"])) / row["input_tokens"] < 8
    assert max(row["input_tokens"] for row in run.rows) > 30_000


def test_pauses_are_those_of_the_tools_and_how_late_turns_were_is_in_the_report(
    run: Run, recorded: dict[int, list[dict[str, Any]]]
) -> None:
    asked = sorted(turn["simulated_tool_delay_ms_after"] for task in recorded.values() for turn in task[:-1])
    ends = [pair for walk in walks(run).values() for pair in pairwise(walk)]
    kept = sorted((after["scheduled_ns"] - before["ended_ns"]) / 1e6 for before, after in ends)
    assert kept == pytest.approx(asked, abs=0.2)
    late_ms = [(after["sent_ns"] - after["scheduled_ns"]) / 1e6 for _, after in ends]
    pauses = run.summary["agents"]["pauses"]
    assert pauses["n"] == ALL - len(TURNS)
    assert pauses["late_ms_max"] == pytest.approx(max(late_ms), abs=0.01)
    assert pauses["late"] == sum(late > 5.0 for late in late_ms)


def test_hits_of_a_server_that_says_nothing_of_them_are_unknown_and_not_none(run: Run) -> None:
    cache = run.summary["agents"]["cache"]
    known = [row for row in run.rows if row["cached_tokens"] is not None]
    assert (cache["achieved"] is None) == (not known)
    if known:
        assert cache["achieved"] <= cache["possible"]
