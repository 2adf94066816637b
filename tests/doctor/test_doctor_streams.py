"""Checks of an answer: streamed or held back, usage, its end, the kept connection."""

from dataclasses import replace

import pytest
from doctor_cases import answer, reply
from test_doctor_host import judged

from llm_locust.core.record import Outcome, TokenSource
from llm_locust.doctor.finding import Status
from llm_locust.doctor.streams import (
    SeenStream,
    judge_end,
    judge_first_token,
    judge_keep_alive,
    judge_others,
    judge_streaming,
    judge_usage,
)
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.messages import MESSAGES

FIRST = answer([50.0])
NGINX = {b"server": b"nginx"}


def steady(begin_ms: float, gap_ms: float, events: int) -> list[float]:
    return [begin_ms + gap_ms * i for i in range(events)]


GOOD = answer(steady(50, 0, 1))
BAD = answer([], outcome=Outcome.HTTP_ERROR, status=404, error="no such model")


@pytest.mark.parametrize(
    ("seen", "status", "words"),
    [
        ({}, Status.SKIPPED, "the run asks for one model"),
        ({"b": GOOD}, Status.OK, "1 further model answered"),
        ({"b": GOOD, "c": GOOD}, Status.OK, "2 further models answered"),
        ({"b": GOOD, "c": BAD, "d": BAD}, Status.FAIL, "c: "),
        ({"b": GOOD, "c": BAD, "d": BAD}, Status.FAIL, "; 2 of 3 further models"),
        ({"b": BAD}, Status.FAIL, "no such model"),
        ({"b": GOOD, "c": "no time was left"}, Status.SKIPPED, "no time was left for 1 of 2 further models"),
        ({"b\x1b[31m": BAD}, Status.FAIL, "b"),
    ],
)
def test_a_model_of_a_split_that_does_not_answer_is_named(
    seen: dict[str, SeenStream | str], status: Status, words: str
) -> None:
    finding = judge_others(seen)
    judged(finding, status, words)
    assert "\x1b" not in finding.figure


#: Three writes of eight events each, 200 ms apart.
BURSTS = [at for begin in (200.0, 400.0, 600.0) for at in steady(begin, 0.01, 8)]


@pytest.mark.parametrize(
    ("seen", "status", "words"),
    [
        (answer(steady(50, 12, 32)), Status.OK, "32 events, 12.0 ms between two"),
        (answer(steady(50, 0.4, 32)), Status.OK, "0.400 ms between two"),
        (answer(steady(434, 0, 32), headers=NGINX), Status.FAIL, "nginx: `proxy_buffering off;`"),
        (answer(steady(434, 0.02, 32)), Status.FAIL, "435 ms after the request: a proxy held it back"),
        (answer(steady(51, 0.01, 32)), Status.WARN, "cannot tell whether the server is that fast"),
        (answer([434.0], output_tokens=32), Status.FAIL, "32 tokens in 1 event"),
        (answer(BURSTS), Status.FAIL, "in bursts"),
        (answer(steady(50, 50, 8), output_tokens=32), Status.WARN, "4.00 tokens an event"),
        (answer(steady(50, 12, 3)), Status.WARN, "too few to tell"),
        (answer([50.0], output_tokens=1), Status.WARN, "only 1 token"),
        (answer(steady(434, 0, 32), output_tokens=1), Status.FAIL, "a proxy held it back"),
        (
            answer([], outcome=Outcome.TIMEOUT, error="not complete within 10 s (total)"),
            Status.FAIL,
            "timeout: not complete within 10 s",
        ),
        (
            answer([], outcome=Outcome.INVALID, error="a stream was asked for, the answer is text/html"),
            Status.FAIL,
            "the answer is text/html",
        ),
        ("no time was left", Status.SKIPPED, "no time was left"),
    ],
)
def test_a_stream_that_was_held_back_is_told_from_one_that_was_not(
    seen: SeenStream | str, status: Status, words: str
) -> None:
    judged(judge_streaming(seen, FIRST), status, words)


def test_a_burst_is_a_failure_where_no_single_token_is_known() -> None:
    judged(judge_streaming(answer(steady(434, 0, 32)), answer([])), Status.FAIL, "one burst")


def test_a_machine_that_reads_late_does_not_accuse_the_server() -> None:
    lag_ns = 400_000_000
    judged(judge_streaming(answer(steady(434, 0, 32), client_lag_ns=lag_ns), FIRST), Status.WARN, "read late")


