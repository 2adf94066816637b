"""Runs with arms, with separate pools, of one seed: what differs is found, and nothing else."""

import csv
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import pytest
from swarm_process import LOCUSTFILES, Result, forked, in_parallel, locust, simulation, swarm

from llm_locust.figures.summary import read_summary

# --- A run with four arms whose level rises midway: what differs between them is found, and nothing else


#: Requests each 16 ms. All of their prompts begin with one block of 512 tokens, 8 tokens of their own follow
#: in the first half of the run and 150 in the second.
REQUESTS, GAP_MS, BLOCK_TOKENS = 600, 16, 512

#: What a token costs that the prefix cache does not have.
TOKEN_MS = 0.04

KEY = "sk-of-the-arms-8d1f"

SCENARIO = """
host: {straight}
arms:
  warm: {{prefix: warm, header_env: {{Authorization: ARM_KEY}}}}
  cold: {{prefix: cold, header_env: {{authorization: ARM_KEY}}, url: "{straight}"}}
  gateway: {{prefix: warm, url: "{gateway}", headers: {{X-Team: {key}}}}}
  again:
    prefix: warm
    url: "{straight}/v1"
    share: 0.5
    header_env: {{Authorization: ARM_KEY}}
    body: {{temperature: 0}}
    path: /chat/completions
"""

Run = tuple[int, str, Path]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("arms")
    trace = folder / "trace.jsonl"
    with trace.open("w") as file:
        for i in range(REQUESTS):
            tokens = BLOCK_TOKENS + (8 if 2 * i < REQUESTS else 150)
            line = {"timestamp": i * GAP_MS, "input_length": tokens, "output_length": 2, "hash_ids": [1]}
            file.write(json.dumps(line) + "\n")
    cost = ("--prefill-per-token", f"{TOKEN_MS * 1000:g}us", "--prefix-cache", "on")
    with (
        simulation(folder / "a", "--ttft-base", "30ms", *cost, "--api-key", KEY) as straight,
        simulation(folder / "b", "--ttft-base", "60ms", *cost) as gateway,
    ):
        scenario = folder / "arms.yaml"
        scenario.write_text(SCENARIO.format(straight=straight.url, gateway=gateway.url, key=KEY))
        options = [
            *("--scenario", str(scenario), "--arrival", f"trace:{trace}", "--seed", "5", "--headless"),
            *("--gate", "p50_ttft<10s error_rate<=0%", "--canary", "on", "--out", "run", *forked(2)),
        ]
        environ = {"ARM_KEY": f"Bearer {KEY}"}
        with locust(folder, *options, locustfile=LOCUSTFILES / "replay.py", environ=environ) as process:
            code = process.exit_code()
            said = process.stderr
    return code, said, folder / "run"


def summary(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run[2] / "summary.json").read_bytes())
    return found


