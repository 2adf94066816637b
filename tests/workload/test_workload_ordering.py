"""Which worker sends which line of a dataset, and when."""

from collections import Counter
from itertools import islice

from hypothesis import given, strategies as st

from llm_locust.workload.draws import sequential, shuffled, weighted

sizes = st.tuples(st.integers(1, 60), st.integers(1, 12))


def epoch_share(lines: int, worker: int, workers: int) -> int:
    return len(range(worker % lines, lines, workers))


def test_sequential_is_every_wth_line_over_and_over() -> None:
    assert list(islice(sequential(5, 1, 2), 5)) == [1, 3, 1, 3, 1]


@given(sizes, st.integers(0, 99), st.integers(0, 3))
def test_in_each_epoch_of_a_shuffle_the_workers_have_all_lines_and_none_twice(
    size: tuple[int, int], seed: int, epoch: int
) -> None:
    lines, workers = size
    taken = []
    for worker in range(min(workers, lines)):
        n = epoch_share(lines, worker, workers)
        taken += list(islice(shuffled(lines, worker, workers, seed), epoch * n, (epoch + 1) * n))
    assert sorted(taken) == list(range(lines))


def test_a_shuffle_is_the_seeds_and_every_epoch_has_another() -> None:
    def epochs(seed: int) -> list[list[int]]:
        stream = shuffled(50, 0, 1, seed)
        return [list(islice(stream, 50)) for _ in range(3)]

    assert epochs(1) == epochs(1)
    assert epochs(1) != epochs(2)
    assert len({tuple(epoch) for epoch in [*epochs(1), range(50)]}) == 4


def test_more_workers_than_lines_still_have_one_each() -> None:
    assert next(sequential(2, 5, 8)) == 1
    assert {next(shuffled(2, worker, 8, 1)) for worker in range(8)} == {0, 1}


def test_weighted_lines_come_as_often_as_their_weights_say_from_every_worker() -> None:
    weights = (1.0, 2.0, 0.5, 6.5)
    for worker in range(2):
        drawn = Counter(islice(weighted(weights, worker, 7), 20_000))
        for line, weight in enumerate(weights):
            assert abs(drawn[line] / 20_000 - weight / 10) < 0.015


def test_weighted_draws_are_the_seeds_and_the_workers_own() -> None:
    weights = [1.0] * 100

    def first(worker: int, seed: int) -> list[int]:
        return list(islice(weighted(weights, worker, seed), 100))

    assert first(0, 1) == first(0, 1)
    assert first(0, 1) != first(1, 1)
    assert first(0, 1) != first(0, 2)
