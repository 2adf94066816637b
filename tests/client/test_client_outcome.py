"""How a call ended, and what is said of it."""

from typing import Any

import pytest
from calls import HEAD, Caller, caller, stop, token
from scripted import (
    Script,
    ScriptedServer,
    Step,
    chat_chunk,
    chunk,
    json_response,
    last_chunk,
    refusing_port,
    response_head,
    sse,
    write,
)

from llm_locust.core.record import Outcome
from llm_locust.wire.dialects.chat import COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.responses import RESPONSES

pytestmark = pytest.mark.alone


NO_TOKEN = chunk(sse(chat_chunk("", role="assistant")) + stop()) + last_chunk()
ERROR = {"error": {"message": "out of memory", "type": "server_error"}}
GZIP = response_head(headers={"Content-Encoding": "gzip"})
JSON = response_head(content_length=8, content_type="application/json")

OUTCOMES: list[tuple[str, Script, Outcome, int | None, int, str]] = [
    (
        "401",
        [write(0, json_response({"error": {"message": "bad key"}}, 401))],
        Outcome.HTTP_ERROR,
        401,
        0,
        "HTTP 401: bad key",
    ),
    (
        "429 in text",
        [write(0, response_head(429, content_length=4, content_type="text/plain") + b"slow")],
        Outcome.HTTP_ERROR,
        429,
        0,
        "HTTP 429: slow",
    ),
    ("500 without body", [write(0, response_head(500, content_length=0))], Outcome.HTTP_ERROR, 500, 0, "500"),
    (
        "502 cut off",
        [write(0, response_head(502, content_length=9) + b"part"), Step(reset=True)],
        Outcome.HTTP_ERROR,
        502,
        0,
        "HTTP 502: part",
    ),
    (
        "redirect",
        [write(0, response_head(307, {"Location": "http://else/v1"}, content_length=0))],
        Outcome.INVALID,
        307,
        0,
        "HTTP 307: redirected to http://else/v1, which is not followed",
    ),
    (
        "error object in a stream",
        [write(0, HEAD + chunk(token() + sse(ERROR)) + last_chunk())],
        Outcome.API_ERROR,
        200,
        1,
        "out of memory",
    ),
    (
        "error object as the body",
        [write(0, json_response(ERROR))],
        Outcome.API_ERROR,
        200,
        0,
        "out of memory",
    ),
    (
        "stream without end",
        [write(0, HEAD + chunk(token()) + last_chunk())],
        Outcome.TRUNCATED,
        200,
        1,
        "the stream ended without a finish reason or [DONE]",
    ),
    (
        "closed midway",
        [write(0, HEAD + chunk(token() + token())), Step(at_ms=5, close=True)],
        Outcome.TRUNCATED,
        200,
        2,
        "broke: closed by the peer",
    ),
    (
        "reset midway",
        [write(0, HEAD + chunk(token())), Step(at_ms=5, reset=True)],
        Outcome.TRUNCATED,
        200,
        1,
        "broke: Connection reset by peer",
    ),
    (
        "closed in the head",
        [write(0, HEAD[:20]), Step(at_ms=5, close=True)],
        Outcome.TRUNCATED,
        None,
        0,
        "in the middle of the headers",
    ),
    (
        "whole but for the last chunk",
        [write(0, HEAD + chunk(token() + stop())), Step(at_ms=5, close=True)],
        Outcome.OK,
        200,
        1,
        "",
    ),
    ("closed at once", [Step(close=True)], Outcome.CONNECT_ERROR, None, 0, "closed by the peer"),
    ("reset at once", [Step(reset=True)], Outcome.CONNECT_ERROR, None, 0, "Connection reset by peer"),
    ("not HTTP", [write(0, "SSH-2.0-OpenSSH_9.9\r\n")], Outcome.INVALID, None, 0, "not an HTTP/1.1 response"),
    (
        "bad chunk",
        [write(0, HEAD + chunk(token())), write(5, b"zz\r\n")],
        Outcome.INVALID,
        200,
        1,
        "not an HTTP/1.1 response",
    ),
    (
        "change of protocol",
        [write(0, "HTTP/1.1 101 No\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")],
        Outcome.INVALID,
        101,
        0,
        "changed the protocol",
    ),
    (
        "not JSON",
        [write(0, HEAD + chunk(token() + sse("garbage") + stop()) + last_chunk())],
        Outcome.INVALID,
        200,
        1,
        "not JSON: 'garbage'",
    ),
    (
        "compressed",
        [write(0, GZIP + chunk(b"\x1f\x8b\x08\x00") + last_chunk())],
        Outcome.INVALID,
        200,
        0,
        "the answer is gzip-encoded, which the request did not allow",
    ),
    (
        "no stream",
        [write(0, JSON + b'{"a": 1}')],
        Outcome.INVALID,
        200,
        0,
        "a stream was asked for, the answer (HTTP 200) is application/json: '{\"a\": 1}'",
    ),
    (
        "no token",
        [write(0, HEAD + NO_TOKEN)],
        Outcome.EMPTY,
        200,
        0,
        "the answer is complete, without a token",
    ),
    (
        "empty body",
        [write(0, response_head(content_length=0))],
        Outcome.TRUNCATED,
        200,
        0,
        "(HTTP 200) has no body",
    ),
]


