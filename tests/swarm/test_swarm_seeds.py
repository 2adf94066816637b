"""One seed and as many workers: the same requests, worker by worker and user by user."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from swarm_process import Result, forked, in_parallel, locust, simulation, swarm

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
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sequences]:
    return in_parallel(
        tmp_path_factory.mktemp("seeds"),
        {"first": _apart, "second": _forked("11", *forked(3)), "other": _forked("12")},
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
    common = first.keys() & other.keys()  # the users of one worker
    assert len(common) >= 2
    assert not any(first[key][:4] == other[key][:4] for key in common)


def test_no_two_users_of_a_run_draw_alike(runs: dict[str, Sequences]) -> None:
    firsts = [tuple(lengths[:4]) for lengths in runs["first"].values()]
    assert len(firsts) == USERS
    assert len(set(firsts)) == USERS
