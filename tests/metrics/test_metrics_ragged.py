"""List columns taken apart and put together."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from llm_locust.core.batch import Ragged
from llm_locust.metrics import columns as module
from llm_locust.metrics.columns import gather, offsets_of, pieces

lists = st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=1, max_size=10)


def column(values: list[list[int]]) -> Ragged:
    flat = np.array([v for row in values for v in row], dtype=np.int64)
    return Ragged(offsets_of(np.array([len(row) for row in values])), flat)


def as_lists(ragged: Ragged) -> list[list[int]]:
    return [ragged.values[a:b].tolist() for a, b in pairwise(ragged.offsets)]


@given(lists, st.data())
def test_gather_gives_the_rows_in_the_order_asked(values: list[list[int]], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=12))
    found = gather(column(values), np.array(rows, dtype=np.int64))
    assert as_lists(found) == [values[r] for r in rows]


def test_lists_that_follow_each_other_are_not_copied() -> None:
    whole = column([[9], [1, 2], [], [3, 4, 5], [6]])
    found = gather(whole, np.array([1, 3]))  # between them stands an empty one
    assert as_lists(found) == [[1, 2], [3, 4, 5]]
    assert np.shares_memory(found.values, whole.values)


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_pieces_are_all_rows_in_order_and_none_is_too_large(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE", limit)
    values = [[1, 2], [], [3, 4, 5, 6], [7], [8]]
    found = list(pieces(column(values), np.arange(5)))
    assert [row for rows, _ in found for row in rows.tolist()] == [0, 1, 2, 3, 4]
    assert [row for _, part in found for row in as_lists(part)] == values
    assert all(len(part.values) <= limit or len(rows) == 1 for rows, part in found)


def test_no_rows_have_no_pieces() -> None:
    assert list(pieces(column([[1]]), np.empty(0, np.int64))) == []
