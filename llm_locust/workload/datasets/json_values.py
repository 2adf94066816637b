"""JSON values from a file: one per line (JSONL), or the items of one list (JSON).

Blank lines, a BOM and CRLF are ignored. A file that begins with a bracket is one list, unless its first line
is a
list by itself and there are more, or is a list of messages: then each line is a prompt's messages.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from llm_locust.core.input_files import DATASET, FileReading, first_bytes, input_lines, read_input
from llm_locust.workload.datasets.row import EXPECTED, DatasetError, excerpt, is_messages, where_not_utf8

#: What delimits the items of a list: texts, which are passed over, brackets and commas.
_DELIMITER = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{]|[\]}]|,', re.DOTALL)

T = TypeVar("T")


def json_values(path: Path, read: Callable[[Any, int], T | None], reading: FileReading) -> Iterator[T]:
    """Results of ``read`` for each value and its line number, in a file of either form, without the Nones.

    Raises:
        DatasetError: ``read`` raised a ValueError, or the file is not JSON; with file and line.
        InputError: it cannot be read, or is out of its bounds.
    """
    return (_of_list if _is_list(path) else _of_lines)(path, read, reading)


def first_character(path: Path) -> bytes:
    """First byte that is neither space nor BOM; empty for an empty file (raises InputError)."""
    return first_bytes(path, DATASET.name).lstrip()[:1]


def _is_list(path: Path) -> bool:
    """Whether the file is one list of values, in one line or several."""
    if first_character(path) != b"[":
        return False
    lines = (line for line in input_lines(path, FileReading(DATASET, path)) if not line.isspace())
    try:
        first, *more = islice(lines, 2)
        items = msgspec.json.decode(first, type=list[msgspec.Raw])
        return not more and not (_is_message(items[:1]) and is_messages(msgspec.json.decode(first)))
    except (ValueError, RecursionError):  # also of a list in one line that is longer than a line may be
        return True


def _is_message(items: Sequence[bytes | msgspec.Raw]) -> bool:
    """Whether these, at most one, are a message, so that the list that they begin is a prompt's."""
    try:
        return bool(items) and is_messages([msgspec.json.decode(items[0])])
    except (ValueError, RecursionError):
        return False


def _of_lines(path: Path, read: Callable[[Any, int], T | None], reading: FileReading) -> Iterator[T]:
    for number, line in enumerate(input_lines(path, reading), 1):
        raw = line.strip()
        if raw and (found := _read(f"{path}:{number}", number, raw, read, reading)) is not None:
            yield found


def _of_list(path: Path, read: Callable[[Any, int], T | None], reading: FileReading) -> Iterator[T]:
    data = read_input(path, DATASET, reading)
    try:
        msgspec.json.decode(data, type=msgspec.Raw)  # well-formed, as a whole
    except RecursionError as e:
        raise _error(f"{path}:1", "nested too deep", data) from e
    except ValueError as e:  # not JSON: invalid UTF-8 inside an item is found with the item
        at = re.search(r"\(byte (\d+)\)", str(e))
        place = min(int(at[1]), len(data)) if at else len(data)
        line = data.count(b"\n", 0, place) + 1
        raise _error(f"{path}:{line}", str(e), data[max(0, place - 20) :]) from e
    if _is_message([data[start:end] for start, end, _ in islice(_items(data), 1)]):
        found = _read(f"{path}:1", 1, data, read, reading)
        reading.add_line(data, 1)
        yield from () if found is None else (found,)
        return
    line, counted = 1, 0
    for start, end, values in _items(data):
        line += data.count(b"\n", counted, start)
        counted = start
        reading.add_row(line)
        if end - start > DATASET.line_bytes or values > DATASET.items:
            raise reading.error(f"an item of {end - start:,} bytes with {values:,} values", line)
        if (found := _read(f"{path}:{line}", line, data[start:end], read, reading)) is not None:
            yield found


def _items(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Start, end, and about the number of values, of each item of a list that is well-formed."""
    begin, depth, values = 0, 0, 0
    for found in _DELIMITER.finditer(data):
        place = found.start()
        match data[place]:
            case 0x22:  # a text
                continue
            case 0x5B | 0x7B:  # [ or {
                depth += 1
                values += 1
                if depth == 1:
                    begin, values = place + 1, 0
                continue
            case 0x5D | 0x7D:  # ] or }
                depth -= 1
            case _:
                values += 1
        if depth == 0 or (depth == 1 and data[place] == 0x2C):
            raw = data[begin:place]
            if stripped := raw.strip():
                start = begin + len(raw) - len(raw.lstrip())
                yield start, start + len(stripped), values
            begin, values = place + 1, 0


def _read(
    where: str, number: int, raw: bytes, read: Callable[[Any, int], T | None], reading: FileReading
) -> T | None:
    try:
        return read(msgspec.json.decode(raw), number)
    except UnicodeDecodeError:
        what = where_not_utf8(raw)
    except RecursionError:
        what = "nested too deep"
    except ValueError as e:
        what = str(e)
    reading.skip(_error(where, what, raw))
    return None


def _error(where: str, what: str, raw: bytes) -> DatasetError:
    return DatasetError(f"{where}: {what}, in {excerpt(raw)}; {EXPECTED}")
