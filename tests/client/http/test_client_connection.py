"""Connections: kept, replaced, given up; and what they do to the calls that they carry."""

import _socket
import errno
import gc
import ssl
import statistics
from collections.abc import Callable
from typing import Any

import gevent
import gevent.server
import pytest
from calls import GOOD, MS, Caller, arrived_ns, ask_on_a_stale_connection, caller, stop, token
from scripted import (
    RefuseBy,
    ScriptedServer,
    ServedRequest,
    Step,
    chunk,
    json_response,
    last_chunk,
    response_head,
    script_header,
    scripted_server,
    stream_script,
    write,
)
from scripted.raw import best_of

from llm_locust.client.http import connection as tcp_info
from llm_locust.client.http.connection import Connection
from llm_locust.client.http.errors import ConnectionBrokenError, ResponseError
from llm_locust.client.http.exchange import Exchange
from llm_locust.client.http.pool import Pool
from llm_locust.client.http.timers import Timeouts
from llm_locust.client.http.tls import Tls
from llm_locust.core.record import Outcome

pytestmark = pytest.mark.usefixtures("kernel_stamping")


def test_a_connection_is_used_again(server: ScriptedServer, ask: Caller) -> None:
    script = stream_script(ttft_ms=0, gap_ms=0, tokens=3)
    records = [ask.ask(script).record for _ in range(5)]
    assert [r.reused for r in records] == [False] + [True] * 4
    assert len({r.local_port for r in records} - {None}) == 1
    served = server.wait_ended(5)
    assert [(r.connection, r.number) for r in served] == [(1, n) for n in range(1, 6)]
    first = records[0]
    assert first.connected_ns is not None
    assert first.connected_ns > first.started_ns


def test_every_request_carries_an_id_of_its_own_and_refuses_compression(
    server: ScriptedServer, ask: Caller
) -> None:
    script = stream_script(ttft_ms=0, gap_ms=0, tokens=1)
    records = [ask.ask(script).record for _ in range(3)]
    served = server.wait_ended(3)
    assert [r.header("X-Request-Id") for r in served] == [r.request_id for r in records]
    assert len({r.request_id for r in records}) == 3
    assert {r.header("Accept-Encoding") for r in served} == {"identity"}
    assert {(r.method, r.path) for r in served} == {("POST", "/v1/chat/completions")}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("X-A", "b\r\nX-C: d", "'X-A'"),
        ("X-A", "b\n", "'X-A'"),
        ("X-A", "€", "'X-A'"),
        # What follows a blank or a colon may be a key.
        ("X A", "b", "what begins with 'X' is no header name"),
        ("X-A:", "b", "what begins with 'X-A' is no header name"),
        ("", "b", "what is there is no header name"),
    ],
)
def test_a_header_that_http_does_not_allow_is_refused_by_name(name: str, value: str, said: str) -> None:
    with pytest.raises(ValueError, match=said), caller("http://h", headers={name: value}):
        pass


def test_fifty_calls_at_once_take_fifty_connections_and_keep_them(
    server: ScriptedServer, ask: Caller
) -> None:
    script = stream_script(ttft_ms=40, gap_ms=2, tokens=20)
    for _ in range(2):
        jobs = [ask.spawn(script) for _ in range(50)]
        gevent.joinall(jobs, timeout=120)
        assert {job.get().record.outcome for job in jobs} == {Outcome.OK}
    assert len(server.connections()) == 50
    assert sorted(r.number for r in server.wait_ended(100)) == [1] * 50 + [2] * 50


def test_many_streams_at_once_keep_their_times(server: ScriptedServer, ask: Caller) -> None:
    script = stream_script(ttft_ms=80, gap_ms=10, tokens=10)

    def median_ms() -> float:
        server.forget()
        jobs = [ask.spawn(script) for _ in range(50)]
        gevent.joinall(jobs, timeout=120)
        served = {r.header("X-Request-Id"): r for r in server.wait_ended(50)}
        return statistics.median(
            float(at - written) / MS
            for record in (job.get().record for job in jobs)
            for at, written in zip(arrived_ns(record), served[record.request_id].write_ns[1:-1], strict=True)
        )

    assert best_of(4, median_ms, 0.2) < 0.2


@pytest.mark.parametrize("fate", [Step(at_ms=100, close=True), Step(at_ms=100, reset=True)])
def test_a_connection_that_was_closed_before_the_request_came_is_replaced_once_and_that_is_recorded(
    server: ScriptedServer, ask: Caller, fate: Step
) -> None:
    ask.ask([GOOD, fate])
    record = ask_on_a_stale_connection(ask, [GOOD])
    assert (record.outcome, record.reused, record.retries) == (Outcome.OK, False, 1)
    assert record.client_lag_ns is not None
    first = ask.answers[1].record
    assert (first.outcome, first.request_id, first.retries) == (Outcome.RESENT, record.request_id, 0)
    assert (first.reused, first.started_ns, len(ask.answers)) == (True, record.started_ns, 3)
    assert first.sent_ns is not None
    assert record.sent_ns is not None
    assert first.started_ns <= first.sent_ns <= first.ended_ns <= record.sent_ns
    assert "broke" in (first.error or "")
    served = server.wait_ended(2)
    assert [(r.connection, r.number) for r in served] == [(1, 1), (2, 1)], "no server has seen it twice"


