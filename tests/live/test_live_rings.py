"""Cells of the recent past and of the whole: nothing lost that should be there, and never too many."""

import operator

from hypothesis import given, strategies as st

from llm_locust.live.counts import Ring

times = st.lists(st.floats(0, 5000), max_size=60)
EVER = (float("-inf"), float("inf"))


def recent(most: int = 5) -> Ring[int]:
    return Ring(2.0, most, operator.add)


def whole(most: int = 8) -> Ring[int]:
    return Ring(2.0, most, operator.add, whole=True)


def test_values_of_one_cell_are_merged() -> None:
    ring = recent()
    for at_s in (4.0, 5.9, 6.0):
        ring.add(at_s, 1)
    assert list(ring.cells(*EVER)) == [(4.0, 2), (6.0, 1)]


def test_the_oldest_cells_go_as_time_passes() -> None:
    ring = recent(most=3)
    for at_s in (0.0, 2.0, 4.0, 6.0):
        ring.add(at_s, 1)
    assert [at for at, _ in ring.cells(*EVER)] == [2.0, 4.0, 6.0]
    ring.add(100.0, 1)
    assert [at for at, _ in ring.cells(*EVER)] == [100.0]


def test_what_comes_too_late_is_left_out_and_what_comes_late_is_not() -> None:
    ring = recent(most=3)
    ring.add(10.0, 1)
    ring.add(6.0, 1)
    ring.add(4.0, 1)
    assert [at for at, _ in ring.cells(*EVER)] == [6.0, 10.0]


def test_only_cells_that_lie_between_are_given() -> None:
    ring = recent()
    for at_s in (0.0, 2.0, 4.0):
        ring.add(at_s, 1)
    assert [at for at, _ in ring.cells(1.0, 6.0)] == [2.0, 4.0]
    assert [at for at, _ in ring.cells(0.0, 5.9)] == [0.0, 2.0]


@given(times)
def test_a_ring_of_the_whole_keeps_every_value_in_few_cells(at: list[float]) -> None:
    ring = whole()
    for at_s in at:
        ring.add(at_s, 1)
    cells = list(ring.cells(*EVER))
    assert sum(value for _, value in cells) == len(at)
    assert len(ring) == len(cells) <= 8
    for begin_s, value in cells:
        assert value == sum(begin_s <= at_s < begin_s + ring.width_s for at_s in at)


@given(times)
def test_a_ring_of_the_recent_past_has_all_that_is_recent(at: list[float]) -> None:
    ring = recent()
    for at_s in sorted(at):
        ring.add(at_s, 1)
    newest = max((at_s // 2 for at_s in at), default=0)
    assert len(ring) <= 5
    assert sum(v for _, v in ring.cells(*EVER)) == sum(at_s // 2 > newest - 5 for at_s in at)
