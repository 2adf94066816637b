"""Long answers with log probabilities are read whole, and hold the loop no longer than others may."""

import json
import random
from functools import partial
from typing import Any

import pytest
from calls import caller
from holding import bound_s, cpu_s
from scripted import Step, chunk, last_chunk, scripted_server

from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.reply import read_body

TOKENS, TOP = 4_000, 20
WORDS = ("The", " quick", " international", "\n", "’s", " {", '"id":', ":", "é", " tok", "中", " \\")
USAGE = {"prompt_tokens": 12, "completion_tokens": TOKENS, "total_tokens": TOKENS + 12}


def logprob(draw: random.Random) -> dict[str, Any]:
    word = draw.choice(WORDS)
    return {"token": word, "logprob": -20 * draw.random(), "bytes": list(word.encode())}


def logprobs(tokens: int) -> list[dict[str, Any]]:
    """What a server sends for each token with ``logprobs=true`` and ``top_logprobs=20``."""
    draw = random.Random(7)
    return [{**logprob(draw), "top_logprobs": [logprob(draw) for _ in range(TOP)]} for _ in range(tokens)]


def encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def whole_answer(*messages: dict[str, Any], tokens: int = TOKENS) -> bytes:
    """An answer with these messages, or one that says the tokens; the first has the log probabilities."""
    content = logprobs(tokens)
    said = {"role": "assistant", "content": "".join(item["token"] for item in content)}
    choices: list[dict[str, Any]] = [
        {"index": index, "message": message, "finish_reason": "stop"}
        for index, message in enumerate(messages or [said])
    ]
    choices[0]["logprobs"] = {"content": content}
    return encoded({"object": "chat.completion", "model": "m", "choices": choices, "usage": USAGE})


def stream(tokens: int = TOKENS, together: int = 1) -> list[bytes]:
    """Events, with some tokens in each."""
    content = logprobs(tokens)
    groups = [content[at : at + together] for at in range(0, tokens, together)]
    choices: list[dict[str, Any]] = [
        {"delta": {"content": "".join(item["token"] for item in group)}, "logprobs": {"content": group}}
        for group in groups
    ]
    choices.append({"delta": {}, "finish_reason": "stop"})
    events = [{"model": "m", "choices": [{"index": 0, **choice}]} for choice in choices]
    return [b"data: " + encoded(event) + b"\n\n" for event in [*events, {"choices": [], "usage": USAGE}]]


def asked(body: list[bytes], content_type: str, *, streamed: bool) -> RequestRecord:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = [head.encode(), *map(chunk, body), last_chunk()]
    script = [Step(send_b64=piece) for piece in pieces]
    with scripted_server() as server, caller(server.url) as ask:
        return ask.ask([*script, Step(close=True)], streamed=streamed).record


def test_a_whole_answer_with_20_log_probabilities_a_token_is_ok() -> None:
    record = asked([whole_answer()], "application/json", streamed=False)
    assert (record.outcome, record.error) == (Outcome.OK, None)
    assert (record.input_tokens, record.output_tokens, record.token_source.value) == (12, TOKENS, "usage")
    assert (record.finish_reason, len(record.arrivals_ns)) == ("stop", 1)
    assert record.output_chars == sum(len(item["token"]) for item in logprobs(TOKENS))


@pytest.mark.parametrize("together", [1, 300])
def test_a_stream_with_20_log_probabilities_a_token_is_ok(together: int) -> None:
    """At 300 tokens an event is 450 kB and has 13,000 objects."""
    record = asked(stream(together=together), "text/event-stream", streamed=True)
    assert (record.outcome, record.error) == (Outcome.OK, None)
    assert (record.input_tokens, record.output_tokens) == (12, TOKENS)
    assert len(record.arrivals_ns) == -(-TOKENS // together)


CALLS = [{"id": f"{n}", "function": {"name": "f", "arguments": '{"a":1}'}} for n in range(10)]
OBJECTS = [{"id": "1", "function": {"name": "f", "arguments": {"a": [1, None, 10**30]}}}]
PARTS = [{"type": "text", "text": "some "}, {"type": "text", "text": "more"}]


@pytest.mark.parametrize(
    ("messages", "chars"),
    [
        ([{"content": "ten chars " * 10_000}] * 8, 800_000),
        ([{"content": "a"}] * 16, 16),
        ([{"content": None, "tool_calls": CALLS}], 80),
        ([{"tool_calls": OBJECTS}], 1 + len(f'{{"a":[1,null,{10**30}]}}')),
        ([{"content": PARTS}], 9),
        ([{"content": "é" * 1_000_000}], 1_000_000),
    ],
    ids=[
        "eight long ones",
        "16",
        "ten tool calls",
        "arguments as an object",
        "content in parts",
        "a long one",
    ],
)
def test_a_whole_answer_with_log_probabilities_may_hold(messages: list[dict[str, Any]], chars: int) -> None:
    body = whole_answer(*messages, tokens=3_000)
    assert len(body) > 3 << 20
    reply = read_body(CHAT, body)
    assert (reply.invalid, reply.done, reply.choices, reply.output_chars) == (
        None,
        True,
        len(messages),
        chars,
    )
    assert cpu_s(partial(read_body, CHAT, body), 10) <= bound_s()


@pytest.mark.parametrize("choices", [1, 2, 16])
def test_more_text_than_a_model_answers_at_once_is_refused(choices: int) -> None:
    message = {"content": "é" * ((1 << 20) // choices)}
    invalid = read_body(CHAT, whole_answer(*[message] * choices, tokens=1)).invalid
    assert (invalid or "").startswith("more than 2 MiB of text in one JSON document")


def test_reading_the_whole_answer_is_within_the_bound_of_one_slice() -> None:
    body = whole_answer()
    assert len(body) > 4 << 20
    assert cpu_s(partial(read_body, CHAT, body), 10) <= bound_s()
