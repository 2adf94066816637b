"""Parts put below each other."""

from dataclasses import dataclass

import numpy as np
import pytest

from llm_locust.core.batch import Labels
from llm_locust.metrics import columns as module
from llm_locust.metrics.columns import Floats, Whole


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
