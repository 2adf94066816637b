"""Streams of known bytes and times: when their tokens came, what bounds them, what giving up leaves."""

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import gevent
import gevent.server
import numpy as np
import pytest
from calls import GOOD, HEAD, MS, Caller, arrived_ns, caller, stop, token
from gevent.event import Event
from gevent.monkey import get_original
from scripted import (
    Script,
    ScriptedServer,
    Step,
    chat_chunk,
    chunk,
    json_response,
    last_chunk,
    response_head,
    silent_port,
    sse,
    stream_script,
    usage_counts,
    write,
)
from scripted.raw import best_of

from llm_locust.client import call, decoder
from llm_locust.client.http import connection, timers
from llm_locust.client.http.connection import Connection
from llm_locust.client.http.exchange import SLICE_BYTES
from llm_locust.client.http.timers import DecodeBudget, Timeouts
from llm_locust.client.recording import MAX_LOOP_CHARS, Answer
from llm_locust.core.record import Outcome, RequestRecord, TokenSource

pytestmark = pytest.mark.usefixtures("kernel_stamping")


# Times


@pytest.mark.parametrize(("ttft_ms", "gap_ms", "tokens"), [(50, 20, 10), (5, 2, 50)])
def test_token_times_are_those_at_which_the_server_wrote(
    server: ScriptedServer, ask: Caller, ttft_ms: float, gap_ms: float, tokens: int
) -> None:
    script = stream_script(ttft_ms=ttft_ms, gap_ms=gap_ms, tokens=tokens)

    def worst_ms() -> float:
        server.forget()
        record = ask.ask(script).record
        (served,) = server.wait_ended(1)
        assert (record.outcome, len(record.arrivals_ns)) == (Outcome.OK, tokens)
        assert record.kernel_stamps
        head, *written, tail = served.write_ns
        transit_ns = arrived_ns(record) - np.array(written)
        assert transit_ns.min() >= 0, "no token is known before it was written"
        assert record.sent_ns is not None
        assert record.headers_ns is not None
        assert record.started_ns <= record.sent_ns <= served.received_ns
        edges_ns = [record.headers_ns - head, record.ended_ns - tail]
        assert min(edges_ns) >= 0
        return float(max(*transit_ns, *edges_ns)) / MS

    assert best_of(6, worst_ms, 0.3) < 0.3


def test_a_busy_client_still_knows_when_the_token_came_and_says_how_late_it_was(
    server: ScriptedServer, ask: Caller
) -> None:
    script = stream_script(ttft_ms=40, gap_ms=60, tokens=2)
    ask.ask(script)

    def keep_the_loop() -> None:
        gevent.sleep(0.03)
        until = time.monotonic() + 0.12
        while time.monotonic() < until:
            pass

    def error_ms() -> float:
        server.forget()
        gevent.spawn(keep_the_loop)
        record = ask.ask(script).record
        if (record.end_lag_ns or 0) < 5 * MS:
            return float("inf")  # the answer did not come while the loop was kept
        return abs(float(arrived_ns(record)[0] - server.wait_ended(1)[0].write_ns[1])) / MS

    assert best_of(5, error_ms, 0.3) < 0.3


def test_an_event_that_is_split_came_with_its_last_byte(server: ScriptedServer, ask: Caller) -> None:
    script = stream_script(ttft_ms=20, gap_ms=20, tokens=5, split=30, split_ms=8)

    def worst_ms() -> float:
        server.forget()
        record = ask.ask(script).record
        written = server.wait_ended(1)[0].write_ns[2:-1:2]
        transit_ns = arrived_ns(record) - np.array(written)
        assert transit_ns.min() >= 0
        return float(transit_ns.max()) / MS

    assert best_of(5, worst_ms, 0.3) < 0.3


def test_events_of_one_read_share_its_time_and_are_counted(ask: Caller) -> None:
    together = write(20, chunk(token("a") + token("b")) + chunk(token("c")))
    script = [write(0, response_head()), together, write(30, chunk(token("d") + stop()) + last_chunk())]
    record = ask.ask(script).record
    first, second, third, fourth = record.arrivals_ns
    assert first == second == third <= fourth == record.finish_ns  # a busy machine reads all at once
    assert (record.coalesced_reads, record.outcome) == (1, Outcome.OK)


