"""Records of long answers, and many of middling ones, do not hold a worker's event loop on their way out."""

import time
from collections.abc import Sequence
from functools import partial
from threading import get_ident

import gevent
import numpy as np
import pytest
from calls import HEAD, caller, stop, token
from holding import cpu_s, is_short
from scripted import ScriptedServer, Step, chunk, last_chunk, write

from llm_locust.client.http.timers import TURN
from llm_locust.core.record import MAX_ARRIVALS, Outcome, RequestRecord, TokenSource
from llm_locust.live.messages import LiveCounts
from llm_locust.live.state import LiveRun
from llm_locust.store import FrameHeader
from llm_locust.swarm.delivery.unacked import Recorder


def answer(tokens: int, seed: int) -> RequestRecord:
    """An answer whose tokens came at random times."""
    draw = np.random.default_rng(seed)
    return RequestRecord(
        request_id=str(seed),
        name="chat",
        outcome=Outcome.OK,
        scheduled_ns=1,
        started_ns=1,
        sent_ns=1,
        ended_ns=1 << 50,
        arrivals_ns=np.cumsum(draw.integers(1_000, 60_000_000, tokens)),
        output_tokens=tokens,
    )


@pytest.mark.parametrize(("answers", "tokens"), [(4, MAX_ARRIVALS), (300, 1_000), (2_000, 100)])
def test_batches_and_live_counts_are_made_in_short_slices(answers: int, tokens: int) -> None:
    records = [answer(tokens, seed) for seed in range(answers)]
    assert is_short(min(_longest_s(records) for _ in range(3)))


def _longest_s(records: Sequence[RequestRecord]) -> float:
    headers: list[FrameHeader] = []
    recorder = Recorder("run", "w1", lambda header, _: headers.append(header))
    counts = LiveCounts(LiveRun(id="run"), lambda: 0)
    longest_s = 0.0
    for record in records:
        longest_s = max(longest_s, cpu_s(partial(recorder.add, record)), cpu_s(partial(counts.add, record)))
    longest_s = max(longest_s, cpu_s(recorder.close_batch), cpu_s(counts.report))
    assert sum(header.rows for header in headers) == recorder.finished == len(records)
    return longest_s


def test_work_that_cannot_be_cut_has_a_turn_of_the_loop_for_itself() -> None:
    turns: list[float] = []
    loop = gevent.get_hub().loop
    gevent.joinall([gevent.spawn(TURN.take, lambda: turns.append(loop.now())) for _ in range(10)])
    assert len(set(turns)) == 10


class Holds:
    """The longest CPU time of a turn of the loop, after :meth:`begin`."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._watcher = gevent.spawn(self._watch)

    def begin(self) -> None:
        gevent.sleep(0.01)
        self.longest_s = 0.0

    def end(self) -> float:
        gevent.sleep(0.01)
        self._watcher.kill()
        return self.longest_s

    def _watch(self) -> None:
        at_s = time.thread_time()
        while True:
            gevent.sleep(0)
            now_s = time.thread_time()
            self.longest_s, at_s = max(self.longest_s, now_s - at_s), now_s


def test_the_calls_that_a_runs_end_breaks_off_are_recorded_in_short_slices(server: ScriptedServer) -> None:
    n, tokens = 300, 200
    script = [write(0, HEAD + chunk(token("some ") * tokens)), Step(stall=True)]
    with caller(server.url) as ask:
        doing = [ask.spawn(script) for _ in range(n)]
        with gevent.Timeout(60):
            while len([live for live in ask.client.live if live._exchange.bytes_received > 9_000]) < n:
                gevent.sleep(0.05)
        holds = Holds()
        holds.begin()
        assert ask.client.abandon_calls() == n
        held_s = holds.end()
        assert held_s > 0
        assert is_short(held_s)
        gevent.joinall(doing, timeout=10)
    records = [answer.record for answer in ask.answers]
    assert {(r.outcome, len(r.arrivals_ns)) for r in records} == {(Outcome.CANCELLED, tokens)}
    assert len(records) == n


@pytest.mark.parametrize("chars", [8_192, 8_193, 1 << 20, (1 << 20) + 1])
def test_a_long_answer_is_counted_beside_the_loop(server: ScriptedServer, chars: int) -> None:
    loop = get_ident()
    counted_in: list[bool] = []

    def count(text: str) -> int:
        counted_in.append(get_ident() == loop)
        return len(text) // 4

    pieces = [1000] * (chars // 1000) + [chars % 1000]
    events = "".join(token("x" * piece).decode() for piece in pieces).encode()
    with caller(server.url, count_tokens=count) as ask:
        record = ask.ask([write(0, HEAD + chunk(events + stop()) + last_chunk())]).record
        assert ask.client.occupancy.total_ns <= (record.ended_ns - record.started_ns) + 50_000_000
    assert record.outcome is Outcome.OK
    if chars > 1 << 20:
        assert (counted_in, record.token_source) == ([], TokenSource.EVENTS)
    else:
        assert (counted_in, record.token_source) == ([chars <= 8_192], TokenSource.TOKENIZER)
        assert record.output_tokens == chars // 4


def test_an_answer_that_was_cut_is_not_counted_in_the_loop(server: ScriptedServer) -> None:
    with caller(server.url, count_tokens=len) as ask:
        doing = ask.spawn([write(0, HEAD + chunk(token("x" * 1000) * 10)), Step(stall=True)])
        with gevent.Timeout(10):
            while not any(live._exchange.bytes_received > 10_000 for live in ask.client.live):
                gevent.sleep(0.01)
        assert ask.client.abandon_calls() == 1
        doing.join(5)
    (answer,) = ask.answers
    assert (answer.record.output_tokens, answer.record.token_source) == (10, TokenSource.EVENTS)
