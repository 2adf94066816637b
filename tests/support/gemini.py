"""Gemini's ``generateContent`` as a dialect that the package does not have: what a user writes to add an API.

Facts from Google's public reference, ai.google.dev/api/generate-content. Counts of usage are of the answer so
far, and thoughts are counted apart from the candidates.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llm_locust import Dialect
from llm_locust.wire.chat_form import function_in, object_in, objects_in, text_of_content
from llm_locust.wire.dialects.dialect import Message
from llm_locust.wire.draft import DeltaKind, Draft, read_leniently
from llm_locust.wire.payload import (
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

#: Fields of the chat form that have a place in ``generationConfig``.
_CONFIG = {
    "maxOutputTokens": "maxOutputTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "seed": "seed",
    "stop": "stopSequences",
}
_MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}

#: Reasons for an answer's usual ends, in the words that reports know. Others stay as they are.
_FINISHES = {"STOP": "stop", "MAX_TOKENS": "length"}


def _body(messages: Sequence[Message], fields: Mapping[str, Any]) -> dict[str, Any]:
    system = [m for m in messages if m.get("role") in ("system", "developer")]
    body: dict[str, Any] = {"contents": [_content(m) for m in messages if m not in system]}
    if system:
        body["systemInstruction"] = {"parts": [part for m in system for part in _parts(m.get("content"))]}
    config = {_CONFIG[name]: value for name, value in fields.items() if name in _CONFIG}
    body |= {name: value for name, value in fields.items() if name not in _CONFIG}
    if config:
        body["generationConfig"] = {**object_in(body.get("generationConfig")), **config}
    if isinstance(tools := body.get("tools"), list):
        body["tools"] = [{"functionDeclarations": [function_in(t)]} if function_in(t) else t for t in tools]
    if (choice := body.pop("tool_choice", None)) is not None:
        body["toolConfig"] = {"functionCallingConfig": _calling(choice)}
    return body


def _content(message: Message) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        result = {"name": message.get("tool_call_id"), "response": {"result": text_of_content(content)}}
        return {"role": "user", "parts": [{"functionResponse": result}]}
    calls = [{"functionCall": _call(call)} for call in objects_in(message.get("tool_calls"))]
    return {"role": "model" if role == "assistant" else role, "parts": [*_parts(content), *calls]}


def _parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return [_part(part) for part in content]
    return [{"text": content}] if content else []


def _part(part: Any) -> Any:
    part = object_in(part)
    url = object_in(part.get("image_url")).get("url")
    if not isinstance(url, str):
        return {"text": part["text"]} if part.get("type") == "text" and "text" in part else part
    head, _, data = url.partition(";base64,")
    if data:
        return {"inlineData": {"mimeType": head.removeprefix("data:"), "data": data}}
    return {"fileData": {"fileUri": url}}


def _call(call: Message) -> dict[str, Any]:
    function = function_in(call)
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (TypeError, ValueError):
        arguments = {"arguments": function.get("arguments")}
    return {"name": function.get("name"), "args": arguments}


def _calling(choice: Any) -> dict[str, Any]:
    if (name := function_in(choice).get("name")) is not None:
        return {"mode": "ANY", "allowedFunctionNames": [name]}
    return {"mode": _MODES.get(choice, choice) if isinstance(choice, str) else choice}


def _run_fields(model: str, stream: bool) -> dict[str, Any]:
    return {}  # the path says both


def read_gemini(draft: Draft, events: Sequence[SseEvent]) -> None:
    """Events of ``streamGenerateContent?alt=sse``: each is a whole object, with what is new in it."""
    for event in events:
        read_leniently(draft, event, _read_event)


def read_gemini_body(draft: Draft, body: bytes) -> None:
    """The object of ``generateContent``, as one event."""
    try:
        _read(draft, parse_object(body), SseEvent(body, len(body)))
    except PayloadError as e:
        draft.reject(explained(e, body))
    draft.closed = draft.error is None and draft.invalid is None


def _read_event(draft: Draft, payload: dict[str, Any], event: SseEvent) -> None:
    _read(draft, payload, event)


def _read(draft: Draft, payload: dict[str, Any], event: SseEvent) -> None:
    if error := payload.get("error"):
        draft.fail(error_text(error))
        return
    candidates = objects(payload.get("candidates"), "candidates")
    usage = optional_object(payload.get("usageMetadata"), "usageMetadata")
    blocked = (optional_object(payload.get("promptFeedback"), "promptFeedback") or {}).get("blockReason")
    if not (candidates or usage or blocked):
        draft.refuse(event, f'no "candidates" in {excerpt(event.data)}')
    draft.note(payload.get("modelVersion"), usage and _usage(usage))
    draft.choices[0].finish(blocked)
    kind, finished = DeltaKind.NOTHING, False
    for candidate in candidates:
        index = count_of(candidate.get("index")) or 0
        content = optional_object(candidate.get("content"), "content") or {}
        for part in objects(content.get("parts"), "parts"):
            kind = max(kind, _read_part(draft, index, part))
        reason = name_of(candidate.get("finishReason"))
        draft.choice(index).finish(_FINISHES.get(reason or "", reason))
        finished = finished or reason is not None
    if kind is not DeltaKind.NOTHING:
        draft.token(event.end, kind)
    elif candidates:
        draft.without_token(event.end, finished=finished)


def _read_part(draft: Draft, index: int, part: dict[str, Any]) -> DeltaKind:
    if call := optional_object(part.get("functionCall"), "functionCall"):
        tool = draft.tool(index, len(draft.tools))
        return tool.add(json_text(call.get("args")), call.get("id"), call.get("name"))
    text = text_of(part.get("text"), "text")
    if part.get("thought"):
        return draft.choice(index).add(reasoning=text)
    return draft.choice(index).add(text=text)


def _usage(sent: Mapping[str, Any]) -> dict[str, Any]:
    """The counts under the names that :mod:`llm_locust.wire.usage` reads."""
    made = [count_of(sent.get(name)) for name in ("candidatesTokenCount", "thoughtsTokenCount")]
    return {
        "input_tokens": sent.get("promptTokenCount"),
        "cached_tokens": sent.get("cachedContentTokenCount"),
        "output_tokens": None if made == [None, None] else sum(count or 0 for count in made),
        "reasoning_tokens": made[1],
    }


GEMINI = Dialect(
    name="gemini",
    path="/models/{model}:streamGenerateContent?alt=sse",
    whole_path="/models/{model}:generateContent",
    body=_body,
    run_fields=_run_fields,
    read_events=read_gemini,
    read_body=read_gemini_body,
    limit_field="maxOutputTokens",
    merged_fields=("generationConfig",),
    key_header="x-goog-api-key",
    operation="generate_content",
    provider="gcp.gemini",
)
