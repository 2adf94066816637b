"""A run with four arms whose level rises midway: what differs between them is found, and nothing else."""

import csv
import json
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import pytest
from swarm_process import LOCUSTFILES, Result, forked, locust, simulation

from llm_locust.figures.summary import read_summary

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
