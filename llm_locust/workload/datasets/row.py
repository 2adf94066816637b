"""One prompt of a dataset as read, and the forms of a JSON value."""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from llm_locust.wire.dialects.dialect import Message
from llm_locust.wire.names import one_line
from llm_locust.workload.answers.expected import expected_answer
from llm_locust.workload.body import check_choices, output_limit
from llm_locust.workload.datasets.sharegpt import prompt_of_conversation
from llm_locust.workload.text.prompts import Prompt

#: Default key of the right answer.
EXPECTED_FIELD = "expected"

EXPECTED = 'expected an object with "messages", "prompt" or "conversations", or a JSON string'

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=1)]


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


class _Part(msgspec.Struct):
    type: _Text


class _Message(msgspec.Struct):
    role: _Text
    content: str | list[_Part] | None = None


class _DatasetLine(msgspec.Struct, rename={"slo_class": "class"}):
    """Known keys. They are only checked here; the line's own values are sent."""

    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)] | None = None
    prompt: _Text | None = None
    id: str | int | None = None
    name: _Text | None = None
    slo_class: _Text | None = None
    expected: Any = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e12)] | None = None


_UNDERSTOOD = frozenset(field.encode_name for field in msgspec.structs.fields(_DatasetLine))


def row_of_value(value: Any, line: int, expected_field: str = EXPECTED_FIELD) -> DatasetRow | None:
    """Row of a JSON value; None for a conversation without a question.

    Args:
        expected_field: key of the right answer; it is then not part of the request's body.

    Raises:
        ValueError: it is invalid; the text says what is wrong.
    """
    if isinstance(value, str):
        if not value:
            raise ValueError("an empty text")
        return DatasetRow(Prompt(text=value), line)
    if isinstance(value, dict) and "conversations" in value:
        prompt = prompt_of_conversation(value)
        return None if prompt is None else DatasetRow(prompt, line)
    if isinstance(value, dict) and expected_field != EXPECTED_FIELD:
        value = {key: item for key, item in value.items() if key not in (EXPECTED_FIELD, expected_field)} | (
            {EXPECTED_FIELD: value[expected_field]} if expected_field in value else {}
        )
    return _of_object(value, line)


def _of_object(value: Any, number: int) -> DatasetRow:
    line = msgspec.convert(value, _DatasetLine)
    if (line.messages is None) == (line.prompt is None):
        raise ValueError('both "messages" and "prompt"' if line.prompt else 'no "messages" and no "prompt"')
    if isinstance(line.expected, dict):
        expected_answer(line.expected)
    extra = {key: item for key, item in value.items() if key not in _UNDERSTOOD}
    check_choices(extra, "the body's fields")
    messages: tuple[Message, ...] | None = None if line.messages is None else tuple(value["messages"])
    prompt = Prompt(
        text=line.prompt,
        messages=messages,
        asked_input_tokens=line.input_tokens,
        asked_output_tokens=line.output_tokens or output_limit(extra),
        expected=line.expected,
        extra=extra,
        id=None if line.id is None else str(line.id),
        name=line.name,
        slo_class=line.slo_class,
    )
    return DatasetRow(prompt, number, line.weight)


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
