"""Runs against separate prefill and decode replicas whose transfer times are known, as processes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from swarm_process import Result, in_parallel, locust, simulation

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


def run(asked: Callable[[list[str]], list[str]], *of_sim: str) -> Callable[[Path], Finished]:
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
        "healthy": run(scraped),
        "broken": run(
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
