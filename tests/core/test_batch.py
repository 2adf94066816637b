"""Records as columns: nothing is lost, nothing is made up; their stages, and streams of unknown origin."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from metrics_cases import batch, failed, manifest, ns, request, stage
from record_strategies import record, records

from llm_locust.core import batch as batch_module
from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import BatchError, ColumnSource, RecordBatch, RecordRows
from llm_locust.core.manifest import PrefixShare
from llm_locust.core.record import MAX_ARRIVALS, MAX_TEXT_CHARS, MOMENTS, LengthPair, RequestRecord, moved
from llm_locust.core.stages import finished, of_lengths, records_missing, resumed, staged, with_stages

many = st.lists(records(), max_size=3)  # drawing a record takes a millisecond or two


def as_values(made: RequestRecord) -> dict[str, Any]:
    """A record as a row of the table has it, but for the worker."""
    values = {field.name: getattr(made, field.name) for field in fields(made)}
    values["class"] = values.pop("slo_class")
    values["arrivals_ns"] = made.arrivals_ns.tolist()
    return values


def rows(batch: RecordBatch) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = batch.table.to_pylist()
    return kept


@given(records())
def test_every_field_of_a_record_has_its_column_and_comes_back(made: RequestRecord) -> None:
    (row,) = rows(RecordBatch.from_records([made], "w1"))
    assert row.pop("worker") == "w1"
    assert row == as_values(made)


@given(many)
def test_bytes_give_the_batch_back(made: list[RequestRecord]) -> None:
    batch = RecordBatch.from_records(made, "w1")
    back = RecordBatch.from_bytes(batch.to_bytes())
    assert rows(back) == rows(batch)
    assert back.table.schema.equals(SCHEMA)


@given(many, st.data())
def test_bytes_that_were_cut_or_spoiled_are_an_error_or_a_batch_and_nothing_else(
    made: list[RequestRecord], data: st.DataObject
) -> None:
    whole = RecordBatch.from_records(made, "w1").to_bytes()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with suppress(BatchError):
        assert len(RecordBatch.from_bytes(cut)) <= len(made)


def test_bytes_of_something_else_are_an_error_that_says_so() -> None:
    with pytest.raises(BatchError, match="not a whole Arrow stream"):
        RecordBatch.from_bytes(b"LLB1 and so on")


@given(many, many)
def test_concatenation_has_all_rows_in_order(first: list[RequestRecord], second: list[RequestRecord]) -> None:
    one, two = RecordBatch.from_records(first, "w1"), RecordBatch.from_records(second, "w2")
    both = RecordBatch.concat([one, RecordBatch.empty(), two])
    assert rows(both) == rows(one) + rows(two)
    assert both.arrivals().values.tolist() == [ns for r in first + second for ns in r.arrivals_ns.tolist()]


def test_nothing_concatenated_is_an_empty_batch() -> None:
    assert len(RecordBatch.concat([])) == 0
    assert RecordBatch.concat([]).arrivals().offsets.tolist() == [0]


@given(st.lists(records(), min_size=1, max_size=3), st.data())
def test_taken_rows_are_those_rows(made: list[RequestRecord], data: st.DataObject) -> None:
    batch = RecordBatch.from_records(made, "w1")
    places = data.draw(st.lists(st.integers(0, len(made) - 1), max_size=8))
    taken = batch.take(np.array(places, dtype=np.int64))
    assert rows(taken) == [rows(batch)[i] for i in places]
    ragged = taken.arrivals()
    assert np.diff(ragged.offsets).tolist() == [len(made[i].arrivals_ns) for i in places]
    assert ragged.values.tolist() == [ns for i in places for ns in made[i].arrivals_ns.tolist()]


@given(st.lists(st.tuples(records(), st.booleans()), max_size=3))
def test_filtered_rows_are_those_rows(made: list[tuple[RequestRecord, bool]]) -> None:
    batch = RecordBatch.from_records([r for r, _ in made], "w1")
    kept = batch.filter(np.array([keep for _, keep in made], dtype=np.bool_))
    assert rows(kept) == [row for row, (_, keep) in zip(rows(batch), made, strict=True) if keep]
    assert kept.arrivals().values.tolist() == [
        ns for r, keep in made if keep for ns in r.arrivals_ns.tolist()
    ]


@given(many)
def test_labels_are_the_texts_each_once_and_minus_one_is_null(made: list[RequestRecord]) -> None:
    labels = RecordBatch.from_records(made, "w1").labels("replica")
    assert [None if code < 0 else labels.names[code] for code in labels.codes] == [r.replica for r in made]
    assert len(set(labels.names)) == len(labels.names)


@given(many, many)
def test_labels_of_a_concatenation_share_one_list_of_names(
    first: list[RequestRecord], second: list[RequestRecord]
) -> None:
    both = RecordBatch.concat([RecordBatch.from_records(part, "w1") for part in (first, second)])
    labels = both.labels("name")
    assert [labels.names[code] for code in labels.codes] == [r.name for r in first + second]
    assert len(set(labels.names)) == len(labels.names)


@given(many, st.integers(-(2**61), 2**61))
def test_a_shift_moves_every_point_in_time_and_changes_nothing_else(
    made: list[RequestRecord], offset_ns: int
) -> None:
    batch = RecordBatch.from_records(made, "w1")
    shifted = batch.shifted(offset_ns)
    assert rows(shifted) == [
        {
            name: value + offset_ns if name in MOMENTS and value is not None else value
            for name, value in row.items()
        }
        for row in rows(batch)
    ]
    assert shifted.table.schema.equals(SCHEMA, check_metadata=True)
    assert rows(shifted.shifted(-offset_ns)) == rows(batch)
    assert rows(shifted) == rows(RecordBatch.from_records([moved(r, offset_ns) for r in made], "w1"))


def test_a_shift_by_nothing_is_the_batch_itself() -> None:
    batch = RecordBatch.from_records([record(1)], "w1")
    assert batch.shifted(0) is batch


def test_points_in_time_are_those_columns_that_are_not_after_another_one() -> None:
    after = {"arrivals_ns", "first_answer_ns", "client_lag_ns", "clock_step_ns", "rtt_ns", "blocked_ns"}
    after |= {"first_chunk_ns", "finish_ns", "last_chunk_ns", "end_lag_ns"}
    assert {name for name in SCHEMA.names if name.endswith("_ns")} - after == set(MOMENTS)


def test_columns_that_earlier_files_do_not_have_are_undefined_there() -> None:
    batch = RecordBatch.from_records([record(1), record(2)], "w1")
    later = ["session", "turn", "correct"]
    old = RecordBatch.from_table(batch.table.drop_columns(later))
    assert old.table.schema.equals(SCHEMA, check_metadata=True)
    assert all(row[name] is None for row in rows(old) for name in later)


def test_a_null_is_nan_in_floats_and_seconds_and_never_zero() -> None:
    made = [replace(record(1), status=None, sent_ns=None), replace(record(2), status=200, sent_ns=5)]
    batch = RecordBatch.from_records(made, "w1")
    assert math.isnan(batch.floats("status")[0])
    assert batch.floats("status")[1] == 200
    assert math.isnan(batch.seconds("sent_ns", 3)[0])
    assert batch.seconds("sent_ns", 3)[1] == pytest.approx(2e-9)


def test_a_column_with_a_null_has_no_integers() -> None:
    batch = RecordBatch.from_records([record(1)], "w1")
    with pytest.raises(ValueError, match="'status' has 1 nulls"):
        batch.ints("status")
    assert batch.ints("reads").tolist() == [1]


def test_seconds_keep_single_nanoseconds_of_todays_clock() -> None:
    now_ns = 1_795_000_000_123_456_789
    batch = RecordBatch.from_records([replace(record(1), scheduled_ns=now_ns + 1)], "w1")
    assert batch.seconds("scheduled_ns", now_ns)[0] == pytest.approx(1e-9, rel=1e-6)


@given(many)
def test_bools_and_texts_are_the_fields(made: list[RequestRecord]) -> None:
    batch = RecordBatch.from_records(made, "w1")
    assert batch.bools("streamed").tolist() == [r.streamed for r in made]
    assert batch.texts("error") == [r.error for r in made]
    assert batch.texts("outcome") == [r.outcome.value for r in made]


def test_a_table_in_another_order_with_more_columns_is_put_right() -> None:
    table = RecordBatch.from_records([record(7)], "w1").table
    mixed = table.select(table.column_names[::-1]).append_column("more", pa.array([1]))
    assert rows(RecordBatch.from_table(mixed)) == table.to_pylist()


def test_a_table_without_a_column_is_refused_with_its_name() -> None:
    table = RecordBatch.from_records([record(7)], "w1").table
    with pytest.raises(BatchError, match="columns are missing: worker, outcome"):
        RecordBatch.from_table(table.drop_columns(["outcome", "worker"]))


def test_a_table_that_has_a_column_twice_is_refused() -> None:
    table = RecordBatch.from_records([record(7)], "w1").table
    with pytest.raises(BatchError, match="exists 2 times"):
        RecordBatch.from_table(table.append_column("status", table.column("status")))


def test_a_table_with_a_column_of_another_type_is_refused() -> None:
    table = RecordBatch.from_records([record(7)], "w1").table
    place = table.column_names.index("status")
    wrong = table.set_column(place, "status", pa.array(["two hundred"]))
    with pytest.raises(BatchError, match="not of schema version 1"):
        RecordBatch.from_table(wrong)


def test_a_table_with_a_null_where_none_may_be_is_refused() -> None:
    table = RecordBatch.from_records([record(7)], "w1").table
    place = table.column_names.index("scheduled_ns")
    wrong = table.set_column(place, "scheduled_ns", pa.array([None], type=pa.int64()))
    with pytest.raises(BatchError):
        RecordBatch.from_table(wrong)


def test_a_column_may_be_null_exactly_where_a_records_field_may_be_none_or_older_files_lack_it() -> None:
    types = get_type_hints(RequestRecord)
    types = {"class": types["slo_class"], "worker": str, **types}
    older = SCHEMA.names[: SCHEMA.names.index("session")]
    assert {f.name for f in SCHEMA if f.nullable} == {
        name for name in SCHEMA.names if type(None) in get_args(types[name]) or name not in older
    }


def test_an_empty_batch_has_every_column() -> None:
    RecordBatch.warm_up()
    assert pa.default_memory_pool().backend_name == "system"
    assert RecordBatch.empty().table.schema.equals(SCHEMA)
    assert RecordBatch.empty().floats("status").tolist() == []
    assert RecordBatch.empty().labels("outcome").codes.tolist() == []


def test_the_parts_of_a_batch_are_all_its_rows_in_order_and_at_least_one_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = RecordBatch.from_records([record(seed) for seed in range(5)], "w1")
    assert [rows(part) for part in whole.parts()] == [rows(whole)]
    monkeypatch.setattr(batch_module, "PART_ROWS", 2)
    parts = [*whole.parts(["request_id", "arrivals_ns"])]
    assert [len(part) for part in parts] == [2, 2, 1]
    assert [row for part in parts for row in rows(part)] == whole.table.select(
        ["request_id", "arrivals_ns"]
    ).to_pylist()
    monkeypatch.setattr(batch_module, "PART_ROWS", 1)
    assert [len(part) for part in RecordBatch.empty().parts()] == [0]


@pytest.mark.parametrize("chunks", [0, 1, 2, 3])
def test_a_column_in_any_number_of_chunks_is_read_whole(chunks: int) -> None:
    each = [RecordBatch.from_records([replace(record(1), reads=n)], "w1").table for n in range(chunks)]
    table = (
        pa.concat_tables(each) if each else pa.table([pa.chunked_array([], f.type) for f in SCHEMA], SCHEMA)
    )
    assert table.column("reads").num_chunks == chunks
    assert RecordBatch(table).ints("reads").tolist() == [*range(chunks)]


@pytest.mark.parametrize(("size", "packed"), [(1_000_000, True), (2_000_000, False)])
def test_a_batch_is_compressed_unless_it_is_large(size: int, packed: bool) -> None:
    made = [replace(record(n), request_id="a" * 10_000) for n in range(size // 10_000)]
    batch = RecordBatch.from_records(made, "w1")
    assert (len(batch.to_bytes()) < size // 2) is packed


def test_lists_of_a_part_are_those_of_its_rows() -> None:
    made = [replace(record(seed), arrivals_ns=np.full(seed, seed)) for seed in range(4)]
    part = RecordBatch(RecordBatch.from_records(made, "w1").table.slice(2))
    found = part.arrivals()
    assert (found.offsets.tolist(), found.values.tolist()) == ([0, 2, 5], [2, 2, 3, 3, 3])


def test_a_request_with_more_values_than_any_answer_has_is_refused() -> None:
    most, more = (replace(record(1), arrivals_ns=np.zeros(MAX_ARRIVALS + n, np.int64)) for n in (0, 1))
    assert len(RecordBatch.from_bytes(RecordBatch.from_records([most], "w1").to_bytes())) == 1
    data = RecordBatch.from_records([more], "w1").to_bytes()
    with pytest.raises(
        BatchError, match=r"^a request has 200,001 values in arrivals_ns, at most 200,000 are"
    ):
        RecordBatch.from_bytes(data)


def test_long_texts_are_cut_off_and_each_is_there_once() -> None:
    long = "é" * (MAX_TEXT_CHARS + 5)
    made = [replace(record(1), name=long + end, request_id=long, error=None) for end in "ab"]
    batch = RecordBatch.from_records(made, "w1")
    assert batch.labels("name").names == (long[:MAX_TEXT_CHARS],)
    assert batch.texts("request_id") == [long[:MAX_TEXT_CHARS]] * 2
    assert batch.texts("error") == [None, None]
    assert RecordBatch.from_bytes(batch.to_bytes()).texts("name") == batch.texts("name")
    assert 3 * len(long.encode()) - 100 < batch.text_bytes < 4 * len(long.encode())


@pytest.mark.parametrize("column", ["name", "request_id"])
def test_a_text_that_no_client_writes_is_refused_with_its_column(column: str) -> None:
    """Four bytes a character is what the longest text of a record may take."""
    table = RecordBatch.from_records([record(7)], "w1").table
    place = table.column_names.index(column)
    for size, refused in ((4 * MAX_TEXT_CHARS, False), (4 * MAX_TEXT_CHARS + 1, True)):
        made = table.set_column(place, column, pa.array(["x" * size]))
        if refused:
            with pytest.raises(BatchError, match=f"{column} has a text of {size:,} bytes"):
                RecordBatch.from_table(made)
        else:
            assert len(RecordBatch.from_table(made)) == 1


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


STAGES = [stage(0, 1.5, 10.0), stage(1, 11.5, 20.0), stage(2, 21.5, 30.0)]  # their loads begin at 1, 11, 21 s


def stages_of(*at: float, late: float = 0.0, open_loop: bool = False) -> list[int | None]:
    made = batch(*(request(at=each, late=late) for each in at))
    table = with_stages(made, STAGES, open_loop).table
    assert table.schema.equals(SCHEMA, check_metadata=True)
    found: list[int | None] = table.column("stage").to_pylist()
    return found


def test_a_request_is_of_the_last_stage_that_had_begun() -> None:
    assert stages_of(0.5, 1.0, 10.5, 11.0, 25.0, 99.0) == [None, 0, 0, 1, 2, 2]


def test_a_clock_that_was_corrected_later_moves_no_request_to_the_stage_before() -> None:
    """The first stage drained at 10.25 s. A request of the second one may not have been sent before 11 s."""
    assert stages_of(0.8, 10.8, 20.8) == [0, 1, 2]
    assert stages_of(0.8, 10.8, 20.8, open_loop=True) == [0, 1, 2]
    assert stages_of(10.7) == [0], "half of the pause, at most 250 ms"


def test_steps_without_a_pause_are_split_where_they_meet() -> None:
    steps = [stage(0, 0.5, 10.0, drained_ns=None), stage(1, 10.5, 20.0, drained_ns=None)]
    made = batch(*(request(at=each) for each in (9.999, 10.0)))
    assert with_stages(made, steps, open_loop=True).table.column("stage").to_pylist() == [0, 1]


def test_a_request_that_waited_is_of_the_stage_it_was_sent_in_but_of_the_one_it_was_due_in_if_scheduled() -> (
    None
):
    assert stages_of(10.5, late=1.0) == [1]
    assert stages_of(10.5, late=1.0, open_loop=True) == [0]


def test_a_request_that_was_never_sent_counts_from_its_start() -> None:
    unsent = replace(failed(at=12.0), sent_ns=None, started_ns=ns(12.0))
    assert with_stages(batch(unsent), STAGES, open_loop=False).table.column("stage").to_pylist() == [1]


def test_a_stage_that_was_never_ended_reaches_to_the_next() -> None:
    died = stage(0, 1.5, 9.0, measured_ns=None, ended_ns=None, drained_ns=None)
    made = batch(*(request(at=each) for each in (10.7, 10.8)))
    assert with_stages(made, [died, STAGES[1]], False).table.column("stage").to_pylist() == [0, 1]


def test_the_order_in_which_a_manifest_lists_stages_changes_nothing() -> None:
    made = batch(request(at=5.0), request(at=15.0))
    assert with_stages(made, STAGES[::-1], False).table.equals(with_stages(made, STAGES, False).table)


def test_a_run_without_stages_keeps_its_batches() -> None:
    made = batch(request())
    assert list(staged([made], manifest())) == [made]
    assert list(staged([made], None)) == [made]
    (found,) = staged([made, RecordBatch.empty()][:1], manifest(stages=STAGES))
    assert found.table.column("stage").to_pylist() == [None]


def test_the_stage_that_a_resumed_run_repeats_is_no_result_and_all_others_are() -> None:
    under_way = replace(stage(1, 11.5, 20.0), drained_ns=None)
    again, last = stage(2, 21.5, 30.0), replace(stage(3, 31.5, 40.0), drained_ns=None)
    whole = resumed([[STAGES[0], under_way], [], [again], [last]])
    assert [each.repeated_as for each in whole] == [None, 2, None, None]
    assert (whole[1].measured_ns, whole[1].ended_ns) == (None, None)
    assert whole[1].fault == "the run ended while it was under way; stage 2 repeats it"
    assert finished(whole) == [STAGES[0], again, last]  # the last one of all may still be under way


def test_records_too_many_of_one_worker_make_up_for_none_of_another() -> None:
    one = batch(request(1.0), request(2.0), request(9.0), worker="w1")
    other = batch(request(1.0), worker="w2")
    both = RecordBatch.concat([one, other])
    assert records_missing(both, {"w1": 1, "w2": 3, "w3": 4}, ns(9.0)) == 2 + 4
    assert records_missing(both, {"w1": 3}, ns(9.0)) == 1  # due at that time is due after it
    assert records_missing(both, {"w1": 3}, ns(9.0) + 1) == 0


def test_a_curve_is_of_the_stages_of_one_pair_of_lengths() -> None:
    short, long = LengthPair(128, 32), LengthPair(1024, 32)
    at = [replace(each, lengths=pair) for each, pair in zip(STAGES, (short, long, short), strict=True)]
    assert of_lengths(at, "128:32") == [at[0], at[2]]
    assert of_lengths(at[::2], None) == at[::2]
    assert of_lengths(STAGES, None) == STAGES
    with pytest.raises(ValueError, match=r"have the lengths 128:32, 1024:32, and .* add --lengths 128:32"):
        of_lengths(at, None)
    with pytest.raises(ValueError, match="--lengths 1:1: the stages have the lengths 128:32, 1024:32"):
        of_lengths(at, "1:1")
    with pytest.raises(ValueError, match="--lengths 1:1: its sweep is not over lengths"):
        of_lengths(STAGES, "1:1")
    shared = replace(STAGES[0], prefix=PrefixShare.of(0.5, 256, 4))
    with pytest.raises(ValueError, match="over shares of a shared prefix"):
        of_lengths([shared], None)
    assert str(shared.prefix) == "50%"


@pytest.mark.parametrize(("asked", "tokens"), [(0.0, 0), (0.3, 80), (0.5, 128), (0.99, 224)])
def test_a_share_is_the_nearest_number_of_whole_blocks_that_leaves_some_of_the_prompts_own(
    asked: float, tokens: int
) -> None:
    assert PrefixShare.of(asked, 256, 4).tokens == tokens


def test_a_share_of_less_than_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.01 of 256 tokens is not one block of 16"):
        PrefixShare.of(0.01, 256, 4)
