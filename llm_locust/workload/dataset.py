"""Prompts out of a JSONL file: one JSON value a line.

An object with ``messages`` (OpenAI's chat form) or with ``prompt`` (a text), or a bare JSON
string, which is a text. Understood beside it: ``id``, ``name`` (the request's name in the
statistics), ``class`` (its SLO class), ``input_tokens`` and ``output_tokens`` (asked lengths).
Every other key goes into the request body (``tools``, ``temperature``, ``max_tokens``, ...), but
for those that the run itself decides: see :mod:`llm_locust.workload.body`. Blank lines are skipped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import msgspec

from llm_locust.workload.body import output_limit
from llm_locust.workload.prompts import Message, Prompt

EXPECTED = 'expected an object with "messages" or "prompt", or a JSON string'

_BOM = b"\xef\xbb\xbf"

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=1)]


class DatasetError(ValueError):
    """A file that is no dataset; one line: where, what is wrong, what is expected."""


class _Part(msgspec.Struct):
    type: _Text


class _Message(msgspec.Struct):
    role: _Text
    content: str | list[_Part] | None = None


class _Line(msgspec.Struct, rename={"slo_class": "class"}):
    """The understood keys; they are checked here, and the values sent are the line's own."""

    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)] | None = None
    prompt: _Text | None = None
    id: str | int | None = None
    name: _Text | None = None
    slo_class: _Text | None = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None


_UNDERSTOOD = frozenset(field.encode_name for field in msgspec.structs.fields(_Line))


@dataclass(frozen=True, slots=True)
class Dataset:
    """The prompts of a file in its order, and the line number of each."""

    path: str
    prompts: tuple[Prompt, ...]
    lines: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompts)

    def share(self, worker_index: int, worker_count: int) -> Sequence[Prompt]:
        """Worker i of W has lines i, i + W, i + 2W ...: none in two shares, all in one.

        Only where there are more workers than lines do some share a line.
        """
        return self.prompts[worker_index % len(self) :: worker_count]

    def stream(self, worker_index: int, worker_count: int) -> Iterator[Prompt]:
        """A worker's share over and over, in order, without end."""
        return cycle(self.share(worker_index, worker_count))


def load_dataset(path: str | Path) -> Dataset:
    """The dataset in the file at ``path``.

    Raises:
        DatasetError: the file cannot be read, a line is not what the module describes, or
            there is none.
    """
    prompts, lines = [], []
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, 1):
                raw = line.removeprefix(_BOM).strip() if number == 1 else line.strip()
                if raw:
                    prompts.append(_prompt(f"{path}:{number}", raw))
                    lines.append(number)
    except DatasetError:
        raise
    except (OSError, ValueError) as e:  # ValueError: a path with a null byte
        raise DatasetError(f"dataset {str(path)!r} cannot be read: {getattr(e, 'strerror', e)}") from e
    if not prompts:
        raise DatasetError(f"dataset {str(path)!r} has no line with a prompt; {EXPECTED} a line")
    return Dataset(str(path), tuple(prompts), tuple(lines))


def _prompt(where: str, raw: bytes) -> Prompt:
    try:
        value = msgspec.json.decode(raw)
        return _of_text(value) if isinstance(value, str) else _of_object(value)
    except UnicodeDecodeError:
        what = _where_not_utf8(raw)
    except RecursionError:
        what = "nested too deep"
    except ValueError as e:
        what = str(e)
    raise DatasetError(f"{where}: {what}, in {_excerpt(raw)}; {EXPECTED}")


def _of_text(value: str) -> Prompt:
    if not value:
        raise ValueError("an empty text")
    return Prompt(text=value)


def _of_object(value: Any) -> Prompt:
    line = msgspec.convert(value, _Line)
    if (line.messages is None) == (line.prompt is None):
        raise ValueError('both "messages" and "prompt"' if line.prompt else 'no "messages" and no "prompt"')
    extra = {key: item for key, item in value.items() if key not in _UNDERSTOOD}
    messages: tuple[Message, ...] | None = None if line.messages is None else tuple(value["messages"])
    return Prompt(
        text=line.prompt,
        messages=messages,
        asked_input_tokens=line.input_tokens,
        asked_output_tokens=line.output_tokens or output_limit(extra),
        extra=extra,
        id=None if line.id is None else str(line.id),
        name=line.name,
        slo_class=line.slo_class,
    )


def _excerpt(raw: bytes) -> str:
    text = raw[:240].decode(errors="replace")
    return repr(text if len(text) <= 60 else text[:60] + "…")


def _where_not_utf8(raw: bytes) -> str:
    try:
        raw.decode()
    except UnicodeDecodeError as e:
        return f"not UTF-8 at byte {e.start + 1} (0x{raw[e.start]:02x})"
    return "not UTF-8"
