"""What a choice of a chat completion holds: texts and tool calls, typed or read leniently."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from llm_locust.wire.choice_drafts import DeltaKind
from llm_locust.wire.draft import Draft
from llm_locust.wire.lists import Few
from llm_locust.wire.payload import (
    MAX_PARTS,
    Count,
    count_of,
    json_text,
    name_of,
    optional_object,
    text_of,
    thinking_of,
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
    tool_calls: Few[_ToolCall] | None = None
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
    texts = Delta(
        text_of(delta.get("content"), "content"),
        text_of(delta.get("reasoning_content"), "reasoning_content") or thinking_of(delta.get("content")),
        text_of(delta.get("reasoning"), "reasoning"),
        text_of(delta.get("refusal"), "refusal"),
    )
    return texts, _lenient_calls(draft, delta, carrier)


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
