"""What a choice of a chat completion holds: texts and tool calls, typed or read leniently.

``content``, ``reasoning_content`` and ``reasoning`` are read from every event. Where these hold nothing,
:func:`other_texts` looks at the rest: reasoning under any other name is read, and any other text is noted as
one that is not read.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from llm_locust.wire.draft import DeltaKind, Draft
from llm_locust.wire.payload import (
    MAX_PARTS,
    AtMost4,
    Count,
    count_of,
    json_text,
    name_of,
    objects,
    optional_object,
    text_of,
)

#: The field of a choice that holds its text.
Carrier = Literal["delta", "message", "text"]


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None
    input: str | None = None


_NO_FUNCTION = _Function()


class _ToolCall(msgspec.Struct, gc=False):
    id: str | None = None
    index: Count = None
    function: _Function | None = None
    custom: _Function | None = None


class Delta(msgspec.Struct, gc=False):
    """What is new in a choice; of a whole answer the message."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: AtMost4[_ToolCall] | None = None
    function_call: _Function | None = None
    error: None = None


#: A piece of a tool call: the key of the call (None: not sent), its id, its name, a piece of its arguments.
ToolPiece = tuple[int | str | None, Any, Any, str]


def typed_call(call: _ToolCall, key: int | None) -> ToolPiece:
    """A tool call's piece, under this key."""
    function = call.function or call.custom or _NO_FUNCTION
    return key, call.id, function.name, function.arguments or function.input or ""


def typed_delta(delta: Delta | None) -> tuple[Delta | None, list[ToolPiece]]:
    """Texts and tool calls of a typed delta."""
    if delta is None:
        return None, []
    sent = delta.tool_calls.all() if delta.tool_calls else ()
    calls = [typed_call(call, count_of(call.index)) for call in sent]
    if legacy := delta.function_call:
        calls.append(("function_call", None, legacy.name, legacy.arguments or ""))
    return delta, calls


def lenient_delta(draft: Draft, value: Any, carrier: Carrier) -> tuple[Delta | None, list[ToolPiece]]:
    """The same of a choice's ``delta``, ``message`` or ``text`` as any value; a message's calls have their
    places as keys."""
    if carrier == "text":
        return Delta(text_of(value, carrier)), []
    delta = optional_object(value, carrier)
    if delta is None:
        return None, []
    content, thoughts = _divided(delta.get("content"))
    texts = Delta(
        text_of(content, "content"),
        text_in(delta.get("reasoning_content")) or thoughts,
        text_in(delta.get("reasoning")),
        text_of(delta.get("refusal"), "refusal"),
    )
    return texts, _lenient_calls(draft, delta, carrier)


def _divided(content: Any) -> tuple[Any, str]:
    """A content without its parts of reasoning, and the text of these."""
    parts = [content] if isinstance(content, dict) else content
    if not isinstance(parts, list) or len(parts) > MAX_PARTS:
        return content, ""
    left, thoughts = [], ""
    for part in parts:
        thought = ""
        if isinstance(part, dict):
            is_one = _REASONING.search(name_of(part.get("type")) or "") is not None
            thought = text_in(part) if is_one else "".join(text_in(each) for _, each in _thoughts(part))
        thoughts += thought
        left += [] if thought else [part]
    return left, thoughts


def _thoughts(value: dict[str, Any]) -> list[tuple[str, Any]]:
    """Fields with the name of reasoning."""
    fields = list(value.items())[:MAX_PARTS]
    return [(name, each) for name, each in fields if _REASONING.search(name) and not _ABOUT.search(name)]


def _lenient_calls(draft: Draft, delta: dict[str, Any], carrier: Carrier) -> list[ToolPiece]:
    given = delta.get("tool_calls")
    given = [call for call in given if isinstance(call, dict)] if isinstance(given, list) else []
    if len(given) > MAX_PARTS:
        draft.reject(f"more than {MAX_PARTS:,} tool calls in one event")
    calls: list[ToolPiece] = []
    for place, call in enumerate(given[:MAX_PARTS]):
        function = call.get("function") or call.get("custom")
        function = function if isinstance(function, dict) else {}
        arguments = json_text(function.get("arguments", function.get("input")))
        key = place if carrier == "message" else count_of(call.get("index"))
        calls.append((key, call.get("id"), function.get("name"), arguments))
    if isinstance(legacy := delta.get("function_call"), dict):
        calls.append(("function_call", None, legacy.get("name"), json_text(legacy.get("arguments"))))
    return calls


def add_delta(draft: Draft, index: int, delta: Delta | None) -> DeltaKind:
    """Write the texts into the draft."""
    if delta is None:
        return DeltaKind.NOTHING
    return draft.choice(index).add(
        text=delta.content or "",
        reasoning=delta.reasoning_content or delta.reasoning or "",  # some servers send both, the same
        refusal=delta.refusal or "",
    )


