"""Replies of all endpoints: read in slices, bounded, with errors in their forms; garbage never raises."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from payloads import DONE, RESPONSE, STOP as STOPS, body, chunk, events, read, says
from strategies import chat_chunks, json_values, spoiled, streams

from llm_locust.wire.dialects import DIALECTS
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import FOLD_BYTES, Dialect, ReplyReader, read_body
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.wire.draft import Reply, ToolCall
from llm_locust.wire.ends import AnswerEnd, error_in, failure_beside, worse
from llm_locust.wire.foreign_text import clean_name, one_line
from llm_locust.wire.payload import (
    DocumentSize,
    PayloadError,
    error_text,
    excerpt,
    excess,
    json_text,
    objects,
    parse,
)
from llm_locust.wire.sse import SseDecoder, SseEvent
from llm_locust.wire.usage import Usage

# --- What holds for all endpoints: reading in slices, bodies, errors, and garbage that never raises


#: APIs whose answers are tokens; test_hostile_results.py has the others.
GENERATING = [dialect for dialect in DIALECTS.values() if dialect.generates]


def test_done_is_known_while_the_stream_is_read() -> None:
    reader = ReplyReader(CHAT)
    reader.feed(events([says("a"), says("b")]))
    assert (list(reader.token_ends), reader.last_event_end, reader.done) == ([10, 20], 20, False)
    reader.feed([SseEvent(DONE, 99)])
    assert (list(reader.token_ends), reader.last_event_end, reader.done) == ([10, 20], 99, True)


@pytest.mark.parametrize(
    "data", [b'{"message":"too busy"}', b"too busy", b'{"error":{"message":"too busy"}}']
)
@pytest.mark.parametrize("endpoint", GENERATING)
def test_an_event_of_type_error_is_an_error_whatever_its_form(endpoint: Dialect, data: bytes) -> None:
    reader = ReplyReader(endpoint)
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
    reader = ReplyReader(endpoint)
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
    reply = feed_all(ReplyReader(endpoint), payloads)
    assert list(reply.token_ends) == sorted(set(reply.token_ends))
    assert encodable(reply)
    assert all(encodable(read_body(endpoint, p)) for p in payloads)


@given(st.lists(chat_chunks, max_size=8), st.sampled_from(["\n", "\r\n", "\r"]))
def test_token_ends_are_the_offsets_of_the_events_on_the_wire(stream: list[dict[str, Any]], end: str) -> None:
    decoder, reader, sent = SseDecoder(), ReplyReader(CHAT), 0
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


# --- Payloads from a server: what is too much of them, and what is left of what is odd


FILLER = b" " * (64 << 10)  # a smaller document may have anything


@pytest.mark.parametrize(
    ("document", "what"),
    [
        (b"[" * 20_001, None),
        (FILLER + b"[{" * 10_000, None),
        (FILLER + b"[{" * 10_000 + b"[", "more than 20,000 JSON objects and lists"),
        (FILLER + b"," * 30_000, None),
        (FILLER + b"," * 30_001, "more than 30,000 JSON values"),
        (FILLER + b"[" + b"9" * 100 + b"]", None),
        (FILLER + b"[" + b"9" * 101 + b"]", "an integer of more than 100 digits"),
        (FILLER + b'{"a": -' + b"9" * 101 + b"}", "an integer of more than 100 digits"),
        (FILLER + b'"a' + b"9" * 101 + b'"', None),
        (FILLER + b'"a' + b"9" * 101 + b'",' + b"9" * 101, "an integer of more than 100 digits"),
        (FILLER + b'"a' + b"9" * 101 + b'",9', None),
        (b" " * (1 << 20), None),
        (b" " * ((1 << 20) + 1), "more than 1 MiB in one JSON document of unexpected form"),
    ],
)
def test_a_document_that_would_hold_the_loop_is_known_before_it_is_decoded(
    document: bytes, what: str | None
) -> None:
    assert excess(document) == what


def calls(n: int, index: int | None = None) -> dict[str, Any]:
    return {
        "tool_calls": [{"index": i if index is None else index, "function": {"name": "f"}} for i in range(n)]
    }


@pytest.mark.parametrize(
    ("payloads", "what"),
    [
        ([says("a", index=i) for i in range(1_024)], None),
        ([says("a", index=2 * i) for i in range(1_030)], "more than 1,024 choices"),
        ([says("a", index=i) for i in range(3_000)], None),  # the tokens of one
        ([chunk(calls(1_024))], None),
        ([chunk(calls(1_025))], "more than 1,024 tool calls in one event"),
        ([chunk(calls(1, i)) for i in range(1_025)], "more than 1,024 tool calls"),
        ([{"choices": [{}] * 1_025}], "choices has more than 1,024 objects"),
        ([says("a" * (4 << 20))], None),
        ([says("a" * (2 << 20))] * 2 + [says("a")], "more than 4,194,304 characters of text"),
    ],
)
def test_no_answer_has_more_parts_or_text_than_memory_is_given_to(
    payloads: list[Any], what: str | None
) -> None:
    reply = read(*payloads)
    assert (reply.invalid or "").startswith(what or "")
    assert (reply.invalid is None) is (what is None)
    assert len(reply.text) <= 4 << 20
    assert len(reply.tool_calls) <= 1_024


def test_a_body_of_more_text_than_is_read_is_invalid() -> None:
    choices = [{"message": {"content": "a" * (2 << 20)}}]
    reply = read_body(CHAT, body({"choices": choices}))
    assert (reply.invalid or "").startswith("more than 2 MiB of text in one JSON document: ")


@pytest.mark.parametrize("choices", [5, 16, 17])
def test_more_choices_than_the_quick_way_makes_are_read_all_the_same(choices: int) -> None:
    many = [{"index": i, "delta": {"content": "a"}, "message": {"content": "a"}} for i in range(choices)]
    for reply in (read({"choices": many}), read_body(CHAT, body({"choices": many}))):
        assert (reply.text, reply.choices, len(reply.token_ends)) == ("a" * choices, choices, 1)


def test_a_choice_without_a_delta_in_an_event_of_another_form_is_no_token() -> None:
    odd = {"index": 0, "delta": {"content": [{"type": "text", "text": "a"}]}}
    reply = read({"choices": [odd, {"index": 1, "delta": None}]})
    assert (reply.text, reply.choices, reply.invalid) == ("a", 2, None)
    assert read_body(CHAT, body({"choices": [{"index": 0, "message": None}]})).text == ""


def test_a_function_call_of_the_old_form_is_read_beside_content_in_parts() -> None:
    old = {"name": "f", "arguments": "{}"}
    reply = read(chunk({"content": [{"type": "text", "text": "a"}], "function_call": old}))
    assert (reply.text, reply.tool_calls) == ("a", [ToolCall(id=None, name="f", arguments="{}")])


def test_the_first_of_several_errors_counts() -> None:
    reply = read({"error": {"message": "first"}}, {"error": {"message": "second"}})
    assert reply.error == "first"
    assert "5" in (read({"choices": 5}, {"choices": 6}).invalid or "")


def test_a_long_answer_is_folded_and_reads_the_same() -> None:
    reader, pieces = ReplyReader(CHAT), [f"{i} " for i in range(10)]
    for i, event in enumerate(events(says(piece) for piece in pieces)):
        reader.feed([SseEvent(event.data, (i + 1) * (FOLD_BYTES // 2))])
    reader.feed([])
    assert reader.finish().text == "".join(pieces)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no room", "no room"),
        ({"error": {"message": "no room"}}, "no room"),
        ({"error": "overloaded", "message": "no room"}, "overloaded: no room"),
        ({"error": True, "message": "no room"}, "no room"),
        ([{"detail": [{"msg": "no room"}, {"msg": "nor time"}]}], "no room"),
        ({"detail": [{"msg": "not permitted", "loc": ["body", "n", 0]}]}, "body.n.0: not permitted"),
        ({"errors": ["no room", "no time"]}, '["no room","no time"]'),
        ({"error": {"reason": 7}}, '{"reason":7}'),
        ([], "[]"),
        ({"error": {}, "code": 503}, "503"),
        ({"error": "x" * 5_000}, "x" * 1_000),
    ],
)
def test_an_errors_message_is_found_in_any_form_and_what_has_none_is_shown(value: Any, said: str) -> None:
    assert error_text(value) == said


@pytest.mark.parametrize("value", [None, []])
def test_a_list_that_was_not_sent_is_an_empty_one(value: Any) -> None:
    assert objects(value, "choices") == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("a", "a"),
        ({"a": 1}, '{"a":1}'),
        ([None], "[null]"),
        ([float("nan")], "[NaN]"),
        (["\ud800", 1], '["\ud800",1]'),
    ],
)
def test_arguments_of_any_form_are_a_text(value: Any, text: str) -> None:
    assert json_text(value) == text


def test_arguments_nested_too_deep_for_any_encoder_are_named_by_their_type() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert json_text(deep) == "<class 'list'>"


def test_json_that_is_not_utf8_is_read_with_the_replacement_character() -> None:
    assert parse(b'{"a": "\xff"}', retry=True) == {"a": "\ufffd"}


@pytest.mark.parametrize(("size", "retry"), [(10, False), ((128 << 10) + 1, True)])
def test_a_second_try_is_for_few_and_small_documents(size: int, retry: bool) -> None:
    data = b'["' + b"a" * (size - 5) + b'\xff"]'
    assert len(data) == size
    with pytest.raises(PayloadError, match=r"^not JSON$"):
        parse(data, retry=retry)


@pytest.mark.parametrize(
    ("piece", "times", "what"),
    [
        (b",", 1_000_000, None),
        (b",", 1_000_001, "more than 1,000,000 JSON values"),
        (b'"a":1', 30_001, None),  # a small document may have any number
        (b'"a":' + b" " * 32, 30_000, None),
        (b'"a":' + b" " * 32, 30_001, "more than 30,000 names beside those of log probabilities"),
        (b'"token":' + b" " * 32, 30_001, None),
        (b'"a":-1' + b" " * 32, 130_000, None),
        (b'"a":-1' + b" " * 32, 130_001, "more than 30,000 names beside those of log probabilities"),
        (b" " * (1 << 20), 7, None),
        (b" " * (1 << 20), 8, "more than 7 MiB in one JSON document"),
    ],
)
def test_a_long_document_has_bounds_that_are_known_while_it_comes(
    piece: bytes, times: int, what: str | None
) -> None:
    size = DocumentSize()
    size.add(piece * times)
    assert size.excess == what


def test_a_name_is_short_and_has_no_control_characters() -> None:
    assert clean_name("a\x1b[2Jb\u202ec") == "a\ufffd[2Jb\ufffdc"
    assert clean_name("a" * 200) == "a" * 200
    assert clean_name("a" * 201) == "a" * 199 + "…"


def test_a_text_becomes_one_line_with_its_start_and_its_end() -> None:
    assert one_line("a\nb\t\x1b") == "a\\nb\\t\\x1b"
    whole = json.dumps([*range(2_000)])
    short = one_line(whole)
    assert len(short) == 2_000
    start, end = short.split("…")
    assert whole.startswith(start)
    assert whole.endswith(end)
    assert one_line("a" * 2_000) == "a" * 2_000


@pytest.mark.parametrize("character", ["x", "\U0001f600"])
def test_an_excerpt_is_the_first_80_characters_however_many_bytes_each_has(character: str) -> None:
    assert excerpt((character * 81).encode()) == repr(character * 80)


# --- What a server says that is no part of an answer: errors in their forms, and codes that are none


WORD = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":" w"}}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


def read_said(stream: bytes) -> Reply:
    reader, decoder = ReplyReader(CHAT), SseDecoder()
    reader.feed(decoder.feed(stream), decoder.take_errors())
    return reader.finish()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"base_resp": {"status_code": 1002, "status_msg": "rate limit"}, "choices": None}, "rate limit"),
        ({"header": {"code": 10013, "message": "audit refused", "sid": "s"}}, "audit refused"),
        ({"code": 10013, "msg": "audit refused"}, "audit refused"),
        ({"code": 10013, "message": "audit refused"}, "audit refused"),
        ({"result": {"ret": "-1", "errmsg": "no quota"}}, "no quota"),
        ({"type": "overloaded_error", "message": "no worker is free"}, "no worker is free"),
        ({"base_resp": {"status_code": 0, "status_msg": "success"}}, None),
        ({"base_resp": {"status_code": 0, "status_msg": ""}}, None),
        ({"base_resp": {"status_code": 1002, "status_msg": ""}}, None),
        ({"base_resp": {"status_code": 7, "status_msg": "OK"}}, None),
        ({"queue": {"code": 102, "message": "processing"}}, None),
        ({"queue": {"code": True, "message": "processing"}}, None),
        ({"queue": {"code": None, "message": "processing"}}, None),
        ({"queue": {"code": "", "message": "processing"}}, None),
        ({"code": 200, "message": "done"}, None),
        ({"code": "SUCCESS", "message": "done"}, None),
        ({"error": {}}, None),
        ({"error": {"code": 0, "message": ""}}, None),
        ({"error": {"code": 0, "message": "no room"}}, "no room"),
        ({"error": "no room"}, "no room"),
        ({"sla_metrics": {"ttft_ms": 10}}, None),
    ],
)
def test_an_object_is_an_error_by_a_code_that_is_no_good_one_and_its_text(
    sent: dict[str, Any], said: str | None
) -> None:
    assert error_in(sent) == said


FAILURES: list[tuple[dict[str, Any], str]] = [
    ({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}, "insufficient balance"),
    ({"baseResp": {"statusCode": "1008", "statusMsg": "insufficient balance"}}, "insufficient balance"),
    ({"header": {"code": 10013, "message": "audit refused", "sid": "s"}}, "audit refused"),
    ({"code": 10013, "message": "audit refused"}, "audit refused"),
    ({"code": "InternalError.Algo", "message": "inference failed"}, "inference failed"),
    ({"error_code": 336100, "error_msg": "try again"}, "try again"),
    ({"ret": -1, "errmsg": "no quota"}, "no quota"),
    ({"status": "failed", "message": "no quota"}, "no quota"),
    ({"success": False, "msg": "no quota"}, "no quota"),
    ({"x_groq": {"id": "r", "error": "over capacity"}}, "over capacity"),
    ({"provider_metadata": {"error": {"message": "over capacity"}}}, "over capacity"),
]
NO_FAILURES: list[dict[str, Any]] = [
    {"base_resp": {"status_code": 0, "status_msg": "success"}},
    {"base_resp": {"status_code": 1000, "status_msg": "success"}},
    {"code": "0", "msg": "\u6210\u529f"},
    {"code": 200, "message": "served by node 7"},
    {"error_code": 0, "error_msg": "success"},
    {"error": "null", "errors": []},
    {"error": {"code": 0, "message": "success"}},
    {"warning": {"code": 4001, "message": "max_tokens was lowered"}},
    {"provider": {"code": "FR", "message": "Paris"}},
    {"prompt_filter": {"code": 7, "message": "hate"}},
    {"success": True, "status": "completed"},
    {"x_groq": {"id": "r", "error": None}},
    {"fallback": {"error": "the first provider was busy"}},
    {"detail": "a note"},
]
PLACES: list[Callable[[dict[str, Any]], list[dict[str, Any]]]] = [
    lambda said: [says("a"), STOPS | said],
    lambda said: [says("a"), STOPS, {"choices": []} | said],
    lambda said: [says("a"), STOPS, {"choices": [], "usage": {"completion_tokens": 1}} | said],
    lambda said: [chunk({"role": "assistant", "content": ""}) | said, says("a"), STOPS],
    lambda said: [says("a"), chunk({}, "stop") | {"choices": [STOPS["choices"][0] | said]}],
    lambda said: [says("a"), chunk({}, "stop") | {"choices": [STOPS["choices"][0] | {"message": said}]}],
    lambda said: [says("a"), chunk(said, "stop")],
]


@pytest.mark.parametrize("place", range(len(PLACES)))
@pytest.mark.parametrize(("sent", "said"), [*FAILURES, *((each, None) for each in NO_FAILURES)])
def test_a_failure_that_is_told_beside_a_complete_answer_fails_it(
    sent: dict[str, Any], said: str | None, place: int
) -> None:
    reply = read(*PLACES[place](sent), b"[DONE]")
    assert (reply.error, reply.text, reply.decided, reply.invalid) == (said, "a", True, None)


@pytest.mark.parametrize(("sent", "said"), [*FAILURES, *((each, None) for each in NO_FAILURES)])
@pytest.mark.parametrize(
    ("dialect", "answer"),
    [
        (CHAT, {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}),
        (COMPLETIONS, {"choices": [{"text": "a", "finish_reason": "stop"}]}),
        (
            MESSAGES,
            {"type": "message", "content": [{"type": "text", "text": "a"}], "stop_reason": "end_turn"},
        ),
        (RESPONSES, {"object": "response", "output": [{"type": "message", "content": [{"text": "a"}]}]}),
    ],
)
def test_a_failure_that_is_told_in_a_whole_answer_fails_it(
    sent: dict[str, Any], said: str | None, dialect: Dialect, answer: dict[str, Any]
) -> None:
    if dialect is RESPONSES and sent.get("status") == "failed":
        said = "the response failed"  # the API's own words go before
    reply = read_body(dialect, json.dumps(answer | sent).encode())
    assert (reply.error, reply.text, reply.invalid) == (said, "a", None)


@pytest.mark.parametrize("field", ["base_resp", "header"])
def test_a_code_of_failure_in_an_event_with_text_is_one(field: str) -> None:
    bad = says("a", **{field: {"status_code": 1008, "code": 1008, "status_msg": "no room"}})
    good = says("a", **{field: {"status_code": 0, "code": 0, "status_msg": "success"}})
    assert read(good, good, STOPS, b"[DONE]").error is None
    assert read(good, good, bad, STOPS, b"[DONE]").error == "no room"


def test_a_long_or_broken_event_is_not_read_again_for_a_failure() -> None:
    said = {"code": 7, "message": "no room"}
    assert failure_beside(b"not JSON: error") is None
    assert failure_beside(b'["error"]') is None
    assert failure_beside(json.dumps(said).encode()) == "no room"
    assert failure_beside(json.dumps(said | {"x": "a" * (256 << 10)}).encode()) is None


@pytest.mark.parametrize("nothing", [{}, "", None, False, {"code": 0, "message": ""}, {"message": None}])
def test_an_error_without_anything_in_it_is_none(nothing: Any) -> None:
    event = {"choices": [{"index": 0, "delta": {"content": " w"}, "error": nothing}], "error": nothing}
    found = read_said(b"data: " + json.dumps(event).encode() + b"\n\n" + STOP)
    assert (found.error, found.text, found.done) == (None, " w", True)


@pytest.mark.parametrize("end", ["[DONE]", "[done]", '"[DONE]"', "DONE", " [DONE] ", "<done>", "[DONE] bye"])
def test_the_end_is_the_same_in_any_dress(end: str) -> None:
    found = read_said(WORD + STOP + f"data: {end}\n\n".encode() + WORD)
    assert (found.decided, found.invalid, found.text) == (True, None, " w")


def test_an_end_that_is_said_before_the_finish_reason_decides_with_it() -> None:
    found = read_said(WORD + b"data: [DONE]\n\n" + STOP + WORD)
    assert (found.decided, found.text, found.finish_reason) == (True, " w", "stop")


@pytest.mark.parametrize(
    "idle",
    ["ping", "[PING]", '"ping"', "heartbeat", "KEEP-ALIVE", "null", "[]", "0", "true", '""'],
)
def test_what_only_keeps_the_connection_open_is_no_part_of_an_answer(idle: str) -> None:
    found = read_said(f"data: {idle}\n\n".encode() + WORD + f"data: {idle}\n\n".encode() + STOP)
    assert (found.invalid, found.done, found.text) == (None, True, " w")
    assert read_said(f"event: error\ndata: {idle}\n\n".encode() + WORD + STOP).error is not None


@pytest.mark.parametrize("text", ["pinging", "the ping", "[1]", "word", '"word"'])
def test_any_other_text_is_no_payload_of_the_api_unless_its_event_has_a_name(text: str) -> None:
    assert read_said(WORD + f"data: {text}\n\n".encode() + STOP).invalid is not None
    assert read_said(WORD + f"event: progress\ndata: {text}\n\n".encode() + STOP).invalid is None


@pytest.mark.parametrize("text", ["DONE with it", "not done", "[DON", "ABANDONED"])
def test_other_texts_are_no_end(text: str) -> None:
    assert not read_said(WORD + f"data: {text}\n\n".encode()).done


@pytest.mark.parametrize(
    ("reason", "native", "taken"),
    [
        ("stop", "MALFORMED_FUNCTION_CALL", "MALFORMED_FUNCTION_CALL"),
        ("stop", "SAFETY", "SAFETY"),
        ("length", "network_error", "network_error"),
        ("stop", "end_turn", "stop"),
        ("stop", "STOP", "stop"),
        ("stop", "anything else", "stop"),
        ("stop", None, "stop"),
        (None, "error", None),
        ("", "error", ""),
    ],
)
def test_a_gateways_good_reason_does_not_hide_the_servers_own(reason: Any, native: Any, taken: Any) -> None:
    assert worse(reason, native) == taken


@pytest.mark.parametrize("native", ['"MALFORMED_FUNCTION_CALL"', '{"type":"abort"}'])
def test_the_servers_own_reason_is_found_beside_that_of_the_gateway(native: str) -> None:
    event = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop","native_finish_reason":%b}]}\n\n'
    found = read_said(WORD + event % native.encode() + b"data: [DONE]\n\n")
    assert found.end is AnswerEnd.FAILED
    assert found.error is not None