def test_a_replacement_that_fails_too_is_not_replaced_again(server: ScriptedServer, ask: Caller) -> None:
    ask.ask([GOOD, Step(at_ms=100, close=True)])
    record = ask_on_a_stale_connection(ask, [Step(close=True)])
    assert (record.outcome, record.retries) == (Outcome.CONNECT_ERROR, 1)
    assert [a.record.outcome for a in ask.answers] == [Outcome.OK, Outcome.RESENT, Outcome.CONNECT_ERROR]
    assert len(server.wait_ended(2)) == 2


def test_no_call_is_repeated_once_a_byte_has_come(server: ScriptedServer, ask: Caller) -> None:
    ask.ask([GOOD])
    record = ask.ask([write(0, "H"), Step(at_ms=5, reset=True)]).record
    assert (record.outcome, record.reused, record.retries) == (Outcome.TRUNCATED, True, 0)
    assert len(server.wait_ended(2)) == 2


@pytest.mark.parametrize("refuse_by", ["reset", "close"])
def test_no_call_is_repeated_on_a_fresh_connection(refuse_by: RefuseBy) -> None:
    with scripted_server(refuse=1, refuse_by=refuse_by) as server, caller(server.url) as ask:
        records = [ask.ask([GOOD]).record for _ in range(2)]
        assert [(r.outcome, r.retries) for r in records] == [(Outcome.CONNECT_ERROR, 0), (Outcome.OK, 0)]
        assert len(server.connections()) == 2


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\n\r\n", b"x"])
def test_a_connection_on_which_too_much_was_said_is_not_used_again(ask: Caller, extra: bytes) -> None:
    assert ask.ask([write(0, (GOOD.data or b"") + extra)]).record.outcome is Outcome.OK
    assert not ask.ask([GOOD]).record.reused


def test_connection_close_is_honoured(server: ScriptedServer, ask: Caller) -> None:
    script = [
        write(0, response_head(headers={"Connection": "close"}) + chunk(token() + stop()) + last_chunk())
    ]
    records = [ask.ask(script).record for _ in range(2)]
    assert [(r.outcome, r.reused) for r in records] == [(Outcome.OK, False)] * 2
    assert records[0].local_port != records[1].local_port
    server.wait_closed(2)


# Large requests


class Gate:
    """A server whose connections do what the functions of its list do, one each, in order."""

    def __init__(self, *acts: Any) -> None:
        self._acts = list(acts)
        self.accepted = 0
        self._server = gevent.server.StreamServer(("127.0.0.1", 0), self._serve)

    def _serve(self, sock: Any, _: Any) -> None:
        act = self._acts[self.accepted]
        self.accepted += 1
        act(sock)
        sock.close()

    def __enter__(self) -> "Gate":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"


BIG = 20_000_000


def read_request(sock: Any) -> int:
    """Reads one whole request; its size."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    got = len(body)
    while got < length:
        got += len(sock.recv(1 << 20))
    return got


def answer_well(sock: Any) -> None:
    read_request(sock)
    sock.sendall(GOOD.data)


def refuse_early(sock: Any) -> None:
    """Answers before the request's end, then hangs up on what is still coming."""
    sock.recv(1000)
    sock.sendall(json_response({"error": {"message": "too large"}}, 413))


def refuse_early_and_stay(sock: Any) -> None:
    """Answers before the request's end and reads no more of it, but keeps the connection."""
    refuse_early(sock)
    gevent.sleep(0.3)


def reset_in_the_second(sock: Any) -> None:
    answer_well(sock)
    sock.recv(1000)  # closing with bytes unread resets


def test_a_large_request_is_sent_as_the_server_takes_it() -> None:
    with Gate(answer_well) as gate, caller(gate.url) as ask:
        record = ask.ask(None, pad=BIG).record
    assert (record.outcome, record.retries) == (Outcome.OK, 0)


@pytest.mark.parametrize("refuse", [refuse_early, refuse_early_and_stay])
def test_an_early_refusal_of_a_large_request_is_read_and_its_connection_not_used_again(
    refuse: Callable[[Any], None],
) -> None:
    with Gate(refuse, answer_well) as gate, caller(gate.url) as ask:
        refused, good = (ask.ask(None, pad=pad).record for pad in (BIG, 0))
    assert (refused.outcome, refused.error) == (Outcome.HTTP_ERROR, "HTTP 413: too large")
    assert (good.outcome, good.reused, good.retries) == (Outcome.OK, False, 0)


def test_a_large_request_of_which_the_server_had_read_a_part_is_not_sent_again() -> None:
    with Gate(reset_in_the_second, answer_well) as gate, caller(gate.url) as ask:
        records = [ask.ask(None, pad=pad).record for pad in (0, BIG)]
        assert gate.accepted == 1
    assert [(r.outcome, r.retries) for r in records] == [(Outcome.OK, 0), (Outcome.CONNECT_ERROR, 0)]


