"""What a server says that is no part of an answer: errors in their forms, and codes that are none."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from payloads import STOP as STOPS, chunk, read as read_events, says

from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.wire.draft import Reply
from llm_locust.wire.ends import AnswerEnd, error_in, failure_beside, worse
from llm_locust.wire.reply import read_body, reply_reader
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
    reply = read_events(*PLACES[place](sent), b"[DONE]")
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
    assert read_events(good, good, STOPS, b"[DONE]").error is None
    assert read_events(good, good, bad, STOPS, b"[DONE]").error == "no room"


def test_a_long_or_broken_event_is_not_read_again_for_a_failure() -> None:
    said = {"code": 7, "message": "no room"}
    assert failure_beside(b"not JSON: error") is None
    assert failure_beside(b'["error"]') is None
    assert failure_beside(json.dumps(said).encode()) == "no room"
    assert failure_beside(json.dumps(said | {"x": "a" * (256 << 10)}).encode()) is None


@pytest.mark.parametrize("nothing", [{}, "", None, False, {"code": 0, "message": ""}, {"message": None}])
def test_an_error_without_anything_in_it_is_none(nothing: Any) -> None:
    event = {"choices": [{"index": 0, "delta": {"content": " w"}, "error": nothing}], "error": nothing}
    found = read(b"data: " + json.dumps(event).encode() + b"\n\n" + STOP)
    assert (found.error, found.text, found.done) == (None, " w", True)


@pytest.mark.parametrize("end", ["[DONE]", "[done]", '"[DONE]"', "DONE", " [DONE] ", "<done>", "[DONE] bye"])
def test_the_end_is_the_same_in_any_dress(end: str) -> None:
    found = read(WORD + STOP + f"data: {end}\n\n".encode() + WORD)
    assert (found.decided, found.invalid, found.text) == (True, None, " w")


def test_an_end_that_is_said_before_the_finish_reason_decides_with_it() -> None:
    found = read(WORD + b"data: [DONE]\n\n" + STOP + WORD)
    assert (found.decided, found.text, found.finish_reason) == (True, " w", "stop")


@pytest.mark.parametrize(
    "idle",
    ["ping", "[PING]", '"ping"', "heartbeat", "KEEP-ALIVE", "null", "[]", "0", "true", '""'],
)
def test_what_only_keeps_the_connection_open_is_no_part_of_an_answer(idle: str) -> None:
    found = read(f"data: {idle}\n\n".encode() + WORD + f"data: {idle}\n\n".encode() + STOP)
    assert (found.invalid, found.done, found.text) == (None, True, " w")
    assert read(f"event: error\ndata: {idle}\n\n".encode() + WORD + STOP).error is not None


@pytest.mark.parametrize("text", ["pinging", "the ping", "[1]", "word", '"word"'])
def test_any_other_text_is_no_payload_of_the_api_unless_its_event_has_a_name(text: str) -> None:
    assert read(WORD + f"data: {text}\n\n".encode() + STOP).invalid is not None
    assert read(WORD + f"event: progress\ndata: {text}\n\n".encode() + STOP).invalid is None


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
