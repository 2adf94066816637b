"""Payloads of answers, and image files."""

import json
import struct
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import Dialect, ReplyReader
from llm_locust.wire.draft import Reply
from llm_locust.wire.sse import SseEvent


def events(payloads: Iterable[Any]) -> list[SseEvent]:
    """One event a payload, which ends at 10, 20, ...; bytes stand for themselves."""
    return [
        SseEvent(p if isinstance(p, bytes) else json.dumps(p).encode(), 10 * i)
        for i, p in enumerate(payloads, start=1)
    ]


def read(*payloads: Any, endpoint: Dialect = CHAT) -> Reply:
    reader = ReplyReader(endpoint)
    reader.feed(events(payloads))
    return reader.finish()


def chunk(delta: dict[str, Any] | None, finish: Any = None, index: Any = 0, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
        **more,
    }


def says(text: str, **more: Any) -> dict[str, Any]:
    return chunk({"content": text}, **more)


ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk({}, "stop")
DONE = b"[DONE]"


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


RESPONSE: dict[str, Any] = {
    "object": "response",
    "status": "completed",
    "model": "m",
    "error": None,
    "output": [
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm"}]},
        {
            "type": "message",
            "content": [{"type": "output_text", "text": "Yes"}, {"type": "refusal", "refusal": "No"}],
        },
        {"type": "function_call", "id": "fc", "call_id": "call", "name": "f", "arguments": "{}"},
    ],
    "usage": {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 4},
    },
}


def data_url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{b64encode(content).decode()}"


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\x08\x02\0\0\0"
