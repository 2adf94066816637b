"""CPU time of the decode path per token event: SSE, JSON and deltas together.

Run: ``python bench/decode.py``. Each case is the best of several repetitions over one stream of 100 events,
given to the decoder at once, one read per event, or in reads of 1,460 bytes.
"""

import json
import time
from collections.abc import Callable
from typing import Any

from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.wire.reply import reply_reader
from llm_locust.wire.sse import SseDecoder

EVENTS = 100
_SEGMENT_BYTES = 1460


def chat_chunk(delta: dict[str, Any], **more: Any) -> bytes:
    """One chunk in vLLM's form."""
    chunk = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1763000000,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}],
        **more,
    }
    return json.dumps(chunk, separators=(",", ":")).encode()


def completion_chunk() -> bytes:
    choice = {"index": 0, "text": " tok", "logprobs": None, "finish_reason": None, "stop_reason": None}
    chunk = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1763000000, "model": "m"}
    return json.dumps({**chunk, "choices": [choice]}, separators=(",", ":")).encode()


def responses_event() -> bytes:
    return json.dumps(
        {
            "content_index": 0,
            "delta": " tok",
            "item_id": "msg_0123456789abcdef",
            "logprobs": [],
            "output_index": 0,
            "sequence_number": 17,
            "type": "response.output_text.delta",
        },
        separators=(",", ":"),
    ).encode()


def us_per_event(endpoint: Dialect, event: bytes, read_bytes: int, repeats: int = 200) -> float:
    """Least process time over ``repeats`` whole streams, in microseconds per event.

    ``read_bytes`` is the size of a read; 0 means the whole stream in one.
    """
    stream = event * EVENTS
    step = read_bytes or len(stream)
    reads = [stream[i : i + step] for i in range(0, len(stream), step)]
    best = float("inf")
    for _ in range(repeats):
        decoder, reader = SseDecoder(), reply_reader(endpoint)
        began = time.perf_counter_ns()
        for read in reads:
            reader.feed(decoder.feed(read))
        best = min(best, time.perf_counter_ns() - began)
        if len(reader.token_ends) != EVENTS:
            raise AssertionError(f"{len(reader.token_ends)} token events of {EVENTS} were read")
    return best / EVENTS / 1000


def cases() -> list[tuple[str, Dialect, bytes]]:
    """Each kind of event, in the form sent by common servers."""
    chat = chat_chunk({"content": " tok"})
    usage = {"prompt_tokens": 512, "completion_tokens": 17, "total_tokens": 529}
    call = {"index": 0, "function": {"arguments": '{"a"'}}
    line: Callable[[bytes], bytes] = lambda payload: b"data: " + payload + b"\n\n"  # noqa: E731
    return [
        ("chat", CHAT, line(chat)),
        ("chat, CRLF", CHAT, b"data: " + chat + b"\r\n\r\n"),
        ("chat, usage in each", CHAT, line(chat_chunk({"content": " tok"}, usage=usage))),
        ("chat, reasoning", CHAT, line(chat_chunk({"reasoning_content": " tok"}))),
        ("chat, tool arguments", CHAT, line(chat_chunk({"tool_calls": [call]}))),
        ("completions", COMPLETIONS, line(completion_chunk())),
        (
            "responses",
            RESPONSES,
            b"event: response.output_text.delta\n" + line(responses_event()),
        ),
    ]


def main() -> None:
    print(f"{'us per token event':24}{'one read':>12}{'a read each':>13}{'1460 B reads':>14}")
    for name, endpoint, event in cases():
        times = [us_per_event(endpoint, event, size) for size in (0, len(event), _SEGMENT_BYTES)]
        print(f"{name:24}{times[0]:12.2f}{times[1]:13.2f}{times[2]:14.2f}")


if __name__ == "__main__":
    main()
