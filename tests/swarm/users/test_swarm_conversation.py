"""Users that talk, and agents: what they send, when they leave, and what is recorded of it."""

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from swarm_process import Process, Result, in_parallel, locust, simulation

from llm_locust.figures.sessions import planned_turns
from llm_locust.sim.jobs import count_tokens
from llm_locust.store import read_manifest
from llm_locust.store.requests import read_requests

# --- Users that talk: what they send, when they leave, and what is recorded of it


#: Each request is written down as it was made, with the answer.
LOCUSTFILE = """
import json
from pathlib import Path

from locust import task

from llm_locust import ConversationUser
from llm_locust.workload.datasets import load_conversations


class Talking(ConversationUser):
    abstract = True

    @task
    def talk(self):
        self.converse()

    def ask(self, prompt=None, **of):
        answer = super().ask(prompt, **of)
        said = prompt.messages or [dict(role="user", content=prompt.text)]
        line = [answer.record.request_id, said, answer.reply.text]
        with Path("asked.jsonl").open("a") as lines:
            lines.write(json.dumps(line) + "\\n")
        return answer
"""

CLASS = """

class {name}(Talking):
    request_name = "{name}"
    {attributes}
"""

DIALOGUE = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "never sent"},
    {"role": "user", "content": "two"},
    {"role": "user", "content": "three"},
]
SHAREGPT = [{"id": "d", "conversations": [{"from": "human", "value": text} for text in ("why?", "really?")]}]

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Talked:
    process: Process
    result: Result
    truth: dict[str, Row]
    asked: dict[str, tuple[list[dict[str, str]], str]]  # by request id: the messages, the answer's text
    of: str | None = None  # the requests of one class alone

    def rows(self) -> list[Row]:
        return [row for row in self.result.rows().values() if self.of in (None, row["name"])]

    def sessions(self) -> dict[str, list[Row]]:
        """The records of each conversation in the order of their turns."""
        found: dict[str, list[Row]] = defaultdict(list)
        for row in sorted(self.rows(), key=lambda row: row["turn"]):
            found[row["session"]].append(row)
        return found

    def judged(self) -> dict[str, list[Row]]:
        """Those that began before the run was stopped; some user may begin another one just after."""
        stopped_ns = self.result.manifest.stopped_ns
        assert stopped_ns is not None
        return {k: rows for k, rows in self.sessions().items() if rows[0]["scheduled_ns"] < stopped_ns}

    def answered(self) -> list[list[Row]]:
        """The conversations' turns whose answer the user has had, and so written down."""
        each = ([row for row in rows if row["request_id"] in self.asked] for rows in self.sessions().values())
        return [rows for rows in each if rows]

    def drawn(self) -> dict[tuple[int, int, int], tuple[Any, ...]]:
        """What each user drew for each turn of its first conversations: planned turns, asked lengths."""
        found, begun = {}, defaultdict[int, int](int)
        for rows in sorted(self.sessions().values(), key=lambda rows: rows[0]["scheduled_ns"]):
            user = rows[0]["user"]
            for row in rows:
                lengths = row["asked_input_tokens"], row["asked_output_tokens"]
                found[user, begun[user], row["turn"]] = planned_turns(row["session"]), *lengths
            begun[user] += 1
        return found


def _run(folder: Path, classes: dict[str, str], *options: str, sim_options: tuple[str, ...] = ()) -> Talked:
    path = folder / "locustfile.py"
    made = (
        CLASS.format(name=name, attributes=attributes.replace("\n", "\n    "))
        for name, attributes in classes.items()
    )
    path.write_text(LOCUSTFILE + "".join(made))
    (folder / "lines.jsonl").write_text(json.dumps({"messages": DIALOGUE, "id": "x"}))
    (folder / "questions.txt").write_text("\n".join(f"question {k}" for k in range(7)))
    (folder / "sharegpt.json").write_text(json.dumps(SHAREGPT))
    usual = ["--headless", "-u", "6", "-r", "100", "-t", "2s", "--out", "run", "--seed", "5"]
    exactly = ["--output-tokens", "5", "--body", '{"ignore_eos": true}']
    with (
        simulation(folder, *sim_options) as sim,
        locust(folder, *usual, *exactly, *options, "-H", sim.url, locustfile=path) as process,
    ):
        assert process.exit_code() in (0, 1), process.stderr
        truth = {entry["request_id"]: entry for entry in sim.entries()}
    asked = [json.loads(line) for line in (folder / "asked.jsonl").read_text().splitlines()]
    return Talked(
        process, Result.read(folder / "run"), truth, {key: (said, text) for key, said, text in asked}
    )