def test_sending_has_the_bounds_of_the_request() -> None:
    def read_nothing(_: Any) -> None:
        gevent.sleep(1)

    with Gate(read_nothing) as gate, caller(gate.url, timeouts=Timeouts(first_s=0.05)) as ask:
        record = ask.ask(None, pad=BIG).record
    assert (record.outcome, record.error) == (
        Outcome.TIMEOUT,
        "no byte within 0.05 s (--timeouts first=0.05s)",
    )


# Memory


def test_nothing_of_a_finished_call_waits_for_the_collector(ask: Caller) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            ask.ask([GOOD])
        assert not [o for o in gc.get_objects() if isinstance(o, Exchange)]
    finally:
        gc.enable()


def test_the_sink_gets_every_answer_once_and_in_flight_counts_the_open_ones(
    server: ScriptedServer, ask: Caller
) -> None:
    job = ask.spawn([write(40, GOOD.data or b"")])
    gevent.sleep(0.02)
    assert (ask.client.in_flight, ask.answers) == (1, [])
    answer = job.get(timeout=120)
    assert (ask.client.in_flight, ask.answers) == (0, [answer])
    served: list[ServedRequest] = server.wait_ended(1)
    assert served[0].header("X-Request-Id") == answer.record.request_id


# In the loop


def started(pool: Pool, exchange: Exchange) -> tuple[Connection, "gevent.Greenlet[..., None]"]:
    """A connection on which a greenlet waits for an answer that comes after 50 ms."""
    connection = pool.open()
    script = script_header([write(50, GOOD.data or b"")])
    head = "".join(f"{k}: {v}\r\n" for k, v in script.items())
    connection.send(f"GET / HTTP/1.1\r\n{head}\r\n".encode(), exchange, Timeouts())
    job = gevent.spawn(connection.wait_complete)
    gevent.sleep(0)  # until it waits
    return connection, job


def test_a_connection_that_is_closed_on_this_side_fails_its_exchange(ask: Caller) -> None:
    connection, job = started(ask.client.pool, Exchange())
    connection.close()
    with pytest.raises(ConnectionBrokenError, match="closed on this side"):
        job.get(timeout=120)


class Unsendable(_socket.socket):
    """A socket to which nothing can be written, although its connection is not broken."""

    def send(self, *_: object) -> int:
        raise OSError(errno.ENOBUFS, "No buffer space available")


@pytest.fixture
def unsendable(server: ScriptedServer) -> Unsendable:
    sock = Unsendable(_socket.AF_INET, _socket.SOCK_STREAM)
    sock.connect((server.host, server.port))
    sock.setblocking(False)
    return sock


def test_a_request_of_which_the_system_takes_nothing_breaks_its_connection_and_may_be_sent_again(
    monkeypatch: pytest.MonkeyPatch, unsendable: Unsendable
) -> None:
    monkeypatch.setattr(tcp_info, "STALE_WITHIN_S", 120.0)
    connection = Connection(unsendable, None, "host:80")
    connection.carried = 1
    with pytest.raises(ConnectionBrokenError, match="host:80 broke: No buffer space available"):
        connection.send(b"POST", Exchange(), Timeouts())
    assert (connection.closed, connection.stale) == (True, True)


def test_a_request_that_cannot_be_encrypted_breaks_its_connection(unsendable: Unsendable) -> None:
    no_session = Tls.to("host", ssl.create_default_context())
    connection = Connection(unsendable, no_session, "host:443")
    connection.send(b"POST", Exchange(), Timeouts())
    assert (connection.closed, connection.stale) == (True, False)
    with pytest.raises(ConnectionBrokenError, match="host:443 broke: "):
        connection.wait_complete()


def test_a_user_killed_in_the_instant_of_its_answer_is_not_switched_to(
    server: ScriptedServer, ask: Caller, capfd: pytest.CaptureFixture[str]
) -> None:
    connection, job = started(ask.client.pool, exchange := Exchange())
    server.wait_ended(1)  # the answer is in the socket; the loop has not seen it
    job.kill(block=False)
    while not exchange.complete:
        connection.poll()  # wakes the user whose death is due before
    gevent.idle()
    assert isinstance(job.value, gevent.GreenletExit)
    assert capfd.readouterr().err == ""
    assert connection.finish()
    connection.close()


class FaultyExchange(Exchange):
    """Stands for a defect of ours."""

    def on_reads(self, data: bytes, reads: bytes) -> None:
        raise KeyError("defect")


def test_a_defect_fails_the_call_at_once_and_is_shown(ask: Caller, capfd: pytest.CaptureFixture[str]) -> None:
    _, job = started(ask.client.pool, FaultyExchange())
    with pytest.raises(ResponseError, match=r"this client failed on the response: KeyError\('defect'\)"):
        job.get(timeout=120)
    assert "KeyError: 'defect'" in capfd.readouterr().err
