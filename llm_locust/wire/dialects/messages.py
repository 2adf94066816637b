"""Anthropic-style messages: their row, bodies of requests, typed events of a stream, whole message objects.

A thinking delta is reasoning, a text delta, the name of a tool call or a piece of its input is the answer; a
signature or a citation is no token. Counts are of the whole answer so far, and an event sends only those that
it knows. Of a message that has just begun the output count means nothing: an answer that breaks off would
have one token, whatever came.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from llm_locust.wire.chat_form import InlineImage, function_in, object_in, objects_in, text_of_content
from llm_locust.wire.dialects.dialect import Dialect, Message
from llm_locust.wire.draft import DeltaKind, Draft, read_leniently
from llm_locust.wire.ends import says_error
from llm_locust.wire.payload import (
    DECODE_ERRORS,
    AtMost16,
    PayloadError,
    Sent,
    count_of,
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
from llm_locust.wire.usage import gather

_DELTA = "content_block_delta"


class _Delta(msgspec.Struct, gc=False):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None


class _Event(msgspec.Struct, gc=False):
    type: str | None = None
    delta: _Delta | None = None


class _Block(msgspec.Struct, gc=False):
    type: Sent = UNSET
    text: Sent = UNSET
    thinking: Sent = UNSET
    id: Sent = UNSET
    name: Sent = UNSET
    input: Sent = UNSET


class _WholeMessage(msgspec.Struct, gc=False):
    """The skeleton of a message that was not streamed."""

    type: Sent = UNSET
    content: AtMost16[_Block] | UnsetType | None = UNSET
    model: Sent = UNSET
    usage: Sent = UNSET
    stop_reason: Sent = UNSET
    error: Sent = UNSET


_decode = msgspec.json.Decoder(_Event).decode
_decode_whole = msgspec.json.Decoder(_WholeMessage).decode


def read_messages(draft: Draft, events: Sequence[SseEvent]) -> None:
    """Events of ``/v1/messages``."""
    choice = draft.choices[0]
    for event in events:
        try:
            payload = _decode(event.data)
        except DECODE_ERRORS:
            read_leniently(draft, event, _read_event)
            continue
        delta = payload.delta
        if delta is None or payload.type != _DELTA:
            read_leniently(draft, event, _read_event)
        elif delta.type == "text_delta" and delta.text and draft.first_answer is not None:
            choice.text.append(delta.text)
            draft.token_ends.append(event.end)
        elif delta.type == "thinking_delta" and delta.thinking:
            draft.token(event.end, choice.add(reasoning=delta.thinking))
        else:
            read_leniently(draft, event, _read_event)


def read_messages_body(draft: Draft, body: bytes) -> None:
    """A whole message object, as one event."""
    try:
        message = whole_object(_decode_whole, body, needed="content")
        if _is_error(message):
            draft.fail(_error_text(message))
            return
        if "content" not in message:
            raise PayloadError(f'no "content" in {excerpt(body)}')
        blocks = message["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        found = [_read_block(draft, i, block) for i, block in enumerate(objects(blocks, "content"))]
    except PayloadError as e:
        draft.reject(explained(e, body))
        return
    draft.token(len(body), max(found, default=DeltaKind.NOTHING))
    draft.model = name_of(message.get("model"))
    gather(draft.counts, message)
    draft.choices[0].finish(message.get("stop_reason"))
    draft.fail_beside(body)
    draft.closed = True


def _read_event(draft: Draft, payload: dict[str, Any], event: SseEvent) -> None:
    type_ = name_of(payload.get("type")) or event.event.decode("utf-8", "replace")
    if type_ == "error" or _is_error(payload):
        draft.fail(_error_text(payload))
    elif type_ == _DELTA:
        delta = optional_object(payload.get("delta"), "delta") or {}
        draft.token(event.end, _read_delta(draft, count_of(payload.get("index")) or 0, delta))
    elif type_ == "content_block_start":
        block = optional_object(payload.get("content_block"), "content_block") or {}
        draft.token(event.end, _read_block(draft, count_of(payload.get("index")) or 0, block))
    elif type_ == "message_start":
        message = optional_object(payload.get("message"), "message") or {}
        draft.model = draft.model or name_of(message.get("model"))
        gather(draft.counts, payload, begun=True)
    elif type_ == "message_delta":
        delta = optional_object(payload.get("delta"), "delta") or {}
        draft.find_usage(event, payload)
        draft.choices[0].finish(delta.get("stop_reason"))
        draft.finish_end = event.end
    elif type_ == "message_stop":
        draft.closed = True
    elif not type_:
        draft.strange(payload, event, f'no "type" in {excerpt(event.data)}')


def _read_delta(draft: Draft, index: int, delta: dict[str, Any]) -> DeltaKind:
    match delta.get("type"):
        case "text_delta":
            return draft.choices[0].add(text=text_of(delta.get("text"), "text"))
        case "thinking_delta":
            return draft.choices[0].add(reasoning=text_of(delta.get("thinking"), "thinking"))
        case "input_json_delta":
            return draft.tool(0, index).add(json_text(delta.get("partial_json")))
        case "signature_delta":
            draft.withholds |= not draft.choices[0].reasoning
            return DeltaKind.NOTHING
        case "citations_delta":
            return DeltaKind.NOTHING
    for name, value in delta.items():
        if name != "type" and isinstance(value, str) and value:
            draft.unknown_text(name, value)
    return DeltaKind.NOTHING


def _read_block(draft: Draft, index: int, block: dict[str, Any]) -> DeltaKind:
    """A block of a whole message, or the start of one in a stream, which is empty as a rule."""
    type_ = name_of(block.get("type")) or ""
    if type_ == "text":
        return draft.choices[0].add(text=text_of(block.get("text"), "text"))
    if type_ == "thinking":
        return draft.choices[0].add(reasoning=text_of(block.get("thinking"), "thinking"))
    if type_.endswith("tool_use"):  # server_tool_use and mcp_tool_use too
        input_ = block.get("input")
        return draft.tool(0, index).add(
            json_text(input_) if input_ else "", block.get("id"), block.get("name")
        )
    draft.withholds |= type_ == "redacted_thinking"
    return DeltaKind.NOTHING


def _is_error(payload: dict[str, Any]) -> bool:
    return payload.get("type") == "error" or says_error(payload.get("error"))


def _error_text(payload: dict[str, Any]) -> str:
    """The message, after the error's type (``overloaded_error``) where it has one."""
    error = payload.get("error")
    type_ = name_of(error.get("type")) if isinstance(error, dict) else None
    text = error_text(payload)
    return text if type_ is None or text == type_ else f"{type_}: {text}"


