"""A call that has ended is freed at once: nothing of it waits for the garbage collector."""

import gc
from collections.abc import Callable, Iterator

import gevent
import pytest
from calls import GOOD, HEAD, Caller, caller, stop, token
from scripted import Script, ScriptedServer, Step, chunk, json_response, response_head, write

from llm_locust.client.call import LiveCall
from llm_locust.client.decoder import BodyDecoder
from llm_locust.client.http.connection import Connection
from llm_locust.client.http.errors import ClientError
from llm_locust.client.http.exchange import Exchange
from llm_locust.client.http.timers import Timeouts

OURS = (BodyDecoder, ClientError, Connection, Exchange, LiveCall)


@pytest.fixture
def ask(server: ScriptedServer) -> Iterator[Caller]:
    with caller(server.url, timeouts=Timeouts(first_s=0.2, gap_s=0.2, total_s=5)) as made:
        yield made


def left_by(doing: Callable[[], object]) -> list[str]:
    """Objects of calls that only the garbage collector frees once ``doing`` is over."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        doing()
        gevent.sleep(0)
        gc.collect()
        return [type(found).__name__ for found in gc.garbage if isinstance(found, OURS)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ([GOOD], "ok"),
        ([write(0, json_response({"error": {"message": "no"}}, 500))], "http_error"),
        ([write(0, response_head(500) + chunk(b"x" * 40_000) * 3)], "http_error"),
        ([write(0, HEAD + chunk(token())), Step(close=True)], "truncated"),
        ([write(0, HEAD + chunk(token())), Step(reset=True)], "truncated"),
        ([write(0, b"not HTTP at all\r\n\r\n")], "invalid"),
        ([write(0, b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1001 + b"\r\n")], "invalid"),
        ([write(0, response_head(headers={"Content-Encoding": "gzip"}))], "invalid"),
        ([write(0, HEAD + chunk(token()) + b"-1\r\n")], "invalid"),
        ([Step(stall=True)], "timeout"),
        ([write(0, HEAD + chunk(token())), Step(stall=True)], "timeout"),
        ([Step(close=True)], "connect_error"),
    ],
)
def test_a_call_leaves_nothing_to_the_garbage_collector(ask: Caller, script: Script, outcome: str) -> None:
    ask.ask([GOOD])  # what is made once is made
    assert left_by(lambda: ask.ask(script)) == []
    assert ask.answers[-1].record.outcome == outcome


def test_a_cancelled_call_leaves_nothing_to_the_garbage_collector(ask: Caller) -> None:
    def left_in_the_middle() -> None:
        doing = ask.spawn([write(0, HEAD + chunk(token())), write(5_000, chunk(stop()))])
        gevent.sleep(0.05)
        ask.client.abandon_calls()
        doing.join()

    assert left_by(left_in_the_middle) == []
    assert ask.answers[-1].record.outcome == "cancelled"
