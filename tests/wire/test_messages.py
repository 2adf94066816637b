"""The messages and the responses APIs: their events and bodies."""

import json
from array import array
from typing import Any

import pytest
from hypothesis import given, strategies as st
from payloads import RESPONSE, body, read
from strategies import cuts

from llm_locust.wire.dialects.dialect import ReplyReader, read_body
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.wire.draft import Reply, ToolCall
from llm_locust.wire.ends import AnswerEnd
from llm_locust.wire.sse import SseDecoder, SseEvent
from llm_locust.wire.usage import OutputCount, Usage

# --- The messages API: its events and its body


START = {
    "type": "message_start",
    "message": {
        "type": "message",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "usage": {
            "input_tokens": 3,
            "cache_read_input_tokens": 20,
            "cache_creation_input_tokens": 7,
            "output_tokens": 1,
        },
    },
}
PING = {"type": "ping"}
STOP = {"type": "message_stop"}


def block(index: int, **content: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": content}


def delta(kind: str, index: int = 0, **content: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **content}}


def says(text: str) -> dict[str, Any]:
    return delta("text_delta", text=text)


def ends(reason: str | None = "end_turn", **usage: int) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}


def messages(*payloads: Any) -> Reply:
    return read(*payloads, endpoint=MESSAGES)


def test_a_thought_beside_fields_of_an_unexpected_type_is_one() -> None:
    odd = delta("thinking_delta", thinking="Hm", text=7)
    assert (messages(odd, says("a"), STOP).reasoning, messages(odd).first_answer) == ("Hm", None)


def test_a_messages_stream_reads_whole() -> None:
    reply = messages(
        START,
        PING,
        block(0, type="thinking", thinking="", signature=""),
        delta("thinking_delta", thinking="H"),
        delta("thinking_delta", thinking="m"),
        delta("signature_delta", signature="c2ln"),
        {"type": "content_block_stop", "index": 0},
        block(1, type="text", text=""),
        delta("text_delta", 1, text="Y"),
        delta("text_delta", 1, text="es"),
        delta("text_delta", 1, text=""),
        delta("citations_delta", 1, citation={"cited_text": "no token"}),
        block(2, type="tool_use", id="call", name="f", input={}),
        delta("input_json_delta", 2, partial_json=""),
        delta("input_json_delta", 2, partial_json='{"a"'),
        delta("input_json_delta", 2, partial_json=":1}"),
        ends("tool_use", output_tokens=9),
        STOP,
    )
    assert reply == Reply(
        token_ends=array("q", (40, 50, 90, 100, 130, 150, 160)),  # a call's name comes with its block
        first_answer=2,
        text="Yes",
        reasoning="Hm",
        refusal="",
        tool_calls=[ToolCall(id="call", name="f", arguments='{"a":1}')],
        output_chars=13,
        finish_end=170,
        finish_reason="tool_use",
        end=AnswerEnd.WHOLE,
        done=True,
        decided=True,
        usage=Usage(input_tokens=30, output_tokens=9, cached_tokens=20),
        count=OutputCount(tokens=9),
        error=None,
        invalid=None,
        model="m",
    )


def test_output_counts_of_an_answer_that_has_just_begun_are_not_its_own() -> None:
    broken_off = messages(START, says("a"), says("b"))
    assert broken_off.usage == Usage(input_tokens=30, cached_tokens=20)
    assert not broken_off.done


def test_counts_are_cumulative_and_the_last_that_was_sent_counts() -> None:
    reply = messages(START, says("a"), ends(None, output_tokens=4), ends(output_tokens=8, input_tokens=5))
    assert reply.usage == Usage(input_tokens=32, output_tokens=8, cached_tokens=20)


def test_counts_that_the_server_does_not_know_are_not_zero() -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": None, "output_tokens": None}
    begun = {"type": "message_start", "message": {"usage": usage}}
    assert messages(begun, says("a"), ends(), STOP).usage == Usage(input_tokens=5)
    assert messages(says("a"), STOP).usage is None


