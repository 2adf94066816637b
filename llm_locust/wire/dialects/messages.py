"""Anthropic-style messages: the typed events of a stream, and whole message objects.

A thinking delta is reasoning, a text delta, the name of a tool call or a piece of its input is the answer; a
signature or a citation is no token. ``cached_tokens`` is what was read from the prompt cache, and
``input_tokens`` is the whole prompt: this API counts what was read from the cache or written to it
apart from the rest.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from llm_locust.wire.draft import Draft, Kind, read_leniently
from llm_locust.wire.payload import (
    DECODE_ERRORS,
    PayloadError,
    count_of,
    error_text,
    excerpt,
    explained,
    json_text,
    name_of,
    objects,
    optional_object,
    parse_object,
    text_of,
)
from llm_locust.wire.sse import SseEvent

_DELTA = "content_block_delta"
_INPUT_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class _Delta(msgspec.Struct, gc=False):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None


class _Event(msgspec.Struct, gc=False):
    type: str | None = None
    delta: _Delta | None = None


_decode = msgspec.json.Decoder(_Event).decode


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
        message = parse_object(body)
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
    draft.token(len(body), max(found, default=Kind.NOTHING))
    draft.model = name_of(message.get("model"))
    _note_usage(draft, message.get("usage"))
    draft.choices[0].finish(message.get("stop_reason"))
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
        _note_usage(draft, message.get("usage"), begun=True)
    elif type_ == "message_delta":
        delta = optional_object(payload.get("delta"), "delta") or {}
        _note_usage(draft, payload.get("usage"))
        draft.choices[0].finish(delta.get("stop_reason"))
        draft.finish_end = event.end
    elif type_ == "message_stop":
        draft.closed = True
    elif not type_:
        draft.refuse(event, f'no "type" in {excerpt(event.data)}')


def _read_delta(draft: Draft, index: int, delta: dict[str, Any]) -> Kind:
    match delta.get("type"):
        case "text_delta":
            return draft.choices[0].add(text=text_of(delta.get("text"), "text"))
        case "thinking_delta":
            return draft.choices[0].add(reasoning=text_of(delta.get("thinking"), "thinking"))
        case "input_json_delta":
            return draft.tool(0, index).add(json_text(delta.get("partial_json")))
    return Kind.NOTHING


def _read_block(draft: Draft, index: int, block: dict[str, Any]) -> Kind:
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
    return Kind.NOTHING


def _is_error(payload: dict[str, Any]) -> bool:
    return payload.get("type") == "error" or bool(payload.get("error"))


def _error_text(payload: dict[str, Any]) -> str:
    """The message, after the error's type (``overloaded_error``) where it has one."""
    error = payload.get("error")
    type_ = name_of(error.get("type")) if isinstance(error, dict) else None
    text = error_text(payload)
    return text if type_ is None or text == type_ else f"{type_}: {text}"


def _note_usage(draft: Draft, usage: Any, *, begun: bool = False) -> None:
    """Counts are of the whole answer so far, and an event sends only those that it knows.

    Of a message that has just begun the output count means nothing: an answer that breaks off
    would have one token, whatever came.
    """
    if not isinstance(usage, dict):
        return
    news = {k: v for k, v in usage.items() if v is not None and not (begun and k == "output_tokens")}
    known = {**draft.usage, **news} if isinstance(draft.usage, dict) else news
    counts = [count_of(known.get(name)) for name in _INPUT_COUNTS]
    if counts[0] is not None:
        known["prompt_tokens"] = sum(count or 0 for count in counts)
    if counts[1] is not None:
        known["cached_tokens"] = counts[1]
    if known:
        draft.usage = known
