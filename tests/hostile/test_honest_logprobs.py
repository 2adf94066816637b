"""Long answers with log probabilities are read whole, and hold the loop no longer than others may."""

import json
import random
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import msgspec
import pytest
from calls import caller
from holding import cpu_s, is_short
from scripted import ScriptedServer, Step, chunk, last_chunk, scripted_server

from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.wire.reply import read_body

TOKENS, TOP = 4_000, 20
WORDS = ("The", " quick", " international", "\n", "’s", " {", '"id":', ":", "é", " tok", "中", " \\")
USAGE = {"prompt_tokens": 12, "completion_tokens": TOKENS, "total_tokens": TOKENS + 12}


def logprob(draw: random.Random) -> dict[str, Any]:
    word = draw.choice(WORDS)
    return {"token": word, "logprob": -20 * draw.random(), "bytes": list(word.encode())}


@cache
def logprobs(tokens: int) -> list[dict[str, Any]]:
    """What a server sends for each token with ``logprobs=true`` and ``top_logprobs=20``."""
    draw = random.Random(7)
    return [{**logprob(draw), "top_logprobs": [logprob(draw) for _ in range(TOP)]} for _ in range(tokens)]


def encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


def whole_answer(*messages: dict[str, Any], tokens: int = TOKENS) -> bytes:
    """An answer with these messages, or one that says the tokens; the first has the log probabilities."""
    content = logprobs(tokens)
    said = {"role": "assistant", "content": "".join(item["token"] for item in content)}
    choices: list[dict[str, Any]] = [
        {"index": index, "message": message, "finish_reason": "stop"}
        for index, message in enumerate(messages or [said])
    ]
    choices[0]["logprobs"] = {"content": []}
    answer = {"object": "chat.completion", "model": "m", "choices": choices, "usage": USAGE}
    without = json.dumps(
        answer, separators=(",", ":"), ensure_ascii=False
    ).encode()  # has integers of any size
    return without.replace(b'"content":[]', b'"content":' + encoded(content), 1)


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


def response(tokens: int) -> dict[str, Any]:
    """A response object of the responses API."""
    content = logprobs(tokens)
    text = "".join(item["token"] for item in content)
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": content}
    item = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    usage = {"input_tokens": 12, "output_tokens": tokens, "total_tokens": tokens + 12}
    return {"object": "response", "status": "completed", "model": "m", "output": [item], "usage": usage}


@cache
def response_events(tokens: int) -> list[tuple[bytes, bytes]]:
    """Its events, each with its type. The last four repeat the whole answer."""
    whole = response(tokens)
    (item,) = whole["output"]
    (part,) = item["content"]
    events: list[dict[str, Any]] = [
        {"logprobs": [at], "delta": at["token"], "type": "response.output_text.delta"}
        for at in part["logprobs"]
    ]
    events.append({**part, "item_id": "m", "type": "response.output_text.done"})
    events.append({"part": part, "item_id": "m", "type": "response.content_part.done"})
    events.append({"item": item, "type": "response.output_item.done"})
    events.append({"type": "response.completed", "response": whole})
    return [(event["type"].encode(), b"data: " + encoded(event) + b"\n\n") for event in events]


def response_stream(tokens: int, named: bool) -> list[bytes]:
    return [b"event: %b\n" % of * named + data for of, data in response_events(tokens)]


def completion(tokens: int, alternatives: int) -> bytes:
    """A legacy completion, whose log probabilities have tokens as names."""
    draw = random.Random(7)
    said = [draw.choice(WORDS) for _ in range(tokens)]
    tops = [{f" w{draw.random():.4f}": -20 * draw.random() for _ in range(alternatives)} for _ in said]
    probs = [-draw.random() for _ in said]
    inside = {"tokens": said, "token_logprobs": probs, "top_logprobs": tops, "text_offset": [9] * tokens}
    choice = {"index": 0, "text": "".join(said), "logprobs": inside, "finish_reason": "length"}
    return encoded({"object": "text_completion", "model": "m", "choices": [choice], "usage": USAGE})


@pytest.fixture(scope="module", autouse=True)
def serving() -> Iterator[None]:
    """One server for all tests."""
    with scripted_server() as server:
        _SERVING.append(server)
        yield
    _SERVING.clear()


_SERVING: list[ScriptedServer] = []