def _body(messages: Sequence[Message], fields: Mapping[str, Any]) -> dict[str, Any]:
    turns, system = messages_turns(messages)
    body = {"messages": turns, **({"system": system} if system else {}), **fields}
    if isinstance(tools := body.get("tools"), list):
        body["tools"] = [_tool(tool) for tool in tools]
    if "tool_choice" in body:
        body["tool_choice"] = _tool_choice(body["tool_choice"])
    return body


def messages_turns(messages: Iterable[Message]) -> tuple[list[Message], str]:
    """Messages as the turns of a messages body, and the text of those that are the system's."""
    turns: list[Message] = []
    system = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role in ("system", "developer"):
            system.append(text_of_content(content))
            continue
        if role == "tool":
            called = message.get("tool_call_id")
            result = {"type": "tool_result", "tool_use_id": called, "content": text_of_content(content)}
            turns.append({"role": "user", "content": [result]})
            continue
        if isinstance(content, list):
            content = [_part(part) for part in content]
        if calls := objects_in(message.get("tool_calls")):
            content = [*_parts(content), *map(_tool_use, calls)]
        turns.append({"role": role, "content": content})
    return turns, "\n\n".join(text for text in system if text)


def _parts(content: Any) -> list[Any]:
    """A content as a list of parts; nothing, or what no API takes, is none."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content if isinstance(content, list) else []


def _tool(tool: Any) -> Any:
    function = function_in(tool)
    if not function:
        return tool
    kept = {name: function[name] for name in ("name", "description") if name in function}
    return {**kept, "input_schema": function.get("parameters") or {"type": "object"}}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return {"type": "any" if choice == "required" else choice}
    name = function_in(choice).get("name")
    return choice if name is None else {"type": "tool", "name": name}


def _tool_use(call: Message) -> dict[str, Any]:
    function = function_in(call)
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:  # a model wrote it, and this API has no place for what is no JSON
            arguments = {"arguments": arguments}
    return {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": arguments}


def _part(part: Any) -> Any:
    url = object_in(object_in(part).get("image_url")).get("url")
    if object_in(part).get("type") != "image_url" or not isinstance(url, str | InlineImage):
        return part
    if isinstance(url, InlineImage):
        source = {"type": "base64", "media_type": url.media_type, "data": url.data}
        return {"type": "image", "source": source}
    head, comma, data = url.partition(",")
    if url.startswith("data:") and comma and head.endswith(";base64"):
        media_type = head.removeprefix("data:").split(";")[0]
        source = {"type": "base64", "media_type": media_type, "data": data}
    else:
        source = {"type": "url", "url": url}
    return {"type": "image", "source": source}


MESSAGES = Dialect(
    name="messages",
    path="/messages",
    body=_body,
    read_events=read_messages,
    read_body=read_messages_body,
    default_limit=1024,
    usual_finishes=(
        *("end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn"),
        "model_context_window_exceeded",
    ),
    headers={"anthropic-version": "2023-06-01"},  # the version of the API that is read here
    key_header="x-api-key",
    provider="anthropic",
)
