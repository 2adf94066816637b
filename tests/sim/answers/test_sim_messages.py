"""The simulated messages API: its events, its body, its errors, and who gets in."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from sim_deployment import Deployment, deployment
from test_sim_templates import data_of, make_job, stream_bytes

from llm_locust.sim.answers import messages
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.draft import Reply
from llm_locust.wire.reply import read_body, reply_reader
from llm_locust.wire.sse import SseDecoder

VERSION = {"anthropic_version": "2023-06-01"}
BODY: dict[str, Any] = {
    "model": "sim",
    "system": "one two",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "three four five"}]}],
    "max_tokens": 6,
    "ignore_eos": True,
}


def read(stream: bytes) -> Reply:
    reader = reply_reader(MESSAGES)
    reader.feed(SseDecoder().feed(stream))
    return reader.finish()


def test_a_messages_stream_has_a_start_a_delta_per_token_and_a_stop() -> None:
    job = make_job(MESSAGES)
    events = data_of(stream_bytes(job, messages.stream_template(job)))
    assert [event["type"] for event in events] == [
        *("message_start", "content_block_start", "ping"),
        *["content_block_delta"] * 5,
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert "".join(e["delta"]["text"] for e in events[3:8]) == job.text.whole(5)
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"
    assert events[-2]["usage"] == {"output_tokens": 5}


def test_each_event_names_its_type() -> None:
    job = make_job(MESSAGES, tokens=2)
    for event in stream_bytes(job, messages.stream_template(job)).decode().strip().split("\n\n"):
        name, data = event.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"


@pytest.mark.parametrize(("tokens", "reason"), [(0, "stop"), (7, "stop"), (3, "length")])
def test_our_reader_reads_what_was_generated(tokens: int, reason: str) -> None:
    job = make_job(MESSAGES, tokens=tokens, finish_reason=reason)
    streamed = read(stream_bytes(job, messages.stream_template(job)))
    whole = read_body(MESSAGES, json.dumps(messages.whole_body(job)).encode())
    for reply in (streamed, whole):
        assert (reply.text, reply.done, reply.model) == (job.text.whole(tokens), True, "sim")
        assert reply.usage is not None
        assert (reply.usage.input_tokens, reply.usage.output_tokens) == (3, tokens)
        assert reply.finish_reason == {"stop": "end_turn", "length": "max_tokens"}[reason]
    assert len(streamed.token_ends) == tokens


def served(folder: Path, faults: str = "", api_key: str | None = None, **headers: str) -> Any:
    """The answer to BODY, streamed."""

    async def ask() -> Any:
        sim: Deployment
        async with deployment(folder, faults, api_key=api_key) as sim:
            return await sim.post("/messages", BODY | {"stream": True}, **VERSION | headers)

    return asyncio.run(ask())


def test_the_system_text_counts_as_input(tmp_path: Path) -> None:
    reply = read(served(tmp_path).body)
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens, len(reply.token_ends)) == (5, 6, 6)


def test_a_fault_midway_is_an_error_event_after_the_tokens_that_came(tmp_path: Path) -> None:
    reply = read(served(tmp_path, "error_object=100%").body)
    assert reply.error is not None
    assert reply.error.startswith("overloaded_error: ")
    assert (len(reply.token_ends), reply.done) == (3, False)


@pytest.mark.parametrize(("status", "type_"), [(429, "rate_limit_error"), (529, "overloaded_error")])
def test_an_error_has_this_apis_form(tmp_path: Path, status: int, type_: str) -> None:
    seen = served(tmp_path, f"http_{status}=100%")
    assert (seen.status, seen.json["type"], seen.json["error"]["type"]) == (status, "error", type_)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x_api_key": "sk"}, 200),
        ({"authorization": "Bearer sk"}, 200),
        ({"x_api_key": "other"}, 401),
        ({}, 401),
    ],
)
def test_the_key_is_taken_by_either_name(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    assert served(tmp_path, api_key="sk", **headers).status == status


def test_a_request_without_version_or_bound_is_refused(tmp_path: Path) -> None:
    async def ask() -> list[Any]:
        async with deployment(tmp_path) as sim:
            unversioned = await sim.post("/messages", BODY)
            unbounded = {name: value for name, value in BODY.items() if name != "max_tokens"}
            return [unversioned, await sim.post("/messages", unbounded, **VERSION)]

    unversioned, unbounded = asyncio.run(ask())
    assert (unversioned.status, unbounded.status) == (400, 400)
    assert "anthropic-version" in unversioned.json["error"]["message"]
    assert "max_tokens" in unbounded.json["error"]["message"]
