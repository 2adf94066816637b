"""Datasets: prompts from a file of any supported format.

======================= ==================================================================
``.jsonl``, ``.ndjson`` one JSON value per line, each as below
``.json``               one list of such values, as in ShareGPT's files, or lines of them
``.csv``, ``.tsv``      a header, and one prompt per row
``.parquet``            a row is an object of its columns
``.txt``                one prompt per line
a folder                one prompt per file
======================= ==================================================================

The format of a file with another name is chosen by its first character: JSON values, or plain text. Any of
them but Parquet may be gzip-compressed, with ``.gz`` after its name or without.

Other known keys beside the prompt: ``id``, ``name`` (the request's name in the statistics), ``class`` (its
SLO class), ``input_tokens`` and ``output_tokens`` (asked lengths), ``weight`` (for the weighted order),
``expected`` (the right answer). Of the others, fields of the APIs go into the request body
(:data:`llm_locust.workload.body.LINE_FIELDS`), except those that the run itself sets. What is left is not
sent, unless it is asked for.
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

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
from llm_locust.figures.text import plural
from llm_locust.wire.dialects.dialect import LIMIT_FIELDS, Message
from llm_locust.wire.foreign_text import one_line
from llm_locust.workload.answers import expected_answer
from llm_locust.workload.body import LINE_FIELDS, RUN_FIELDS, check_choices, output_limit
from llm_locust.workload.conversations import (
    CONVERSATION_KEYS,
    ShareGptConversation,
    conversation_of,
    prompt_of_conversation,
)
from llm_locust.workload.draws import Order, sequential, shuffled, weighted
from llm_locust.workload.prompts import Prompt

# --- One prompt of a dataset: the forms of a JSON value
#
# The first of these keys that a value has is its prompt:
#
# =============================== ===========================================================================
# ``messages``                    a list of messages in OpenAI's chat form, sent as they are
# ``prompt``                      a text, or a list of messages
# ``conversations``,              a conversation in ShareGPT's form, of which the first question is the prompt
# ``conversation``                (:mod:`llm_locust.workload.conversations`)
# ``turns``                       the questions of a conversation, the first of which is the prompt (MT-bench)
# ``body``, ``params``            the body of a request (OpenAI's, Anthropic's batch files), with these keys
# ``text``, ``input``,            a text; ``input`` may be a list of messages, or of texts to embed
# ``question``, ``text_input``
# ``instruction``                 a text, which ``input`` follows if it is there (Alpaca)
# =============================== ===========================================================================
#
# A value that is a list of messages, or a text, is a prompt by itself. A text ``system``, or
# ``system_prompt``, goes before the prompt as its system message.


#: Default key of the right answer.
EXPECTED_FIELD = "expected"

#: Keys of a text, in a table too; the first that is there is the prompt.
TEXT_KEYS = ("prompt", "text", "input", "question", "text_input", "instruction")

EXPECTED = (
    'expected an object with "messages", "prompt", "conversations", "turns", "body" or "text", a list of '
    "messages, or a JSON string"
)

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[float, msgspec.Meta(ge=1, multiple_of=1, le=1e12)]


class DatasetError(ValueError):
    """A file that is not a dataset; one line: where, what is wrong, what is expected."""

    def __init__(self, what: str) -> None:
        super().__init__(one_line(what))


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """A prompt, the number of its first line, and its weight if it has one."""

    prompt: Prompt
    line: int
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class RowReader:
    """Makes rows of values.

    Attributes:
        expected_field: key of the right answer; it is not part of the request's body.
        sent: further keys that go into the body, beside :data:`~llm_locust.workload.body.LINE_FIELDS`; None:
            all that have no other meaning.
        unsent: number of values by key that was neither understood nor sent; it grows while rows are made.
    """

    expected_field: str = EXPECTED_FIELD
    sent: frozenset[str] | None = frozenset()
    unsent: Counter[str] = field(default_factory=Counter, compare=False)

    def row(self, value: Any, line: int) -> DatasetRow | None:
        """Row of a JSON value; None for a conversation without a question.

        Raises:
            ValueError: it is invalid; the text says what is wrong.
        """
        if isinstance(value, str):
            if not value:
                raise ValueError("an empty text")
            return DatasetRow(Prompt(text=value), line)
        if is_messages(value):
            return DatasetRow(Prompt(messages=_messages(value)), line)
        if isinstance(value, dict):
            value = self._with_expected(value)
            body = next((value[key] for key in ("body", "params") if isinstance(value.get(key), dict)), None)
            if body is not None and "messages" not in value and "prompt" not in value:
                return self._of_batch(value, body, line)
        return self._of_object(value, line, lambda key: self.sent is None or key in self.sent)

    def _with_expected(self, value: dict[str, Any]) -> dict[str, Any]:
        if self.expected_field == EXPECTED_FIELD:
            return value
        others = {key: v for key, v in value.items() if key not in (EXPECTED_FIELD, self.expected_field)}
        if self.expected_field in value:
            others[EXPECTED_FIELD] = value[self.expected_field]
        return others

    def _of_batch(self, value: dict[str, Any], body: dict[str, Any], line: int) -> DatasetRow | None:
        """A line of OpenAI's batch files: all of its body is the request's."""
        known = {key: v for key, v in value.items() if key in _UNDERSTOOD and key not in body}
        if "custom_id" in value:
            known.setdefault("id", value["custom_id"])
        self._leave_out(key for key in value if key not in {*_UNDERSTOOD, *_BATCH_KEYS, *RUN_FIELDS})
        return self._of_object({**body, **known}, line, lambda key: True)

    def _of_object(self, value: Any, number: int, is_asked: Callable[[str], bool]) -> DatasetRow | None:
        line = msgspec.convert(value, _DatasetLine)
        form = _form(value, line)
        if form is None:
            return None
        prompt, used = form
        for key in ("system", "system_prompt"):
            if isinstance(value.get(key), str):
                prompt, used = _with_system(prompt, value[key]), used | {key}
        if isinstance(line.expected, dict):
            expected_answer(line.expected)
        others = {key: v for key, v in value.items() if key not in {*used, *_UNDERSTOOD, *RUN_FIELDS}}
        extra = {
            key: _whole(key, v)
            for key, v in others.items()
            if v is not None
            and ((key in LINE_FIELDS and isinstance(v, _TYPES.get(key, object))) or is_asked(key))
        }
        self._leave_out(key for key in others if key not in extra and others[key] is not None)
        check_choices(extra, "the body's fields")
        made = Prompt(
            text=prompt.text,
            messages=prompt.messages,
            asked_input_tokens=None if line.input_tokens is None else int(line.input_tokens),
            asked_output_tokens=int(line.output_tokens) if line.output_tokens else output_limit(extra),
            answer=prompt.answer,
            expected=line.expected,
            extra=extra,
            id=_id(line.id) or prompt.id,
            name=line.name,
            slo_class=line.slo_class,
        )
        return DatasetRow(made, number, line.weight)

    def _leave_out(self, keys: Any) -> None:
        self.unsent.update(str(key)[:60] for key in keys if len(self.unsent) < _MOST_UNSENT)


#: Keys of a line that is not understood are counted up to so many different ones.
_MOST_UNSENT = 1000

#: Fields that have another meaning, or none, with values of another type: ``tools`` as a text (LlamaFactory).
_TYPES: Mapping[str, type | tuple[type, ...]] = {"tools": list, "text": dict, "system": list}

#: Keys of a batch file's lines, beside the body.
_BATCH_KEYS = frozenset({"body", "params", "custom_id", "method", "url"})


class _Part(msgspec.Struct):
    type: _Text


class _Message(msgspec.Struct):
    role: _Text
    content: str | list[_Part] | None = None


class _DatasetLine(msgspec.Struct, rename={"slo_class": "class"}):
    """Known keys. They are only checked here; the line's own values are sent."""

    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)] | None = None
    prompt: _Text | Annotated[list[_Message], msgspec.Meta(min_length=1)] | None = None
    id: str | int | float | None = None
    name: _Text | None = None
    slo_class: _Text | None = None
    expected: Any = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e12)] | None = None


