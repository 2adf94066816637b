"""The responses API: its row, bodies of requests, typed events of a stream, whole response objects."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from llm_locust.wire.chat_form import function_in, object_in, objects_in, text_of_content
from llm_locust.wire.dialects.dialect import Dialect, Message
from llm_locust.wire.draft import DeltaKind, Draft, read_leniently
from llm_locust.wire.ends import says_error
from llm_locust.wire.payload import (
    DECODE_ERRORS,
    AtMost16,
    PayloadError,
    Sent,
    error_text,
    excerpt,
    explained,
    json_text,
    name_of,
    objects,
    optional_object,
    text_of,
    whole_object,
)
from llm_locust.wire.sse import SseEvent

_TEXT = "response.output_text.delta"
_REASONING = "response.reasoning_text.delta"
_SUMMARY = "response.reasoning_summary_text.delta"
_REFUSAL = "response.refusal.delta"
_ARGUMENTS = frozenset(
    {
        "response.function_call_arguments.delta",
        "response.custom_tool_call_input.delta",
        "response.mcp_call_arguments.delta",
    }
)
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_REPEATS = ("text.done", "part.done", "item.done", "arguments.done")  # of what came in deltas

#: A longer event may repeat what came before it, with log probabilities.
_LONG_BYTES = 64 << 10
_ITEM_ADDED = "response.output_item.added"
_CALLS = frozenset({"function_call", "custom_tool_call", "mcp_call"})


class _Event(msgspec.Struct, gc=False):
    type: str | None = None
    delta: str | None = None
    item_id: str | int | None = None


class _Part(msgspec.Struct, gc=False):
    text: Sent = UNSET
    refusal: Sent = UNSET


class _Item(msgspec.Struct, gc=False):
    type: Sent = UNSET
    id: Sent = UNSET
    call_id: Sent = UNSET
    name: Sent = UNSET
    arguments: Sent = UNSET
    input: Sent = UNSET
    content: AtMost16[_Part] | UnsetType | None = UNSET
    summary: AtMost16[_Part] | UnsetType | None = UNSET


class _Ended(msgspec.Struct, gc=False):
    """The skeleton of a response whose output came before."""

    status: Sent = UNSET
    model: Sent = UNSET
    usage: Sent = UNSET
    incomplete_details: Sent = UNSET
    error: Sent = UNSET


class _Response(_Ended, gc=False):
    """The skeleton of a response that was not streamed."""

    object: Sent = UNSET
    output: AtMost16[_Item] | UnsetType | None = UNSET


class _LongEvent(msgspec.Struct, gc=False):
    """The skeleton of an event that may repeat the whole answer, with log probabilities."""

    type: Sent = UNSET
    delta: Sent = UNSET
    item_id: Sent = UNSET
    item: _Item | UnsetType | None = UNSET
    response: _Ended | UnsetType | None = UNSET
    error: Sent = UNSET
    object: Sent = UNSET


_decode = msgspec.json.Decoder(_Event).decode
_decode_whole = msgspec.json.Decoder(_Response).decode
_long_event = partial(whole_object, msgspec.json.Decoder(_LongEvent).decode)


def read_responses(draft: Draft, events: Sequence[SseEvent]) -> None:
    """Events of ``/v1/responses``."""
    choice = draft.choices[0]
    for event in events:
        if len(event.data) > _LONG_BYTES:
            if not event.event.decode("utf-8", "replace").endswith(_REPEATS):
                read_leniently(draft, event, _read_event, _long_event)
            continue
        try:
            payload = _decode(event.data)
        except DECODE_ERRORS:
            read_leniently(draft, event, _read_event)
            continue
        if payload.type == _TEXT and payload.delta and draft.first_answer is not None:
            choice.text.append(payload.delta)
            draft.token_ends.append(event.end)
        elif payload.delta is not None and payload.type:
            _read_delta(draft, event, payload.type, payload.delta, payload.item_id)
        elif not (payload.type or "").endswith(_REPEATS):
            read_leniently(draft, event, _read_event)


def _read_delta(draft: Draft, event: SseEvent, type_: str, text: str, item_id: Any) -> None:
    choice, kind = draft.choices[0], DeltaKind.NOTHING
    if type_ == _TEXT:
        kind = choice.add(text=text)
    elif type_ in (_REASONING, _SUMMARY):
        if type_ == _REASONING:
            draft.summarised = False
        elif not choice.reasoning:
            draft.summarised = True
        kind = choice.add(reasoning=text)
    elif type_ == _REFUSAL:
        kind = choice.add(refusal=text)
    elif type_ in _ARGUMENTS:
        kind = draft.tool(0, name_of(item_id) or "").add(text)
    elif text:
        draft.unknown_text(type_, text)
    draft.token(event.end, kind)


def _read_event(draft: Draft, payload: dict[str, Any], event: SseEvent) -> None:
    type_ = name_of(payload.get("type")) or event.event.decode("utf-8", "replace")
    if type_ == "error" or says_error(payload.get("error")) or payload.get("object") == "error":
        draft.fail(error_text(payload))
    elif type_ in _ENDS:
        response = optional_object(payload.get("response"), "response") or {}
        _read_end(draft, response, type_.removeprefix("response."))
        draft.finish_end = event.end
    elif type_ == _ITEM_ADDED:
        item = optional_object(payload.get("item"), "item") or {}
        if name_of(item.get("type")) in _CALLS:
            draft.token(event.end, _tool_call(draft, item, ""))
    elif type_.endswith(".delta"):
        _read_delta(draft, event, type_, text_of(payload.get("delta"), "delta"), payload.get("item_id"))
    elif not type_:
        draft.strange(payload, event, f'no "type" in {excerpt(event.data)}')
    else:
        started = payload.get("response")
        if isinstance(started, dict):
            draft.note(started.get("model"))
            draft.find_usage(event, payload)


def _read_end(draft: Draft, response: dict[str, Any], status: str) -> None:
    said = name_of(response.get("status"))
    if f"response.{said}" in _ENDS:  # some servers end incomplete ones with "completed" too
        status = said or status
    draft.note(response.get("model"), response.get("usage"))
    if response.get("output") and not draft.token_ends:
        draft.beside = '"output" at the end without a delta'
    draft.closed = True
    reason: Any = status
    if status == "incomplete" and isinstance(details := response.get("incomplete_details"), dict):
        reason = name_of(details.get("reason")) or status
    draft.choices[0].finish(reason)
    if says_error(response.get("error")):
        draft.fail(error_text(response["error"]))
    elif status in ("failed", "cancelled"):
        draft.fail(f"the response {'failed' if status == 'failed' else 'was cancelled'}")


def _tool_call(draft: Draft, item: dict[str, Any], arguments: str) -> DeltaKind:
    tool = draft.tool(0, name_of(item.get("id")) or name_of(item.get("call_id")) or "")
    return tool.add(arguments, item.get("call_id") or item.get("id"), item.get("name"))


def read_responses_body(draft: Draft, body: bytes) -> None:
    """A whole response object, as one event."""
    try:
        _read_response(draft, whole_object(_decode_whole, body, needed="output"), body)
        draft.fail_beside(body)
    except PayloadError as e:
        draft.reject(explained(e, body))


def _read_response(draft: Draft, response: dict[str, Any], body: bytes) -> None:
    if response.get("object") == "error" or (says_error(response.get("error")) and "output" not in response):
        draft.fail(error_text(response))
        return
    if "output" not in response:
        raise PayloadError(f'no "output" in {excerpt(body)}')
    kind = DeltaKind.NOTHING
    for item in objects(response["output"], "output"):
        kind = max(kind, _read_item(draft, item))
    draft.token(len(body), kind)
    status = name_of(response.get("status")) or "completed"
    if f"response.{status}" in _ENDS:
        _read_end(draft, response, status)


def _read_item(draft: Draft, item: dict[str, Any]) -> DeltaKind:
    choice = draft.choices[0]
    if name_of(item.get("type")) in _CALLS:
        return _tool_call(draft, item, json_text(item.get("arguments", item.get("input"))))
    parts = objects(item.get("content"), "content")
    if item.get("type") == "reasoning":
        texts = text_of(parts, "content") or text_of(item.get("summary"), "summary")
        return choice.add(reasoning=texts)
    refusal = "".join(text_of(part.get("refusal"), "refusal") for part in parts)
    return choice.add(text=text_of(parts, "content"), refusal=refusal)


def _body(messages: Sequence[Message], fields: Mapping[str, Any]) -> dict[str, Any]:
    body = {"input": responses_input(messages), **fields}
    if isinstance(tools := body.get("tools"), list):
        body["tools"] = [_tool(tool) for tool in tools]
    if (name := function_in(body.get("tool_choice")).get("name")) is not None:
        body["tool_choice"] = {"type": "function", "name": name}
    return body


def responses_input(messages: Iterable[Message]) -> list[Message]:
    """Messages as items of ``input``: tool calls and their results stand beside messages there."""
    items: list[Message] = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role == "tool":
            called = message.get("tool_call_id")
            items.append(
                {"type": "function_call_output", "call_id": called, "output": text_of_content(content)}
            )
            continue
        calls = objects_in(message.get("tool_calls"))
        if content or not calls:
            parts = [_part(p, role) for p in content] if isinstance(content, list) else content
            items.append({k: v for k, v in message.items() if k != "tool_calls"} | {"content": parts})
        for call in calls:
            function = function_in(call)
            named = {"name": function.get("name"), "arguments": function.get("arguments")}
            items.append({"type": "function_call", "call_id": call.get("id"), **named})
    return items


def _tool(tool: Any) -> Any:
    """A tool of the chat API, its function's fields beside its type."""
    function = function_in(tool)
    return {"type": "function", **function} if function else tool


def _part(part: Any, role: Any) -> Any:
    match object_in(part).get("type"):
        case "text":
            return {"type": "output_text" if role == "assistant" else "input_text", "text": part.get("text")}
        case "image_url":
            image = object_in(part.get("image_url"))
            return {
                "type": "input_image",
                "image_url": image.get("url"),
                "detail": image.get("detail", "auto"),
            }
    return part


RESPONSES = Dialect(
    name="responses",
    path="/responses",
    body=_body,
    read_events=read_responses,
    read_body=read_responses_body,
    long_events=True,
    limit_field="max_output_tokens",
    usual_finishes=("completed", "max_output_tokens"),
)
