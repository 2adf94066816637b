"""What a server says that is no part of an answer: errors in their forms, and codes that are none."""

import json
from typing import Any

import pytest

from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.draft import Reply
from llm_locust.wire.ends import AnswerEnd, error_in, worse
from llm_locust.wire.reply import reply_reader
from llm_locust.wire.sse import SseDecoder

WORD = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":" w"}}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


def read(stream: bytes) -> Reply:
    reader, decoder = reply_reader(CHAT), SseDecoder()
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


@pytest.mark.parametrize("nothing", [{}, "", None, False, {"code": 0, "message": ""}, {"message": None}])
def test_an_error_without_anything_in_it_is_none(nothing: Any) -> None:
    event = {"choices": [{"index": 0, "delta": {"content": " w"}, "error": nothing}], "error": nothing}
    found = read(b"data: " + json.dumps(event).encode() + b"\n\n" + STOP)
    assert (found.error, found.text, found.done) == (None, " w", True)


@pytest.mark.parametrize("end", ["[DONE]", "[done]", '"[DONE]"', "DONE", " [DONE] ", "<done>", "[DONE] bye"])
def test_the_end_is_the_same_in_any_dress(end: str) -> None:
    found = read(WORD + STOP + f"data: {end}\n\n".encode() + WORD)
    assert (found.decided, found.invalid, found.text) == (True, None, " w")


@pytest.mark.parametrize("text", ["DONE with it", "not done", "[DON", "ABANDONED"])
def test_other_texts_are_no_end(text: str) -> None:
    assert not read(WORD + f"data: {text}\n\n".encode()).done


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
    found = read(WORD + event % native.encode() + b"data: [DONE]\n\n")
    assert found.end is AnswerEnd.FAILED
    assert found.error is not None
