"""A whole sweep: several loads in one run, whose workers stay."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from swarm_process import LOCUSTFILES, Result, forked, in_parallel, locust, simulation

from llm_locust.core.exit_codes import EXIT_INVALID
from llm_locust.core.manifest import StageFacts

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
    rates = [s["offered"] for s in found("rate")]
    assert rates[1] > rates[0] > 0


def test_the_same_workers_take_part_in_all_stages(runs: dict[str, Result]) -> None:
    assert [w.late or w.lost for w in runs["users"].manifest.workers] == [False, False]
    assert runs["users"].summary["run"]["is_sweep"]
