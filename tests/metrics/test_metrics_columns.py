"""Batches as numpy arrays, parts below each other, list columns taken apart."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import ORIGIN_NS, columns, failed, request

from llm_locust.core.batch import Labels, Ragged, RecordBatch
from llm_locust.core.record import Outcome, TokenSource
from llm_locust.metrics import columns as module
from llm_locust.metrics.columns import (
    OUTCOMES,
    SOURCES,
    Floats,
    Part,
    Whole,
    gather,
    groups,
    offsets_of,
    pieces,
)


def test_times_are_seconds_after_the_origin_and_unknown_ones_nan() -> None:
    c = columns(request(1.5, (0.25,), late=0.5), request(2.0, (), sent=False, outcome=Outcome.CONNECT_ERROR))
    assert c.scheduled_s.tolist() == [1.5, 2.0]
    assert c.sent_s[0] == 2.0
    assert np.isnan(c.sent_s[1])
    assert np.isnan(c.connected_s[1])
    assert c.first_event_s[0] == 0.25
    assert np.isnan(c.first_event_s[1])


def test_an_empty_batch_gives_empty_columns() -> None:
    c = Part.from_batch(RecordBatch.empty(), ORIGIN_NS)
    assert len(c) == 0
    assert c.events.tolist() == []
    assert c.last_event_s.tolist() == []
    assert list(groups(c.name)) == []


def test_every_outcome_has_its_code() -> None:
    c = columns(*(request(outcome=o) for o in Outcome))
    assert [OUTCOMES[code] for code in c.outcome] == list(Outcome)
    assert c.ok.tolist() == [o is Outcome.OK for o in Outcome]
    assert c.cancelled.tolist() == [o is Outcome.CANCELLED for o in Outcome]


def test_an_unknown_output_count_is_the_number_of_events_only_where_the_answer_was_streamed() -> None:
    c = columns(
        request(output_tokens=None),
        request(output_tokens=None, streamed=False, arrivals=(0.1,)),
        failed(),
        request(output_tokens=7),
    )
    np.testing.assert_array_equal(c.output_tokens, [3, np.nan, np.nan, 7])
    assert SOURCES[c.source[0]] is TokenSource.EVENTS
    assert SOURCES[c.source[3]] is TokenSource.USAGE


def test_a_step_of_the_clock_marks_its_request_in_both_directions() -> None:
    c = columns(*(request(clock_step_ns=step) for step in (None, 1_100_000, -5_000_000)))
    assert c.stepped.tolist() == [False, True, True]


def test_groups_are_sorted_and_leave_out_rows_without_a_text() -> None:
    c = columns(*(request(replica=r) for r in ("b", None, "a", "b")))
    assert [(name, rows.tolist()) for name, rows in groups(c.replica)] == [("a", [2]), ("b", [0, 3])]


@dataclass(frozen=True, slots=True)
class Some:
    values: Floats
    marks: dict[str, Floats]
    name: Labels
    origin_ns: int = 7


def some(values: list[float], codes: list[int], *names: str) -> Some:
    array = np.array(values)
    return Some(array, {"twice": 2 * array}, Labels(np.array(codes, np.int32), names))


def test_arrays_follow_each_other_and_what_is_alike_stays() -> None:
    whole = Whole(Some, 3)
    whole.add(some([1.0, 2.0], [0, 0], "a"), 2)
    whole.add(some([], []), 0)
    whole.add(some([3.0], [0], "a"), 1)
    value = whole.value()
    assert value.values.tolist() == [1, 2, 3]
    assert value.marks["twice"].tolist() == [2, 4, 6]
    assert value.origin_ns == 7


def test_texts_keep_their_meaning_where_parts_number_them_differently() -> None:
    whole = Whole(Some, 5)
    whole.add(some([0, 0], [0, -1], "a"), 2)
    whole.add(some([0, 0, 0], [0, 1, 2], "c", "a", "b"), 3)
    labels = whole.value().name
    assert [labels.names[code] if code >= 0 else None for code in labels.codes] == ["a", None, "c", "a", "b"]
    assert len(set(labels.names)) == len(labels.names)


def test_too_many_and_too_few_rows_are_errors() -> None:
    whole = Whole(Some, 1)
    with pytest.raises(ValueError, match="0 of the 1 requests"):
        whole.value()
    with pytest.raises(ValueError, match="more than the 1 requests"):
        whole.add(some([1.0, 2.0], [0, 0], "a"), 2)


@pytest.mark.parametrize("value", [3.0, float("nan")])
def test_columns_whose_values_are_all_alike_are_the_same_and_take_no_memory(
    monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    monkeypatch.setattr(module, "_LARGE", 4)
    whole = Whole(Some, 6)
    whole.add(some([value] * 3, [0, 0, 0], "a"), 3)
    whole.add(some([value] * 3, [0, 0, 0], "a"), 3)
    found = whole.value()
    for array, expected in ((found.values, value), (found.marks["twice"], 2 * value), (found.name.codes, 0)):
        assert np.array_equal(array, np.full(6, expected), equal_nan=True)
        assert array.strides == (0,)


def test_columns_that_differ_in_one_value_are_kept_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE", 4)
    nan = float("nan")
    for values in ([1.0, 1.0, 1.0, 2.0], [nan, nan, nan, 1.0], [1.0, nan, nan, nan]):
        whole = Whole(Some, 4)
        whole.add(some(values, [0, 0, 0, -1], "a"), 4)
        found = whole.value()
        assert np.array_equal(found.values, values, equal_nan=True)
        assert found.name.codes.tolist() == [0, 0, 0, -1]


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
