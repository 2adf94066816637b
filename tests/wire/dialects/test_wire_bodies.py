"""Chat's messages and tools in the words of the responses and messages APIs."""

from typing import Any

import pytest
from hypothesis import given, strategies as st
from strategies import json_values, spoiled

from llm_locust.wire.dialects.messages import MESSAGES, messages_turns
from llm_locust.wire.dialects.responses import RESPONSES, responses_input
from llm_locust.wire.dialects.table import DIALECTS

PICTURE = {"type": "image_url", "image_url": {"url": "https://h/p.png"}}
INLINE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
    {"role": "user", "content": [{"type": "text", "text": "What is it?"}, PICTURE, INLINE]},
    {"role": "assistant", "content": "Let me see", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
]


def test_a_chat_in_the_words_of_the_messages_api() -> None:
    used = {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}
    turns, system = messages_turns(TALK)
    assert system == "Be brief.\n\nBe kind."
    assert turns == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image", "source": {"type": "url", "url": "https://h/p.png"}},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Let me see"}, used]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "a cat"}]},
        {"role": "assistant", "content": [used]},
        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
    ]


def test_a_chat_in_the_words_of_the_responses_api() -> None:
    called = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
    assert responses_input(TALK) == [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is it?"},
                {"type": "input_image", "image_url": "https://h/p.png", "detail": "auto"},
                {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "low"},
            ],
        },
        {"role": "assistant", "content": "Let me see"},
        called,
        {"type": "function_call_output", "call_id": "c1", "output": "a cat"},
        called,
        {"role": "assistant", "content": [{"type": "output_text", "text": "A cat."}]},
    ]


@pytest.mark.parametrize(
    ("endpoint", "tool"),
    [
        ("responses", {"type": "function", **TOOL["function"]}),  # type: ignore[dict-item]
        ("messages", {"name": "f", "description": "d", "input_schema": {"type": "object"}}),
    ],
)
def test_tools_are_translated_and_the_apis_own_go_out_as_they_are(endpoint: str, tool: Any) -> None:
    own = {"type": "web_search"}
    sent = DIALECTS[endpoint].body(TALK, {"tools": [TOOL, own], "temperature": 0})
    assert (sent["tools"], sent["temperature"]) == ([tool, own], 0)


@pytest.mark.parametrize(
    ("choice", "responses", "messages"),
    [
        ("auto", "auto", {"type": "auto"}),
        ("required", "required", {"type": "any"}),
        (
            {"type": "function", "function": {"name": "f"}},
            {"type": "function", "name": "f"},
            {"type": "tool", "name": "f"},
        ),
        ({"type": "tool", "name": "f"}, {"type": "tool", "name": "f"}, {"type": "tool", "name": "f"}),
    ],
)
def test_the_choice_of_a_tool_is_translated(choice: Any, responses: Any, messages: Any) -> None:
    assert RESPONSES.body(TALK, {"tool_choice": choice})["tool_choice"] == responses
    assert MESSAGES.body(TALK, {"tool_choice": choice})["tool_choice"] == messages


@pytest.mark.parametrize(
    "part", [{"type": "image", "source": {"type": "url", "url": "u"}}, {"type": "audio"}]
)
def test_parts_that_chat_does_not_have_go_out_as_they_are(part: dict[str, Any]) -> None:
    message = {"role": "user", "content": [part]}
    assert messages_turns([message])[0] == responses_input([message]) == [message]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("", {}), ("a = 1", {"arguments": "a = 1"})],
)
def test_what_a_model_wrote_as_arguments_goes_out_as_an_object(arguments: Any, sent: Any) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    turns, _ = messages_turns([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert turns[0]["content"] == [{"type": "tool_use", "id": "c", "name": "f", "input": sent}]


@given(st.sampled_from(["responses", "messages"]), st.sampled_from(TALK).flatmap(spoiled), json_values)
def test_nothing_that_json_can_hold_raises(endpoint: str, message: Any, extra: Any) -> None:
    body = DIALECTS[endpoint].body
    assert body((message,), {"tools": extra, "tool_choice": extra})
    assert body((message,), {"tools": [extra]})
