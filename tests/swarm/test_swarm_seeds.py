"""One seed and as many workers: the same requests, worker by worker and user by user."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from swarm_process import Result, in_parallel, simulation, swarm

USERS = 7  # not a multiple of the workers: their number of users differs
OPTIONS = (
    *("--headless", "-u", str(USERS), "-r", "100", "-t", "3s", "--out", "run", "--stop-timeout", "10"),
    *(
        "--input-tokens",
        "uniform:10,400",
        "--output-tokens",
        "uniform:4,40",
        "--body",
        '{"ignore_eos": true}',
    ),
)

Sequences = dict[tuple[int, int], list[tuple[int, int]]]


def _drawn(folder: Path, seed: int) -> Sequences:
    """The lengths that each user of each worker asked for, in order, by (worker's index, user)."""
    with (
        simulation(folder) as sim,
        swarm(folder, 3, *OPTIONS, "--seed", str(seed), "-H", sim.url) as (master, _),
    ):
        assert master.exit_code() == 0
    result = Result.read(folder / "run")
    index = {worker.id: worker.index for worker in result.manifest.workers}
    drawn: Sequences = defaultdict(list)
    row: dict[str, Any]
    for row in result.requests.table.sort_by("scheduled_ns").to_pylist():
        lengths = (row["asked_input_tokens"], row["asked_output_tokens"])
        drawn[index[row["worker"]], row["user"]].append(lengths)
    return dict(drawn)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sequences]:
    return in_parallel(
        tmp_path_factory.mktemp("seeds"),
        {
            "first": lambda folder: _drawn(folder, 11),
            "second": lambda folder: _drawn(folder, 11),
            "other": lambda folder: _drawn(folder, 12),
        },
    )


def test_two_runs_of_one_seed_ask_for_the_same(runs: dict[str, Sequences]) -> None:
    first, second = runs["first"], runs["second"]
    assert first.keys() == second.keys()
    for key, lengths in first.items():
        n = min(len(lengths), len(second[key]))  # a closed loop: how many there are depends on the server
        assert n > 3
        assert lengths[:n] == second[key][:n]


def test_another_seed_asks_for_something_else(runs: dict[str, Sequences]) -> None:
    first, other = runs["first"], runs["other"]
    assert not any(first[key][:4] == other[key][:4] for key in first)


def test_no_two_users_of_a_run_draw_alike(runs: dict[str, Sequences]) -> None:
    firsts = [tuple(lengths[:4]) for lengths in runs["first"].values()]
    assert len(firsts) == USERS
    assert len(set(firsts)) == USERS
