"""Parquet files within bounds: what one unpacks to is known before any of it is decoded."""

import io
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from threading import get_ident
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from llm_locust.core import arrow as arrow_of_core
from llm_locust.core.arrow import (
    PagesError,
    check_group,
    open_parquet,
    parquet_batches,
    parquet_input,
    read_header,
)
from llm_locust.core.files import FileBounds, FileReading, InputError

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


class Watched(io.FileIO):
    """A file that knows which threads have read it by Python's means."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.threads: set[int] = set()

    def read(self, size: int | None = -1) -> bytes:
        self.threads.add(get_ident())
        return super().read(size)


def test_threads_of_arrow_read_without_the_interpreter(tmp_path: Path) -> None:
    """One that asks for it while it ends is ended itself, and the process is aborted."""
    path = written(tmp_path, 100)
    with Watched(path) as plain, open_parquet(cast(BinaryIO, plain)) as file:
        assert len(file.read()) == sum(len(batch) for batch in file.iter_batches(8)) == 100
    assert plain.threads <= {get_ident()}


def test_the_file_that_was_opened_is_read_whatever_has_its_name_since(tmp_path: Path) -> None:
    path, other = written(tmp_path, 3), tmp_path / "other"
    other.mkdir()
    with path.open("rb") as plain:
        written(other, 5).replace(path)
        with open_parquet(plain) as file:
            assert len(file.read()) == 3


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


def checked(
    columns: dict[str, Any],
    most_values: int = 1 << 24,
    decoded: Collection[str] | None = None,
    **options: Any,
) -> None:
    """Write a table, and check each of its row groups."""
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    with pq.ParquetFile(sink) as file:
        for number in range(file.num_row_groups):
            check_group(sink, file.metadata.row_group(number), most_values, decoded)


@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_a_usual_file_is_within_the_bounds(compression: str, version: str, use_dictionary: bool) -> None:
    columns = {
        "number": [*range(5_000)],
        "flag": [True, None] * 2_500,
        "text": ["a", "b" * 300, None, "", "é"] * 1_000,
        "list": [[1, 2], [], None, [3], [4] * 9] * 1_000,
        "nothing": pa.nulls(5_000),
    }
    checked(
        columns,
        compression=compression,
        data_page_version=version,
        use_dictionary=use_dictionary,
        row_group_size=700,
        write_statistics=True,
        write_page_checksum=True,
    )


@pytest.mark.parametrize(
    "columns",
    [
        {"text": ["a" * (5 << 20)]},
        {"text": pa.array(["a" * (5 << 20)]).dictionary_encode()},
        {f"text{n}": ["a" * (3 << 20)] for n in range(5)},
    ],
    ids=["a text", "a label", "many columns"],
)
def test_a_small_file_that_unpacks_to_much_is_refused_before_it_is_decoded(
    columns: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_of_core, "MOST_PAGE_BYTES", 4 << 20)
    monkeypatch.setattr(arrow_of_core, "MOST_GROUP_BYTES", 12 << 20)
    before = pa.total_allocated_bytes()
    with pytest.raises(PagesError, match="the pages of a row group unpack to"):
        checked(columns, compression="zstd", compression_level=1)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_more_values_than_are_allowed_are_refused() -> None:
    with pytest.raises(PagesError, match=r"list\.list\.element has 300 values in 3 rows"):
        checked({"list": [[0] * 100] * 3}, most_values=299)


def test_only_columns_that_are_decoded_are_checked() -> None:
    columns = {"list": [[0] * 100] * 3, "small": [1] * 3}
    checked(columns, 299, {"small"})
    with pytest.raises(PagesError, match=r"list\.list\.element has 300 values"):
        checked(columns, 299, {"list"})


def test_a_page_that_has_more_values_than_its_column_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_of_core, "read_header", lambda data: arrow_of_core.PageSize(1, 1, 10**9))
    with pytest.raises(PagesError, match=r"a has 1,000,000,000 values, its file says 3"):
        checked({"a": [1, 2, 3]})


#: unpacked 7, packed 5, then each kind of page with 3 values.
@pytest.mark.parametrize(
    ("header", "values"),
    [
        (b"\x15\0\x15\x0e\x15\x0a\x2c\x15\x06\0\0", 3),  # data
        (b"\x15\0\x15\x0e\x15\x0a\x4c\x15\x06\0\0", 0),  # dictionary
        (b"\x15\0\x15\x0e\x15\x0a\x5c\x15\x06\0\0", 3),  # data, second version
        (b"\x15\0\x15\x0e\x15\x0a\x3c\0\0", 0),  # an index has no values
    ],
)
def test_each_kind_of_page_is_known(header: bytes, values: int) -> None:
    page = read_header(header)
    assert (page.length, page.unpacked, page.values) == (len(header) + 5, 7, values)


#: Fields that no page has today, of each type; after them the three that are needed.
@pytest.mark.parametrize(
    "more",
    [
        b"\x01\x64\x02\x64",  # true and false
        b"\x03\x64\x7f",  # a byte
        b"\x07\x64" + bytes(8),  # a double
        b"\x08\x64\x03abc",
        b"\x09\x64\x23\1\2",  # a list of two bytes
        b"\x09\x64\xf1\x10" + bytes(16),  # a list of 16 booleans
        b"\x0a\x64\x15\x02",  # a set of one number
        b"\x0b\x64\0",  # an empty map
        b"\x0b\x64\x01\x83\x03abc\x01",
        b"\x0c\x64\x1c\x15\x02\0\0",
    ],
)
def test_what_a_later_version_adds_is_passed_over(more: bytes) -> None:
    first = b"\x15\0\x15\x0e\x15\x0a\x2c\x15\x06\0"
    assert read_header(first + more + b"\0").unpacked == 7


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\x15\0\x15\x0e\x15\x09\x2c\x15\x06\0\0",  # a negative size
        b"\x15\0\x15\x0e\x15\x0a\x2c\x15\x05\0\0",  # a negative number of values
        b"\x0d\x64\0",  # a type that does not exist
        b"\x1c" * 100,  # structs without an end
        b"\x19\xf3\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a list without an end
        b"\x15" + b"\xff" * 12,  # a number without an end
        b"\x18\x7fshort",
    ],
)
def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(PagesError, match="no valid header"):
        read_header(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    try:
        page = read_header(data)
    except PagesError:
        return
    assert page.length > 0
    assert page.unpacked >= 0 <= page.values