def test_the_rest_of_the_times_and_counts_is_told(server: ScriptedServer, ask: Caller) -> None:
    script = stream_script(ttft_ms=5, gap_ms=1, tokens=5, reasoning=2, headers={"X-Served-By": "r7"})
    ask.ask(script)
    record = ask.ask(script, slo_class="gold", model="m", user=3, asked_output_tokens=9).record
    assert record.first_answer_ns == record.arrivals_ns[2]
    assert (record.input_tokens, record.output_tokens, record.token_source) == (7, 5, TokenSource.USAGE)
    assert (record.finish_reason, record.output_chars, record.status) == ("stop", 15, 200)
    assert (record.slo_class, record.model, record.user, record.asked_output_tokens) == ("gold", "m", 3, 9)
    assert (record.replica, record.peer, record.endpoint) == ("r7", f"127.0.0.1:{server.port}", "chat")
    assert (record.reused, record.connected_ns) == (True, record.started_ns)
    assert record.rtt_ns is not None
    assert 0 < record.rtt_ns < 50 * MS
    assert record.reads >= 1  # a busy machine reads many pieces at once
    assert record.bytes_received == sum(len(step.data or b"") for step in script)
    assert (record.clock_step_ns, record.error) == (None, None)


def test_without_usage_tokens_are_counted_by_events(ask: Caller) -> None:
    record = ask.ask(stream_script(ttft_ms=1, gap_ms=1, tokens=4, usage=False)).record
    assert (record.output_tokens, record.token_source, record.input_tokens) == (4, TokenSource.EVENTS, None)


def test_a_tokenizer_counts_the_whole_answer_where_the_server_does_not_and_only_there(
    server: ScriptedServer,
) -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return 77

    with caller(server.url, count_tokens=count) as ask:
        told = ask.ask(stream_script(ttft_ms=1, gap_ms=1, tokens=4, usage=True)).record
        untold = ask.ask(stream_script(ttft_ms=1, gap_ms=1, tokens=4, usage=False), counted_input_tokens=9)
        empty = ask.ask([write(0, HEAD + chunk(stop()) + last_chunk())]).record
    assert (told.output_tokens, told.token_source) == (4, TokenSource.USAGE)
    assert (untold.record.output_tokens, untold.record.token_source) == (77, TokenSource.TOKENIZER)
    assert untold.record.input_tokens == 9
    assert counted == [untold.reply.text]
    assert (empty.output_tokens, empty.token_source) == (0, TokenSource.EVENTS)


# Bodies


@pytest.mark.parametrize("size", [1, 7, 100, 100_000])
def test_chunk_and_write_boundaries_may_lie_anywhere(ask: Caller, size: int) -> None:
    body = token("ä€😀") + token("b") + stop()
    chunked = b"".join(chunk(body[i : i + 5]) for i in range(0, len(body), 5)) + last_chunk()
    data = response_head() + chunked
    answer = ask.ask([write(0, data[i : i + size]) for i in range(0, len(data), size)])
    assert (answer.record.outcome, answer.reply.text) == (Outcome.OK, "ä€😀b")
    assert len(answer.record.arrivals_ns) == 2


def test_a_stream_may_have_a_length(server: ScriptedServer, ask: Caller) -> None:
    body = token() + stop()
    script = [write(0, response_head(content_length=len(body))), write(1, body)]
    assert [ask.ask(script).record.outcome for _ in range(2)] == [Outcome.OK] * 2
    assert len(server.connections()) == 1


@pytest.mark.parametrize(
    ("rest", "outcome"), [(stop(), Outcome.OK), (b"", Outcome.TRUNCATED), (b"data: {", Outcome.TRUNCATED)]
)
def test_a_body_may_last_until_the_connections_end(ask: Caller, rest: bytes, outcome: Outcome) -> None:
    script = [write(0, response_head(chunked=False)), write(1, token() + rest), Step(close=True)]
    record = ask.ask(script).record
    assert (record.outcome, len(record.arrivals_ns)) == (outcome, 1)


