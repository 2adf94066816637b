import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from llm_locust.core.arrow import from_labels, from_lists, from_numpy, from_values, known_of, values_of

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.tuples(st.just(pa.int64()), st.lists(st.none() | INT64)),
    st.tuples(st.just(pa.int32()), st.lists(st.none() | st.integers(-(2**31), 2**31 - 1))),
    st.tuples(st.just(pa.int16()), st.lists(st.none() | st.integers(-(2**15), 2**15 - 1))),
    st.tuples(st.just(pa.bool_()), st.lists(st.none() | st.booleans())),
    st.tuples(st.just(pa.string()), st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"])))),
)


@given(VALUES)
def test_an_array_is_the_one_that_arrow_itself_makes(case: tuple[pa.DataType, list[object]]) -> None:
    type_, values = case
    made = from_values(values, type_)
    made.validate(full=True)
    assert made.equals(pa.array(values, type=type_))


@given(
    st.lists(
        st.none() | st.sampled_from(["", "chat", "é"]) | st.text(st.characters(exclude_categories=["Cs"]))
    )
)
def test_labels_are_those_of_arrow_s_own_encoding(texts: list[str | None]) -> None:
    made = from_labels(texts)
    made.validate(full=True)
    assert made.equals(pa.array(texts, type=pa.string()).dictionary_encode())


@given(VALUES, st.integers(0, 20), st.integers(0, 20))
def test_a_slice_is_read_as_arrow_reads_it(
    case: tuple[pa.DataType, list[object]], start: int, length: int
) -> None:
    type_, values = case
    if type_ == pa.string():
        return
    part = pa.array(values, type=type_).slice(min(start, len(values)), length)
    read, known = values_of(part), known_of(part)
    assert len(read) == len(part)
    told = (
        read.tolist()
        if known is None
        else [v if k else None for v, k in zip(read.tolist(), known, strict=True)]
    )
    assert told == part.to_pylist()


@given(st.lists(st.none() | st.lists(INT64, max_size=4)))
def test_lists_are_those_that_arrow_itself_makes(lists: list[list[int] | None]) -> None:
    type_ = pa.list_(pa.field("item", pa.int64(), nullable=False))
    made = from_lists([None if own is None else np.array(own, dtype=np.int64) for own in lists], type_)
    made.validate(full=True)
    assert made.equals(pa.array(lists, type=type_))


@given(st.lists(st.booleans()), st.lists(INT64))
def test_numpy_arrays_become_arrays_of_arrow(truths: list[bool], numbers: list[int]) -> None:
    assert from_numpy(np.array(truths, dtype=np.bool_)).to_pylist() == truths
    assert from_numpy(np.array(numbers, dtype=np.int64)).to_pylist() == numbers


@pytest.mark.parametrize(
    ("value", "type_"), [(1.5, pa.int64()), (2**63, pa.int64()), (2**15, pa.int16()), ("1", pa.int64())]
)
def test_a_value_that_does_not_fit_is_refused_not_rounded(value: object, type_: pa.DataType) -> None:
    with pytest.raises((OverflowError, TypeError)):
        from_values([value], type_)


def test_a_batch_is_made_sent_and_read_without_pandas() -> None:
    code = """if True:
        import sys
        from llm_locust.core.batch import RecordBatch
        RecordBatch.warm_up()
        assert "pandas" not in sys.modules
        import pyarrow; pyarrow.array([1])
        assert "pandas" in sys.modules, "pyarrow no longer imports it: arrow_columns may go"
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
