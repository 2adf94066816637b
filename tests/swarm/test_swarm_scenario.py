"""Scenario files as whole runs: what is sent, what wins, what is refused."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from swarm_process import forked, in_parallel, locust, simulation

ROOT = Path(__file__).parents[2]
LOCUSTFILE = ROOT / "locustfiles/scenario.py"

REQUESTS = 160

MIX = """
users: 12
spawn_rate: 100
num_requests: 160
seed: 5
output_tokens: 4
input_tokens: 40
slo: ttft=10s
classes:
  chat: {weight: 6, dataset: {file: questions.jsonl, order: shuffled, format: jsonl}}
  summarize: {weight: 1, input_tokens: 300, slo: {ttft: 1us}, request_name: long}
  code:
    weight: 3
    endpoint: completions
    body: {temperature: 0}
    headers: {X-Team: "secret-word", X-Who: "{class}"}
    validators: [{contains: "no server says this"}]
stop: {oversaturation: true}
"""

TALKS = """
arrival: constant
run_time: 60s
num_requests: 30
seed: 5
output_tokens: 3
session_header: x-session-token
classes:
  talk: {rate: 10, models: {sim: 1, lora: 3}, input_tokens: 30, conversation: {turns: 2, think_time: 50ms}}
  single: {rate: 20, models: lora, input_tokens: 30}
