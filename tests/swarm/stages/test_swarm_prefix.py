"""A whole prefix-cache experiment over two replicas, and one through a gateway that empties no cache."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from swarm_process import LOCUSTFILES, Result, locust, simulation

from llm_locust.core.exit_codes import EXIT_INVALID

LENGTH, PREFIXES = 256, 3
SHORT = (
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
    words = ["-H", url, *SHORT, "--sweep", SWEEP, "--stage-time", "2s", "-t", "170s", *options]
    with locust(folder, *words, locustfile=LOCUSTFILES / "open_loop.py") as process:
        code = process.exit_code()
    result = Result.read(folder / "run")
    result.summary["code"], result.summary["log"] = code, process.stderr
    return result


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("experiments")
    with simulation(folder, "--replicas", "2", "--replica-ports", "0", "--prefix-cache", "on") as simulated:
        urls = ",".join(simulated.replicas)
        whole = experiment(folder / "whole", simulated.url, "--replica-url", urls)
        truth = simulated.entries()
        return {"whole": whole, "truth": truth, "gateway": experiment(folder / "gateway", simulated.url)}


def stages(result: Result) -> list[dict[str, Any]]:
    return list(result.summary["stages"])


def test_the_achieved_hits_are_those_of_the_servers_log_and_all_that_is_possible(
    runs: dict[str, Any],
) -> None:
    of_id = {entry["request_id"]: entry for entry in runs["truth"]}
    ids, number = runs["whole"].requests.texts("request_id"), runs["whole"].requests.floats("stage")
    tokens = {0: 0, 1: 128, 2: 208}
    found = defaultdict(set)
    for request_id, stage in zip(ids, number.tolist(), strict=True):
        found[stage].add(of_id[request_id]["cached_tokens"])
    assert found == {stage: {cached} for stage, cached in tokens.items()}
    for stage in stages(runs["whole"]):
        prefix = stage["prefix"]
        assert prefix["tokens"] == tokens[stage["number"]]
        assert prefix["achieved"] == pytest.approx(prefix["possible"])
        assert (prefix["source"], prefix["is_other"], prefix["replicas"]) == ("usage", False, 2)
        assert prefix["primed"] == (2 * PREFIXES if prefix["tokens"] else 0)


def test_what_primes_is_outside_every_record_and_every_replica_has_it_once(runs: dict[str, Any]) -> None:
    ours = set(runs["whole"].requests.texts("request_id"))
    begun = [stage.begun_ns for stage in runs["whole"].manifest.stages]
    assert runs["whole"].manifest.complete
    for stage in runs["whole"].manifest.stages:
        assert [(c.before, c.after, c.fault) for c in stage.caches] == [(0, 0, "")] * 2
        assert all(cache.again for cache in stage.caches)
        assert all(cache.queries and cache.hits is not None for cache in stage.caches)
    primers = [e for e in runs["truth"] if e["request_id"] not in ours and e["output_tokens"] == 1]
    between = [each["replica"] for each in primers if begun[0] < each["received_ns"] < begun[-1]]
    # Between the first stage's begin and the last one's: three looks and the prefixes, twice.
    assert Counter(between) == dict.fromkeys(("replica-0", "replica-1"), 2 * (3 + PREFIXES))


def test_a_gateway_that_empties_no_cache_is_named_and_gives_no_result(runs: dict[str, Any]) -> None:
    result = runs["gateway"]
    assert [stage["is_result"] for stage in stages(result)] == [False] * 3
    for stage in stages(result):
        (reason,) = stage["reasons"]
        assert "its prefix cache was not emptied: /flush_cache: 404" in reason
        assert "--replica-url" in reason
    assert len(result.requests) == 0
    assert result.summary["code"] == EXIT_INVALID
