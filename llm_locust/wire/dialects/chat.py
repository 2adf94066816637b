"""Chat completions and legacy completions: chunks of a stream, and whole bodies.

A chunk that holds nothing but the next piece of text takes the short way, which is most of what
a client ever reads; typed decoding skips every field that is not asked for. What is odd, but
still has its text where it belongs, is read again leniently; the rest is recorded as invalid.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from llm_locust.wire.draft import Draft, Kind, read_leniently
from llm_locust.wire.payload import (
    DECODE_ERRORS,
    MAX_PARTS,
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
    thinking_of,
)
from llm_locust.wire.sse import SseEvent

#: The field of a choice that holds its text.
Carrier = Literal["delta", "message", "text"]


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct, gc=False):
    index: Any = 0
    delta: _Delta | None = None
    finish_reason: Any = None


class _TextChoice(msgspec.Struct, gc=False):
    index: Any = 0
    text: str | None = None
    finish_reason: Any = None

    @property
    def delta(self) -> _Delta:
        return _Delta(self.text)


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | msgspec.UnsetType | None = msgspec.UNSET
    usage: Any = None
    model: Any = None
    error: Any = None


class _TextChunk(msgspec.Struct, gc=False):
    choices: list[_TextChoice] | msgspec.UnsetType | None = msgspec.UNSET
    usage: Any = None
    model: Any = None
    error: Any = None


_decode_chat = msgspec.json.Decoder(_Chunk).decode
_decode_text = msgspec.json.Decoder(_TextChunk).decode


def read_chat(draft: Draft, events: Sequence[SseEvent]) -> None:
    """Chunks of ``/v1/chat/completions``."""
    first = draft.choices[0]
    for event in events:
        try:
            chunk = _decode_chat(event.data)
        except DECODE_ERRORS:
            _read_odd(draft, event, "delta")
            continue
        choices = chunk.choices
        if (
            not choices
            or len(choices) != 1
            or chunk.error
            or (choice := choices[0]).index
            or choice.finish_reason
            or (delta := choice.delta) is None
            or delta.tool_calls
            or delta.refusal
            or delta.function_call
        ):
            _read_chunk(draft, chunk, event)
            continue
        text, reasoning = delta.content, delta.reasoning_content or delta.reasoning
        if text and not reasoning and draft.first_answer is not None:
            first.text.append(text)
        elif reasoning and not text and draft.token_ends:
            first.reasoning.append(reasoning)
        else:
            _read_chunk(draft, chunk, event)
            continue
        draft.token_ends.append(event.end)
        if chunk.usage:
            draft.note(chunk.model, chunk.usage)


def read_completions(draft: Draft, events: Sequence[SseEvent]) -> None:
    """Chunks of ``/v1/completions``."""
    first = draft.choices[0]
    for event in events:
        try:
            chunk = _decode_text(event.data)
        except DECODE_ERRORS:
            _read_odd(draft, event, "text")
            continue
        choices = chunk.choices
        if (
            not choices
            or len(choices) != 1
            or chunk.error
            or (choice := choices[0]).index
            or choice.finish_reason
            or not (text := choice.text)
            or draft.first_answer is None
        ):
            _read_chunk(draft, chunk, event)
            continue
        first.text.append(text)
        draft.token_ends.append(event.end)
        if chunk.usage:
            draft.note(chunk.model, chunk.usage)


def read_body(draft: Draft, body: bytes, carrier: Carrier) -> None:
    """A whole answer, as one event."""
    event = SseEvent(body, len(body))
    try:
        chunk = _lenient_chunk(parse_object(body), carrier)
    except PayloadError as e:
        draft.reject(explained(e, body))
        return
    _read_chunk(draft, chunk, event)
    draft.closed = draft.error is None and draft.invalid is None


def _read_odd(draft: Draft, event: SseEvent, carrier: Carrier) -> None:
    """A payload that typed decoding refused."""

    def read(draft: Draft, payload: dict[str, Any], event: SseEvent) -> None:
        _read_chunk(draft, _lenient_chunk(payload, carrier), event)

    read_leniently(draft, event, read)


def _read_chunk(draft: Draft, chunk: _Chunk | _TextChunk, event: SseEvent) -> None:
    draft.note(chunk.model, chunk.usage)
    if chunk.error or chunk.choices is msgspec.UNSET or event.event == b"error":
        _read_error(draft, chunk, event)
    kind = Kind.NOTHING
    choices = chunk.choices or []
    if len(choices) > MAX_PARTS:
        draft.reject(f"more than {MAX_PARTS:,} choices in one event")
        choices = choices[:MAX_PARTS]
    for choice in choices:
        index = count_of(choice.index) or 0
        if choice.delta is not None:
            kind = max(kind, _add_delta(draft, index, choice.delta))
        draft.choice(index).finish(choice.finish_reason)
    if kind is not Kind.NOTHING:
        draft.token(event.end, kind)
    elif chunk.choices:
        draft.without_token(event.end, finished=any(choice.finish_reason for choice in chunk.choices))


def _read_error(draft: Draft, chunk: _Chunk | _TextChunk, event: SseEvent) -> None:
    """A payload with an error, or without choices: an error object, usage alone, or neither."""
    if chunk.error:
        draft.fail(error_text(chunk.error))
        return
    try:
        payload = parse_object(event.data)
    except PayloadError as e:  # typed decoding skips some of what is not read without a look at it
        draft.refuse(event, explained(e, event.data))
        return
    if payload.get("object") == "error" or event.event == b"error":
        draft.fail(error_text(payload))
    elif not chunk.usage:
        draft.refuse(event, f'no "choices" in {excerpt(event.data)}')


def _add_delta(draft: Draft, index: int, delta: _Delta) -> Kind:
    kind = draft.choice(index).add(
        text=delta.content or "",
        reasoning=delta.reasoning_content or delta.reasoning or "",  # some servers send both, the same
        refusal=delta.refusal or "",
    )
    calls = delta.tool_calls if isinstance(delta.tool_calls, list) else []
    if len(calls) > MAX_PARTS:
        draft.reject(f"more than {MAX_PARTS:,} tool calls in one event")
    for call in calls[:MAX_PARTS]:
        if isinstance(call, dict):
            kind = max(kind, _add_tool_call(draft, index, call))
    if isinstance(call := delta.function_call, dict):
        legacy = draft.tool(index, "function_call")
        kind = max(kind, legacy.add(json_text(call.get("arguments")), name=call.get("name")))
    return kind


def _add_tool_call(draft: Draft, index: int, call: dict[str, Any]) -> Kind:
    """A piece belongs to the call of its ``index``, else of its ``id``, else to the last one."""
    function = call.get("function") or call.get("custom")
    function = function if isinstance(function, dict) else {}
    key: int | str | None = count_of(call.get("index"))
    if key is None:
        key = name_of(call.get("id"))
    if key is None:
        key = next((k for i, k in reversed(draft.tools) if i == index), 0)
    arguments = json_text(function.get("arguments", function.get("input")))
    return draft.tool(index, key).add(arguments, call.get("id"), function.get("name"))


def _lenient_chunk(payload: dict[str, Any], carrier: Carrier) -> _Chunk:
    """The same as typed decoding, but content may come in parts, and only what is read matters."""
    chunk = _Chunk(usage=payload.get("usage"), model=payload.get("model"), error=payload.get("error"))
    if "choices" in payload:
        choices = objects(payload["choices"], "choices")
        chunk.choices = [
            _Choice(
                choice.get("index"), _lenient_delta(choice.get(carrier), carrier), choice.get("finish_reason")
            )
            for choice in choices
        ]
    return chunk


def _lenient_delta(value: Any, carrier: Carrier) -> _Delta | None:
    if carrier == "text":
        return _Delta(text_of(value, carrier))
    delta = optional_object(value, carrier)
    if delta is None:
        return None
    calls = delta.get("tool_calls")
    if carrier == "message" and isinstance(calls, list):
        calls = [{**call, "index": i} for i, call in enumerate(calls) if isinstance(call, dict)]
    return _Delta(
        text_of(delta.get("content"), "content"),
        text_of(delta.get("reasoning_content"), "reasoning_content") or thinking_of(delta.get("content")),
        text_of(delta.get("reasoning"), "reasoning"),
        text_of(delta.get("refusal"), "refusal"),
        calls,
        delta.get("function_call"),
    )
