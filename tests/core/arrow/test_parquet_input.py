"""Parquet files within bounds."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llm_locust.core.files import FileBounds, FileReading, InputError
from llm_locust.core.parquet_input import parquet_batches, parquet_input

BOUNDS = FileBounds("dataset", 100_000, lines=100)


def written(folder: Path, rows: int, row_group: int = 10) -> Path:
    path = folder / "f.parquet"
    pq.write_table(pa.table({"n": range(rows)}), path, row_group_size=row_group)
    return path


def read(path: Path, bounds: FileBounds, reading: FileReading | None = None) -> list[list[int]]:
    with parquet_input(path, bounds) as file:
        batches = parquet_batches(file, reading or FileReading(bounds, path), 8)
        return [batch.column("n").to_pylist() for batch in batches]


def test_a_file_within_its_bounds_comes_in_batches_and_is_counted(tmp_path: Path) -> None:
    path = written(tmp_path, 20)
    reading = FileReading(BOUNDS, path)
    assert read(path, BOUNDS, reading) == [[*range(8)], [*range(8, 16)], [*range(16, 20)]]
    assert reading.lines == 20
    assert 20 * 8 <= reading.bytes < 25 * 8  # and which of them are null


def test_a_file_that_says_that_it_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, 101)
    with pytest.raises(InputError, match="101 rows; at most 100 are allowed"), parquet_input(path, BOUNDS):
        pytest.fail("it was opened")
    small = replace(BOUNDS, lines=1_000, expanded_bytes=500)
    with pytest.raises(InputError, match="longer than 500 bytes"), parquet_input(path, small):
        pytest.fail("it was opened")


def test_a_file_that_holds_more_than_it_says_is_refused_while_it_is_read(tmp_path: Path) -> None:
    """Equal values take no room in the file: its own figure is that of what is stored."""
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"n": [7] * 90}), path, compression="gzip")
    with pytest.raises(InputError, match="longer than 500 bytes"):
        read(path, replace(BOUNDS, expanded_bytes=500))
    with pytest.raises(InputError, match="more than 40 lines"):
        read(path, BOUNDS, FileReading(replace(BOUNDS, lines=40), path))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"x" * 50 + b"PAR1", b"no table at all"])
def test_what_is_no_parquet_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "f.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a Parquet file that can be read") as caught:
        read(path, BOUNDS)
    assert "\n" not in str(caught.value)


def test_a_damaged_part_is_refused_when_it_is_come_to(tmp_path: Path) -> None:
    path = written(tmp_path, 100)
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a Parquet file that can be read"):
        read(path, BOUNDS)
