"""The responses API: its events and its body."""

from array import array
from typing import Any

import pytest
from payloads import RESPONSE, body, read

from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.wire.draft import Reply, ToolCall
from llm_locust.wire.ends import AnswerEnd
from llm_locust.wire.reply import read_body, reply_reader
from llm_locust.wire.sse import SseEvent
from llm_locust.wire.usage import OutputCount, Usage

CALL = RESPONSE["output"][2]


def responses(*payloads: Any) -> Reply:
    return read(*payloads, endpoint=RESPONSES)


def test_a_responses_stream_reads_whole() -> None:
    reply = responses(
        {
            "type": "response.created",
            "response": {"model": "m", "status": "in_progress", "usage": None, "error": None},
        },
        {"type": "response.reasoning_summary_text.delta", "item_id": "r", "delta": "H"},
        {"type": "response.reasoning_text.delta", "item_id": "r", "delta": "m"},
        {"type": "response.output_text.delta", "item_id": "m", "delta": "Y"},
        {"type": "response.output_text.delta", "item_id": "m", "delta": "es"},
        {"type": "response.output_text.delta", "item_id": "m", "delta": ""},
        {"type": "response.output_text.done", "item_id": "m", "text": "Yes"},
        {"type": "response.refusal.delta", "item_id": "m", "delta": "No"},
        {"type": "response.output_item.added", "item": {**CALL, "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "item_id": "fc", "delta": "{"},
        {"type": "response.function_call_arguments.delta", "item_id": "fc", "delta": "}"},
        {"type": "response.function_call_arguments.done", "item_id": "fc", "arguments": "{}"},
        {"type": "response.completed", "response": RESPONSE},
    )
    assert reply == Reply(
        token_ends=array("q", (20, 30, 40, 50, 80, 90, 100, 110)),  # a call's name comes when it is added
        first_answer=2,
        text="Yes",
        reasoning="Hm",
        refusal="No",
        tool_calls=[ToolCall(id="call", name="f", arguments="{}")],
        output_chars=10,
        finish_end=130,
        finish_reason="completed",
        end=AnswerEnd.WHOLE,
        done=True,
        decided=True,
        usage=Usage(input_tokens=3, output_tokens=9, cached_tokens=1, reasoning_tokens=4),
        count=OutputCount(tokens=9),
        error=None,
        invalid=None,
        model="m",
    )


def test_an_incomplete_response_is_done_and_says_why() -> None:
    ended = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    reply = responses({"type": "response.incomplete", "response": ended})
    assert (reply.done, reply.finish_reason, reply.error) == (True, "max_output_tokens", None)


@pytest.mark.parametrize(
    "payload",
    [
        {
            "type": "response.failed",
            "response": {"status": "failed", "error": {"code": "x", "message": "broke"}},
        },
        {"type": "error", "code": "x", "message": "broke"},
        {"type": "error", "error": {"message": "broke"}},
        {"error": {"message": "broke"}},
    ],
)
def test_a_failed_response_is_an_error_that_keeps_the_tokens(payload: Any) -> None:
    reply = responses({"type": "response.output_text.delta", "delta": "a"}, payload)
    assert (reply.error, tuple(reply.token_ends)) == ("broke", (10,))


def test_a_responses_stream_that_breaks_off_is_not_done_and_one_of_another_api_is_invalid() -> None:
    assert not responses({"type": "response.output_text.delta", "delta": "a"}).done
    assert responses({"text": "a"}).invalid == 'no "type" in \'{"text": "a"}\''
    assert responses(b"<html>").invalid == "not JSON: '<html>'"


@pytest.mark.parametrize("odd", [None, [], {}, 5, ""])
def test_an_item_of_an_odd_type_is_no_tool_call(odd: Any) -> None:
    item = {"type": odd, "id": "x", "arguments": "{}"}
    added = responses({"type": "response.output_item.added", "item": item})
    assert (added.tool_calls, added.invalid) == ([], None)
    assert read_body(RESPONSES, body({"output": [item]})).tool_calls == []


def test_a_responses_body_is_one_token_event() -> None:
    data = body(RESPONSE)
    reply = read_body(RESPONSES, data)
    assert (tuple(reply.token_ends), reply.first_answer, reply.done) == ((len(data),), 0, True)
    assert (reply.text, reply.reasoning, reply.refusal) == ("Yes", "Hm", "No")
    assert reply.tool_calls == [ToolCall(id="call", name="f", arguments="{}")]
    assert reply.usage == Usage(input_tokens=3, output_tokens=9, cached_tokens=1, reasoning_tokens=4)


def test_an_incomplete_response_that_is_called_completed_still_says_why_it_ended() -> None:
    ended = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    reply = responses({"type": "response.completed", "response": ended})
    assert (reply.done, reply.finish_reason) == (True, "max_output_tokens")


@pytest.mark.parametrize(
    ("status", "error"), [("failed", "the response failed"), ("cancelled", "the response was cancelled")]
)
def test_a_response_that_broke_without_a_word_is_an_error(status: str, error: str) -> None:
    assert responses({"type": f"response.{status}", "response": {"status": status}}).error == error
    assert read_body(RESPONSES, body({**RESPONSE, "status": status})).error == error


def test_a_body_of_a_response_that_is_not_over_is_not_done() -> None:
    reply = read_body(RESPONSES, body({**RESPONSE, "status": "queued"}))
    assert (reply.done, reply.text, reply.error) == (False, "Yes", None)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.audio.delta", "delta": "a"},
        {"type": "response.queued", "response": "r"},
        {"type": "response.output_item.added", "item": None},
    ],
)
def test_an_event_without_anything_to_read_is_no_token_and_no_fault(event: Any) -> None:
    reply = responses(event)
    assert (len(reply.token_ends), reply.invalid, reply.error) == (0, None, None)


def test_a_delta_of_an_unknown_kind_is_named_if_it_has_text() -> None:
    unknown = [{"type": "response.musing.delta", "delta": text} for text in (*("Hm",) * 3, *("",) * 20)]
    found = responses(*unknown)
    assert (found.unread, len(found.token_ends)) == ("response.musing.delta", 0)
    assert responses(*unknown[3:]).unread is None


def test_an_event_whose_type_stands_in_its_name_alone_is_read() -> None:
    reader = reply_reader(RESPONSES)
    for type_ in (None, "", "response.output_text.delta"):
        reader.feed([SseEvent(body({"type": type_, "delta": "a"}), 10, b"response.output_text.delta")])
    assert reader.finish().text == "aaa"


def test_a_delta_beside_a_field_of_an_odd_type_is_read_all_the_same() -> None:
    reply = responses({"type": "response.output_text.delta", "delta": "a", "item_id": 5})
    assert (reply.text, tuple(reply.token_ends)) == ("a", (10,))


@pytest.mark.parametrize("order", [("text", "summary_text"), ("summary_text", "text")])
def test_reasoning_of_which_a_summary_is_only_a_part_is_not_hidden(order: tuple[str, str]) -> None:
    deltas = [{"type": f"response.reasoning_{part}.delta", "delta": "Hm"} for part in order]
    answer = {"type": "response.output_text.delta", "delta": "Yes"}
    end = {"type": "response.completed", "response": RESPONSE}
    assert not responses(*deltas, answer, end).count.hidden
    assert responses(deltas[order.index("summary_text")], answer, end).count.hidden


@pytest.mark.parametrize(("name", "text"), [(b"response.output_text.done", ""), (b"", "x")])
def test_a_long_event_that_repeats_what_came_is_not_decoded(name: bytes, text: str) -> None:
    """Its event line says so; without one it is read, and only an end or a delta is of use."""
    data = body({"type": "response.output_text.delta", "delta": "x", "filler": "y" * (64 << 10)})
    reader = reply_reader(RESPONSES)
    reader.feed([SseEvent(data, len(data), name)])
    assert reader.finish().text == text