_UNDERSTOOD = frozenset(field.encode_name for field in msgspec.structs.fields(_DatasetLine))


def is_messages(value: Any) -> bool:
    """Whether it is a list of messages in OpenAI's chat form, and nothing else."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, dict) and "role" in each and "content" in each for each in value)
    )


def _messages(value: list[Any]) -> tuple[Message, ...]:
    msgspec.convert(value, list[_Message])
    return tuple(value)


def _form(value: Mapping[str, Any], line: _DatasetLine) -> tuple[Prompt, frozenset[str]] | None:
    """The prompt of an object, and the keys that make it; None for a conversation without a question."""
    if line.messages is not None and line.prompt is not None:
        raise ValueError('both "messages" and "prompt"')
    if line.messages is not None:
        return Prompt(messages=tuple(value["messages"])), frozenset()
    if isinstance(line.prompt, list):
        return Prompt(messages=tuple(value["prompt"])), frozenset()
    if line.prompt is not None:
        return Prompt(text=line.prompt), frozenset()
    for key in CONVERSATION_KEYS:
        if value.get(key) is not None:
            found = prompt_of_conversation(value)
            return None if found is None else (found, frozenset({key}))
    return _text_of(value)


def _text_of(value: Mapping[str, Any]) -> tuple[Prompt, frozenset[str]]:
    instruction, given = value.get("instruction"), value.get("input")
    if isinstance(instruction, str) and instruction and "text" not in value:
        joined = f"{instruction}\n\n{given}" if isinstance(given, str) and given.strip() else instruction
        return Prompt(text=joined), frozenset({"instruction", "input"})
    for key in TEXT_KEYS:
        found = value.get(key)
        if isinstance(found, str) and found:
            return Prompt(text=found), frozenset({key})
        if key == "input" and isinstance(found, list) and found:
            if all(isinstance(each, str) and each for each in found):
                return Prompt(messages=tuple({"role": "user", "content": each} for each in found)), frozenset(
                    {key}
                )
            return Prompt(messages=_messages(_plain_parts(found))), frozenset({key})
    raise ValueError('no "messages" and no "prompt"')


def _plain_parts(items: list[Any]) -> list[Any]:
    """Messages of OpenAI's Responses API with their parts of text as the chat API has them."""

    def part(each: Any) -> Any:
        is_text = isinstance(each, dict) and each.get("type") in ("input_text", "output_text")
        return {**each, "type": "text"} if is_text else each

    def message(each: Any) -> Any:
        if not isinstance(each, dict) or not isinstance(each.get("content"), list):
            return each
        return {key: v for key, v in each.items() if key != "type"} | {
            "content": [*map(part, each["content"])]
        }

    return [*map(message, items)]


