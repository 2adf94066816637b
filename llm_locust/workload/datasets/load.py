"""Prompts from a file of any supported format.

======================= ==================================================================
``.jsonl``, ``.ndjson`` one JSON value per line, each as below
``.json``               one list of such values, as in ShareGPT's files
``.csv``, ``.tsv``      see :mod:`llm_locust.workload.datasets.tables`
``.txt``                one prompt per line
a folder                one prompt per file
======================= ==================================================================

The format of a file with another name is chosen by its first character: JSON values, or plain text.

A JSON value is an object with ``messages`` (OpenAI's chat form), with ``prompt`` (a text) or with
``conversations`` (ShareGPT's form, of which the first question is the prompt), or a bare JSON string, which
is a text. Other known keys with ``messages`` and ``prompt``: ``id``, ``name`` (the request's name in the
statistics), ``class`` (its SLO class), ``input_tokens`` and ``output_tokens`` (asked lengths), ``weight``
(for the weighted order). Every other key goes into the request body (``tools``, ``temperature``,
``max_tokens``, ...), except those that the run itself sets: see :mod:`llm_locust.workload.body`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from llm_locust.workload.datasets.json_values import (
    first_character,
    json_rows,
    json_values,
)
from llm_locust.workload.datasets.row import EXPECTED, EXPECTED_FIELD, DatasetError, DatasetRow
from llm_locust.workload.datasets.sharegpt import ShareGptConversation, conversation_of
from llm_locust.workload.datasets.tables import table_rows
from llm_locust.workload.datasets.texts import folder_rows, text_line_rows
from llm_locust.workload.ordering import Order, sequential, shuffled, weighted
from llm_locust.workload.text.prompts import Prompt

_FORMS = "expected JSON values, a CSV table or plain text with one prompt a line, or a folder of texts"

T = TypeVar("T")

__all__ = ["EXPECTED", "Dataset", "DatasetError", "load_conversations", "load_dataset"]


@dataclass(frozen=True, slots=True)
class Dataset:
    """Prompts of a file in its order, the line number of each, and their weights if any has one."""

    path: str
    prompts: tuple[Prompt, ...]
    lines: tuple[int, ...]
    weights: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.prompts)

    def share(self, worker_index: int, worker_count: int) -> Sequence[Prompt]:
        """Lines i, i + W, i + 2W ... for worker i of W: each line in exactly one share.

        Only with more workers than lines do some share a line.
        """
        return self.prompts[worker_index % len(self) :: worker_count]

    def stream(
        self, worker_index: int, worker_count: int, order: Order = "sequential", seed: int = 0
    ) -> Iterator[Prompt]:
        """A worker's part of the lines in an order of :mod:`llm_locust.workload.ordering`, without end.

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
    path: str | Path, format: str | None = None, expected_field: str = EXPECTED_FIELD
) -> Dataset:
    """Load the dataset in the file or folder at ``path``.

    Args:
        format: ``jsonl``, ``sharegpt`` (both JSON, lines or a list), ``csv`` or ``text``; None: by the file's
            name or its first character.
        expected_field: key or column of the right answers.

    Raises:
        DatasetError: it cannot be read, a line does not have the form above, or there is none; or no line has
            the requested ``expected_field``.
    """
    place = Path(path)
    rows = _all(path, lambda: _read(place, format or _format(place), expected_field))
    if expected_field != EXPECTED_FIELD and all(row.prompt.expected is None for row in rows):
        raise DatasetError(f"dataset {str(path)!r}: no line has {expected_field!r}, the expected answer")
    weights = tuple(1.0 if row.weight is None else row.weight for row in rows)
    return Dataset(
        str(path),
        tuple(row.prompt for row in rows),
        tuple(row.line for row in rows),
        weights if any(row.weight is not None for row in rows) else (),
    )


def load_conversations(path: str | Path) -> tuple[ShareGptConversation, ...]:
    """Load the conversations of a file in ShareGPT's form, as JSON or JSONL, with all their turns.

    Raises:
        DatasetError: it cannot be read, an item is not of that form, or there is no question.
    """

    def read(value: Any, line: int) -> ShareGptConversation | None:
        return conversation_of(value)

    return tuple(_all(path, lambda: json_values(Path(path), read)))


def _all(path: str | Path, read: Callable[[], Iterator[T]]) -> list[T]:
    try:
        found = list(read())
    except DatasetError:
        raise
    except (OSError, ValueError) as e:  # ValueError: a path with a null byte
        raise DatasetError(
            f"dataset {str(path)!r} cannot be read: {getattr(e, 'strerror', None) or e}"
        ) from e
    if not found:
        raise DatasetError(f"dataset {str(path)!r} has no line with a prompt; {_FORMS}")
    return found


def _read(path: Path, format: str, expected_field: str) -> Iterator[DatasetRow]:
    match format:
        case "folder":
            return folder_rows(path)
        case "csv":
            return table_rows(path, expected_field)
        case "text":
            return text_line_rows(path)
    return json_rows(path, expected_field)


def _format(path: Path) -> str:
    if path.is_dir():
        return "folder"
    known = {
        ".jsonl": "jsonl",
        ".ndjson": "jsonl",
        ".json": "jsonl",
        ".csv": "csv",
        ".tsv": "csv",
        ".txt": "text",
    }
    return known.get(path.suffix.lower()) or ("jsonl" if first_character(path) in b'[{"' else "text")
