"""JSON values from a file: one per line (JSONL), or the items of one list (JSON).

Blank lines, a BOM and CRLF are ignored.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from llm_locust.workload.datasets.row import (
    EXPECTED,
    EXPECTED_FIELD,
    DatasetError,
    DatasetRow,
    excerpt,
    row_of_value,
    where_not_utf8,
)

_BOM = b"\xef\xbb\xbf"

T = TypeVar("T")


def json_rows(path: Path, expected_field: str = EXPECTED_FIELD) -> Iterator[DatasetRow]:
    """Rows of a file in either form (raises DatasetError with file and line)."""
    return json_values(path, partial(row_of_value, expected_field=expected_field))


def json_values(path: Path, read: Callable[[Any, int], T | None]) -> Iterator[T]:
    """Results of ``read`` for each value and its line number, in a file of either form, without the Nones.

    Raises:
        DatasetError: ``read`` raised a ValueError, or the file is not JSON; with file and line.
        OSError: it cannot be read.
    """
    return (_of_list if is_list(path) else _of_lines)(path, read)


def is_list(path: Path) -> bool:
    """Whether the file's first significant character opens a list."""
    return first_character(path) == b"["


def first_character(path: Path) -> bytes:
    """First byte that is neither space nor BOM; empty for an empty file."""
    with path.open("rb") as file:
        return file.read(4096).removeprefix(_BOM).lstrip()[:1]


def _of_lines(path: Path, read: Callable[[Any, int], T | None]) -> Iterator[T]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            raw = line.removeprefix(_BOM).strip() if number == 1 else line.strip()
            if raw and (found := _read(f"{path}:{number}", number, raw, read)) is not None:
                yield found


def _of_list(path: Path, read: Callable[[Any, int], T | None]) -> Iterator[T]:
    data = path.read_bytes().removeprefix(_BOM)
    try:
        items = msgspec.json.decode(data, type=list[msgspec.Raw])
    except RecursionError as e:
        raise _error(f"{path}:1", "nested too deep", data) from e
    except ValueError as e:  # not JSON: invalid UTF-8 inside an item is found with the item
        at = re.search(r"\(byte (\d+)\)", str(e))
        place = min(int(at[1]), len(data)) if at else len(data)
        line = data.count(b"\n", 0, place) + 1
        raise _error(f"{path}:{line}", str(e), data[max(0, place - 20) :]) from e
    place, line = 0, 1
    for item in items:
        raw = bytes(item)
        start = data.index(raw, place)
        line += data.count(b"\n", place, start)
        if (found := _read(f"{path}:{line}", line, raw, read)) is not None:
            yield found
        place = start + len(raw)
        line += raw.count(b"\n")


def _read(where: str, number: int, raw: bytes, read: Callable[[Any, int], T | None]) -> T | None:
    try:
        return read(msgspec.json.decode(raw), number)
    except UnicodeDecodeError:
        what = where_not_utf8(raw)
    except RecursionError:
        what = "nested too deep"
    except ValueError as e:
        what = str(e)
    raise _error(where, what, raw)


def _error(where: str, what: str, raw: bytes) -> DatasetError:
    return DatasetError(f"{where}: {what}, in {excerpt(raw)}; {EXPECTED}")