@pytest.mark.parametrize(
    ("script", "outcome", "status", "tokens", "error"),
    [case[1:] for case in OUTCOMES],
    ids=[case[0] for case in OUTCOMES],
)
def test_every_end_has_its_outcome_and_keeps_the_tokens_that_came(
    ask: Caller, script: Script, outcome: Outcome, status: int | None, tokens: int, error: str
) -> None:
    record = ask.ask(script).record
    assert (record.outcome, record.status, len(record.arrivals_ns)) == (outcome, status, tokens)
    assert (record.error is None) if not error else error in (record.error or "")
    assert (record.retries, record.sent_ns is None) == (0, False)
    assert len(ask.answers) == 1


@pytest.mark.parametrize(
    ("script", "outcome", "error"),
    [
        ([write(0, JSON + b'{"choi'), Step(at_ms=1, close=True)], Outcome.TRUNCATED, "closed by the peer"),
        ([write(0, JSON + b'{"a": 1}')], Outcome.INVALID, '"choices"'),
        ([write(0, JSON + b"gar bage")], Outcome.INVALID, "not JSON"),
        ([write(0, response_head(content_length=0))], Outcome.INVALID, "the answer has no body"),
    ],
)
def test_an_answer_that_is_not_streamed_has_the_same_outcomes(
    ask: Caller, script: Script, outcome: Outcome, error: str
) -> None:
    record = ask.ask(script, streamed=False).record
    assert record.outcome is outcome
    assert error in (record.error or "")


@pytest.mark.parametrize("endpoint", [COMPLETIONS, RESPONSES])
def test_other_endpoints_are_read_by_their_own_rules(ask: Caller, endpoint: Dialect) -> None:
    events: dict[Dialect, list[dict[str, Any]]] = {
        COMPLETIONS: [{"choices": [{"index": 0, "text": "hi", "finish_reason": "stop"}]}],
        RESPONSES: [
            {"type": "response.output_text.delta", "delta": "hi", "output_index": 0, "content_index": 0},
            {"type": "response.completed", "response": {"status": "completed", "model": "m"}},
        ],
    }
    body = b"".join(map(sse, events[endpoint]))
    answer = ask.ask([write(0, HEAD + chunk(body) + last_chunk())], endpoint=endpoint)
    assert (answer.record.outcome, answer.reply.text) == (Outcome.OK, "hi")
    assert answer.record.endpoint == endpoint.name


def test_a_call_that_generates_nothing_is_judged_by_its_status(ask: Caller) -> None:
    record = ask.ask([write(0, json_response({"data": []}))], endpoint=None, streamed=False).record
    assert (record.outcome, record.endpoint, len(record.arrivals_ns)) == (Outcome.OK, "other", 0)


