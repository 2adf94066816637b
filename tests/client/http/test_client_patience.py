"""A user who leaves when the first token takes too long."""

import time

import gevent
import msgspec
import pytest
from calls import HEAD, MS, Caller, stop, token
from scripted import (
    Script,
    ScriptedServer,
    chat_chunk,
    chunk,
    json_response,
    last_chunk,
    sse,
    stream_script,
    write,
)

from llm_locust.client.recording import Answer
from llm_locust.core.record import Outcome, RequestRecord

PATIENCE_S = 0.08
LATE_MS = 2_000


def asked(ask: Caller, script: Script, *, streamed: bool = True) -> Answer:
    call = ask.call(streamed=streamed)
    body = msgspec.json.encode({"script": list(script)})
    return ask.client.post("/chat/completions", body, call, patience_s=PATIENCE_S)


#: What comes before the first token, and is none.
NOTHING = sse(chat_chunk(role="assistant")) + b": still there\n\n"
BEFORE = write(0, HEAD + chunk(NOTHING))
END = chunk(stop()) + last_chunk()


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("before", [[], [BEFORE]], ids=["silence", "no token"])
def test_who_has_no_token_in_time_leaves_and_that_is_no_failure_of_the_server(
    server: ScriptedServer, ask: Caller, before: Script, reused: bool
) -> None:
    if reused:
        ask.ask(stream_script(ttft_ms=1, gap_ms=1, tokens=1))
    script = [*before, write(LATE_MS, chunk(token()) + END)]
    record = asked(ask, script).record
    assert (record.outcome, record.abandoned) == (Outcome.CANCELLED, True)
    assert record.error == "the user left before the first token"
    assert (len(record.arrivals_ns), record.retries, record.reused) == (0, 0, reused)
    assert record.sent_ns is not None
    waited_ms = (record.ended_ns - record.sent_ns) / MS
    assert PATIENCE_S * 1e3 - 1 <= waited_ms < LATE_MS / 2
    assert len(server.wait_ended(1 + reused)) == 1 + reused, "it was not asked again"


def test_a_timer_that_a_busy_loop_lets_run_out_early_makes_nobody_leave_early(ask: Caller) -> None:
    ask.ask(stream_script(ttft_ms=1, gap_ms=1, tokens=1))

    def ask_late_in_a_turn() -> RequestRecord:
        time.sleep(2 * PATIENCE_S)  # the loop's timers count from the start of the turn
        return asked(ask, [write(LATE_MS, HEAD + chunk(token()) + END)]).record

    record = gevent.spawn_later(0.001, ask_late_in_a_turn).get(timeout=120)
    assert (record.outcome, record.abandoned, record.reused) == (Outcome.CANCELLED, True, True)
    assert record.sent_ns is not None
    waited_ms = (record.ended_ns - record.sent_ns) / MS
    assert PATIENCE_S * 1e3 - 1 <= waited_ms < LATE_MS / 2


@pytest.mark.parametrize(
    "first", [token(), sse(chat_chunk(reasoning="hm"))], ids=["of the answer", "of reasoning"]
)
def test_who_has_a_token_in_time_stays_to_the_end(ask: Caller, first: bytes) -> None:
    script = [BEFORE, write(10, chunk(first)), write(2 * PATIENCE_S * 1e3, chunk(token()) + END)]
    record = asked(ask, script).record
    assert (record.outcome, record.abandoned, len(record.arrivals_ns)) == (Outcome.OK, False, 2)


def test_of_an_answer_that_is_no_stream_the_first_token_is_the_whole(ask: Caller) -> None:
    said = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}
    assert asked(ask, [write(5, json_response(said))], streamed=False).record.outcome is Outcome.OK
    late = asked(ask, [write(LATE_MS, json_response(said))], streamed=False).record
    assert (late.outcome, late.abandoned) == (Outcome.CANCELLED, True)


def test_a_refusal_that_comes_in_time_is_a_failure(ask: Caller) -> None:
    record = asked(ask, [write(5, json_response({"error": {"message": "full"}}, 503))]).record
    assert (record.outcome, record.abandoned) == (Outcome.HTTP_ERROR, False)


def test_a_token_that_this_program_was_too_busy_to_read_has_come_in_time(ask: Caller) -> None:
    def keep_the_loop() -> None:
        gevent.sleep(0.01)
        time.sleep(2 * PATIENCE_S)

    keeper = gevent.spawn(keep_the_loop)
    script = [BEFORE, write(40, chunk(token())), write(4 * PATIENCE_S * 1e3, chunk(token()) + END)]
    record = asked(ask, script).record
    keeper.join()
    assert (record.outcome, record.abandoned) == (Outcome.OK, False)


def test_a_call_that_the_runs_end_breaks_off_is_not_its_users_doing(ask: Caller) -> None:
    doing = gevent.spawn(asked, ask, [write(LATE_MS, END)])
    gevent.sleep(0.02)
    ask.client.abandon_calls()
    assert isinstance(doing.get(timeout=120), gevent.GreenletExit)  # its user begins no other call
    (answer,) = ask.answers
    assert (answer.record.outcome, answer.record.abandoned) == (Outcome.CANCELLED, False)