@pytest.mark.parametrize("end", [ends("max_tokens"), STOP, b"[DONE]"])
def test_a_stop_reason_or_the_messages_stop_ends_the_answer(end: Any) -> None:
    reply = messages(says("a"), PING)
    assert not reply.done
    assert messages(says("a"), PING, end).done


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, "overloaded_error: Overloaded"),
        ({"type": "overloaded_error"}, 'overloaded_error: {"type":"overloaded_error"}'),
        ({"message": "broke"}, "broke"),
        ("broke", "broke"),
    ],
)
def test_an_error_event_is_an_error_that_keeps_the_tokens(error: Any, said: str) -> None:
    reply = messages(says("a"), {"type": "error", "error": error})
    assert (reply.error, tuple(reply.token_ends), reply.done, reply.invalid) == (said, (10,), False, None)


@pytest.mark.parametrize(
    "unknown",
    [
        {"type": "message_paused", "why": 1},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "hologram_delta", "text": "no token"}},
        {"type": "content_block_start", "index": 5, "content_block": {"type": "hologram", "text": "x"}},
        {"type": "content_block_delta"},
        {"type": "message_delta"},
        {"type": "message_start"},
    ],
)
def test_what_the_api_may_add_one_day_is_let_pass(unknown: dict[str, Any]) -> None:
    assert messages(says("a"), unknown, ends(), STOP) == messages(says("a"), PING, ends(), STOP)


def test_a_stream_of_another_api_is_invalid() -> None:
    assert messages({"choices": []}).invalid == 'no "type" in \'{"choices": []}\''
    assert messages(b"<html>").invalid == "not JSON: '<html>'"
    assert messages({**says("a"), "delta": 5}).invalid is not None


def test_text_that_stands_in_the_start_of_its_block_is_a_token() -> None:
    reply = messages(START, block(0, type="text", text="Yes"), says(" sir"))
    assert (reply.text, tuple(reply.token_ends), reply.first_answer) == ("Yes sir", (20, 30), 0)


MESSAGE: dict[str, Any] = {
    "type": "message",
    "model": "m",
    "content": [
        {"type": "thinking", "thinking": "Hm", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "no token"},
        {"type": "text", "text": "Yes"},
        {"type": "tool_use", "id": "call", "name": "f", "input": {"a": 1}},
    ],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "cache_read_input_tokens": 1, "output_tokens": 9},
}


@pytest.mark.parametrize(
    ("withheld", "hidden"),
    [
        ([block(0, type="redacted_thinking", data="x" * 200)], 150),
        ([block(0, type="thinking", thinking=""), delta("signature_delta", signature="x" * 200)], 150),
        ([delta("thinking_delta", thinking=" hm"), delta("signature_delta", signature="x" * 200)], 0),
    ],
)
def test_all_tokens_beyond_the_events_are_hidden_where_reasoning_is_withheld(
    withheld: list[dict[str, Any]], hidden: int
) -> None:
    reply = messages(START, *withheld, *[says(" answer")] * 100, ends(output_tokens=250), STOP)
    assert reply.count == OutputCount(tokens=250, hidden=hidden)


def test_a_messages_body_is_one_token_event() -> None:
    data = body(MESSAGE)
    reply = read_body(MESSAGES, data)
    assert (tuple(reply.token_ends), reply.first_answer, reply.done) == ((len(data),), 0, True)
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("Yes", "Hm", "end_turn")
    assert reply.tool_calls == [ToolCall(id="call", name="f", arguments='{"a":1}')]
    assert reply.usage == Usage(input_tokens=4, output_tokens=9, cached_tokens=1)


def test_a_body_whose_content_is_one_text_is_read() -> None:
    assert read_body(MESSAGES, body({"content": "Yes"})).text == "Yes"


def test_an_error_body_is_an_error_with_its_type() -> None:
    error = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
    assert read_body(MESSAGES, body(error)).error == "rate_limit_error: slow down"


