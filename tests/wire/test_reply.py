"""What holds for all endpoints: reading in slices, bodies, errors, and garbage that never raises."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from payloads import DONE, RESPONSE, body, chunk, events, says
from strategies import chat_chunks, json_values, spoiled, streams

from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.table import DIALECTS
from llm_locust.wire.draft import Reply
from llm_locust.wire.reply import ReplyReader, read_body, reply_reader
from llm_locust.wire.sse import SseDecoder, SseEvent
from llm_locust.wire.usage import Usage

#: APIs whose answers are tokens; test_hostile_results.py has the others.
GENERATING = [dialect for dialect in DIALECTS.values() if dialect.generates]


def test_done_is_known_while_the_stream_is_read() -> None:
    reader = reply_reader(CHAT)
    reader.feed(events([says("a"), says("b")]))
    assert (list(reader.token_ends), reader.last_event_end, reader.done) == ([10, 20], 20, False)
    reader.feed([SseEvent(DONE, 99)])
    assert (list(reader.token_ends), reader.last_event_end, reader.done) == ([10, 20], 99, True)


@pytest.mark.parametrize(
    "data", [b'{"message":"too busy"}', b"too busy", b'{"error":{"message":"too busy"}}']
)
@pytest.mark.parametrize("endpoint", GENERATING)
def test_an_event_of_type_error_is_an_error_whatever_its_form(endpoint: Dialect, data: bytes) -> None:
    reader = reply_reader(endpoint)
    reader.feed([SseEvent(data, 9, b"error")])
    assert reader.finish().error == "too busy"
    assert reader.finish().invalid is None


def test_a_chat_body_is_one_token_event() -> None:
    calls = [{"id": i, "function": {"name": "f", "arguments": i}} for i in "xy"]
    message = {"role": "assistant", "content": "Yes", "reasoning_content": "Hm", "tool_calls": calls}
    data = body(
        {
            "model": "m",
            "choices": [{"message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1},
        }
    )
    reply = read_body(CHAT, data)
    assert (tuple(reply.token_ends), reply.first_answer, reply.done) == ((len(data),), 0, True)
    assert (reply.text, reply.reasoning, reply.output_chars, reply.model) == ("Yes", "Hm", 9, "m")
    assert [c.arguments for c in reply.tool_calls] == ["x", "y"]
    assert reply.usage == Usage(input_tokens=1)


def test_a_completions_body_is_one_token_event() -> None:
    data = body({"choices": [{"text": "a", "finish_reason": "length"}]})
    reply = read_body(COMPLETIONS, data)
    assert (tuple(reply.token_ends), reply.text, reply.finish_reason) == ((len(data),), "a", "length")


@pytest.mark.parametrize("endpoint", GENERATING)
def test_a_body_without_text_or_with_an_error_or_of_garbage_has_no_token_event(endpoint: Dialect) -> None:
    empty = read_body(endpoint, body({"choices": [], "output": [], "content": []}))
    assert (tuple(empty.token_ends), empty.first_answer, empty.invalid, empty.done) == ((), None, None, True)
    error = read_body(endpoint, body({"error": {"message": "no"}}))
    assert (tuple(error.token_ends), error.error, error.invalid, error.done) == ((), "no", None, False)
    garbage = read_body(endpoint, b"<html>")
    assert (tuple(garbage.token_ends), garbage.invalid, garbage.done) == ((), "not JSON: '<html>'", False)
    assert read_body(endpoint, b"{}").invalid is not None
    assert read_body(endpoint, b"").invalid == "not JSON: ''"


def feed_all(reader: ReplyReader, payloads: list[bytes]) -> Reply:
    for event in events(payloads):
        reader.feed([event])
    return reader.finish()


def encodable(reply: Reply) -> bool:
    texts = [
        reply.text,
        reply.reasoning,
        reply.refusal,
        reply.error,
        reply.invalid,
        reply.model,
        reply.finish_reason,
    ]
    texts += [t for c in reply.tool_calls for t in (c.id, c.name, c.arguments)]
    return all((t or "").encode() is not None for t in texts)


@given(st.sampled_from(list(DIALECTS.values())), streams())
def test_no_bytes_of_a_stream_or_body_raise(endpoint: Dialect, stream: bytes) -> None:
    reader = reply_reader(endpoint)
    reader.feed(SseDecoder().feed(stream))
    assert encodable(reader.finish())
    assert encodable(read_body(endpoint, stream))


TOOL_CALL = {"index": 0, "id": "x", "function": {"name": "f", "arguments": "{}"}}
DELTA = {
    "content": "a",
    "reasoning": "b",
    "refusal": "c",
    "tool_calls": [TOOL_CALL],
    "function_call": {"name": "f"},
}
GOOD: list[dict[str, Any]] = [
    {"error": {"message": "no"}},
    chunk(DELTA, "stop", usage={"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}}),
    {"choices": [{"message": DELTA, "finish_reason": "stop"}]},
    {"choices": [{"text": "a"}]},
    RESPONSE,
    {"type": "response.output_text.delta", "item_id": "m", "delta": "a"},
    {"type": "response.function_call_arguments.delta", "item_id": "m", "delta": "a"},
    {"type": "response.output_item.added", "item": RESPONSE["output"][2]},
    {"type": "response.completed", "response": RESPONSE},
    {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "max_output_tokens"}}},
]


@given(
    st.sampled_from(list(DIALECTS.values())),
    st.lists(st.sampled_from(GOOD).flatmap(spoiled) | json_values, max_size=6),
)
def test_no_json_raises_wherever_it_stands(endpoint: Dialect, values: list[Any]) -> None:
    payloads = [json.dumps(value).encode() for value in values]
    reply = feed_all(reply_reader(endpoint), payloads)
    assert list(reply.token_ends) == sorted(set(reply.token_ends))
    assert encodable(reply)
    assert all(encodable(read_body(endpoint, p)) for p in payloads)


@given(st.lists(chat_chunks, max_size=8), st.sampled_from(["\n", "\r\n", "\r"]))
def test_token_ends_are_the_offsets_of_the_events_on_the_wire(stream: list[dict[str, Any]], end: str) -> None:
    decoder, reader, sent = SseDecoder(), reply_reader(CHAT), 0
    ends = []
    for value in stream:
        wire = f"data: {json.dumps(value)}{end}{end}".encode()
        before = len(reader.token_ends)
        reader.feed(decoder.feed(wire))
        sent += len(wire)
        if len(reader.token_ends) > before:
            ends.append(sent - (end == "\r\n"))
    assert list(reader.token_ends) == ends
    assert set(ends) <= set(reader.finish().token_ends)  # and those that are counted as tokens without text