def asked(body: list[bytes], content_type: str, *, streamed: bool, endpoint: Dialect = CHAT) -> RequestRecord:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = [head.encode(), *map(chunk, body), last_chunk()]
    script = [Step(send_b64=piece) for piece in pieces]
    with caller(_SERVING[0].url) as ask:
        return ask.ask([*script, Step(close=True)], streamed=streamed, endpoint=endpoint).record


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


@pytest.mark.parametrize(("tokens", "named"), [(700, False), (TOKENS, True)])
def test_a_streamed_response_repeats_its_log_probabilities_at_the_end(tokens: int, named: bool) -> None:
    events = response_stream(tokens, named)
    assert all(len(event) > 1 << 20 for event in events[-4:])
    record = asked(events, "text/event-stream", streamed=True, endpoint=RESPONSES)
    assert (record.outcome, record.error, record.finish_reason) == (Outcome.OK, None, "completed")
    assert (record.input_tokens, record.output_tokens, record.model) == (12, tokens, "m")
    assert len(record.arrivals_ns) == tokens


@pytest.mark.parametrize("named", [True, False])
def test_a_long_end_says_why_the_answer_is_no_longer(named: bool) -> None:
    deltas = response_stream(1_000, named)
    reason = {"incomplete_details": {"reason": "max_output_tokens"}, "status": "incomplete"}
    ended = encoded({"type": "response.incomplete", "response": {**response(1_000), **reason}})
    assert len(ended) > 1 << 20
    body = [*deltas[:1_000], b"event: response.incomplete\n" * named + b"data: " + ended + b"\n\n"]
    record = asked(body, "text/event-stream", streamed=True, endpoint=RESPONSES)
    assert (record.outcome, record.finish_reason) == (Outcome.OK, "max_output_tokens")
    failed = encoded({"type": "response.failed", "response": {**response(1_000), "error": {"message": "no"}}})
    record = asked(
        [*deltas[:9], b"data: " + failed + b"\n\n"], "text/event-stream", streamed=True, endpoint=RESPONSES
    )
    assert (record.outcome, record.error, len(record.arrivals_ns)) == (Outcome.API_ERROR, "no", 9)


def test_a_whole_response_with_log_probabilities_is_ok() -> None:
    body = encoded(response(TOKENS))
    assert len(body) > 4 << 20
    record = asked([body], "application/json", streamed=False, endpoint=RESPONSES)
    assert (record.outcome, record.error, record.finish_reason) == (Outcome.OK, None, "completed")
    assert (record.input_tokens, record.output_tokens) == (12, TOKENS)
    assert record.output_chars == sum(len(item["token"]) for item in logprobs(TOKENS))
    assert is_short(cpu_s(partial(read_body, RESPONSES, body), 5))


@pytest.mark.parametrize(("tokens", "alternatives"), [(4_000, 20), (20_000, 5), (10_000, 1)])
def test_a_legacy_completion_has_tokens_as_names(tokens: int, alternatives: int) -> None:
    body = completion(tokens, alternatives)
    record = asked([body], "application/json", streamed=False, endpoint=COMPLETIONS)
    assert (record.outcome, record.error, record.finish_reason) == (Outcome.OK, None, "length")
    assert is_short(cpu_s(partial(read_body, COMPLETIONS, body), 5))


def test_names_do_not_hide_among_those_of_log_probabilities() -> None:
    """One that is read costs more than one that is skipped, and a hostile server sends it again and again."""
    for hidden in (b'"token":-1,"model":1,', b'"logprob": -1,"model":1,', b'"bytes":-1,"usage":{},'):
        body = b"{" + hidden * 70_000 + b" " * (1 << 20) + b'"choices":[]}'
        record = asked([body], "application/json", streamed=False)
        assert "30,000 names beside those of log probabilities" in (record.error or "")


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
    assert is_short(cpu_s(partial(read_body, CHAT, body), 10))


@pytest.mark.parametrize("choices", [1, 2, 16])
def test_more_text_than_a_model_answers_at_once_is_refused(choices: int) -> None:
    message = {"content": "é" * ((1 << 20) // choices)}
    invalid = read_body(CHAT, whole_answer(*[message] * choices, tokens=1)).invalid
    assert (invalid or "").startswith("more than 2 MiB of text in one JSON document")


def test_reading_the_whole_answer_is_within_the_bound_of_one_slice() -> None:
    body = whole_answer()
    assert len(body) > 4 << 20
    assert is_short(cpu_s(partial(read_body, CHAT, body), 10))
