"""Arrow columns, and streams of unknown origin: whole and valid, or refused with what is wrong."""

import io
import subprocess
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from llm_locust.core import arrow as stream_module
from llm_locust.core.arrow import (
    StreamError,
    from_labels,
    from_lists,
    from_numpy,
    from_values,
    known_of,
    read_stream,
    values_of,
    whole_batches,
)

INT64 = st.integers(-(2**63), 2**63 - 1)

VALUES = st.one_of(
    st.tuples(st.just(pa.int64()), st.lists(st.none() | INT64)),
    st.tuples(st.just(pa.int32()), st.lists(st.none() | st.integers(-(2**31), 2**31 - 1))),
    st.tuples(st.just(pa.int16()), st.lists(st.none() | st.integers(-(2**15), 2**15 - 1))),
    st.tuples(st.just(pa.bool_()), st.lists(st.none() | st.booleans())),
    st.tuples(st.just(pa.float64()), st.lists(st.none() | st.floats(allow_nan=False))),
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


TEXT = pa.dictionary(pa.int32(), pa.string())

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("name", TEXT, nullable=False),
        pa.field("times", pa.list_(pa.int64()), nullable=False),
        pa.field("status", pa.int16()),
    ]
)


def column(values: Any, type_: Any) -> Any:
    if type_ == TEXT:
        return pa.DictionaryArray.from_arrays(pa.array(range(len(values)), pa.int32()), pa.array(values))
    return pa.array(values, type_)


def stream(*columns: tuple[str, Any, Any], compression: str | None = None) -> bytes:
    """A stream of one batch, its columns nullable; of names, types and values."""
    arrays = [column(values, type_) for _, type_, values in columns]
    schema = pa.schema([pa.field(name, type_) for name, type_, _ in columns])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue())


COLUMNS = {
    "id": ("id", pa.string(), ["a", "b"]),
    "name": ("name", TEXT, ["x", "y"]),
    "times": ("times", pa.list_(pa.int64()), [[1, 2], []]),
    "status": ("status", pa.int16(), [200, None]),
}


def test_a_column_that_nobody_asked_for_may_have_any_type_and_nulls() -> None:
    table = read_stream(stream(*COLUMNS.values(), ("more", pa.float32(), [None, 1.5])), SCHEMA)
    assert table.column("times").to_pylist() == [[1, 2], []]
    assert table.column("more").to_pylist() == [None, 1.5]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ([COLUMNS["id"], COLUMNS["id"]], "a column appears twice"),
        ([("status", pa.int64(), [200])], "column 'status' is of type int64, not int16"),
        ([("id", pa.string(), ["a", None])], "column 'id' has 1 nulls, where none is allowed"),
        ([("name", TEXT, ["x", None])], "column 'name' has 1 nulls, where none is allowed"),
        ([("times", pa.list_(pa.int64()), [[1, None], [None]])], "column 'times' has 2 nulls"),
        ([("times", pa.list_(pa.int64()), [[1], None])], "column 'times' has 1 nulls"),
    ],
)
def test_a_column_of_another_form_is_refused_with_its_name(columns: list[Any], why: str) -> None:
    with pytest.raises(StreamError, match=why):
        read_stream(stream(*columns), SCHEMA)


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_any_spoiled_byte_is_an_error_that_says_so_or_a_valid_table(compression: str | None) -> None:
    data, said = stream(*COLUMNS.values(), compression=compression), set[str]()
    for at in range(len(data)):
        for byte in {0, 1, 0xFF} - {data[at]}:
            with suppress(StreamError):
                try:
                    table = read_stream(data[:at] + bytes([byte]) + data[at + 1 :], SCHEMA)
                except StreamError as e:
                    said.add(str(e).split(" ")[0])
                    raise
                table.validate(full=True)
    assert len(said) > 1


def test_of_a_file_that_was_cut_off_the_whole_batches_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([pa.field("n", pa.int64())])
    sink = io.BytesIO()
    ends = []
    with pa.ipc.new_stream(sink, schema) as writer:
        for rows in (1, 2, 3_000):
            writer.write_batch(pa.RecordBatch.from_arrays([pa.array(range(rows))], schema=schema))
            ends.append(sink.tell())
    data = sink.getvalue()

    def lengths(content: bytes) -> list[int]:
        return [len(each) for each in whole_batches(io.BytesIO(content))]

    assert lengths(data) == [1, 2, 3_000]
    assert lengths(data[: ends[1]]) == lengths(data[: ends[1] + 9]) == lengths(data[:-500]) == [1, 2]
    assert lengths(data[: ends[0] - 1]) == lengths(b"") == lengths(b"x" * 90) == []
    monkeypatch.setattr(stream_module, "MAX_UNPACKED_BYTES", 20_000)  # the last one has 24,000
    assert lengths(data) == [1, 2]
