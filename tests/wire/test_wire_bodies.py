"""Bodies of each dialect: chat's in the words of others, images, and a dialect of the user's own."""

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from gemini import GEMINI
from hypothesis import given, strategies as st
from payloads import body, data_url, png, read
from strategies import json_values, spoiled

from llm_locust.wire.chat_form import ImageCount, InlineImage, Size, images_in, in_json, size_in, url_of
from llm_locust.wire.dialects import DIALECTS
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import Dialect, read_body
from llm_locust.wire.dialects.messages import MESSAGES, messages_turns
from llm_locust.wire.dialects.responses import RESPONSES, responses_input
from llm_locust.wire.draft import DeltaKind, Draft
from llm_locust.wire.usage import Usage
from llm_locust.workload.body import BodyError, body_template
from llm_locust.workload.draws import parse_lengths
from llm_locust.workload.plan import Workload, WorkloadSpec
from llm_locust.workload.prompts import Prompt

# --- Chat's messages and tools in the words of the responses and messages APIs


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


# --- Images in messages: their number, their sizes by the header of the file, their text in a body


INLINE_IMAGE = InlineImage("image/png", Size(4, 3), b"AAAA", b"BB==")
WITH_IMAGES = ("chat", "messages", "responses")


def jpeg(width: int, height: int, before: int = 20) -> bytes:
    profile = b"\xff\xe1" + struct.pack(">H", before + 2) + b"x" * before
    return b"\xff\xd8" + profile + b"\xff\xc0" + struct.pack(">HBHH", 17, 8, height, width) + b"rest"


@pytest.mark.parametrize("size", [Size(1, 1), Size(1 << 20, 1 << 20)])
def test_an_image_may_be_a_pixel_or_as_large_as_any(size: Size) -> None:
    assert size_in(data_url(png(size.width, size.height))) == size


def asked(dialect: Dialect, *urls: Any) -> list[Any]:
    """The messages of a body that has so many images, as its own API has them."""
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    message = {"role": "user", "content": [{"type": "text", "text": "what?"}, *parts]}
    body = json.loads(msgspec.json.Encoder(enc_hook=in_json).encode(dialect.body([message], {})))
    found: list[Any] = body.get("messages") or body["input"]
    return found


@pytest.mark.parametrize(
    ("url", "size"),
    [
        (data_url(png(640, 480)), Size(640, 480)),
        (data_url(jpeg(1920, 1080), "image/jpeg"), Size(1920, 1080)),
        (data_url(jpeg(7, 9, before=60_000)), Size(7, 9)),
        (data_url(png(0, 480)), None),
        (data_url(png(640, 0)), None),
        (data_url(png(1 << 31, 480)), None),
        (data_url(jpeg(8, 8)[:24]), None),
        (data_url(jpeg(8, 8)[:34]), None),
        (data_url(jpeg(8, 8)[:35]), Size(8, 8)),
        (data_url(b"\xff\xd8\xff\xe1\x00\x00" + b"\xff" * 40), None),
        (data_url(png(640, 480)[:16]), None),
        (data_url(png(640, 480)[:23]), None),
        (data_url(b"GIF89a"), None),
        ("https://host/cat.png", None),
        ("data:image/png;base64,éééé", None),
        ("data:image/png;base64," + "A", None),
        ("", None),
    ],
)
def test_a_size_is_that_of_the_files_header_or_unknown(url: str, size: Size | None) -> None:
    assert size_in(url) == size


@given(st.binary(max_size=200))
def test_no_bytes_make_the_header_raise(content: bytes) -> None:
    for head in (b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", png(1, 1)[:16]):
        size_in(data_url(head + content))
        size_in("data:image/png;base64," + content.decode("latin-1"))


@pytest.mark.parametrize("name", WITH_IMAGES)
def test_each_api_gets_an_image_in_its_own_form_and_it_is_counted_there(name: str) -> None:
    messages = asked(DIALECTS[name], INLINE_IMAGE, data_url(png(10, 20)))
    assert images_in(messages) == ImageCount(2, None)  # AAAABB== is no PNG
    assert images_in(asked(DIALECTS[name], data_url(png(10, 20)))) == ImageCount(1, 200)
    parts = messages[0]["content"]
    assert [url_of(part) for part in parts[1:]] == ["data:image/png;base64,AAAABB==", data_url(png(10, 20))]


def test_messages_take_the_bytes_apart_from_their_type_and_responses_a_url() -> None:
    (message,) = asked(MESSAGES, INLINE_IMAGE)
    source = {"type": "base64", "media_type": "image/png", "data": "AAAABB=="}
    assert message["content"][1] == {"type": "image", "source": source}
    (message,) = asked(RESPONSES, INLINE_IMAGE)
    assert message["content"][1]["type"] == "input_image"
    assert message["content"][1]["image_url"] == "data:image/png;base64,AAAABB=="


def test_an_image_that_is_not_sent_yet_is_counted_by_its_size() -> None:
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": INLINE_IMAGE}}]}
    assert images_in([message, message]) == ImageCount(2, 24)


@pytest.mark.parametrize(
    "messages",
    [[], [{"role": "user", "content": "text"}], [{"content": [{"type": "text", "text": "a"}, 1]}], [3]],
)
def test_messages_without_an_image_have_none(messages: list[Any]) -> None:
    assert images_in(messages) is None


def test_nothing_but_images_has_a_form_of_its_own_in_json() -> None:
    with pytest.raises(NotImplementedError, match="no JSON of set"):
        in_json(set())


def test_an_image_of_messages_may_be_one_that_the_server_fetches() -> None:
    source = {"type": "url", "url": "https://x/a.png"}
    assert url_of({"type": "image", "source": source}) == "https://x/a.png"
    assert url_of({"type": "input_image", "image_url": "https://x/b.png"}) == "https://x/b.png"


# --- A dialect that the package does not have (``support/gemini.py``): its bodies, its answers, its failures


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