def _with_system(prompt: Prompt, system: str) -> Prompt:
    """The prompt after a line's own system message, unless it has one already."""
    if not system.strip():
        return prompt
    messages = prompt.messages or ({"role": "user", "content": prompt.text},)
    if messages[0].get("role") in ("system", "developer"):
        return prompt
    return Prompt(
        messages=({"role": "system", "content": system}, *messages), answer=prompt.answer, id=prompt.id
    )


def _whole(key: str, value: Any) -> Any:
    """A bound of the answer's length that is written as ``64.0``, as a whole number."""
    return int(value) if key in LIMIT_FIELDS and isinstance(value, float) and value.is_integer() else value


def _id(value: str | float | None) -> str | None:
    if value is None:
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def excerpt(raw: bytes) -> str:
    """Start of ``raw``, quoted, for an error's text."""
    text = raw[:240].decode(errors="replace")
    return repr(text if len(text) <= 60 else text[:60] + "…")


def where_not_utf8(raw: bytes) -> str:
    """Description of invalid UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError as e:
        return f"not UTF-8 at byte {e.start + 1} (0x{raw[e.start]:02x})"
    return "not UTF-8"


# --- JSON values from a file: one per line (JSONL), or the items of one list (JSON)
#
# Blank lines, a BOM and CRLF are ignored. A file that begins with a bracket is one list, unless its first
# line is a list by itself and there are more, or is a list of messages: then each line is a prompt's
# messages.


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
    first = [
        data[start:end] for start, end, _ in islice(_items(data), 1) if end - start <= DATASET.line_bytes
    ]
    if _is_message(first):
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
            raise reading.error(f"an item of {end - start:,} bytes with {plural(values, 'value')}", line)
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


# --- Prompts of a file, whatever its format


#: Formats of a dataset, for names that do not show it.
FORMATS = ("jsonl", "sharegpt", "csv", "parquet", "text")

#: Keys that are not sent, of which :attr:`Dataset.how_read` names so many.
_SHOWN_KEYS = 12

_FORMS = "expected JSON values, a table or plain text with one prompt a line, or a folder of texts"

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
        parts = [f"dataset {self.path!r}: {plural(len(self), 'prompt')}"]
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
    rows = _all(path, lambda: _rows(place, format or _format(place), maker, reading))
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


def _rows(path: Path, format: str, maker: RowReader, reading: FileReading) -> Iterator[DatasetRow]:
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
# The prompt is in the first column that there is of :data:`TEXT_KEYS`.
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
        raise DatasetError(f"{where}: {plural(len(cells), 'column')}, {len(header)} in the header")
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
