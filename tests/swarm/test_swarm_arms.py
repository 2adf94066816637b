"""A run with three arms whose level doubles midway: what differs between them is found, and nothing else."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from swarm_process import LOCUSTFILES, Result, forked, locust, simulation

from llm_locust.metrics.summary_types.summary import read_summary

#: Requests each 16 ms, with 8 input tokens in the first half of the run and 400 in the second.
REQUESTS, GAP_S = 900, 0.016


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, Path]:
    folder = tmp_path_factory.mktemp("arms")
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for i in range(REQUESTS):
        at_s, tokens = i * GAP_S, 8 if 2 * i < REQUESTS else 400
        lines.append(f"2024-01-01 00:{int(at_s // 60):02d}:{at_s % 60:09.6f},{tokens},2")
    trace = folder / "trace.csv"
    trace.write_text("\n".join(lines) + "\n")
    cost = ("--prefill-per-token", "75us")  # 30 ms more for each request of the second half
    with (
        simulation(folder / "a", "--ttft-base", "30ms", *cost) as straight,
        simulation(folder / "b", "--ttft-base", "60ms", *cost) as gateway,
    ):
        arms = [
            *("--arm", f"straight={straight.url}", "--arm", f"gateway={gateway.url}"),
            *("--arm", f"again={straight.url}/v1 share=0.5"),
        ]
        options = [
            *(*arms, "--arrival", f"trace:{trace}", "--seed", "5", "--headless", "--out", "run"),
            *("--gate", "p50_ttft<10s error_rate<=0%", "--canary", "on", *forked(2)),
        ]
        with locust(folder, *options, locustfile=LOCUSTFILES / "replay.py") as process:
            code = process.exit_code()
            said = process.stderr
    return code, said, folder / "run"


def summary(run: tuple[int, str, Path]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run[2] / "summary.json").read_bytes())
    return found


def test_every_request_has_an_arm_and_arms_have_their_share(run: tuple[int, str, Path]) -> None:
    assert run[0] == 0, run[1]
    rows = [*Result.read(run[2]).rows().values()]
    counts = {name: sum(row["arm"] == name for row in rows) for name in ("straight", "gateway", "again")}
    assert sum(counts.values()) == len(rows) == REQUESTS
    assert counts["straight"] == pytest.approx(360, abs=75)  # 5 standard deviations
    assert counts["again"] == pytest.approx(180, abs=60)
    assert {row["outcome"] for row in rows} == {"ok"}


def test_the_known_difference_is_in_its_interval_and_equal_arms_differ_in_nothing(
    run: tuple[int, str, Path],
) -> None:
    first, gateway, again = summary(run)["arms"]
    assert first["figures"]["latency_ms"]["ttft"]["max"] > first["figures"]["latency_ms"]["ttft"]["min"] + 25
    rows = {row["metric"]: row for row in gateway["against"]["rows"]}
    low, high = rows["mean_ttft"]["difference_interval"]
    # Of 95 %: twice as wide it misses the truth once in ten thousand runs.
    assert abs((low + high) / 2 - 30) < high - low
    assert rows["mean_ttft"]["verdict"] == "worse"
    assert {row["verdict"] for row in again["against"]["rows"]} <= {
        "no difference beyond noise",
        "too few samples",
    }


def test_every_arm_is_asked_before_the_load_and_judged_by_every_gate(run: tuple[int, str, Path]) -> None:
    manifest = json.loads((run[2] / "manifest.json").read_bytes())
    assert [arm["name"] for arm in manifest["arms"]] == ["straight", "gateway", "again"]
    assert [canary["target"] for canary in manifest["canaries"]] == [arm["url"] for arm in manifest["arms"]]
    gates = [gate["arm"] for gate in summary(run)["gates"]]
    assert gates == [name for name in ("straight", "gateway", "again") for _ in range(2)]


def test_all_reports_have_the_arms_and_none_has_figures_over_all_of_them(run: tuple[int, str, Path]) -> None:
    text = (run[2] / "report.md").read_text()
    assert "gateway is worse than straight: " in text
    assert "## Latency" not in text
    page = (run[2] / "report.html").read_text()
    assert 'id="arms"' in page
    lines = [*csv.DictReader((run[2] / "arms.csv").read_text().splitlines())]
    assert {line["new_arm"] for line in lines} == {"gateway", "again"}
    assert read_summary((run[2] / "summary.json").read_bytes()).is_of_parts
