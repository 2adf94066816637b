"""OpenAI's chat form, which prompts have, in the words of the responses and messages APIs.

What is in the other API's own form already goes out as it is: parts and tools of a type that chat
does not have. What is in no form that either API knows goes out as it is too, for the server to
refuse.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from llm_locust.workload.text.prompts import Message, Prompt

#: Endpoints that take something else than chat's form.
DIALECTS = ("responses", "messages")

_INSTRUCTING = ("system", "developer")


def in_dialect(prompt: Prompt, endpoint: str) -> Prompt:
    """The prompt's messages, tools and choice of one, as one of :data:`DIALECTS` takes them."""
    for_messages = endpoint == "messages"
    extra = dict(prompt.extra)
    if isinstance(tools := extra.get("tools"), list):
        extra["tools"] = [(messages_tool if for_messages else responses_tool)(tool) for tool in tools]
    if "tool_choice" in extra:
        extra["tool_choice"] = _tool_choice(extra["tool_choice"], for_messages)
    if prompt.messages is None:
        return replace(prompt, extra=extra)
    if not for_messages:
        return replace(prompt, messages=tuple(responses_input(prompt.messages)), extra=extra)
    turns, system = messages_turns(prompt.messages)
    return replace(prompt, messages=tuple(turns), extra={**({"system": system} if system else {}), **extra})


def responses_input(messages: Iterable[Message]) -> list[Message]:
    """Messages as items of ``input``: tool calls and their results stand beside messages there."""
    items: list[Message] = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role == "tool":
            called = message.get("tool_call_id")
            items.append({"type": "function_call_output", "call_id": called, "output": _texts(content)})
            continue
        calls = _objects(message.get("tool_calls"))
        if content or not calls:
            parts = [_responses_part(p, role) for p in content] if isinstance(content, list) else content
            items.append({k: v for k, v in message.items() if k != "tool_calls"} | {"content": parts})
        for call in calls:
            function = _object(call.get("function"))
            named = {"name": function.get("name"), "arguments": function.get("arguments")}
            items.append({"type": "function_call", "call_id": call.get("id"), **named})
    return items


def messages_turns(messages: Iterable[Message]) -> tuple[list[Message], str]:
    """Messages as the turns of a messages body, and the text of those that are the system's."""
    turns: list[Message] = []
    system = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role in _INSTRUCTING:
            system.append(_texts(content))
            continue
        if role == "tool":
            called = message.get("tool_call_id")
            result = {"type": "tool_result", "tool_use_id": called, "content": _texts(content)}
            turns.append({"role": "user", "content": [result]})
            continue
        if isinstance(content, list):
            content = [_messages_part(part) for part in content]
        if calls := _objects(message.get("tool_calls")):
            content = [*_said(content), *map(_tool_use, calls)]
        turns.append({"role": role, "content": content})
    return turns, "\n\n".join(text for text in system if text)


def _said(content: Any) -> list[Any]:
    """A content as a list of parts; nothing, or what no API takes, is none."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content if isinstance(content, list) else []


def responses_tool(tool: Any) -> Any:
    """A tool of the chat API, its function's fields beside its type."""
    function = _object(_object(tool).get("function"))
    return {"type": "function", **function} if function else tool


def messages_tool(tool: Any) -> Any:
    """A tool of the chat API as one of the messages API."""
    function = _object(_object(tool).get("function"))
    if not function:
        return tool
    kept = {name: function[name] for name in ("name", "description") if name in function}
    return {**kept, "input_schema": function.get("parameters") or {"type": "object"}}


def _tool_choice(choice: Any, for_messages: bool) -> Any:
    name = _object(_object(choice).get("function")).get("name")
    if not for_messages:
        return choice if name is None else {"type": "function", "name": name}
    if isinstance(choice, str):
        return {"type": "any" if choice == "required" else choice}
    return choice if name is None else {"type": "tool", "name": name}


def _tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    function = _object(call.get("function"))
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:  # a model wrote it, and this API has no place for what is no JSON
            arguments = {"arguments": arguments}
    return {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": arguments}


def _responses_part(part: Any, role: Any) -> Any:
    match _object(part).get("type"):
        case "text":
            return {"type": "output_text" if role == "assistant" else "input_text", "text": part.get("text")}
        case "image_url":
            image = _object(part.get("image_url"))
            return {
                "type": "input_image",
                "image_url": image.get("url"),
                "detail": image.get("detail", "auto"),
            }
    return part


def _messages_part(part: Any) -> Any:
    url = _object(_object(part).get("image_url")).get("url")
    if _object(part).get("type") != "image_url" or not isinstance(url, str):
        return part
    head, comma, data = url.partition(",")
    if url.startswith("data:") and comma and head.endswith(";base64"):
        media_type = head.removeprefix("data:").split(";")[0]
        source = {"type": "base64", "media_type": media_type, "data": data}
    else:
        source = {"type": "url", "url": url}
    return {"type": "image", "source": source}


def _texts(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = (part.get("text") for part in _objects(content))
    return "".join(text for text in texts if isinstance(text, str))


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
