"""A damaged file of requests: what can be read is reported on, the rest is missing and named."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from record_strategies import record

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest, WorkerFacts
from llm_locust.report.inputs import open_source
from llm_locust.store import (
    REQUESTS_FILE,
    StoreError,
    create_run_dir,
    open_requests,
    read_requests,
    write_manifest,
    write_requests,
)
from llm_locust.store.merge import is_damaged, salvage

GROUP = 65_536


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of two row groups."""
    path = create_run_dir(tmp_path / "run")
    many = RecordBatch.from_records([record(n) for n in range(GROUP // 64)], "w1")
    write_requests(path / REQUESTS_FILE, [many] * 65)
    rows = len(open_requests(path))
    facts = WorkerFacts(id="w1", index=0, announced=rows, received=rows, received_seqs="0-64")
    write_manifest(path, Manifest(id="run", name="x", started_ns=1, ended_ns=9, workers=[facts]))
    return path


def damage(run: Path, group: int) -> int:
    """Overwrite a column of a row group; gives how many records are in the group."""
    path = run / REQUESTS_FILE
    found = pq.read_metadata(path).row_group(group)
    chunk = found.column(17)
    at = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(path.read_bytes())
    data[at : at + 64] = b"\xff" * 64
    path.write_bytes(bytes(data))
    return int(found.num_rows)


def test_row_groups_that_cannot_be_read_are_left_out_named_and_missing(run: Path, tmp_path: Path) -> None:
    rows = len(open_requests(run))
    assert not is_damaged(run)
    lost = damage(run, 1)
    assert is_damaged(run)
    manifest = salvage(run, tmp_path / "out")
    assert len(read_requests(tmp_path / "out")) == manifest.records_received == rows - lost
    assert (manifest.records_lost, manifest.complete) == (lost, False)
    (line,) = manifest.torn
    assert line.startswith(f"requests.parquet: row group 1 of {lost} records cannot be read (")


def test_a_report_skips_what_is_bad_only_where_it_is_asked_to(run: Path) -> None:
    rows = len(open_requests(run))
    lost = damage(run, 0)
    with open_source([run], skip_bad=True) as source:
        assert len(source.requests) == rows - lost
        assert source.manifest.records_lost == lost
    with (
        open_source([run]) as source,
        pytest.raises(StoreError, match="cannot be read as requests"),
    ):
        list(source.requests.parts())


def test_a_file_without_its_index_is_refused(run: Path, tmp_path: Path) -> None:
    path = run / REQUESTS_FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StoreError, match="cannot be read as requests"):
        salvage(run, tmp_path / "out")


def test_a_sound_run_is_reported_on_as_it_is(run: Path) -> None:
    with open_source([run], skip_bad=True) as source:
        assert source.runs[0].path == run
        assert source.manifest == replace(source.manifest, torn=[])
