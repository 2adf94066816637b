"""A server that crashes on a request, and comes back.

- It closes, or resets, a kept connection with a request on it: the request was sent again on a new
  connection, in silence; 0 failures were printed. Now it is a failure (``connect_error``), sent once.
- It is killed with a request on a kept connection, and started again at once: likewise.
- A connection that the server closed while it was idle is no crash: the request that meets the close is
  sent again, which its record says (``retries``), and no failure is counted. The first try had no record:
  fewer sendings were printed than there were. Now it has one (``resent``), which is in no other figure.
"""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from calls import GOOD, HEAD, ask_on_a_stale_connection, caller, stop, token
from scripted import ScriptedServer, Step, chunk, last_chunk

from llm_locust.core.record import Outcome

pytestmark = pytest.mark.usefixtures("kernel_stamping")

#: Answers one request of each connection; a second one it reads, says so, and works on for ever.
WORKER = """
import socket, sys, threading, time

def serve(sock):
    sock.recv(65536)
    sock.sendall(bytes.fromhex(sys.argv[2]))
    if sock.recv(65536):
        print("at work", flush=True)
        time.sleep(60)

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@contextmanager
def worker(port: int) -> Iterator["subprocess.Popen[str]"]:
    answer = HEAD + chunk(token() + stop()) + last_chunk()
    command = [sys.executable, "-c", WORKER, str(port), answer.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("by", ["close", "reset"])
@pytest.mark.parametrize("after_ms", [0, 20, 200])
def test_a_crash_on_a_request_of_a_kept_connection_is_a_failure(
    server: ScriptedServer, after_ms: float, by: str
) -> None:
    with caller(server.url) as ask:
        assert ask.ask([GOOD]).record.outcome is Outcome.OK
        crash = Step(at_ms=after_ms, close=True) if by == "close" else Step(at_ms=after_ms, reset=True)
        record = ask.ask([crash]).record
        good = ask.ask([GOOD]).record
    assert (record.outcome, record.reused, record.retries) == (Outcome.CONNECT_ERROR, True, 0)
    assert record.sent_ns is not None
    assert record.ended_ns - record.sent_ns >= after_ms * 1e6
    assert (good.outcome, good.reused, good.retries) == (Outcome.OK, False, 0)
    assert len(server.wait_ended(3)) == 3


def test_a_server_that_is_killed_at_work_and_started_again_shows_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with worker(port) as first, caller(f"http://127.0.0.1:{port}") as ask:
        assert ask.ask(None).record.outcome is Outcome.OK
        call = ask.spawn([])
        assert first.stdout is not None
        call.join(0.05)
        assert first.stdout.readline() == "at work\n"
        first.send_signal(signal.SIGKILL)
        first.wait(10)
        with worker(port):  # before the client hears of the end: a request sent again would be answered
            record = call.get(timeout=10).record
            good = ask.ask(None).record
    assert (record.outcome, record.reused, record.retries) == (Outcome.CONNECT_ERROR, True, 0)
    assert (good.outcome, good.reused) == (Outcome.OK, False)


def test_a_close_of_an_idle_connection_that_meets_a_request_is_no_failure(server: ScriptedServer) -> None:
    with caller(server.url) as ask:
        ask.ask([GOOD, Step(at_ms=100, close=True)])
        record = ask_on_a_stale_connection(ask, [GOOD])
    assert (record.outcome, record.retries) == (Outcome.OK, 1)
    assert [answer.record.outcome for answer in ask.answers] == [Outcome.OK, Outcome.RESENT, Outcome.OK]
    assert len(server.wait_ended(2)) == 2


def test_whenever_a_server_closes_an_idle_connection_no_request_is_worked_on_twice(
    server: ScriptedServer,
) -> None:
    """The close comes when the next request does, now a little earlier and now a little later.

    A server that closes with the request unread resets, one that had read it ends the stream: what it did
    with it cannot be known.
    """
    with caller(server.url) as ask:
        for round_ in range(60):
            ask.ask([GOOD, Step(at_ms=5, close=True)])
            time.sleep(0.0045 + round_ % 10 * 0.0001)
            ask.ask([GOOD])
    outcomes = [answer.record.outcome for answer in ask.answers]
    served = server.wait_ended(outcomes.count(Outcome.OK))
    assert len({request.header("X-Request-Id") for request in served}) == len(served), "none was sent twice"
    errors = [
        answer.record.error or ""
        for answer in ask.answers
        if answer.record.outcome not in (Outcome.OK, Outcome.RESENT)
    ]
    assert not [error for error in errors if "reset" not in error and "closed by the peer" not in error]
