"""Prompts from a file of any supported format.

======================= ==================================================================
``.jsonl``, ``.ndjson`` one JSON value per line, each as below
``.json``               one list of such values, as in ShareGPT's files, or lines of them
``.csv``, ``.tsv``      see :mod:`llm_locust.workload.datasets`
``.parquet``            a row is an object of its columns, see there
``.txt``                one prompt per line
a folder                one prompt per file
======================= ==================================================================

The format of a file with another name is chosen by its first character: JSON values, or plain text. Any of
them but Parquet may be gzip-compressed, with ``.gz`` after its name or without.

What a JSON value may be is said in :mod:`llm_locust.workload.dataset_rows`. Other known keys beside the
prompt: ``id``, ``name`` (the request's name in the statistics), ``class`` (its SLO class), ``input_tokens``
and ``output_tokens`` (asked lengths), ``weight`` (for the weighted order), ``expected`` (the right answer).
Of the others, fields of the APIs go into the request body (:data:`llm_locust.workload.body.LINE_FIELDS`),
except those that the run itself sets. What is left is not sent, unless it is asked for.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from llm_locust.core.arrow import MAGIC, parquet_batches, parquet_input
from llm_locust.core.files import (
    DATASET,
    FileReading,
    InputError,
    first_bytes,
    folder_files,
    input_lines,
    plain_name,
    read_input,
    skipped_text,
    text_lines,
)
from llm_locust.core.texts import plain_number
from llm_locust.wire.foreign_text import one_line
from llm_locust.workload.dataset_rows import (
    EXPECTED,
    EXPECTED_FIELD,
    TEXT_KEYS,
    DatasetError,
    DatasetRow,
    RowReader,
    ShareGptConversation,
    conversation_of,
    first_character,
    json_values,
    where_not_utf8,
)
from llm_locust.workload.draws import Order, sequential, shuffled, weighted
from llm_locust.workload.prompts import Prompt

#: Formats of a dataset, for names that do not show it.
FORMATS = ("jsonl", "sharegpt", "csv", "parquet", "text")

#: Keys that are not sent, of which :attr:`Dataset.how_read` names so many.
_SHOWN_KEYS = 12

_FORMS = "expected JSON values, a table or plain text with one prompt a line, or a folder of texts"

T = TypeVar("T")

#: :func:`load_dataset`, or the same with some of its arguments given.
LoadDataset = Callable[..., "Dataset"]


@dataclass(frozen=True, slots=True)
class Dataset:
    """Prompts of a file in its order, the line number of each, and their weights if any has one.

    ``unsent`` are the keys of its lines that have no meaning and are not sent, ``skipped`` is the number of
    lines that could not be read, and ``first_skipped`` says why the first of them could not.
    """

    path: str
    prompts: tuple[Prompt, ...]
    lines: tuple[int, ...]
    weights: tuple[float, ...] = ()
    unsent: tuple[str, ...] = ()
    skipped: int = 0
    first_skipped: str = ""

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def how_read(self) -> str:
        """How it was read: ``80 prompts; keys that are not sent: category, reference``."""
        parts = [f"dataset {self.path!r}: {len(self):,} prompts"]
        if self.skipped:
            parts.append(skipped_text(self.skipped, self.first_skipped))
        if self.unsent:
            more = len(self.unsent) - _SHOWN_KEYS
            shown = ", ".join(self.unsent[:_SHOWN_KEYS]) + (f" and {more} more" if more > 0 else "")
            parts.append(f"keys that are not sent (--dataset-keys sends them): {shown}")
        return one_line("; ".join(parts))

    def share(self, worker_index: int, worker_count: int) -> Sequence[Prompt]:
        """Lines i, i + W, i + 2W ... for worker i of W: each line in exactly one share.

        Only with more workers than lines do some share a line.
        """
        return self.prompts[worker_index % len(self) :: worker_count]

    def stream(
        self, worker_index: int, worker_count: int, order: Order = "sequential", seed: int = 0
    ) -> Iterator[Prompt]:
        """A worker's part of the lines in an order of :mod:`llm_locust.workload.draws`, without end.

        Raises:
            DatasetError: the order is ``weighted``, and no line has a weight.
        """
        if order == "sequential":
            places = sequential(len(self), worker_index, worker_count)
        elif order == "shuffled":
            places = shuffled(len(self), worker_index, worker_count, seed)
        else:
            places = weighted(self.checked_weights(), worker_index, seed)
        return (self.prompts[place] for place in places)

    def checked_weights(self) -> tuple[float, ...]:
        """The weights (raises DatasetError if there are none)."""
        if not self.weights:
            raise DatasetError(f"dataset {self.path!r}: order 'weighted', and no line has a weight")
        return self.weights


def load_dataset(
    path: str | Path,
    format: str | None = None,
    expected_field: str = EXPECTED_FIELD,
    *,
    sent: frozenset[str] | None = frozenset(),
    most_skipped: int = 0,
) -> Dataset:
    """Load the dataset in the file or folder at ``path``.

    Args:
        format: ``jsonl``, ``sharegpt`` (both JSON, lines or a list), ``csv``, ``parquet`` or ``text``; None:
        by
            the file's name or its first characters.
        expected_field: key or column of the right answers.
        sent: keys of a line that go into the request's body, beside the APIs' own; None: all.
        most_skipped: how many lines that cannot be read are skipped.

    Raises:
        DatasetError: it cannot be read, a line does not have the form above, or there is none; or no line has
            the requested ``expected_field``.
    """
    place, maker = Path(path), RowReader(expected_field, sent)
    reading = FileReading(DATASET, path, most_skipped=most_skipped)
    rows = _all(path, lambda: _read(place, format or _format(place), maker, reading))
    if expected_field != EXPECTED_FIELD and all(row.prompt.expected is None for row in rows):
        raise DatasetError(f"dataset {str(path)!r}: no line has {expected_field!r}, the expected answer")
    weights = tuple(1.0 if row.weight is None else row.weight for row in rows)
    return Dataset(
        str(path),
        tuple(row.prompt for row in rows),
        tuple(row.line for row in rows),
        weights if any(row.weight is not None for row in rows) else (),
        tuple(sorted(maker.unsent)),
        reading.skipped,
        reading.first_skipped,
    )


def parse_keys(text: str) -> frozenset[str] | None:
    """Names of keys with commas between; None of ``all`` (raises ValueError)."""
    names = frozenset(name.strip() for name in text.split(","))
    if names == {"all"}:
        return None
    if "" in names or "all" in names:
        raise ValueError(f"keys {text!r}: names with commas between, such as lora_id,documents, or all")
    return names


def load_conversations(path: str | Path) -> tuple[ShareGptConversation, ...]:
    """Load the conversations of a file in ShareGPT's form, as JSON, JSONL or Parquet, with all their turns.

    Raises:
        DatasetError: it cannot be read, an item is not of that form, or there is no question.
    """
    place = Path(path)

    def read(value: Any, line: int) -> ShareGptConversation | None:
        return conversation_of(value)

    def values() -> Iterator[ShareGptConversation]:
        reader = parquet_values if _format(place) == "parquet" else json_values
        return reader(place, read, FileReading(DATASET, path))

    return tuple(_all(path, values))


def _all(path: str | Path, read: Callable[[], Iterator[T]]) -> list[T]:
    try:
        found = list(read())
    except DatasetError:
        raise
    except InputError as e:
        raise DatasetError(str(e)) from e
    except (OSError, ValueError) as e:  # ValueError: a path with a null byte
        raise DatasetError(
            f"dataset {str(path)!r}: cannot be read: {getattr(e, 'strerror', None) or e}"
        ) from e
    if not found:
        raise DatasetError(f"dataset {str(path)!r} has no line with a prompt; {_FORMS}")
    return found


def _read(path: Path, format: str, maker: RowReader, reading: FileReading) -> Iterator[DatasetRow]:
    match format:
        case "folder":
            return folder_rows(path, reading)
        case "csv":
            return table_rows(path, maker.expected_field, reading)
        case "parquet":
            return parquet_values(path, maker.row, reading)
        case "text":
            return text_line_rows(path, reading)
    return json_values(path, maker.row, reading)


def _format(path: Path) -> str:
    if path.is_dir():
        return "folder"
    if first_bytes(path, DATASET.name, len(MAGIC)) == MAGIC:
        return "parquet"
    known = {
        ".jsonl": "jsonl",
        ".ndjson": "jsonl",
        ".json": "jsonl",
        ".csv": "csv",
        ".tsv": "csv",
        ".parquet": "parquet",
        ".txt": "text",
    }
    found = known.get(plain_name(path).suffix.lower())
    return found or ("jsonl" if first_character(path) in b'[{"' else "text")


# --- Prompts from a CSV file with a header
#
# The prompt is in the first column that there is of :data:`~llm_locust.workload.dataset_rows.TEXT_KEYS`.
# Other known columns: ``id``, ``name``, ``class``, ``expected``, ``input_tokens``, ``output_tokens``,
# ``weight``. Unknown columns are ignored. A ``.tsv`` file uses tabs instead of commas.


_EXPECTED = f"expected a header with a column named {', '.join(TEXT_KEYS[:-1])} or {TEXT_KEYS[-1]}"


def table_rows(path: Path, expected_field: str, reading: FileReading) -> Iterator[DatasetRow]:
    """Rows of a CSV file.

    Raises:
        DatasetError: no column of prompts, an incomplete row, an empty prompt, or an invalid number; with
            file and line.
        InputError: the file cannot be read, or is out of its bounds.
    """
    delimiter = "\t" if plain_name(path).suffix.lower() == ".tsv" else ","
    with _long_cells():
        reader = csv.reader(text_lines(path, reading), delimiter=delimiter, strict=True)
        header = [name.strip().lower() for name in _next(path, reader) or ()]
        column = next((name for name in TEXT_KEYS if name in header), None)
        if column is None:
            shown = ", ".join(repr(name[:40]) for name in header[:8]) or "nothing"
            raise DatasetError(f"{path}:1: the header is {shown}; {_EXPECTED}")
        while True:
            line = reader.line_num + 1
            try:
                cells = _next(path, reader)
                if cells is None:
                    return
                if any(cell.strip() for cell in cells):
                    yield _row(f"{path}:{line}", line, header, column, cells, expected_field.lower())
            except DatasetError as e:
                reading.skip(e)


def _next(path: Path, reader: Any) -> list[str] | None:
    """Cells of the next row; None at the end (raises DatasetError)."""
    try:
        found: list[str] | None = next(reader, None)
        return found
    except csv.Error as e:
        raise DatasetError(f"{path}:{reader.line_num}: {e}; {_EXPECTED}") from e


@contextmanager
def _long_cells() -> Iterator[None]:
    before = csv.field_size_limit(DATASET.line_bytes)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _row(
    where: str, line: int, header: list[str], column: str, cells: list[str], expected_field: str
) -> DatasetRow:
    if len(cells) != len(header):
        raise DatasetError(f"{where}: {len(cells)} columns, {len(header)} in the header")
    row = dict(zip(header, cells, strict=True))
    if not row[column].strip():
        raise DatasetError(f"{where}: column {column!r} is empty")

    def text(name: str) -> str | None:
        return row.get(name, "").strip() or None

    prompt = Prompt(
        text=row[column],
        asked_input_tokens=_count(where, "input_tokens", text("input_tokens")),
        asked_output_tokens=_count(where, "output_tokens", text("output_tokens")),
        expected=text(expected_field),
        id=text("id"),
        name=text("name"),
        slo_class=text("class"),
    )
    return DatasetRow(prompt, line, _weight(where, text("weight")))


def _count(where: str, name: str, cell: str | None) -> int | None:
    if cell is None:
        return None
    value = plain_number(cell)
    if not (value.is_integer() and value >= 1):
        raise DatasetError(f"{where}: {name} must be a positive integer, got {cell[:40]!r}")
    return int(value)


def _weight(where: str, cell: str | None) -> float | None:
    if cell is None:
        return None
    value = plain_number(cell)
    if not 0 < value <= 1e12:
        raise DatasetError(f"{where}: weight must be a number above 0, got {cell[:40]!r}")
    return value


# --- Prompts from plain text: one per line, or one per file of a folder


def text_line_rows(path: Path, reading: FileReading) -> Iterator[DatasetRow]:
    """Each line that is not blank, without its end (raises DatasetError with file and line, InputError)."""
    for number, line in enumerate(input_lines(path, reading), 1):
        text = _decoded(f"{path}:{number}", line, reading).rstrip("\r\n")
        if text.strip():
            yield DatasetRow(Prompt(text=text), number)


def folder_rows(path: Path, reading: FileReading) -> Iterator[DatasetRow]:
    """Whole text of each file, in the order of their names, which become the prompts' ids.

    Hidden files, subfolders and empty files are left out. A row's line is its file's number.

    Raises:
        DatasetError: a file is not text in UTF-8.
        InputError: the folder or a file cannot be read, or they are too many or too large.
    """
    for number, file in enumerate(folder_files(path, DATASET.name), 1):
        reading.add_row(0)
        text = _decoded(str(file), read_input(file, DATASET, reading), reading)
        if text.strip():
            yield DatasetRow(Prompt(text=text, id=file.name), number)


def _decoded(where: str, raw: bytes, reading: FileReading) -> str:
    """Text of a line or a file; empty if it is skipped."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        reading.skip(DatasetError(f"{where}: {where_not_utf8(raw)}; expected plain text"))
        return ""


