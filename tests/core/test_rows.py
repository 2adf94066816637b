"""Records as columns without Arrow are those of a batch of the same records."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from record_strategies import record, records

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import ColumnSource, RecordBatch, RecordRows
from llm_locust.core.record import MOMENTS, RequestRecord

many = st.lists(records(), max_size=3)  # drawing a record takes a millisecond or two

READERS: dict[str, Callable[[ColumnSource, str], Any]] = {
    "floats": lambda source, name: source.floats(name),
    "bools": lambda source, name: source.bools(name),
    "labels": lambda source, name: (source.labels(name).codes, source.labels(name).names),
    "texts": lambda source, name: source.texts(name),
}


def readers_of(field: pa.Field) -> list[str]:
    """The ways in which a column may be read."""
    if pa.types.is_dictionary(field.type):
        return ["labels", "texts"]
    if pa.types.is_string(field.type):
        return ["texts"]
    return {"bool": ["bools"], "list": []}.get(str(field.type)[:4], ["floats"])


@given(many)
def test_every_column_is_that_of_a_batch(made: list[RequestRecord]) -> None:
    rows, batch = RecordRows(made, "w1"), RecordBatch.from_records(made, "w1")
    assert len(rows) == len(batch)
    for field in SCHEMA:
        for reader in readers_of(field):
            read = READERS[reader]
            np.testing.assert_equal(read(rows, field.name), read(batch, field.name), field.name)


@given(many, st.integers(0, 2**62))
def test_moments_are_those_of_a_batch_to_the_last_bit(made: list[RequestRecord], origin_ns: int) -> None:
    rows, batch = RecordRows(made, "w1"), RecordBatch.from_records(made, "w1")
    for name in MOMENTS:
        np.testing.assert_array_equal(rows.seconds(name, origin_ns), batch.seconds(name, origin_ns))


@given(many)
def test_lists_are_those_of_a_batch(made: list[RequestRecord]) -> None:
    rows, batch = RecordRows(made, "w1"), RecordBatch.from_records(made, "w1")
    own, theirs = rows.arrivals(), batch.arrivals()
    assert own.offsets.tolist() == theirs.offsets.tolist()
    assert own.values.tolist() == theirs.values.tolist()


@pytest.mark.parametrize("source", [RecordRows, RecordBatch.from_records])
def test_integers_with_a_hole_are_refused(source: Callable[..., ColumnSource]) -> None:
    columns = source([replace(record(4), turn=3), record(5)], "w1")
    assert columns.ints("reads").tolist() == [4, 5]
    with pytest.raises(ValueError, match="column 'turn' has 1 nulls"):
        columns.ints("turn")