def test_reading_a_little_late_hides_neither_a_burst_nor_a_healthy_stream() -> None:
    lag_ns = 20_000_000
    judged(judge_streaming(answer(steady(434, 0, 32), client_lag_ns=lag_ns), FIRST), Status.FAIL, "one burst")
    judged(judge_streaming(answer(steady(50, 12, 32), client_lag_ns=lag_ns), FIRST), Status.OK, "12.0 ms")


@pytest.mark.parametrize(
    ("seen", "status", "words"),
    [
        (answer([43.2]), Status.OK, "after 43.2 ms"),
        (answer([43.2], headers=NGINX), Status.OK, "(nginx)"),
        (answer([], outcome=Outcome.EMPTY), Status.WARN, "without text"),
        (
            answer([], outcome=Outcome.HTTP_ERROR, status=404, error="HTTP 404: no such model"),
            Status.FAIL,
            "HTTP 404: no such model | check the path",
        ),
        (
            answer([], outcome=Outcome.HTTP_ERROR, status=401, error="HTTP 401"),
            Status.FAIL,
            "see the check of the API key",
        ),
        (answer([], outcome=Outcome.HTTP_ERROR, status=503, error="HTTP 503"), Status.FAIL, "log"),
        (answer([], outcome=Outcome.TIMEOUT, status=None, error="no byte"), Status.FAIL, "--timeouts"),
        (answer([], outcome=Outcome.API_ERROR, error="\x1b[31mred\n" + "x" * 999), Status.FAIL, "red xxx"),
        ("no model is known", Status.SKIPPED, "no model is known"),
    ],
)
def test_a_request_that_failed_is_told_with_its_reason(
    seen: SeenStream | str, status: Status, words: str
) -> None:
    finding = judge_first_token(seen)
    judged(finding, status, words)
    assert finding.figure.isprintable()
    assert len(finding.figure) < 300


def test_usage_is_in_the_stream_or_what_is_missing_is_said() -> None:
    seen = answer(steady(50, 10, 32))
    judged(judge_usage(seen), Status.OK, "8 input and 32 output tokens")
    judged(judge_usage(answer([1.0], output_tokens=400)), Status.WARN, "32 were asked for")
    judged(
        judge_usage(answer(steady(50, 10, 32), token_source=TokenSource.EVENTS)), Status.WARN, "--tokenizer"
    )
    judged(judge_usage(answer([], outcome=Outcome.TIMEOUT)), Status.SKIPPED, "not complete")
    judged(judge_usage("no time"), Status.SKIPPED)


def test_the_end_of_a_stream_is_looked_for_where_the_api_has_one() -> None:
    seen = answer([1.0])
    judged(judge_end(seen, CHAT), Status.OK, "finish reason stop, [DONE]")
    judged(judge_end(replace(seen, has_done=False), CHAT), Status.WARN, "no [DONE]")
    judged(judge_end(replace(seen, has_done=False), MESSAGES), Status.OK, "finish reason stop")
    endless = replace(seen, reply=replace(reply(), done=False, finish_reason=None))
    judged(judge_end(endless, CHAT), Status.FAIL, "neither a finish reason")
    given_up = replace(seen, reply=replace(reply(), finish_reason="network_error", error="it ended"))
    judged(judge_end(given_up, CHAT), Status.FAIL, "finish reason network_error, after an error")
    judged(judge_end(answer([1.0], outcome=Outcome.TIMEOUT), CHAT), Status.SKIPPED, "not complete")
    judged(judge_end("no time", CHAT), Status.SKIPPED)


def test_a_connection_that_is_not_kept_is_named() -> None:
    judged(judge_keep_alive(answer([1.0], reused=True)), Status.OK)
    judged(judge_keep_alive(answer([1.0])), Status.WARN, "closes the connection")
    closing = answer([1.0], headers={b"connection": b"close"})
    judged(judge_keep_alive(closing), Status.WARN, "(Connection: close)")
    judged(judge_keep_alive("no time"), Status.SKIPPED)


def test_a_handshake_for_each_request_is_told_to_be_in_ttft_with_connecting_and_not_in_ttft() -> None:
    change = judge_keep_alive(answer([1.0])).change
    assert "connect, and TTFT with connecting; not in TTFT" in change