_pieces = st.text(max_size=6)
_deltas = st.one_of(
    _pieces.map(says),
    _pieces.map(lambda text: delta("thinking_delta", thinking=text)),
    st.tuples(_pieces, st.integers(0, 2)).map(lambda p: delta("input_json_delta", p[1], partial_json=p[0])),
    _pieces.map(lambda text: delta("signature_delta", signature=text)),
    st.sampled_from([PING, {"type": "new_event"}, {"type": "content_block_stop", "index": 0}]),
)


@st.composite
def streams(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A stream as the API describes it, whole or not, perhaps with an error in it."""
    payloads = [START, *draw(st.lists(_deltas, max_size=10))]
    if draw(st.booleans()):
        payloads += [ends("end_turn", output_tokens=draw(st.integers(0, 99))), STOP]
    elif draw(st.booleans()):
        payloads.append({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    return payloads


def wire(payloads: list[dict[str, Any]], end: str = "\n") -> list[bytes]:
    return [f"event: {p['type']}{end}data: {json.dumps(p)}{end}{end}".encode() for p in payloads]


def read_pieces(pieces: list[bytes]) -> Reply:
    decoder, reader = SseDecoder(), ReplyReader(MESSAGES)
    for piece in pieces:
        reader.feed(decoder.feed(piece))
    return reader.finish()


@given(st.data(), streams(), st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_stream_reads_the_same_however_it_is_split(
    data: st.DataObject, payloads: list[dict[str, Any]], end: str
) -> None:
    stream = b"".join(wire(payloads, end))
    whole = read_pieces([stream])
    assert read_pieces([bytes([byte]) for byte in stream]) == whole
    assert read_pieces(data.draw(cuts(stream))) == whole


@given(streams())
def test_every_piece_of_text_counts_once_at_the_end_of_its_event(payloads: list[dict[str, Any]]) -> None:
    pieces = wire(payloads)
    reply = read_pieces(pieces)
    found: dict[str, list[str]] = {"text": [], "thinking": [], "partial_json": []}
    token_ends, sent = [], 0
    for payload, piece in zip(payloads, pieces, strict=True):
        sent += len(piece)
        for name, texts in found.items():
            if text := payload.get("delta", {}).get(name):
                texts.append(text)
                token_ends.append(sent)
    assert list(reply.token_ends) == token_ends
    assert (reply.text, reply.reasoning) == ("".join(found["text"]), "".join(found["thinking"]))
    assert sum(len(c.arguments) for c in reply.tool_calls) == sum(map(len, found["partial_json"]))
    assert reply.output_chars == sum(len(text) for texts in found.values() for text in texts)


@given(streams())
def test_the_short_way_and_the_lenient_way_read_the_same(payloads: list[dict[str, Any]]) -> None:
    """A NaN anywhere is refused by typed decoding, so that every event is read leniently."""
    assert messages(*payloads) == messages(*({**p, "nan": float("nan")} for p in payloads))


# --- The responses API: its events and its body


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
    reader = ReplyReader(RESPONSES)
    for type_ in (None, "", "response.output_text.delta"):
        reader.feed([SseEvent(body({"type": type_, "delta": "a"}), 10, b"response.output_text.delta")])
    assert reader.finish().text == "aaa"


def test_a_delta_beside_a_field_of_an_odd_type_is_read_all_the_same() -> None:
    reply = responses({"type": "response.output_text.delta", "delta": "a", "item_id": 5})
    assert (reply.text, tuple(reply.token_ends)) == ("a", (10,))


def test_an_output_that_came_in_no_delta_is_named() -> None:
    reply = responses({"type": "response.completed", "response": RESPONSE})
    assert (len(reply.token_ends), reply.beside) == (0, '"output" at the end without a delta')


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
    reader = ReplyReader(RESPONSES)
    reader.feed([SseEvent(data, len(data), name)])
    assert reader.finish().text == text
