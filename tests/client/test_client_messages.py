"""A messages stream through the client: what its end makes of the call."""

from collections.abc import Iterator

import pytest
from calls import HEAD, Caller, caller
from scripted import Script, ScriptedServer, chunk, json_response, last_chunk, sse, write

from llm_locust.core.record import Outcome, TokenSource
from llm_locust.wire.dialects.messages import MESSAGES

START = sse(
    {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 7, "output_tokens": 1}}}
)
PING = sse({"type": "ping"})
TOKEN = sse({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}})
THOUGHT = sse(
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "a"}}
)
END = sse({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}})
STOP = sse({"type": "message_stop"})
ERROR = sse({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})


def stream(*events: bytes) -> Script:
    """The events 2 ms apart, so that no read has two, and the end of the body."""
    sent = [write(2 * i, chunk(event)) for i, event in enumerate(events, start=1)]
    return [write(0, HEAD), *sent, write(2 * len(events) + 2, last_chunk())]


@pytest.fixture
def ask(server: ScriptedServer) -> Iterator[Caller]:
    with caller(server.url) as client:
        yield client


def test_a_ping_is_no_token_and_a_thought_is_the_first_token_but_no_answer(ask: Caller) -> None:
    record = ask.ask(stream(START, PING, THOUGHT, TOKEN, PING, TOKEN, END, STOP), endpoint=MESSAGES).record
    assert (record.outcome, record.finish_reason, record.model) == (Outcome.OK, "end_turn", "m")
    assert (len(record.arrivals_ns), record.output_tokens, record.token_source) == (3, 3, TokenSource.USAGE)
    assert (record.input_tokens, record.cached_tokens) == (7, None)
    assert record.first_answer_ns == record.arrivals_ns[1]
    # A late client reads both at once, and says so: they share a time then.
    assert record.coalesced_reads or record.arrivals_ns[1] > record.arrivals_ns[0]
    assert record.arrivals_ns[0] >= 5_000_000


def test_an_error_event_is_an_api_error_with_the_tokens_that_came(ask: Caller) -> None:
    record = ask.ask(stream(START, TOKEN, TOKEN, ERROR), endpoint=MESSAGES).record
    assert (record.outcome, record.error) == (Outcome.API_ERROR, "overloaded_error: Overloaded")
    assert (len(record.arrivals_ns), record.output_tokens, record.token_source) == (2, 2, TokenSource.EVENTS)


def test_a_stream_without_stop_is_truncated_and_its_tokens_are_those_that_came(ask: Caller) -> None:
    record = ask.ask(stream(START, TOKEN, TOKEN), endpoint=MESSAGES).record
    assert (record.outcome, record.output_tokens) == (Outcome.TRUNCATED, 2)


def test_a_status_of_this_apis_own_is_an_http_error_with_its_type(ask: Caller) -> None:
    refusal = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
    record = ask.ask([write(0, json_response(refusal, 429))], endpoint=MESSAGES).record
    assert (record.outcome, record.error) == (Outcome.HTTP_ERROR, "HTTP 429: rate_limit_error: slow down")