def test_a_long_answer_is_decoded_in_slices_and_keeps_all_times(server: ScriptedServer, ask: Caller) -> None:
    tokens = SLICE_BYTES // 4  # of some 200 bytes each
    script = [write(0, response_head())]
    script += [
        write(1 + k // 100, b"".join(chunk(token()) for _ in range(100))) for k in range(0, tokens, 100)
    ]
    script += [write(None, chunk(stop()) + last_chunk())]
    answer = ask.ask(script)
    came = -(-tokens // 100) * 100
    assert (answer.record.outcome, len(answer.record.arrivals_ns)) == (Outcome.OK, came)
    assert len(answer.reply.text) == came
    written = np.repeat(server.wait_ended(1)[0].write_ns[1:-1], 100)
    assert (arrived_ns(answer.record) >= written).all()


def test_an_answer_that_is_not_streamed_is_one_token_event(ask: Caller) -> None:
    message = {"role": "assistant", "content": "all of it"}
    choices = [{"index": 0, "message": message, "finish_reason": "length"}]
    body = json_response({"model": "m", "choices": choices, "usage": usage_counts(3, 4)})
    answer = ask.ask([write(0, body[:40]), write(10, body[40:])], streamed=False)
    record = answer.record
    assert (record.outcome, answer.reply.text, record.output_tokens) == (Outcome.OK, "all of it", 4)
    assert (record.streamed, len(record.arrivals_ns)) == (False, 1)
    assert record.arrivals_ns[0] >= 10 * MS


# Time-outs


def timed_out(server: ScriptedServer, script: Script, **bounds: float) -> tuple[RequestRecord, float]:
    """The record of a call under these bounds, and how long it took in seconds."""
    with caller(server.url, timeouts=Timeouts(**bounds)) as ask:
        began = time.monotonic()
        record = ask.ask(script).record
        assert ask.client.in_flight == 0
        server.wait_closed(1)
    return record, time.monotonic() - began


JSON = response_head(content_length=8, content_type="application/json")
COMMENTS = [write(10 * k, chunk(b": keep-alive\n\n")) for k in range(1, 300)]


@pytest.mark.parametrize(
    ("script", "bounds", "tokens", "error"),
    [
        ([Step(stall=True)], {"first_s": 0.05}, range(1), "no byte within 0.05 s (--timeouts first=0.05s)"),
        (
            [write(0, HEAD), *COMMENTS],
            {"first_s": 0.1},
            range(1),
            "no event within 0.1 s (--timeouts first=0.1s)",
        ),
        (
            [write(0, HEAD + chunk(token())), Step(stall=True)],
            {"gap_s": 0.05},
            range(1, 2),
            "no event for 0.05 s (--timeouts gap=0.05s)",
        ),
        (
            [write(0, HEAD + chunk(token())), *COMMENTS],
            {"gap_s": 0.1},
            range(1, 2),
            "no event for 0.1 s (--timeouts gap=0.1s)",
        ),
        (
            stream_script(ttft_ms=0, gap_ms=20, tokens=300),
            {"total_s": 0.1},
            range(1, 100),  # five of a gap each, and what a busy machine makes of it
            "not complete within 0.1 s (--timeouts total=0.1s)",
        ),
        (
            [write(0, JSON + b"{"), Step(stall=True)],
            {"gap_s": 0.05},
            range(1),
            "no event for 0.05 s (--timeouts gap=0.05s)",
        ),
    ],
    ids=["first", "first, comments", "gap", "gap, comments", "total", "gap of a plain body"],
)
def test_a_silence_is_bounded(
    server: ScriptedServer, script: Script, bounds: dict[str, float], tokens: range, error: str
) -> None:
    record, took_s = timed_out(server, script, **bounds)
    assert (record.outcome, record.error) == (Outcome.TIMEOUT, error)
    assert len(record.arrivals_ns) in tokens
    bound_s = next(iter(bounds.values()))
    assert bound_s <= took_s < bound_s + 5
    assert (record.ended_ns - record.started_ns) * 1e-9 >= bound_s


def test_an_answer_is_not_decoded_before_its_end_while_it_flows(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look each second at each of a thousand answers cost a fifth of all that the client does."""
    monkeypatch.setattr(timers, "_LOOK_S", 0.02)
    with caller(server.url) as ask:
        job = ask.spawn(stream_script(ttft_ms=0, gap_ms=5, tokens=100))
        while not (ask.client.live and all(live._exchange.read_count > 0 for live in ask.client.live)):
            gevent.sleep(0.001)
        [live] = ask.client.live
        gevent.sleep(0.2)
        assert live._exchange.decoded_to_ns is None
        job.join()
        assert len(ask.answers[-1].record.arrivals_ns) == 100


@pytest.mark.parametrize("again_ns", [200_000_000, 10**12], ids=["comments follow", "nothing follows"])
def test_an_answer_that_is_over_ends_though_its_response_goes_on(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, again_ns: int
) -> None:
    monkeypatch.setattr(timers, "_LOOK_S", 0.05)
    monkeypatch.setattr(connection, "_LOOK_AGAIN_NS", again_ns)
    rest = COMMENTS if again_ns < 10**12 else [Step(stall=True)]
    whole = HEAD + chunk(token() + stop())
    with caller(server.url) as ask:
        record = ask.ask([write(0, whole), *rest]).record
    assert (record.outcome, len(record.arrivals_ns)) == (Outcome.OK, 1)
    assert record.reads < len(COMMENTS)


def after_a_hold(server: ScriptedServer, script: Script, held_s: float, **bounds: float) -> RequestRecord:
    """The record of a call whose event loop is held once its first event is there."""
    with caller(server.url, timeouts=Timeouts(**bounds)) as ask:
        job = ask.spawn(script)
        while not ask.client.in_flight:
            gevent.sleep(0.001)
        gevent.sleep(0.05)
        get_original("time", "sleep")(held_s)
        gevent.get_hub().loop.update_now()
        job.join()
        return ask.answers[-1].record


@pytest.mark.parametrize("tokens", [12, 60])
def test_what_came_while_the_loop_was_held_is_no_silence(server: ScriptedServer, tokens: int) -> None:
    """The loop's timers run before its reads: a late client blamed the server for a gap of its own."""
    script = stream_script(ttft_ms=10, gap_ms=40, tokens=tokens)
    record = after_a_hold(server, script, 0.8, first_s=5, gap_s=0.5, total_s=20)
    assert (record.outcome, record.error) == (Outcome.OK, None)
    assert record.output_tokens == tokens


def test_what_is_not_decoded_yet_is_no_silence(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time for decoding is up until the answer has been there for longer than a silence may be."""
    has_time, behind = DecodeBudget.has_time, list[float]()

    def late(turn: DecodeBudget) -> bool:
        behind.append(time.monotonic())
        return has_time(turn) and behind[-1] - behind[0] > 0.9

    monkeypatch.setattr(DecodeBudget, "has_time", late)
    with caller(server.url, timeouts=Timeouts(first_s=5, gap_s=0.6, total_s=20)) as ask:
        record = ask.ask(stream_script(ttft_ms=10, gap_ms=0.3, tokens=1500)).record
    assert behind
    assert (record.outcome, record.error, record.output_tokens) == (Outcome.OK, None, 1500)


def test_the_limit_on_the_whole_waits_for_no_decoding(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    until_s = time.monotonic() + 3
    monkeypatch.setattr(DecodeBudget, "has_time", lambda *_: time.monotonic() > until_s)
    with caller(server.url, timeouts=Timeouts(first_s=5, gap_s=5, total_s=0.5)) as ask:
        record = ask.ask(stream_script(ttft_ms=10, gap_ms=1, tokens=3000)).record
    assert (record.outcome, record.error) == (
        Outcome.TIMEOUT,
        "not complete within 0.5 s (--timeouts total=0.5s)",
    )


def test_a_silence_is_bounded_also_where_the_loop_was_held(server: ScriptedServer) -> None:
    stalled = [write(0, HEAD + chunk(token())), Step(stall=True)]
    record = after_a_hold(server, stalled, 0.3, gap_s=0.2)
    assert (record.outcome, record.error) == (Outcome.TIMEOUT, "no event for 0.2 s (--timeouts gap=0.2s)")
    dripped = [write(0, HEAD + chunk(token())), *COMMENTS]
    record = after_a_hold(server, dripped, 0.3, gap_s=0.2)
    assert (record.outcome, record.error) == (Outcome.TIMEOUT, "no event for 0.2 s (--timeouts gap=0.2s)")


def test_headers_that_come_at_once_do_not_end_the_wait_for_the_first_token(server: ScriptedServer) -> None:
    script = stream_script(head_ms=0, ttft_ms=120, gap_ms=1, tokens=3)
    script[0] = write(0, HEAD)  # no role delta, which would be the first event
    with caller(server.url, timeouts=Timeouts(first_s=5, gap_s=0.06, total_s=5)) as ask:
        assert ask.ask(script).record.outcome is Outcome.OK


def test_a_connection_that_is_never_accepted_is_bounded() -> None:
    with silent_port() as port, caller(f"http://127.0.0.1:{port}", connect_timeout_s=0.05) as ask:
        record = ask.ask([]).record
    assert record.outcome is Outcome.CONNECT_ERROR
    assert "no answer within 0.05 s" in (record.error or "")


# Giving up


_USAGE = sse({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}})
_ERROR = sse({"error": {"message": "no room"}})
_STALL, _RESET = Step(stall=True), Step(at_ms=5, reset=True)
_PINGS = [write(ms, chunk(b": ping\n\n")) for ms in range(10, 300, 10)]


@pytest.mark.parametrize(
    ("body", "then", "outcome", "is_left_open"),
    [
        (token() + stop(), [_STALL], Outcome.OK, True),
        (token() + stop(), _PINGS, Outcome.OK, True),
        (token() + sse("[DONE]"), [_STALL], Outcome.OK, True),
        (token() + sse(chat_chunk(finish_reason="stop")) + _USAGE, [_STALL], Outcome.OK, True),
        (token() + _ERROR, [_STALL], Outcome.API_ERROR, True),
        (token() + stop(), [write(0, last_chunk())], Outcome.OK, False),
        (token() + stop(), [_RESET], Outcome.OK, False),
        (token(), [_STALL], Outcome.TIMEOUT, False),
        (token(), [write(0, last_chunk())], Outcome.TRUNCATED, False),
    ],
    ids=["silent", "with pings", "done alone", "no done", "error", "ended", "reset", "hung", "cut"],
)
def test_a_response_that_stays_open_after_its_answer_is_told(
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    body: bytes,
    then: list[Step],
    outcome: Outcome,
    is_left_open: bool,
) -> None:
    monkeypatch.setattr(timers, "_LOOK_S", 0.02)
    monkeypatch.setattr(decoder, "_OVER_NS", 1 * MS)
    with caller(server.url, timeouts=Timeouts(gap_s=0.3)) as ask:
        record = ask.ask([write(0, HEAD + chunk(body)), *then]).record
        assert (record.outcome, record.left_open) == (outcome, is_left_open)
        assert ask.ask([GOOD]).record.reused == (not is_left_open and then[-1].data is not None)


def test_a_killed_user_leaves_a_cancelled_record_with_the_tokens_that_came(
    server: ScriptedServer, ask: Caller
) -> None:
    job = ask.spawn(stream_script(ttft_ms=10, gap_ms=20, tokens=500))
    gevent.sleep(0.1)
    killed_ns = time.time_ns()
    job.kill()
    (answer,) = ask.answers
    record = answer.record
    assert (record.outcome, record.error) == (Outcome.CANCELLED, "given up before its end")
    assert 1 <= len(record.arrivals_ns) <= 6
    assert 0 <= record.ended_ns - killed_ns < 50 * MS
    assert server.wait_closed(1)[0].closed_by == "client"


def test_a_call_that_is_broken_off_while_its_connection_is_made_is_never_sent(
    server: ScriptedServer, ask: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialling, may_go, acquire = Event(), Event(), ask.client.pool.acquire

    def acquire_later() -> Connection:
        dialling.set()
        may_go.wait(120)
        return acquire()

    monkeypatch.setattr(ask.client.pool, "acquire", acquire_later)
    job = ask.spawn([GOOD])
    assert dialling.wait(120)
    assert ask.client.abandon_calls() == 1
    may_go.set()
    job.join(120)
    (answer,) = ask.answers
    assert (answer.record.outcome, answer.record.sent_ns) == (Outcome.CANCELLED, None)
    server.wait_closed(1)
    assert server.log() == []


def test_giving_up_while_connecting_is_cancelled_and_nothing_was_sent() -> None:
    with silent_port() as port, caller(f"http://127.0.0.1:{port}") as ask:
        job = ask.spawn([])
        gevent.sleep(0.02)
        job.kill()
        (answer,) = ask.answers
        assert (answer.record.outcome, answer.record.sent_ns) == (Outcome.CANCELLED, None)
        assert ask.client.in_flight == 0


def test_a_users_own_timeout_cancels_and_passes_through(ask: Caller) -> None:
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.05):
        ask.ask([Step(stall=True)])
    assert [a.record.outcome for a in ask.answers] == [Outcome.CANCELLED]


def test_others_have_their_turn_while_the_rest_of_a_long_answer_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timers, "DECODING_S", 1e-9)  # each step takes more than its share of a turn
    seen, left = list[str](), [True, False]

    def step() -> bool:
        seen.append("step")
        return left.pop(0)

    exchange = SimpleNamespace(step=step, bytes_received=0)
    client = SimpleNamespace(count_tokens=None)
    gevent.spawn(seen.append, "other")
    call.LiveCall.settle(
        cast(
            Any,
            SimpleNamespace(_answer=None, _error=None, _end=lambda: None, _exchange=exchange, _client=client),
        )
    )
    assert seen == ["step", "other", "step"]


# What is made of an answer


def test_a_users_own_check_has_the_last_word_and_repeats_no_secret(server: ScriptedServer) -> None:
    def check(answer: Answer) -> RequestRecord:
        if answer.record.user == 1:
            raise ZeroDivisionError
        return replace(answer.record, outcome=Outcome.INVALID, error=f"no sum:\n{answer.reply.text}")

    told = "sk-hidden"
    script = [write(0, HEAD + chunk(token(told) + stop()) + last_chunk())]
    with caller(server.url, secrets=[told]) as ask:
        answer = ask.ask(script, check=check)
        with pytest.raises(ZeroDivisionError):
            ask.ask(script, check=check, user=1)
    assert (answer.record.outcome, answer.record.error) == (Outcome.INVALID, "no sum: ***")
    assert [a.record.outcome for a in ask.answers] == [Outcome.INVALID, Outcome.OK]


def test_a_long_text_that_the_server_has_not_counted_is_counted_too(server: ScriptedServer) -> None:
    text = "x" * (MAX_LOOP_CHARS + 1)
    script = [write(0, HEAD + chunk(token(text) + stop()) + last_chunk())]
    with caller(server.url, count_tokens=len) as ask:
        record = ask.ask(script).record
    assert (record.output_tokens, record.token_source) == (len(text), TokenSource.TOKENIZER)


def test_a_call_whose_answer_is_complete_is_in_flight_and_not_unanswered(
    server: ScriptedServer, ask: Caller
) -> None:
    seen: list[tuple[int, int]] = []

    def check(answer: Answer) -> RequestRecord:
        seen.append((ask.client.in_flight, ask.client.unanswered))
        return answer.record

    job = ask.spawn([Step(stall=True)])
    with gevent.Timeout(120):
        while not server.connections():
            gevent.sleep(0.01)
    (live,) = ask.client.live
    assert (ask.client.in_flight, ask.client.unanswered) == (1, 1)
    ask.ask([GOOD], check=check)
    assert seen == [(1, 1)]
    answer = live.abandon()
    assert (answer.record.outcome, live.cut, ask.client.in_flight) == (Outcome.CANCELLED, True, 0)
    assert live.abandon() is live.conclude() is answer
    job.join()
    assert len(ask.answers) == 2


def test_the_silence_of_each_users_latest_call_is_told_while_it_goes_on(
    server: ScriptedServer, ask: Caller
) -> None:
    """One that waits for its first token, one whose stream stopped, one that gets a token now and then."""
    stopped = [*stream_script(ttft_ms=0, gap_ms=0, tokens=3)[:-2], Step(stall=True)]
    jobs = [
        ask.spawn([Step(stall=True)], user=1),
        ask.spawn([Step(stall=True)], user=2),
        ask.spawn(stopped, user=2),
        ask.spawn(stream_script(ttft_ms=0, gap_ms=50, tokens=1000), user=3),
        ask.spawn([Step(stall=True)]),
    ]
    with gevent.Timeout(120):
        while len(told := silences(ask)) < 3 or min(told[1], told[2]) < 1:
            gevent.sleep(0.05)
    assert set(told) == {1, 2, 3}
    assert told[3] < min(told[1], told[2])
    ask.client.abandon_calls()
    gevent.joinall(jobs)


def silences(ask: Caller) -> dict[int | None, float]:
    return {call.user: silent_s for call, silent_s in ask.client.silences()}