#: Names of reasoning, and of what is about it.
_REASONING = re.compile(r"reason|think|thought|(?:^|_)cot(?:_|$)", re.IGNORECASE)
_ABOUT = re.compile(
    r"sign|token|finish|stop|effort|time|duration|status|type|count|crypt|budget|(?:^|_)ids?$", re.IGNORECASE
)

#: Fields of a delta or a choice that are no text, or are read elsewhere.
_NO_TEXT = frozenset(
    (
        *("role", "name", "index", "object", "model", "provider", "created", "status", "state", "phase"),
        *("service_tier", "system_fingerprint", "language", "annotations", "citations", "tool_calls"),
        *("function_call", "logprobs", "prompt_logprobs", "provider_specific_fields", "usage", "error"),
        *("content", "refusal", "reasoning_content", "reasoning", "delta", "metadata", "matched_stop"),
    )
)

#: Fields beside the delta that may have its text. Others are a server's own.
_BESIDE = frozenset({"text", "message", "output_text", "generated_text", "content", "delta"})

#: Where the text is in an object.
_TEXT_KEYS = ("text", "content", "thinking", "summary", "reasoning", "value", "output_text", "transcript")


def text_in(value: Any, depth: int = 3) -> str:
    """The text of a text, of an object, or of a list of these; of anything else there is none."""
    if isinstance(value, str):
        return value
    if not depth:
        return ""
    if isinstance(value, list):
        return "".join(text_in(item, depth - 1) for item in value[:MAX_PARTS])
    if isinstance(value, dict):
        return next((text for key in _TEXT_KEYS if (text := text_in(value.get(key), depth - 1))), "")
    return ""


def other_texts(draft: Draft, payload: dict[str, Any], carrier: Carrier) -> DeltaKind:
    """Read an event that has no text where an API has it.

    Reasoning goes into the draft. Any other text is noted with the name of its field.
    """
    kind = DeltaKind.NOTHING
    for choice in objects(payload.get("choices"), "choices"):
        for name, value in _others(choice, carrier):
            text = text_in(value)
            if not text:
                continue
            if not _REASONING.search(name):
                draft.unknown_text(name, text)
                continue
            drafted = draft.choice(count_of(choice.get("index")) or 0)
            if not drafted.reasoning:
                draft.summarised = "summar" in name.lower() or _is_summary(value)
            kind = max(kind, drafted.add(reasoning=text))
            break  # the same again, under a further name
    return kind


def _others(choice: dict[str, Any], carrier: Carrier) -> Iterator[tuple[str, Any]]:
    """Fields of a choice that may have a text and are not read elsewhere, those of reasoning first."""
    held = choice.get(carrier)
    fields = list(held.items())[:MAX_PARTS] if isinstance(held, dict) else []
    beside = [(name, value) for name, value in choice.items() if name in _BESIDE and name != carrier]
    inner = [field for _, value in fields + beside if isinstance(value, dict) for field in _thoughts(value)]
    others = [field for field in fields if field[0] not in _NO_TEXT and not _ABOUT.search(field[0])]
    known = [*others, *_thoughts(choice), *inner, *beside]
    return iter(sorted(known, key=lambda field: _REASONING.search(field[0]) is None))


def _is_summary(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, dict) and "summar" in str(first.get("type")).lower()


def add_tool_calls(draft: Draft, index: int, calls: Sequence[ToolPiece]) -> DeltaKind:
    """A piece belongs to the call of its ``index``, else of its ``id``, else to the last one."""
    kind = DeltaKind.NOTHING
    for key, id_, name, arguments in calls:
        if key is None:
            key = name_of(id_)
        if key is None:
            key = next((k for i, k in reversed(draft.tools) if i == index), 0)
        kind = max(kind, draft.tool(index, key).add(arguments, id_, name))
    return kind


# --- Values out of OpenAI's chat form, in which prompts are, for bodies of other APIs
#
# Nothing here raises: what is in no form that an API knows goes out as it is, for the server to refuse.


def object_in(value: Any) -> Mapping[str, Any]:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects_in(value: Any) -> list[Mapping[str, Any]]:
    """The objects among a list's items; none where it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def function_in(value: Any) -> Mapping[str, Any]:
    """The ``function`` of a tool, of a tool call or of a choice of a tool."""
    return object_in(object_in(value).get("function"))


def text_of_content(content: Any) -> str:
    """The text of a message's content, its parts joined."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = (part.get("text") for part in objects_in(content))
    return "".join(text for text in texts if isinstance(text, str))