@pytest.mark.parametrize("status", [201, 299])
def test_every_answer_of_success_is_read_whole(ask: Caller, status: int) -> None:
    text = "x" * 100_000  # of an error so much is not kept
    whole = {"choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}]}
    response = json_response(whole).replace(b"200", b"%d" % status, 1)
    answer = ask.ask([write(0, response)], streamed=False)
    assert (answer.record.outcome, answer.record.status, answer.reply.text) == (Outcome.OK, status, text)


def test_no_connection_is_a_record_too() -> None:
    with refusing_port() as port, caller(f"http://127.0.0.1:{port}") as ask:
        record = ask.ask([]).record
    assert (record.outcome, record.sent_ns, record.connected_ns) == (Outcome.CONNECT_ERROR, None, None)
    assert record.error == f"cannot connect to 127.0.0.1:{port}: Connection refused"
    assert record.ended_ns >= record.started_ns


def test_secrets_are_in_no_error_text(server: ScriptedServer) -> None:
    key = "sk-very-secret-key-0123456789"
    said = {"error": {"message": f"no such key: Bearer {key} or {key}"}}
    cut_off = "x" * 60 + key  # an excerpt of 80 characters keeps the key's start only
    with caller(server.url, headers={"Authorization": f"Bearer {key}"}, secrets=(key, "")) as ask:
        record = ask.ask([write(0, json_response(said, 401))]).record
        assert record.error == "HTTP 401: no such key: Bearer *** or ***"
        cut_record = ask.ask([write(0, HEAD + chunk(sse(cut_off)) + last_chunk())]).record
        assert "x***" in (cut_record.error or "")
        assert "sk-very" not in (cut_record.error or "")
        assert server.wait_ended(2)[0].header("Authorization") == f"Bearer {key}"


def test_an_error_text_is_one_bounded_line(ask: Caller) -> None:
    text = "a\n\tb" * 10_000
    record = ask.ask([write(0, response_head(500, content_length=len(text)) + text.encode())]).record
    assert record.error is not None
    assert record.error.startswith("HTTP 500: a ba b")
    assert len(record.error) == 300
    assert record.error.endswith("…")


def test_a_response_that_stays_open_after_the_end_of_its_answer_is_left(
    ask: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The looks of a client come after one second of silence, and each five while something comes.
    monkeypatch.setattr("llm_locust.client.http.timers._LOOK_S", 0.1)
    monkeypatch.setattr("llm_locust.client.http.connection._LOOK_AGAIN_NS", 500_000_000)
    whole = write(0, HEAD + chunk(token() + stop()))
    record = ask.ask([whole, Step(stall=True)]).record
    assert (record.outcome, record.error) == (Outcome.OK, None)
    ping = chunk(b": ping\n\n")
    pinging = [whole, *(write(100 * i, ping) for i in range(1, 300))]
    record = ask.ask(pinging).record
    assert (record.outcome, len(record.arrivals_ns), record.reused) == (Outcome.OK, 1, False)
    assert record.bytes_received < len(HEAD) + 200 * len(ping)


def test_an_error_is_not_waited_upon_for_more(ask: Caller) -> None:
    record = ask.ask([write(0, HEAD + chunk(token() + b"error: out of memory\n\n")), Step(stall=True)]).record
    assert (record.outcome, record.error) == (Outcome.API_ERROR, "out of memory")


def test_secrets_are_in_no_quote_of_what_was_no_event(server: ScriptedServer) -> None:
    key = "sk-very-secret-key-0123456789"
    page = response_head(content_type="text/html", content_length=9 + len(key)) + f"<p>{key}</p>\r\n".encode()
    stray = HEAD + chunk(f"bad key {key} of yours\n\n".encode()) + last_chunk()
    error = HEAD + chunk(f"error: bad key {key}\n\n".encode()) + last_chunk()
    with caller(server.url, headers={"Authorization": f"Bearer {key}"}, secrets=(key,)) as ask:
        for sent in (page, stray, error):
            said = ask.ask([write(0, sent)]).record.error or ""
            assert "***" in said
            assert "sk-very" not in said
