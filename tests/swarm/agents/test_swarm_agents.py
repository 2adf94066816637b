"""Agents that walk through trajectories with sub-agents: one whole run against the simulator."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from swarm_process import Result, locust, simulation

from llm_locust.store import read_manifest
from llm_locust.store.requests import read_requests

AGENTS = Path(__file__).parents[3] / "locustfiles" / "agents.py"
SYSTEM = {"role": "system", "content": "You are an agent. " * 40}


def line(of: str, turn: int, **more: Any) -> dict[str, Any]:
    """A turn whose history has ``turn`` answered questions."""
    messages: list[dict[str, Any]] = [SYSTEM]
    for i in range(turn):
        messages += [
            {"role": "user", "content": f"{of} asks {i} " * 30},
            {"role": "assistant", "content": f"{of} hears {i} " * 10},
        ]
    messages.append({"role": "user", "content": f"{of} asks {turn} " * 30})
    return {"conversation_id": of, "messages": messages, "target_output_tokens": 3 + turn, **more}


POOL = [
    line("main", 0, pause_ms_after=30),
    line("main", 1, pause_ms_after=120),
    line("main", 2),
    line("left", 0, parent="main", after_turn=0, pause_ms_after=50),
    line("left", 1, parent="main", after_turn=0),
    line("right", 0, parent="main", after_turn=0),
    line("other", 0, pause_ms_after=70),
    line("other", 1),
]
CACHE = ("--prefix-cache", "on", "--session-header", "cookie:llm-d-session")
PLACES = {0: "main", 1: "other", 2: "left", 3: "right"}


@dataclass(frozen=True, slots=True)
class Ran:
    summary: dict[str, Any]
    report: str
    path: Path
    turns: dict[tuple[str, int], dict[str, Any]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("agents")
    (folder / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in POOL))
    load = ["--headless", "-u", "1", "-r", "1", "-t", "120s", "--num-requests", str(len(POOL))]
    load += ["--session-header", "cookie:llm-d-session"]
    load += ["--trajectories", "pool.jsonl", "--out", "run", "--body", '{"ignore_eos": true}', "--gpus", "2"]
    with (
        simulation(folder, "--replicas", "1", *CACHE) as simulated,
        locust(folder, *load, "-H", simulated.url, locustfile=AGENTS) as run,
    ):
        assert run.exit_code() in (0, 3), run.stderr
    rows = read_requests(folder / "run").table.to_pylist()
    turns = {}
    for row in rows:
        place = int(row["session"].split("-t")[1].split("-of")[0])
        turns[PLACES[place], row["turn"]] = row
    assert len(turns) == len(rows)
    return Ran(Result.read(folder / "run").summary, run.stdout, folder / "run", turns)


def test_every_turn_is_sent_once_with_its_recorded_length(ran: Ran) -> None:
    assert {at: (row["outcome"], row["output_tokens"]) for at, row in ran.turns.items()} == {
        (row["conversation_id"], (len(row["messages"]) - 2) // 2): ("ok", row["target_output_tokens"])
        for row in POOL
    }


def test_pauses_are_kept_and_what_the_client_was_late_is_in_its_records(ran: Ran) -> None:
    for (of, turn), pause_ms in {("main", 1): 120, ("left", 0): 50, ("other", 0): 70}.items():
        before, after = ran.turns[of, turn], ran.turns[of, turn + 1]
        # Exact on the worker's own clock; its offset to the run's may change between two batches.
        assert after["scheduled_ns"] - before["ended_ns"] == pytest.approx(pause_ms * 1e6, abs=1e5)
        assert after["started_ns"] >= after["scheduled_ns"]


def test_sub_agents_begin_after_their_turn_and_the_next_one_waits_for_both(ran: Ran) -> None:
    begun = ran.turns["main", 0]["ended_ns"]
    left, right, following = ran.turns["left", 0], ran.turns["right", 0], ran.turns["main", 1]
    assert min(left["scheduled_ns"], right["scheduled_ns"]) >= begun
    assert following["scheduled_ns"] >= max(ran.turns["left", 1]["ended_ns"], right["ended_ns"])
    # Both ran at once: the second began before the first had ended all of its turns.
    assert right["started_ns"] < ran.turns["left", 1]["ended_ns"]


def test_agents_and_sub_agents_give_the_cookie_of_their_own_session_back(ran: Ran) -> None:
    assert {at: row["session_header"] for at, row in ran.turns.items()} == {
        (of, turn): "echoed" if turn else None for of, turn in ran.turns
    }
    assert ran.summary["sessions"]["header"]["echoed"] == 4


def test_hits_stand_beside_the_possible_ones(ran: Ran) -> None:
    cache = ran.summary["agents"]["cache"]
    assert cache["turns"] == len(POOL)
    assert 0.2 < cache["achieved"] <= cache["possible"] + 0.05 < 1
    facts = read_manifest(ran.path).trajectories
    assert facts is not None
    assert (facts.ids, facts.roots) == (["main", "other", "left", "right"], 2)


def test_jobs_are_the_walks_of_the_pool_and_their_pauses_are_apart(ran: Ran) -> None:
    found = ran.summary["agents"]
    jobs = [[row for (of, _), row in ran.turns.items() if of == name] for name in ("main", "other")]
    lasted = [max(r["ended_ns"] for r in job) - min(r["scheduled_ns"] for r in job) for job in jobs]
    served = [sum(r["ended_ns"] - r["scheduled_ns"] for r in job) for job in jobs]
    assert (found["agents"], found["turns"], found["jobs"]) == (1, len(POOL), 2)
    assert found["job_s_mean"] == pytest.approx(sum(lasted) / 2e9, rel=1e-6)
    assert found["between_turns_s_mean"] == pytest.approx((sum(lasted) - sum(served)) / 2e9, rel=1e-6)
    assert found["jobs_worked"] == pytest.approx(2)
    assert found["jobs_per_h_per_user"] == pytest.approx(3600 * 2 / found["agent_s"])
    assert found["pauses"]["n"] == len(POOL) - 4
    assert found["jobs_per_h_per_gpu"] == pytest.approx(found["jobs_per_h"] / 2)
    assert found["tools_s"] == pytest.approx((30 + 120 + 70) / 1e3)
    assert "prefix-cache hits" in ran.report


def test_the_last_live_figures_are_those_of_the_report(ran: Ran) -> None:
    found = ran.summary["agents"]
    assert json.loads((ran.path / "live.json").read_text())["agents"] == {
        "turns": found["turns"],
        "turns_ok": found["ok"],
        "jobs": found["jobs"],
        "jobs_failed": found["jobs_failed"],
        "tools_ns": round(found["tools_s"] * 1e9),
    }
