"""Whole sweeps: of loads, and of a prefix cache's share over two replicas."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from swarm_process import LOCUSTFILES, Result, forked, in_parallel, locust, simulation

from llm_locust.core import EXIT_INVALID
from llm_locust.core.manifest import StageFacts

# --- A whole sweep: several loads in one run, whose workers stay


SHORT = ("--input-tokens", "16", "--output-tokens", "12", "--headless", "--warmup", "0.5s", "--out", "run")


def swept(folder: Path, url: str, sweep: str, locustfile: str, workers: int) -> Result:
    words = ["-H", url, *SHORT, "--sweep", sweep, "--stage-time", "1s", "-r", "100", "-t", "170s"]
    topology = forked(workers) if workers > 1 else []
    with locust(folder, *words, *topology, locustfile=LOCUSTFILES / locustfile) as process:
        code = process.exit_code()
        assert "Stage" in process.stdout, "the table of stages"
    result = Result.read(folder / "run")
    only_client = [s["client"] == "invalid" and len(s["reasons"]) == 1 for s in result.summary["stages"]]
    results = [s["is_result"] for s in result.summary["stages"]] + only_client
    assert code == (0 if any(results) else EXIT_INVALID), process.stderr
    return result


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    folder = tmp_path_factory.mktemp("sweeps")
    with simulation(folder) as simulated:
        return in_parallel(
            folder,
            {
                "users": lambda at: swept(at, simulated.url, "users=2,5,1", "chat.py", 2),
                "rate": lambda at: swept(at, simulated.url, "rate=10,30", "open_loop.py", 1),
            },
        )


def stages(result: Result) -> list[StageFacts]:
    return result.manifest.stages


def test_every_load_is_applied_and_confirmed(runs: dict[str, Result]) -> None:
    assert [(s.kind, s.asked) for s in stages(runs["users"])] == [("users", 2), ("users", 5), ("users", 1)]
    assert [(s.kind, s.asked) for s in stages(runs["rate"])] == [("rate", 10), ("rate", 30)]
    for result in runs.values():
        assert [s.fault for s in stages(result)] == [""] * len(stages(result))
        assert result.manifest.stages_planned == len(stages(result))
        assert result.manifest.complete
        assert not result.manifest.stop_reason


def test_no_request_of_a_stage_is_in_flight_when_the_next_begins(runs: dict[str, Result]) -> None:
    for result in runs.values():
        stage = result.requests.floats("stage")
        ended_ns = result.requests.ints("ended_ns")
        for before, after in zip(stages(result)[:-1], stages(result)[1:], strict=True):
            assert before.drained_ns is not None
            assert before.drained_ns <= after.begun_ns
            assert (ended_ns[stage <= before.number] <= after.begun_ns).all()


def test_each_stage_has_its_requests_and_no_request_is_without_a_stage(runs: dict[str, Result]) -> None:
    for result in runs.values():
        stage = result.requests.floats("stage")
        assert not np.isnan(stage).any()
        assert set(Counter(stage.tolist())) == {float(s.number) for s in stages(result)}


def test_the_offered_load_is_what_was_asked(runs: dict[str, Result]) -> None:
    def found(name: str) -> list[dict[str, Any]]:
        return list(runs[name].summary["stages"])

    for stage in found("users"):  # a user is there to the end of its last request in the window
        assert 0 < stage["offered"] <= stage["asked"] + 1e-6
    users = runs["users"].requests.floats("user"), runs["users"].requests.floats("stage")
    workers = runs["users"].requests.labels("worker").codes
    for number, asked in enumerate((2, 5, 1)):
        rows = users[1] == number
        assert len(set(zip(workers[rows].tolist(), users[0][rows].tolist(), strict=True))) == asked
    for stage in found("rate"):  # beyond 5 standard deviations of a Poisson process
        assert abs(stage["offered"] - stage["asked"]) < 5 * stage["asked"] ** 0.5, found("rate")


def test_the_same_workers_take_part_in_all_stages(runs: dict[str, Result]) -> None:
    assert [w.late or w.lost for w in runs["users"].manifest.workers] == [False, False]
    assert runs["users"].summary["run"]["is_sweep"]


# --- A whole prefix-cache experiment over two replicas, and one through a gateway that empties no cache


LENGTH, PREFIXES = 256, 3
PREFIX_SHORT = (
    "--input-tokens",
    f"{LENGTH}",
    "--output-tokens",
    "4",
    "--headless",
    "--warmup",
    "0.5s",
    "--out",
    "run",
)
SWEEP = f"rate=8 prefix-share=0%,50%,80% prefixes={PREFIXES}"


def experiment(folder: Path, url: str, *options: str) -> Result:
    folder.mkdir()
    words = ["-H", url, *PREFIX_SHORT, "--sweep", SWEEP, "--stage-time", "2s", "-t", "170s", *options]
    with locust(folder, *words, locustfile=LOCUSTFILES / "open_loop.py") as process:
        code = process.exit_code()
    result = Result.read(folder / "run")
    result.summary["code"], result.summary["log"] = code, process.stderr
    return result


@pytest.fixture(scope="module")
def prefix_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("experiments")
    with simulation(folder, "--replicas", "2", "--replica-ports", "0", "--prefix-cache", "on") as simulated:
        urls = ",".join(simulated.replicas)
        whole = experiment(folder / "whole", simulated.url, "--replica-url", urls)
        truth = simulated.entries()
        return {"whole": whole, "truth": truth, "gateway": experiment(folder / "gateway", simulated.url)}


def prefix_stages(result: Result) -> list[dict[str, Any]]:
    return list(result.summary["stages"])


def test_the_achieved_hits_are_those_of_the_servers_log_and_all_that_is_possible(
    prefix_runs: dict[str, Any],
) -> None:
    of_id = {entry["request_id"]: entry for entry in prefix_runs["truth"]}
    ids, number = (
        prefix_runs["whole"].requests.texts("request_id"),
        prefix_runs["whole"].requests.floats("stage"),
    )
    tokens = {0: 0, 1: 128, 2: 208}
    found = defaultdict(set)
    for request_id, stage in zip(ids, number.tolist(), strict=True):
        found[stage].add(of_id[request_id]["cached_tokens"])
    assert found == {stage: {cached} for stage, cached in tokens.items()}
    for stage in prefix_stages(prefix_runs["whole"]):
        prefix = stage["prefix"]
        assert prefix["tokens"] == tokens[stage["number"]]
        assert prefix["achieved"] == pytest.approx(prefix["possible"])
        assert (prefix["source"], prefix["is_other"], prefix["replicas"]) == ("usage", False, 2)
        assert prefix["primed"] == (2 * PREFIXES if prefix["tokens"] else 0)


def test_what_primes_is_outside_every_record_and_every_replica_has_it_once(
    prefix_runs: dict[str, Any],
) -> None:
    ours = set(prefix_runs["whole"].requests.texts("request_id"))
    begun = [stage.begun_ns for stage in prefix_runs["whole"].manifest.stages]
    assert prefix_runs["whole"].manifest.complete
    for stage in prefix_runs["whole"].manifest.stages:
        assert [(c.before, c.after, c.fault) for c in stage.caches] == [(0, 0, "")] * 2
        assert all(cache.again for cache in stage.caches)
        assert all(cache.queries and cache.hits is not None for cache in stage.caches)
    primers = [e for e in prefix_runs["truth"] if e["request_id"] not in ours and e["output_tokens"] == 1]
    between = [each["replica"] for each in primers if begun[0] < each["received_ns"] < begun[-1]]
    # Between the first stage's begin and the last one's: three looks and the prefixes, twice.
    assert Counter(between) == dict.fromkeys(("replica-0", "replica-1"), 2 * (3 + PREFIXES))


def test_a_gateway_that_empties_no_cache_is_named_and_gives_no_result(prefix_runs: dict[str, Any]) -> None:
    result = prefix_runs["gateway"]
    assert [stage["is_result"] for stage in prefix_stages(result)] == [False] * 3
    for stage in prefix_stages(result):
        (reason,) = stage["reasons"]
        assert "its prefix cache was not emptied: /flush_cache: 404" in reason
        assert "--replica-url" in reason
    assert len(result.requests) == 0
    assert result.summary["code"] == EXIT_INVALID
