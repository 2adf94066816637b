"""One prompt of a dataset as read, and the forms of a JSON value: a line, an item of a list, a row of a
table.

The first of these keys that a value has is its prompt:

================================ ===========================================================================
``messages``                     a list of messages in OpenAI's chat form, sent as they are
``prompt``                       a text, or a list of messages
``conversations``,               a conversation in ShareGPT's form, of which the first question is the prompt:
``conversation``                 :mod:`llm_locust.workload.dataset_rows`
``turns``                        the questions of a conversation, the first of which is the prompt (MT-bench)
``body``, ``params``             the body of a request (OpenAI's, Anthropic's batch files), with these keys
``text``, ``input``,             a text; ``input`` may be a list of messages, or of the texts of an embeddings
``question``, ``text_input``     request
``instruction``                  a text, which ``input`` follows if it is there (Alpaca)
================================ ===========================================================================

A value that is a list of messages, or a text, is a prompt by itself. A text ``system``, or
``system_prompt``, goes before the prompt as its system message.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from llm_locust.core.files import DATASET, FileReading, first_bytes, input_lines, read_input
from llm_locust.wire.dialects.dialect import LIMIT_FIELDS, Message
from llm_locust.wire.foreign_text import one_line
from llm_locust.workload.answers import expected_answer
from llm_locust.workload.body import LINE_FIELDS, RUN_FIELDS, check_choices, output_limit
from llm_locust.workload.prompts import Prompt

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


# --- ShareGPT's form: ``{"id": ..., "conversations": [{"from": "human", "value": ...}, ...]}``
#
# The speakers ``human``, ``user`` and ``prompter`` ask; ``gpt``, ``assistant``, ``model``, ``chatgpt``,
# ``bing`` and ``bard`` answer; ``system`` and ``developer`` are the system message. Calls of tools and their
# results (``function_call``, ``observation``, ``tool``, ...), answers before the first question and items
# without text are left out; the published files have all of these. Items may have ``role`` and ``content``
# instead, and the list may be called ``conversation`` or ``turns``. Of ``turns``, texts are questions without
# answers (MT-bench).


#: Keys of the list; the first one that is there is the conversation.
CONVERSATION_KEYS = ("conversations", "conversation", "turns")

_SPEAKERS = {
    **dict.fromkeys(("human", "user", "prompter"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "bing", "bard"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(
        ("function_call", "observation", "tool", "tool_call", "function", "function_response"), None
    ),
}


@dataclass(frozen=True, slots=True)
class ShareGptTurn:
    """A user message, and the answer; None without one."""

    text: str
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class ShareGptConversation:
    """A user's turns in order, at least one, and the system message before them."""

    turns: tuple[ShareGptTurn, ...]
    system: str | None = None
    id: str | None = None


class _Item(msgspec.Struct, rename={"speaker": "from"}):
    """What somebody says; ``from`` may be called ``role``, and ``value`` ``content``. Others are ignored."""

    speaker: str | UnsetType = UNSET
    role: str | UnsetType = UNSET
    value: str | list[dict[str, Any]] | UnsetType | None = UNSET
    content: str | list[dict[str, Any]] | UnsetType | None = UNSET


class _Conversation(msgspec.Struct):
    """One of :data:`CONVERSATION_KEYS`, under its own name for the places in errors."""

    conversations: list[str | _Item] = []
    conversation: list[str | _Item] = []
    turns: list[str | _Item] = []
    id: str | int | float | None = None


def conversation_of(value: Any) -> ShareGptConversation | None:
    """Parse a conversation in ShareGPT's form; None without a question.

    Raises:
        ValueError: it is not of that form, or a speaker is unknown.
    """
    if not isinstance(value, dict):
        raise ValueError(f"Expected `object`, got `{type(value).__name__}`")
    key = next((key for key in CONVERSATION_KEYS if value.get(key) is not None), None)
    if key is None:
        raise ValueError(f"no {', '.join(CONVERSATION_KEYS)}")
    conversation = msgspec.convert({key: value[key], "id": value.get("id")}, _Conversation)
    system: list[str] = []
    turns: list[ShareGptTurn] = []
    for place, item in enumerate(getattr(conversation, key)):
        role, text = _role_and_text(item, f"$.{key}[{place}]")
        if not text.strip():
            continue
        if role == "user":
            turns.append(ShareGptTurn(text))
        elif role == "system":
            system.append(text)
        elif role == "assistant" and turns:
            before = turns[-1].answer
            answer = text if before is None else f"{before}\n\n{text}"
            turns[-1] = ShareGptTurn(turns[-1].text, answer)
    if not turns:
        return None
    id_ = None if conversation.id is None else str(conversation.id)
    return ShareGptConversation(tuple(turns), "\n\n".join(system) or None, id_)


def _role_and_text(item: str | _Item, where: str) -> tuple[str | None, str]:
    """The role of an item, None where it does not count, and its text, of parts that are text."""
    if isinstance(item, str):
        return "user", item
    speaker = item.role if item.speaker is UNSET else item.speaker
    value = item.content if item.value is UNSET else item.value
    if isinstance(speaker, UnsetType) or isinstance(value, UnsetType):
        lacking = "from" if speaker is UNSET else "value"
        raise ValueError(f"missing required field `{lacking}` - at `{where}`")
    if speaker.lower() not in _SPEAKERS:
        known = ", ".join(_SPEAKERS)
        raise ValueError(f"speaker {speaker[:40]!r} - at `{where}.from`; known are {known}")
    if isinstance(value, list):
        value = "\n\n".join(part["text"] for part in value if isinstance(part.get("text"), str))
    return _SPEAKERS[speaker.lower()], value or ""


def prompt_of_conversation(value: Any) -> Prompt | None:
    """A conversation's first turn as a prompt (raises as :func:`conversation_of`)."""
    conversation = conversation_of(value)
    if conversation is None:
        return None
    first = conversation.turns[0]
    if conversation.system is None:
        return Prompt(text=first.text, answer=first.answer, id=conversation.id)
    messages = (
        {"role": "system", "content": conversation.system},
        {"role": "user", "content": first.text},
    )
    return Prompt(messages=messages, answer=first.answer, id=conversation.id)
