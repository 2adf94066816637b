"""Lines of a file, rows of lines; every error names the file and the line."""

import csv
import gzip
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import msgspec

from llm_locust.workload.lengths.tokens import MAX_TOKENS
from llm_locust.workload.traces.entry import TraceError, TraceRow

#: Longest line in bytes: a file without line ends must not fill the memory.
MAX_LINE = 1 << 20

#: Largest distance in seconds of recorded times from their epoch.
MAX_SECONDS = 1e11

_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"

S = TypeVar("S")


def lines(path: Path) -> Iterator[str]:
    """Lines of the text file at ``path``, including blank ones; decompressed if it is a gzip file.

    Raises:
        TraceError: it cannot be read, is not UTF-8, or has a line of more than :data:`MAX_LINE` bytes.
    """
    number = 0
    try:
        with _opened(path) as file:
            while raw := file.readline(MAX_LINE + 1):
                number += 1
                if len(raw) > MAX_LINE:
                    raise TraceError(
                        f"{path}:{number}: longer than {MAX_LINE:,} bytes; expected one request a line"
                    )
                yield (raw.removeprefix(_BOM) if number == 1 else raw).decode()
    except UnicodeDecodeError as e:
        byte = f"byte {e.start + 1} is 0x{e.object[e.start]:02x}"
        raise TraceError(f"{path}:{number}: not UTF-8, {byte}; expected CSV or JSON lines") from None
    except TraceError:
        raise
    except (OSError, EOFError, zlib.error, ValueError) as e:  # ValueError: a path with a null byte
        where = f"{path}:{number + 1}" if number else f"trace {str(path)!r}"
        raise TraceError(f"{where}: cannot be read: {getattr(e, 'strerror', None) or e}") from e


def table_rows(
    path: Path,
    texts: Iterable[str],
    names: Sequence[str],
    optional: Sequence[str],
    build: Callable[[int, list[str]], TraceRow],
) -> Iterator[TraceRow]:
    """Rows of a CSV file with a header.

    ``build`` gets the line's number and the cells of ``names`` and ``optional``, in that order whatever the
    file's is; a missing column of ``optional`` is empty. It raises ValueError for an invalid cell.
    """
    reader = csv.reader(texts)
    try:
        header = next((cells for cells in reader if any(map(str.strip, cells))), [])
        places = {plain(name): place for place, name in enumerate(header)}
        lacking = [name for name in names if plain(name) not in places]
        if lacking:
            raise ValueError(
                f"no column {', '.join(map(repr, lacking))} in {_excerpt(','.join(header))}; "
                f"expected {', '.join(names)}"
            )
        # The index past the last cell stands for missing columns and is empty.
        wanted = [places.get(plain(name), len(header)) for name in (*names, *optional)]
        for cells in reader:
            if not any(map(str.strip, cells)):
                continue
            if len(cells) < len(header):
                raise ValueError(f"{len(cells)} cells in {_excerpt(','.join(cells))}; expected {len(header)}")
            cells[len(header) :] = [""]
            yield build(reader.line_num, [cells[place] for place in wanted])
    except TraceError:
        raise
    except (ValueError, csv.Error) as e:
        raise TraceError(f"{path}:{max(1, reader.line_num)}: {e}") from None


def json_rows(
    path: Path,
    texts: Iterable[str],
    decoder: msgspec.json.Decoder[S],
    build: Callable[[int, S], TraceRow],
    expected: str,
) -> Iterator[TraceRow]:
    """Rows of JSON lines; ``expected`` is the form of a line, for errors."""
    for number, text in enumerate(texts, 1):
        if text.isspace():
            continue
        try:
            row = build(number, decoder.decode(text))
        except (ValueError, RecursionError) as e:
            raise TraceError(f"{path}:{number}: {e}, in {_excerpt(text)}; expected {expected}") from None
        yield row


def plain(name: str) -> str:
    """A column's name for comparison: ``Session ID`` and ``session_id`` are the same."""
    return name.strip().casefold().replace(" ", "").replace("_", "")


def tokens(name: str, text: str) -> int:
    """Token count in a cell of the column ``name``; ``512.0`` is valid."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value.is_integer() and 0 <= value <= MAX_TOKENS) or "_" in text:
        raise ValueError(
            f"{name} {text[:60]!r} is not a token count; expected a whole number in 0 .. {MAX_TOKENS:,}"
        )
    return int(value)


def nanoseconds(name: str, text: str) -> int:
    """Nanoseconds of the seconds in a cell of the column ``name``."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not abs(seconds) <= MAX_SECONDS or "_" in text:
        raise ValueError(f"{name} {text[:60]!r} is not a time; expected a number of seconds")
    return round(seconds * 1e9)


def _opened(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
    return cast(BinaryIO, gzip.open(path, "rb")) if packed else path.open("rb")


def _excerpt(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:60] + "…")
