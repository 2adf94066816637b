"""Prompts from a file of any supported format.

======================= ==================================================================
``.jsonl``, ``.ndjson`` one JSON value per line, each as below
``.json``               one list of such values, as in ShareGPT's files, or lines of them
``.csv``, ``.tsv``      see :mod:`llm_locust.workload.datasets.plain`
``.parquet``            a row is an object of its columns, see there
``.txt``                one prompt per line
a folder                one prompt per file
======================= ==================================================================

The format of a file with another name is chosen by its first character: JSON values, or plain text. Any of
them but Parquet may be gzip-compressed, with ``.gz`` after its name or without.

What a JSON value may be is said in :mod:`llm_locust.workload.datasets.row`. Other known keys beside the
prompt: ``id``, ``name`` (the request's name in the statistics), ``class`` (its SLO class), ``input_tokens``
and ``output_tokens`` (asked lengths), ``weight`` (for the weighted order), ``expected`` (the right answer).
Of the others, fields of the APIs go into the request body (:data:`llm_locust.workload.body.LINE_FIELDS`),
except those that the run itself sets. What is left is not sent, unless it is asked for.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from llm_locust.core.files import DATASET, FileReading, InputError, first_bytes, plain_name, skipped_text
from llm_locust.core.parquet_input import MAGIC
from llm_locust.wire.foreign_text import one_line
from llm_locust.workload.datasets.plain import folder_rows, parquet_values, table_rows, text_line_rows
from llm_locust.workload.datasets.row import (
    EXPECTED_FIELD,
    DatasetError,
    DatasetRow,
    RowReader,
    first_character,
    json_values,
)
from llm_locust.workload.datasets.sharegpt import ShareGptConversation, conversation_of
from llm_locust.workload.draws import Order, sequential, shuffled, weighted
from llm_locust.workload.text.prompts import Prompt

#: Keys that are not sent, of which :attr:`Dataset.how_read` names so many.
_SHOWN_KEYS = 12

_FORMS = "expected JSON values, a table or plain text with one prompt a line, or a folder of texts"

T = TypeVar("T")

#: :func:`load_dataset`, or the same with some of its arguments given.
LoadDataset = Callable[..., "Dataset"]

__all__ = ["Dataset", "load_conversations", "load_dataset"]


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