# --- Prompts from a Parquet file: each row is an object of its columns, read as a JSON object is


#: Rows that are decoded at a time: a row may be long.
_BATCH_ROWS = 64


def parquet_values(path: Path, read: Callable[[Any, int], T | None], reading: FileReading) -> Iterator[T]:
    """Results of ``read`` for each row and its number from 1, without the Nones. Columns that are null in a
    row are left out of it.

    Raises:
        DatasetError: ``read`` raised a ValueError; with file and row.
        InputError: the file cannot be read, is no Parquet file, or is out of its bounds.
    """
    with parquet_input(path, DATASET) as file:
        number = 0
        for batch in parquet_batches(file, reading, _BATCH_ROWS):
            for row in batch.to_pylist():
                number += 1
                try:
                    found = read(_without_nulls(row), number)
                except ValueError as e:
                    columns = ", ".join(map(repr, file.schema_arrow.names[:8]))
                    reading.skip(DatasetError(f"{path}: row {number}: {e}, of columns {columns}; {EXPECTED}"))
                    continue
                if found is not None:
                    yield found


def _without_nulls(value: Any) -> Any:
    """A row in which what is null in a struct is left out: each of its fields is there in every row."""
    if isinstance(value, dict):
        return {key: _without_nulls(v) for key, v in value.items() if v is not None or key == "content"}
    if isinstance(value, list):
        return [*map(_without_nulls, value)]
    return value