def rows(arm: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The figures of an arm against those of the first, by their names."""
    return {row["metric"]: row for row in arm["against"]["rows"]}


def known(row: dict[str, Any]) -> bool:
    """Whether a difference has an interval: on a busy machine requests wait together, and may be too few."""
    if row["difference_interval"] is None:
        assert row["verdict"] == "too few samples"
        return False
    return True


def recorded(run: Run) -> pd.DataFrame:
    """Every request with its time to the first token and the prompt tokens that were not in the cache."""
    frame = pd.read_parquet(run[2] / "requests.parquet").sort_values("scheduled_ns")
    return frame.assign(
        ttft_ms=[arrivals[0] / 1e6 for arrivals in frame["arrivals_ns"]],
        computed=frame["input_tokens"] - frame["cached_tokens"].fillna(0),
    )


def test_every_request_has_an_arm_and_arms_have_their_share(run: Run) -> None:
    assert run[0] == 0, run[1]
    sent = [*Result.read(run[2]).rows().values()]
    counts = {name: sum(row["arm"] == name for row in sent) for name in ("warm", "cold", "gateway", "again")}
    assert sum(counts.values()) == len(sent) == REQUESTS
    assert counts["warm"] == pytest.approx(171, abs=56)  # 5 standard deviations
    assert counts["again"] == pytest.approx(86, abs=44)
    assert {row["outcome"] for row in sent} == {"ok"}


def test_the_known_differences_are_in_their_intervals_and_equal_arms_differ_in_nothing(run: Run) -> None:
    _, cold, gateway, again = summary(run)["arms"]
    computed = recorded(run).groupby("arm")["computed"].mean()
    tokens = computed["cold"] - computed["warm"]
    assert tokens == pytest.approx(BLOCK_TOKENS, abs=60), "the cold arm finds nothing in the cache"
    truth_ms = tokens * TOKEN_MS
    for row in (rows(cold)["mean_ttft"], rows(cold)["p50_ttft"]):
        if known(row):
            low, high = row["difference_interval"]
            # Of 95 %: twice as wide it misses the truth once in ten thousand runs.
            assert abs((low + high) / 2 - truth_ms) < high - low, row["metric"]
            assert (row["verdict"] == "worse") == (low > 0)
    assert rows(gateway)["p50_ttft"]["difference"] > 0
    assert {row["verdict"] for row in again["against"]["rows"]} <= {
        "no difference beyond noise",
        "too few samples",
    }


def test_pandas_and_a_permutation_test_agree_with_the_intervals(run: Run) -> None:
    frame, rng = recorded(run), np.random.default_rng(1)
    stratum = np.arange(len(frame)) // 20  # labels change places within a third of a second: drift is in both
    for arm in summary(run)["arms"][1:]:
        row = rows(arm)["mean_ttft"]
        pair = frame["arm"].isin(["warm", arm["name"]]).to_numpy()
        value, new = frame["ttft_ms"].to_numpy()[pair], (frame["arm"] == arm["name"]).to_numpy()[pair]
        difference = value[new].mean() - value[~new].mean()
        assert row["difference"] == pytest.approx(difference, rel=1e-6, abs=1e-6)
        if not known(row):
            continue
        null = []
        for _ in range(500):
            order = np.lexsort((rng.random(len(value)), stratum[pair]))
            null.append(value[new[order]].mean() - value[~new[order]].mean())
        low, high = row["difference_interval"]
        p = (np.abs(null) >= abs(difference)).mean()
        assert p < 0.01 or low <= 0 <= high, arm["name"]  # else a busy machine made it wide
        error = (high - low) / 2 / NormalDist().inv_cdf((1 + arm["against"]["confidence"]) / 2)
        if arm["name"] == "again":  # shuffled labels are its law: it and the first arm are one
            assert 0.6 < error / np.std(null) < 2.5


def test_every_arm_is_asked_before_the_load_and_judged_by_every_gate(run: Run) -> None:
    manifest = json.loads((run[2] / "manifest.json").read_bytes())
    assert [arm["name"] for arm in manifest["arms"]] == ["warm", "cold", "gateway", "again"]
    assert [canary["target"] for canary in manifest["canaries"]] == [arm["url"] for arm in manifest["arms"]]
    assert manifest["arms"][3]["differs_in"] == [
        *("path /chat/completions", "prefix warm", "header authorization", "body field temperature")
    ]
    gates = [gate["arm"] for gate in summary(run)["gates"]]
    assert gates == [name for name in ("warm", "cold", "gateway", "again") for _ in range(2)]


def test_the_arms_headers_are_in_no_file(run: Run) -> None:
    for path in run[2].rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    assert KEY not in run[1]


def test_all_reports_have_the_arms_and_none_has_figures_over_all_of_them(run: Run) -> None:
    text = (run[2] / "report.md").read_text()
    assert "gateway against warm" in text
    assert "prefix cold" in text
    assert "## Latency" not in text
    page = (run[2] / "report.html").read_text()
    assert 'id="arms"' in page
    lines = [*csv.DictReader((run[2] / "arms.csv").read_text().splitlines())]
    assert {line["new_arm"] for line in lines} == {"cold", "gateway", "again"}
    assert read_summary((run[2] / "summary.json").read_bytes()).is_of_parts


# --- Runs against separate prefill and decode replicas whose transfer times are known, as processes


TRANSFER_MS = 60.0

#: Of the simulation, and of what it is told: ms.
BASE_MS, STEP_MS, PER_SEQUENCE_MS, PER_TOKEN_MS = 5.0, 5.0, 0.1, 0.05

#: So that prompts queue where a step is slow, instead of sharing it.
ONE_PROMPT_A_STEP = ("--max-num-batched-tokens", "256", "--max-num-seqs", "64")

USUAL = (
    *("--headless", "-u", "6", "-r", "100", "-t", "6s", "--out", "run", "--metrics-interval", "500ms"),
    *("--input-tokens", "200", "--output-tokens", "12", "--body", '{"ignore_eos": true}', "--warmup", "1s"),
    *("--gate", "kv_transfer_failures<5%"),
)


@dataclass(frozen=True, slots=True)
class Finished:
    code: int
    stdout: str
    result: Result
    truth: list[dict[str, Any]]

    @property
    def server(self) -> dict[str, Any]:
        found: dict[str, Any] = self.result.summary["server"]
        return found

    @property
    def pools(self) -> dict[str, dict[str, Any]]:
        return {pool["role"]: pool for pool in self.server["pools"]["by_role"]}

    @property
    def findings(self) -> dict[str, str]:
        return {each["kind"]: each["text"] for each in self.server["pools"]["findings"]}


def pools_run(asked: Callable[[list[str]], list[str]], *of_sim: str) -> Callable[[Path], Finished]:
    """A run against one prefill and two decode replicas; ``asked`` makes options of where they listen."""

    def finished(folder: Path) -> Finished:
        pools = ("--replicas", "3", "--prefill-replicas", "1", "--replica-ports", "0", "--noise", "0")
        known = ("--prefill-per-token", f"{PER_TOKEN_MS}ms", "--kv-transfer", f"{TRANSFER_MS}ms")
        with (
            simulation(folder / "sim", *pools, *known, *of_sim) as sim,
            locust(folder, *USUAL, *asked(list(sim.replicas)), "-H", sim.url) as process,
        ):
            code = process.exit_code()
            return Finished(code, process.stdout, Result.read(folder / "run"), sim.entries())

    return finished


def scraped(replicas: list[str]) -> list[str]:
    return [word for url in replicas for word in ("--metrics-url", f"{url}/metrics")]


def with_roles(replicas: list[str]) -> list[str]:
    prefill, *decodes = replicas
    named = ",".join([f"prefill={prefill}", *(f"decode={url}" for url in decodes)])
    return [*scraped(replicas), "--replica-url", named]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    scenarios = {
        "healthy": pools_run(scraped),
        "broken": pools_run(
            with_roles, *ONE_PROMPT_A_STEP, "--replica-speed", "0=10x", "--faults", "kv_transfer=40%"
        ),
    }
    return in_parallel(tmp_path_factory.mktemp("pools"), scenarios, at_once=2)


def test_a_healthy_deployment_has_its_true_transfer_time_and_nothing_is_wrong_with_it(
    runs: dict[str, Finished],
) -> None:
    found = runs["healthy"]
    decode = found.pools["decode"]
    assert found.code == 0
    assert decode["figures"]["kv_transfer_ms"]["mean"] == pytest.approx(TRANSFER_MS)
    assert decode["figures"]["kv_transfer_ms"]["p50_bounds"] == [50.0, 75.0]
    assert "mean 60.0 ms · p50 50.0 to 75.0 ms" in found.result.report()
    assert (found.pools["prefill"]["servers"], decode["servers"]) == (1, 2)
    assert "roles by its counts (3 servers)" in found.result.report()
    assert found.server["kv_transfer_failures"] == 0
    assert found.findings.keys() <= {"uneven"}  # shares of a few hundred requests are up to chance
    assert {cause["kind"] for cause in found.result.summary["fairness"]["causes"]} <= {"round_robin"}


def test_no_first_token_comes_before_the_closed_form_of_its_prefill_transfer_and_decode(
    runs: dict[str, Finished],
) -> None:
    found = runs["healthy"]
    inputs = {entry["request_id"]: entry["input_tokens"] for entry in found.truth if entry["complete"]}
    for request_id, row in found.result.rows().items():
        if row["outcome"] == "ok":
            least_ms = 2 * (BASE_MS + STEP_MS + PER_SEQUENCE_MS) + PER_TOKEN_MS * (inputs[request_id] + 1)
            assert row["arrivals_ns"][0] >= (least_ms + TRANSFER_MS) * 1e6
    parts = found.server["pools"]["ttft"]
    assert parts["same_requests"]
    assert parts["transfer_ms"] == pytest.approx(TRANSFER_MS)
    assert parts["prefill_ms"] >= BASE_MS + STEP_MS + PER_SEQUENCE_MS + PER_TOKEN_MS * 190
    assert parts["client_ms"] - parts["prefill_ms"] - parts["transfer_ms"] >= BASE_MS + STEP_MS


def test_failed_transfers_and_the_slow_prefill_are_named_and_the_gate_breaks(
    runs: dict[str, Finished],
) -> None:
    found = runs["broken"]
    asked = [entry for entry in found.truth if entry["prefill_replica"] and entry["complete"]]
    failed = sum(entry["fault"] == "kv_transfer" for entry in asked)
    assert found.code == 1
    assert found.result.summary["requests"]["failed"] == 0  # every answer is right: only the servers tell
    assert found.server["kv_transfer_failures"] == pytest.approx(failed / len(asked), abs=0.15)
    assert {"transfers_failed", "prefill_in_decode", "bottleneck"} <= found.findings.keys()
    assert found.findings["bottleneck"].startswith("prefill is the bottleneck")
    assert "roles by the options (3 servers)" in found.result.report()
    assert not {"missing_role", "silent", "no_role", "doubt"} & found.findings.keys()


# --- One seed and as many workers: the same requests, worker by worker and user by user


USERS = 7  # not a multiple of the workers: their number of users differs
OPTIONS = (
    *("--headless", "-u", str(USERS), "-r", "100", "--num-requests", "84", "--out", "run"),
    *("--input-tokens", "uniform:10,400", "--output-tokens", "uniform:4,40", "--stop-timeout", "10"),
    *("--body", '{"ignore_eos": true}'),
)

Sequences = dict[tuple[int, int], list[tuple[int, int]]]


def _drawn(folder: Path) -> Sequences:
    """The lengths that each user of each worker asked for, in order, by (worker's index, user)."""
    result = Result.read(folder / "run")
    index = {worker.id: worker.index for worker in result.manifest.workers}
    drawn: Sequences = defaultdict(list)
    row: dict[str, Any]
    for row in result.requests.table.sort_by("scheduled_ns").to_pylist():
        lengths = (row["asked_input_tokens"], row["asked_output_tokens"])
        drawn[index[row["worker"]], row["user"]].append(lengths)
    return dict(drawn)


def _apart(folder: Path) -> Sequences:
    with (
        simulation(folder) as sim,
        swarm(folder, 3, *OPTIONS, "--seed", "11", "-H", sim.url) as (master, _),
    ):
        assert master.exit_code() == 0
    return _drawn(folder)


def _forked(seed: str, *of: str) -> Callable[[Path], Sequences]:
    def run(folder: Path) -> Sequences:
        options = (*OPTIONS, "--seed", seed, *of)
        with simulation(folder) as sim, locust(folder, *options, "-H", sim.url) as master:
            assert master.exit_code() == 0
        return _drawn(folder)

    return run


@pytest.fixture(scope="module")
def seeds_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sequences]:
    return in_parallel(
        tmp_path_factory.mktemp("seeds"),
        {"first": _apart, "second": _forked("11", *forked(3)), "other": _forked("12")},
    )


def test_two_runs_of_one_seed_ask_for_the_same(seeds_runs: dict[str, Sequences]) -> None:
    first, second = seeds_runs["first"], seeds_runs["second"]
    assert first.keys() == second.keys()
    for key, lengths in first.items():
        n = min(len(lengths), len(second[key]))  # a closed loop: how many there are depends on the server
        assert n > 3
        assert lengths[:n] == second[key][:n]


def test_another_seed_asks_for_something_else(seeds_runs: dict[str, Sequences]) -> None:
    first, other = seeds_runs["first"], seeds_runs["other"]
    common = first.keys() & other.keys()  # the users of one worker
    assert len(common) >= 2
    assert not any(first[key][:4] == other[key][:4] for key in common)


def test_no_two_users_of_a_run_draw_alike(seeds_runs: dict[str, Sequences]) -> None:
    firsts = [tuple(lengths[:4]) for lengths in seeds_runs["first"].values()]
    assert len(firsts) == USERS
    assert len(set(firsts)) == USERS
