"""A dialect that the package does not have (``support/gemini.py``): its bodies, its answers, its failures."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from gemini import GEMINI
from hypothesis import given, strategies as st
from payloads import body, read
from strategies import json_values, spoiled

from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.draft import DeltaKind, Draft
from llm_locust.wire.reply import read_body
from llm_locust.wire.usage import Usage
from llm_locust.workload.body import BodyError, body_template
from llm_locust.workload.lengths import parse_lengths
from llm_locust.workload.plan import Workload
from llm_locust.workload.spec import WorkloadSpec
from llm_locust.workload.text.prompts import Prompt

MODEL = "gemini-2.5-flash"


def says(text: str, finish: str | None = None, *, tokens: int = 1) -> dict[str, Any]:
    candidate = {"content": {"parts": [{"text": text}], "role": "model"}, "finishReason": finish, "index": 0}
    counts = {"promptTokenCount": 8, "candidatesTokenCount": tokens, "cachedContentTokenCount": 4}
    return {
        "candidates": [candidate],
        "usageMetadata": {**counts, "thoughtsTokenCount": 2},
        "modelVersion": MODEL,
    }


def test_an_answer_that_is_not_streamed_is_read_too() -> None:
    whole = says("Because.", "MAX_TOKENS", tokens=3)
    call = {"functionCall": {"name": "f", "args": {"a": 1}}}
    whole["candidates"][0]["content"]["parts"].append(call)
    reply = read_body(GEMINI, body(whole))
    assert (reply.text, reply.finish_reason, reply.done) == ("Because.", "length", True)
    assert [(made.name, made.arguments) for made in reply.tool_calls] == [("f", '{"a":1}')]
    assert reply.usage == Usage(input_tokens=8, output_tokens=5, cached_tokens=4, reasoning_tokens=2)
    assert GEMINI.path_to(MODEL, stream=False) == f"/models/{MODEL}:generateContent"


@pytest.mark.parametrize(
    ("payload", "error", "invalid", "finish"),
    [
        ({"error": {"code": 429, "message": "slow down"}}, "slow down", None, None),
        ({"promptFeedback": {"blockReason": "SAFETY"}}, None, None, "SAFETY"),
        ({"candidates": 1}, None, "candidates is not a list of objects", None),
        ({}, None, 'no "candidates"', None),
    ],
)
def test_what_is_no_answer_is_said(
    payload: Mapping[str, Any], error: str | None, invalid: str | None, finish: str | None
) -> None:
    reply = read(payload, endpoint=GEMINI)
    assert (reply.error, reply.finish_reason) == (error, finish)
    assert (reply.invalid or "").startswith(invalid or "")
    assert (reply.invalid is None) is (invalid is None)


def failing(draft: Draft, _: object) -> None:
    draft.token(1, DeltaKind.ANSWER)
    raise KeyError("no such field")


def test_a_reader_that_raises_makes_the_answer_invalid_and_keeps_what_came() -> None:
    own = replace(GEMINI, read_events=failing, read_body=failing)
    for reply in (read(says("a"), endpoint=own), read_body(own, b"{}")):
        assert reply.invalid == "the reader of dialect 'gemini' raised KeyError('no such field')"
        assert list(reply.token_ends) == [1]
        assert not reply.done


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"name": "a b"}, "must be a short word such as 'chat', got 'a b'"),
        ({"name": "other"}, "must be a short word such as 'chat', got 'other'"),
        ({"path": "v1"}, "a path must start with '/', got 'v1'"),
        ({"whole_path": "v1"}, "a path must start with '/', got 'v1'"),
    ],
)
def test_a_row_with_a_name_or_path_of_no_use_is_refused(fields: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        replace(GEMINI, **fields)  # type: ignore[arg-type]


def test_pictures_tools_and_talks_have_a_place_in_the_body() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = (
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "a cat"},
    )
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    prompt = Prompt(messages=messages, extra={"tools": [tool], "tool_choice": "required", "top_p": 0.5})
    assert json.loads(body_template(GEMINI, MODEL).encode(prompt)) == {
        "contents": [
            {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "aGk="}}]},
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"a": 1}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "c", "response": {"result": "a cat"}}}]},
        ],
        "generationConfig": {"topP": 0.5},
        "tools": [{"functionDeclarations": [{"name": "f", "parameters": {"type": "object"}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
    }


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"contents": []}, "'contents' is what the workload fills"),
        ({"generationConfig": None}, "'generationConfig' is not an object"),
        ({"generationConfig": {"maxOutputTokens": 3}}, "use --output-tokens for it"),
    ],
)
def test_a_users_body_cannot_take_what_the_record_relies_on(extra: Mapping[str, Any], said: str) -> None:
    with pytest.raises(BodyError, match=said):
        body_template(GEMINI, MODEL, extra_body=extra)


def test_a_bound_under_the_dialects_own_name_is_the_one_that_is_recorded() -> None:
    own = replace(CHAT, name="own", limit_field="max_new", line_limits=())
    spec = WorkloadSpec(
        endpoint=own, output_tokens=parse_lengths("9"), extra_body={"max_new": 5}, unique_head=False
    )
    prompt = next(Workload(spec, 7, 0, 1, "salt").prompts(0))
    sent = json.loads(spec.body_template(MODEL).encode(prompt))
    assert (sent["max_new"], prompt.asked_output_tokens) == (5, 5)
    line = Prompt(text="a", extra={"max_new": 3})
    assert json.loads(body_template(own, MODEL).encode(line))["max_new"] == 3
    line = Prompt(
        text="a", asked_output_tokens=9, extra={"max_new": 3, "generationConfig": {"maxOutputTokens": 3}}
    )
    assert json.loads(body_template(own, MODEL).encode(line))["max_new"] == 9
    assert json.loads(body_template(GEMINI, MODEL).encode(line))["generationConfig"] == {"maxOutputTokens": 9}


@given(st.lists(spoiled(says("a", "STOP")) | json_values, max_size=4))
def test_no_json_makes_its_reader_raise(values: list[Any]) -> None:
    for reply in (read(*values, endpoint=GEMINI), read_body(GEMINI, body(values[:1]))):
        assert "raised" not in (reply.invalid or "")