"""

WARM_UP = """
users: 1
num_requests: 60
seed: 5
output_tokens: 12
dataset: questions.jsonl
warm_up: {duration: 1s, prompts: %s}
"""

QUESTIONS = "".join(json.dumps({"prompt": f"Question {i}?", "id": f"q{i}"}) + "\n" for i in range(7))


@dataclass(frozen=True)
class Run:
    """A run and what the server saw of it."""

    code: int
    stderr: str
    entries: list[dict[str, Any]]
    out: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.out / "requests.parquet").to_pylist()
        return rows

    def json(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / name).read_text())
        return found


def run(
    folder: Path, scenario: str, *options: str, served: Sequence[str] = (), locustfile: Path = LOCUSTFILE
) -> Run:
    (folder / "mix.yaml").write_text(scenario)
    (folder / "questions.jsonl").write_text(QUESTIONS)
    asked = ("--headless", "--scenario", "mix.yaml", "--out", "run", *options)
    with (
        simulation(folder / "sim", "--session-header", "x-session-token", *served) as sim,
        locust(folder, "-H", sim.url, *asked, locustfile=locustfile) as process,
    ):
        return Run(process.exit_code(), process.stderr, sim.entries(), folder / "run")


SCENARIOS = {
    "two": lambda folder: run(folder, MIX, *forked(2)),
    "own": lambda folder: run(folder, WARM_UP % "own"),
    "shared": lambda folder: run(folder, WARM_UP % "shared"),
    "open": lambda folder: run(folder, TALKS, *forked(2), served=["--model=sim", "--model=lora"]),
    "given": lambda folder: run(
        folder, MIX, *forked(2), "-u", "2", "--num-requests", "9", "--output-tokens", "2"
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return in_parallel(tmp_path_factory.mktemp("scenarios"), SCENARIOS)


def test_a_mix_runs_by_its_file_alone_and_every_record_is_one_of_the_servers(
    runs: dict[str, Run],
) -> None:
    found = runs["two"]
    rows = found.rows
    assert len(rows) == REQUESTS
    assert {row["request_id"] for row in rows} == {entry["request_id"] for entry in found.entries}
    assert found.json("summary.json")["run"]["stop_reason"].startswith(f"num-requests: {REQUESTS}")


def test_classes_come_in_their_shares_with_their_own_endpoint_lengths_and_names(
    runs: dict[str, Run],
) -> None:
    rows = runs["two"].rows
    shares = Counter(row["class"] for row in rows)
    # Binomial: three standard deviations.
    for label, share in (("chat", 0.6), ("summarize", 0.1), ("code", 0.3)):
        assert abs(shares[label] - REQUESTS * share) < 3 * (REQUESTS * share * (1 - share)) ** 0.5
    assert {(row["class"], row["name"], row["endpoint"]) for row in rows} == {
        ("chat", "chat", "chat"),
        ("summarize", "long", "chat"),
        ("code", "code", "completions"),
    }
    assert {row["asked_input_tokens"] for row in rows if row["class"] == "summarize"} == {300}
    assert {row["asked_input_tokens"] for row in rows if row["class"] == "code"} == {40}
    assert {row["prompt_id"] for row in rows if row["class"] == "chat"} == {f"q{i}" for i in range(7)}
    assert {row["asked_output_tokens"] for row in rows} == {4}


def test_each_class_is_judged_by_its_own_limits_and_checks(runs: dict[str, Run]) -> None:
    summary = runs["two"].json("summary.json")
    by_class = summary["by_class"]
    assert by_class["chat"]["goodput"]["ratio"] == 1.0
    assert by_class["summarize"]["goodput"]["ratio"] == 0.0
    assert by_class["summarize"]["goodput"]["slo"] == {"ttft": pytest.approx(0.001)}
    assert by_class["code"]["requests"]["by_outcome"]["rejected"] == by_class["code"]["requests"]["scheduled"]
    whole = summary["goodput"]
    assert set(whole["slo_by_class"]) == {"chat", "code", "summarize"}
    assert whole["ratio"] == pytest.approx(by_class["chat"]["requests"]["scheduled"] / REQUESTS)


def test_the_manifest_has_the_scenario_and_no_secret_of_it(runs: dict[str, Run]) -> None:
    manifest = runs["two"].json("manifest.json")
    assert manifest["scenario"] == "mix.yaml"
    assert manifest["scenario_document"]["classes"]["code"]["headers"] == {"X-Team": "***", "X-Who": "***"}
    for file in runs["two"].out.iterdir():
        assert b"secret-word" not in file.read_bytes()


def test_one_seed_sends_the_same_classes_user_by_user_whatever_comes_between(runs: dict[str, Run]) -> None:
    def by_user(found: Run) -> dict[tuple[int, int], list[str]]:
        index = {worker["id"]: worker["index"] for worker in found.json("manifest.json")["workers"]}
        users: dict[tuple[int, int], list[str]] = {}
        for row in sorted(found.rows, key=lambda row: row["scheduled_ns"]):
            users.setdefault((index[row["worker"]], row["user"]), []).append(row["class"])
        return users

    one, other = by_user(runs["two"]), by_user(runs["given"])
    assert len(other) == 2
    for user, classes in other.items():
        assert one[user][: len(classes)][:4] == classes[:4]


def test_the_command_line_wins_over_the_file(runs: dict[str, Run]) -> None:
    rows = runs["given"].rows
    assert len(rows) == 9
    assert {row["asked_output_tokens"] for row in rows} == {2}
    assert len({(row["worker"], row["user"]) for row in rows}) == 2


def test_classes_with_rates_arrive_by_their_own_schedules_and_the_number_is_exact(
    runs: dict[str, Run],
) -> None:
    rows = runs["open"].rows
    talks = [row for row in rows if row["class"] == "talk"]
    singles = [row for row in rows if row["class"] == "single"]
    assert len({row["session"] for row in talks}) + len(singles) == 30
    # Constant rates of 10 and 20 per second: one in three.
    assert len(singles) == 20
    assert runs["open"].json("manifest.json")["open_loop"]
    firsts = sorted(row["scheduled_ns"] for row in singles)
    gaps_ms = [(after - before) * 1e-6 for before, after in pairwise(firsts)]
    # Of the rates' own: that of talks would be 100 ms. A clock that is read late moves a time by some ms.
    assert max(gaps_ms) == pytest.approx(50.0, abs=10.0)


def test_the_turns_of_a_session_go_to_one_replica_by_the_header_that_they_give_back(
    runs: dict[str, Run],
) -> None:
    found = runs["open"]
    truth = {entry["request_id"]: entry for entry in found.entries}
    talks = [row for row in found.rows if row["class"] == "talk"]
    replicas: dict[str, set[str]] = {}
    for row in talks:
        entry = truth[row["request_id"]]
        replicas.setdefault(row["session"], set()).add(entry["replica"])
        assert row["session_header"] == ("echoed" if row["turn"] else None)
        assert (entry["session_replica"] == entry["replica"]) == bool(row["turn"])
    assert {len(names) for names in replicas.values()} == {1}  # of four, which take turns otherwise
    header = found.json("summary.json")["sessions"]["header"]
    assert header["echoed"] == header["placed"] == len(replicas)
    assert (header["missing"], header["refused"], header["same_replica"]) == (0, 0, 1.0)


def test_a_conversation_keeps_its_model_and_each_model_was_tried_before_the_load(
    runs: dict[str, Run],
) -> None:
    rows = runs["open"].rows
    models: dict[str, set[str]] = {}
    for row in rows:
        models.setdefault(row["session"] or "single", set()).add(row["model"])
    assert models.pop("single") == {"lora"}
    assert {len(names) for names in models.values()} == {1}
    assert set().union(*models.values()) <= {"sim", "lora"}
    assert {row["answered_model"] for row in rows} == {None}
    manifest = runs["open"].json("manifest.json")
    assert manifest["model"] == "sim, lora"
    sent = [canary["name"] for canary in manifest["canaries"]]
    assert sent in ([], ["talk of sim", "talk of lora", "single of lora"])  # none where they are off


def test_an_arrival_of_conversations_begins_one_and_its_turns_follow_by_their_think_time(
    runs: dict[str, Run],
) -> None:
    rows = [row for row in runs["open"].rows if row["class"] == "talk"]
    sessions = {row["session"] for row in rows}
    assert Counter(row["turn"] for row in rows) == {0: len(sessions), 1: len(sessions)}
    for session in sessions:
        first, second = sorted((r for r in rows if r["session"] == session), key=lambda r: r["turn"])
        assert 50e6 <= second["scheduled_ns"] - first["ended_ns"] < 500e6
        assert second["input_tokens"] > first["input_tokens"] + 20


def test_a_warm_up_has_prompts_of_its_own_or_the_first_of_the_runs(runs: dict[str, Run]) -> None:
    def asked(name: str) -> list[int]:
        rows = sorted(runs[name].rows, key=lambda row: row["scheduled_ns"])
        return [int(row["prompt_id"].removeprefix("q")) for row in rows]

    lines = QUESTIONS.count("\n")
    assert asked("shared") == [k % lines for k in range(60)]
    own = asked("own")
    begins_anew = [k for k in range(1, 60) if own[k] != (own[k - 1] + 1) % lines]
    # It may end where its prompts would begin anew by themselves.
    assert len(begins_anew) <= 1
    first = begins_anew[0] if begins_anew else lines
    assert own[first : first + 3] == [0, 1, 2]
    manifest = runs["own"].json("manifest.json")
    assert manifest["warmup_s"] == 1.0


BAD = {
    "a wrong key": ("user: 3\n", "mix.yaml:1:1: ", "users"),
    "a negative weight": ("classes:\n  a: {weight: -1}\n", "mix.yaml:2:15: ", "-1"),
    "a missing file": ("classes:\n  a: {dataset: nowhere.jsonl}\n", "mix.yaml:2:16: ", "nowhere.jsonl"),
    "a limit on no metric": ("classes:\n  a: {slo: {tfft: 3s}}\n", "mix.yaml:2:13: ", "ttft"),
    "a rate beside the run's": (
        "request_rate: 5\nclasses:\n  a: {rate: 3}\n",
        "mix.yaml:1:1: ",
        "give one",
    ),
    "no arrival process": ("arrival: sometimes\n", "mix.yaml:1:10: ", "poisson"),
    "a think time": ("conversation: {turns: 3, think_time: 'soon:3s'}\n", "mix.yaml:1:38: ", "soon"),
    "a line of the dataset": ("dataset: broken.jsonl\n", "broken.jsonl:1: ", "expected"),
    "a tokenizer": ("tokenizer: questions.jsonl\n", "questions.jsonl", "tokenizer.json"),
}


def test_what_is_wrong_is_said_in_one_line_with_its_place_and_nothing_is_sent(tmp_path: Path) -> None:
    def refused(name: str) -> Any:
        def attempt(folder: Path) -> Run:
            (folder / "broken.jsonl").write_text("{\n")
            return run(folder, BAD[name][0])

        return attempt

    found = in_parallel(tmp_path, {name.replace(" ", "-").replace("'", ""): refused(name) for name in BAD})
    for (text, place, allowed), outcome in zip(BAD.values(), found.values(), strict=True):
        lines = [line for line in outcome.stderr.splitlines() if "error" in line.lower()]
        assert outcome.code == 2, (text, outcome.stderr)
        assert len(lines) == 1, (text, outcome.stderr)
        assert place in lines[0], (text, lines)
        assert allowed in lines[0], (text, lines)
        assert "Traceback" not in outcome.stderr
        assert outcome.entries == []


def test_a_scenario_with_classes_needs_a_user_that_sends_them(tmp_path: Path) -> None:
    refused = run(tmp_path, MIX, locustfile=ROOT / "locustfiles/chat.py")
    assert refused.code == 2
    assert "requires a ScenarioUser" in refused.stderr
    assert refused.entries == []
