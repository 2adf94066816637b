"""The requests of a run directory, read part by part."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from metrics_cases import batch, failed, request
from report_cases import records, write_run
from summaries import summarise

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import RecordBatch
from llm_locust.core.record import RequestRecord
from llm_locust.store import (
    REQUESTS_FILE,
    StoreError,
    iter_requests,
    open_requests,
    read_manifest,
    read_requests,
    requests as stored,
    write_requests,
)


def write_groups(run: Path, *groups: RecordBatch) -> None:
    with pq.ParquetWriter(run / REQUESTS_FILE, SCHEMA) as writer:
        for group in groups:
            writer.write_table(group.table)


def failing(name: str) -> RequestRecord:
    return failed(name=name)


def test_parts_are_small_and_are_all_requests_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "PART_ROWS", 2)
    names = ["a", "b", "b", "c", "a"]
    write_groups(tmp_path, batch(*(request(name=n) for n in names[:3])), batch(*map(failing, names[3:])))
    parts = list(iter_requests(tmp_path))
    assert max(map(len, parts)) == 2
    assert len(open_requests(tmp_path)) == 5
    assert [name for part in parts for name in part.texts("name")] == names
    rows = [part.table.to_pylist() for part in parts]
    assert list(chain(*rows)) == read_requests(tmp_path).table.to_pylist()


def test_where_no_thread_can_be_started_the_parts_are_read_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "PART_ROWS", 7)
    run = write_run(tmp_path / "run")

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    assert sum(map(len, open_requests(run).parts())) == 100


def test_only_the_columns_that_are_asked_for_are_there(tmp_path: Path) -> None:
    write_groups(tmp_path, batch(request()))
    (part,) = open_requests(tmp_path).parts(["sent_ns", "name"])
    assert part.table.column_names == ["sent_ns", "name"]


def test_parts_can_be_asked_for_again(tmp_path: Path) -> None:
    write_groups(tmp_path, batch(request()), batch(request()))
    stored = open_requests(tmp_path)
    assert [sum(map(len, stored.parts())) for _ in range(2)] == [2, 2]


def test_few_requests_are_read_once_and_many_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = open_requests(write_run(tmp_path / "run"))
    held = requests.held_if_small()
    assert isinstance(held, RecordBatch)
    assert held.table.equals(RecordBatch.concat(requests.parts()).table)
    for bound in ("_SMALL_BYTES_READ", "_SMALL_BYTES"):
        monkeypatch.setattr(stored, bound, 1_000)
        assert requests.held_if_small() is requests


def test_a_run_without_requests_has_one_empty_part(tmp_path: Path) -> None:
    write_requests(tmp_path / REQUESTS_FILE, [])
    (part,) = open_requests(tmp_path).parts(["sent_ns"])
    assert (len(part), part.table.column_names) == (0, ["sent_ns"])


def test_the_summary_of_stored_requests_is_that_of_the_same_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "PART_ROWS", 7)
    write_run(tmp_path, records())
    assert len(list(iter_requests(tmp_path))) > 10
    facts = read_manifest(tmp_path)
    assert summarise(open_requests(tmp_path), facts) == summarise(read_requests(tmp_path), facts)


def test_a_file_of_another_schema_is_refused_whichever_columns_are_asked_for(tmp_path: Path) -> None:
    pq.write_table(batch(request()).table.drop_columns(["rtt_ns"]), tmp_path / REQUESTS_FILE)
    with pytest.raises(StoreError, match="columns are missing: rtt_ns"):
        list(open_requests(tmp_path).parts(["sent_ns"]))


def test_a_file_that_is_cut_or_broken_midway_is_refused_by_its_name(tmp_path: Path) -> None:
    write_groups(tmp_path, batch(request(arrivals=tuple(np.arange(0.0, 9.0, 0.001)))))
    path = tmp_path / REQUESTS_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(StoreError, match=r"requests\.parquet"):
        open_requests(tmp_path)
    path.write_bytes(whole[:4] + b"\xff" * 400 + whole[404:])
    with pytest.raises(StoreError, match=r"requests\.parquet"):
        list(iter_requests(tmp_path))


def test_a_text_that_no_client_writes_is_refused(tmp_path: Path) -> None:
    long = pa.array(["a" * 70_000] * 3).dictionary_encode().cast(SCHEMA.field("name").type)
    table = batch(*records(3, 0)).table
    write_groups(tmp_path, RecordBatch(table.set_column(2, SCHEMA.field("name"), long)))
    with pytest.raises(StoreError, match="name has a text of 70,000 bytes, allowed is 65,536"):
        read_requests(tmp_path)


def test_more_rows_than_bytes_can_hold_are_refused(tmp_path: Path) -> None:
    one = batch(*records(1, 0)).table
    write_groups(tmp_path, RecordBatch(one.take(pa.array([0] * 200_000))))
    with pytest.raises(StoreError, match=r"200,000 rows in [\d,]+ bytes are no requests"):
        open_requests(tmp_path)


def test_a_row_group_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    arrivals = np.zeros(150_000, dtype=np.int64)
    write_groups(tmp_path, batch(*(replace(each, arrivals_ns=arrivals) for each in records(120, 0))))
    with pytest.raises(StoreError, match=r"arrivals_ns\.list\.\w+ has 18,000,000 values in 120 rows"):
        read_requests(tmp_path)


def test_a_batch_with_many_arrivals_is_divided_into_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_ARRIVALS_A_GROUP", 12)
    whole = batch(*records(7, 0))  # of 5 arrivals each
    assert write_requests(tmp_path / REQUESTS_FILE, [whole]) == 7
    assert pq.ParquetFile(tmp_path / REQUESTS_FILE).num_row_groups == 2
    assert read_requests(tmp_path).table.equals(RecordBatch.concat([whole]).table)


def test_a_row_group_ends_where_its_texts_are_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_TEXT_BYTES_A_GROUP", 1)
    assert write_requests(tmp_path / REQUESTS_FILE, [batch(*records(2, 0))] * 3) == 6
    assert pq.ParquetFile(tmp_path / REQUESTS_FILE).num_row_groups == 3


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("ended_ns", -(2**63), "ended_ns has times out of range"),
        ("scheduled_ns", 2**63 - 1, "scheduled_ns has times out of range"),
        ("output_tokens", -1, "output_tokens has counts out of range"),
        ("outcome", "fine", "'fine' is not a valid outcome"),
    ],
)
def test_what_no_client_writes_is_refused_in_a_file_as_in_a_batch(
    tmp_path: Path, field: str, value: Any, why: str
) -> None:
    write_groups(tmp_path, batch(*records(2, 0), replace(records(1, 0)[0], **{field: value})))
    with pytest.raises(StoreError, match=why):
        [*iter_requests(tmp_path)]
