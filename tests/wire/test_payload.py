"""Payloads from a server: what is too much of them, and what is left of what is odd."""

import json
from typing import Any

import pytest
from payloads import body, chunk, events, read, says

from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.draft import ToolCall
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
from llm_locust.wire.reply import FOLD_BYTES, read_body, reply_reader
from llm_locust.wire.sse import SseEvent

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
    reader, pieces = reply_reader(CHAT), [f"{i} " for i in range(10)]
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