SEVERAL = 'turns = "uniform:2,4"\nthink_time = "uniform:20ms,60ms"'
SYNTHETIC = ("--input-tokens", "uniform:20,60")
SLOW = ("--ttft-base", "200ms", "--noise", "0.3", "--faults", "http_500=20%")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Talked]:
    """The runs by name, and what each class did in them."""
    fast = {"Several": SEVERAL, "Last": 'turns = "4"\nhistory = "last:1"'}
    slow = {"Several": SEVERAL, "Impatient": 'turns = "3"\npatience = "uniform:100ms,400ms"'}
    of_lines = {"Lines": 'history = "none"', "Capped": 'turns = "2"'}
    questions = {
        "Questions": 'turns = "3"',
        "Dialogues": 'dialogues = load_conversations("sharegpt.json")',
    }
    found: dict[str, Talked] = in_parallel(
        tmp_path_factory.mktemp("talk"),
        {
            "fast": lambda f: _run(f, fast, *SYNTHETIC),
            "slow": lambda f: _run(f, slow, *SYNTHETIC, "-t", "3s", sim_options=SLOW),
            "lines": lambda f: _run(f, of_lines, "--dataset", "lines.jsonl"),
            "questions": lambda f: _run(f, questions, "--dataset", "questions.txt"),
        },
        at_once=2,
    )
    of = {
        ("full", "fast", "Several"),
        ("again", "slow", "Several"),
        ("last", "fast", "Last"),
        ("impatient", "slow", "Impatient"),
        ("capped", "lines", "Capped"),
        ("uncapped", "lines", "Lines"),
        ("pairs", "questions", "Questions"),
        ("dialogues", "questions", "Dialogues"),
    }
    return found | {key: replace(found[run], of=name) for key, run, name in of}


NAMES = ["fast", "slow", "lines", "questions"]


@pytest.mark.parametrize("name", NAMES)
def test_a_conversations_turns_are_numbered_follow_each_other_and_are_one_users(
    runs: dict[str, Talked], name: str
) -> None:
    sessions = runs[name].sessions()
    assert len(sessions) > 6
    for session, rows in sessions.items():
        assert [row["turn"] for row in rows] == list(range(len(rows)))
        assert len({row["user"] for row in rows}) == 1
        assert len(rows) <= (planned_turns(session) or 0)
        for before, row in pairwise(rows):
            assert before["outcome"] == "ok", "a conversation ends with the first turn that is not"
            assert before["ended_ns"] <= row["scheduled_ns"]
    assert not any("Traceback" in line for line in runs[name].process.lines)


def test_a_turn_carries_on_what_was_asked_and_what_the_server_answered(runs: dict[str, Talked]) -> None:
    talked = runs["full"]
    several = [rows for rows in talked.answered() if len(rows) > 1]
    assert several
    for rows in several:
        for before, row in pairwise(rows):
            (said, answer), (now, _) = talked.asked[before["request_id"]], talked.asked[row["request_id"]]
            assert now[:-2] == said
            assert now[-2] == {"role": "assistant", "content": answer}
            assert now[-1]["role"] == "user"
            assert talked.truth[row["request_id"]]["input_tokens"] == sum(
                count_tokens(m["content"]) for m in now
            )


def test_the_asked_length_grows_by_what_is_carried_on(runs: dict[str, Talked]) -> None:
    """Each new input has 20 .. 60 tokens, each answer 5."""
    for rows in runs["full"].answered():
        asked = [row["asked_input_tokens"] for row in rows]
        assert all(25 <= later - before <= 65 for before, later in pairwise(asked))


def test_of_the_last_turn_alone_that_one_is_carried_on(runs: dict[str, Talked]) -> None:
    talked = runs["last"]
    lengths = {len(talked.asked[row["request_id"]][0]) for rows in talked.answered() for row in rows[1:]}
    assert lengths == {3}


def test_a_user_thinks_between_an_answer_and_the_next_turn(runs: dict[str, Talked]) -> None:
    thought_ms = [
        (row["scheduled_ns"] - before["ended_ns"]) / 1e6
        for rows in runs["full"].answered()
        for before, row in pairwise(rows)
    ]
    assert len(thought_ms) > 20
    assert min(thought_ms) >= 19
    assert sorted(thought_ms)[len(thought_ms) // 2] < 250, "20 to 60 ms, and what a busy machine adds"


def test_two_runs_of_one_seed_hold_the_same_conversations(runs: dict[str, Talked]) -> None:
    first, second = runs["full"].drawn(), runs["again"].drawn()
    both = first.keys() & second.keys()
    assert len(both) > 15
    assert {user for user, *_ in both} == {user for user, *_ in second}
    assert {conversation for _, conversation, _ in both} > {0, 1}
    assert all(first[key] == second[key] for key in both)
    drawn = [[first[user, 0, turn] for turn in range(2)] for user in {user for user, *_ in first}]
    assert len(drawn) == len({tuple(each) for each in drawn}) > 2


# Patience


def test_a_user_whose_first_token_comes_too_late_leaves_and_the_others_stay(runs: dict[str, Talked]) -> None:
    talked = runs["impatient"]
    rows = talked.rows()
    left = [row for row in rows if row["abandoned"]]
    stayed = [row for row in rows if row["outcome"] == "ok"]
    assert left
    assert stayed
    for row in left:
        assert (row["outcome"], row["arrivals_ns"]) == ("cancelled", [])
        assert (row["ended_ns"] - row["sent_ns"]) / 1e6 >= 99
        # A busy server learns of it when its answer is over, whose first token came too late all the same.
        entry = talked.truth[row["request_id"]]
        assert entry["disconnected"] or entry["first_token_ns"] > row["ended_ns"] - 5e6


def test_who_left_is_counted_apart_and_no_failure(runs: dict[str, Talked]) -> None:
    summary, rows = runs["slow"].result.summary, runs["slow"].rows()
    left = sum(bool(row["abandoned"]) for row in rows)
    assert summary["requests"]["abandoned"] == summary["sessions"]["abandoned"] == left
    assert summary["requests"]["failed"] == sum(row["outcome"] == "http_error" for row in rows)
    assert sum(turn["abandoned"] for turn in summary["sessions"]["by_turn"]) == left
    assert f"{left} abandoned" in runs["slow"].process.stdout + runs["slow"].process.stderr


# Ends


def test_a_failed_turn_ends_its_conversation(runs: dict[str, Talked]) -> None:
    talked = runs["slow"]
    failed = [rows for rows in talked.judged().values() if rows[-1]["outcome"] == "http_error"]
    assert talked.result.summary["sessions"]["failed"] == len(failed) > 0


@pytest.mark.parametrize("name", NAMES)
def test_every_session_is_counted_once_by_how_it_ended(runs: dict[str, Talked], name: str) -> None:
    talked = runs[name]
    counts = talked.result.summary["sessions"]
    ways = ("completed", "abandoned", "failed", "cut")
    assert sum(counts[way] for way in ways) == counts["n"] == len(talked.judged())
    whole = [
        session
        for session, rows in talked.judged().items()
        if [row["outcome"] for row in rows] == ["ok"] * (planned_turns(session) or 0)
    ]
    assert counts["completed"] == len(whole) > 0


# Datasets


def test_a_lines_questions_are_asked_in_order_with_its_system_message_first(runs: dict[str, Talked]) -> None:
    talked = runs["uncapped"]
    for rows in talked.answered():
        for row, question in zip(rows, ["one", "two", "three"], strict=False):
            (system, user), _ = talked.asked[row["request_id"]]
            assert (system["role"], system["content"].endswith("be brief")) == ("system", True)
            assert user == {"role": "user", "content": question}
            assert (row["prompt_id"], row["asked_input_tokens"]) == ("x", None)
    assert {planned_turns(session) for session in talked.sessions()} == {3}


def test_the_plan_may_cut_a_line_short(runs: dict[str, Talked]) -> None:
    assert {planned_turns(session) for session in runs["capped"].sessions()} == {2}


def test_lines_of_one_question_each_are_turns_one_after_another(runs: dict[str, Talked]) -> None:
    talked = runs["pairs"]
    last = [
        talked.asked[row["request_id"]][0][-1]["content"] for rows in talked.answered() for row in rows[1:]
    ]
    assert last
    assert all("question " in text for text in last)
    assert {planned_turns(session) for session in talked.sessions()} == {3}


def test_dialogues_are_asked_with_a_start_of_their_own(runs: dict[str, Talked]) -> None:
    talked = runs["dialogues"]
    firsts = [talked.asked[rows[0]["request_id"]][0][0]["content"] for rows in talked.answered()]
    assert all(text.endswith("] why?") for text in firsts)
    assert len(set(firsts)) == len(firsts)
    seconds = {
        talked.asked[rows[1]["request_id"]][0][-1]["content"] for rows in talked.answered() if rows[1:]
    }
    assert seconds == {"really?"}


# --- Agents that walk through trajectories with sub-agents: one whole run against the simulator


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
