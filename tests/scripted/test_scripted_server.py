"""The fake is held to its word: what raw sockets see is what the script said, when it said so."""

import socket
import ssl
import statistics
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from scripted import (
    RefuseBy,
    Script,
    ScriptedServer,
    SlowRead,
    Step,
    TlsFiles,
    json_response,
    refusing_port,
    scripted_server,
    silent_port,
    stream_script,
    write,
)
from scripted.raw import best_of, connect, lateness_ms, read, request, said, send_until_blocked

# --- The fake is held to its word: what raw sockets see is what the script said, when it said so


pytestmark = pytest.mark.alone

OK = json_response({"ok": True})
SO_TIMESTAMPNS = 35  # Linux; the socket module has no name for it


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_request_is_read_whole_however_it_is_split(server: ScriptedServer, size: int) -> None:
    data = request([write(0, OK)], body=b"hello \xff", headers="X-B: c\r\n", path="/p?q=1")
    with connect(server) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(data), size):
            sock.sendall(data[start : start + size])
        assert read(sock, len(OK)) == OK
        (served,) = server.wait_ended(1)
    assert (served.method, served.path, served.body) == ("POST", "/p?q=1", b"hello \xff")
    assert served.headers == [("Host", "test"), ("X-B", "c"), ("Content-Length", "7")]
    assert (served.connection, served.number, served.ended_by) == (1, 1, "script")


def arrivals_ns(sock: socket.socket, script: Script) -> list[tuple[bytes, int | None]]:
    """Each read's bytes and the kernel's stamp of it, until the whole script has come."""
    reads: list[tuple[bytes, int | None]] = []
    missing = len(said(script))
    while missing:
        data, control, _, _ = sock.recvmsg(100, 100)
        assert data, "the stream ended early"
        missing -= len(data)
        seconds, ns = struct.unpack("qq", control[0][2]) if control else (0, 0)
        reads.append((data, seconds * 10**9 + ns if control else None))
    return reads


def test_each_write_arrives_alone_and_when_the_log_says_it_was_made(server: ScriptedServer) -> None:
    script = [write(10 * k, b"%d;" % k) for k in range(10)]

    def transit_ms() -> float:
        server.forget()
        with connect(server) as sock:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            sock.sendall(request(script))
            reads = arrivals_ns(sock, script)
        if [data for data, _ in reads] != [step.data for step in script]:
            return float("inf")  # this reader was late and met two at once
        writes_ns = server.wait_ended(1)[0].write_ns
        transits = [(stamp - w) / 1e6 for (_, stamp), w in zip(reads, writes_ns, strict=True) if stamp]
        assert min(transits) >= 0
        return statistics.median(transits)

    assert best_of(5, transit_ms, 0.1) < 0.1


@pytest.mark.parametrize("gap_ms", [0.2, 3, 20])
def test_writes_are_made_at_their_absolute_times(server: ScriptedServer, gap_ms: float) -> None:
    script = stream_script(ttft_ms=30, gap_ms=gap_ms, tokens=20)

    def late_ms() -> float:
        server.forget()
        with connect(server) as sock:
            sock.sendall(request(script))
            assert read(sock, len(said(script))) == said(script)
        late = lateness_ms(server.wait_ended(1)[0], script)
        assert len(late) == len(script)
        assert min(late) > -0.001, "never before its time"
        return statistics.median(late)

    assert best_of(5, late_ms, 0.05) < 0.05


def test_a_hundred_streams_keep_their_times(server: ScriptedServer) -> None:
    script = stream_script(ttft_ms=150, gap_ms=20, tokens=10)

    def late_ms() -> float:
        server.forget()
        socks = [connect(server) for _ in range(100)]
        for sock in socks:
            sock.sendall(request(script))
        for sock in socks:
            assert read(sock, len(said(script))) == said(script)
            sock.close()
        served = server.wait_ended(100)
        assert {r.connection for r in served} == set(range(1, 101))
        return statistics.median([late for r in served for late in lateness_ms(r, script)])

    # All on one core, which others take parts of: a twentieth of a gap.
    assert best_of(5, late_ms, 1) < 1


# Connections


def test_a_connection_is_kept_and_its_requests_are_numbered(server: ScriptedServer) -> None:
    with connect(server) as sock:
        for _ in range(3):
            sock.sendall(request([write(1, OK)]))
            assert read(sock, len(OK)) == OK
    assert [(r.connection, r.number) for r in server.wait_ended(3)] == [(1, 1), (1, 2), (1, 3)]
    assert server.wait_closed(1)[0].closed_by == "client"


def test_requests_sent_together_are_answered_in_order(server: ScriptedServer) -> None:
    with connect(server) as sock:
        sock.sendall(request([write(20, b"first ")]) + request([write(0, b"second")]))
        assert read(sock, 12) == b"first second"


def test_connection_close_is_honoured(server: ScriptedServer) -> None:
    with connect(server) as sock:
        sock.sendall(request([write(0, OK)], headers="Connection: close\r\n"))
        assert read(sock, 10**6) == OK
    assert server.connections()[0].closed_by == "server"


def test_a_script_may_lie_in_the_json_body(server: ScriptedServer) -> None:
    with connect(server) as sock:
        sock.sendall(request(None, body=b'{"model":"m","script":[{"at_ms":1,"send":"raw"}]}'))
        assert read(sock, 3) == b"raw"
    assert server.wait_ended(1)[0].json()["model"] == "m"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (request(None, path="/lost"), b"no route for /lost"),
        (request(None, headers="X-Script: bm8\r\n"), b"not one"),
        (request(None, body=b'{"script": [{"do": 1}]}'), b"unknown field"),
    ],
)
def test_a_request_without_a_good_script_is_told_so(
    server: ScriptedServer, message: bytes, text: bytes
) -> None:
    with connect(server) as sock:
        sock.sendall(message)
        answer = sock.recv(1000)
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert text in answer


def test_routes_answer_requests_without_a_script() -> None:
    routes = {"/a": [write(0, "a")], "*": [write(0, "other")]}
    with scripted_server(routes=routes) as server, connect(server) as sock:
        sock.sendall(request(None, path="/a?b") + request(None, path="/b"))
        assert read(sock, 6) == b"aother"


# The process


def test_the_process_ends_with_its_block() -> None:
    with scripted_server() as server:
        connect(server).close()
        server.wait_closed(1)
    with pytest.raises(ConnectionRefusedError):
        connect(server)
    assert server._process.returncode == 0


def test_forget_closes_what_is_open_and_empties_the_log(server: ScriptedServer) -> None:
    with connect(server) as sock:
        sock.sendall(request([write(0, OK), Step(stall=True)]))
        assert read(sock, len(OK)) == OK
        server.forget()
        assert sock.recv(1) == b""
    assert (server.log(), server.connections()) == ([], [])


def test_a_server_that_died_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        scripted_server() as server,
        pytest.raises(RuntimeError, match="scripted server died"),
        scripted_server(port=server.port),
    ):
        pass
    assert "Address already in use" in capfd.readouterr().err


def test_it_serves_a_process_that_gevent_has_patched() -> None:
    program = """
from gevent import monkey; monkey.patch_all()
import gevent, http.client
from scripted import json_response, script_header, scripted_server, write
with scripted_server() as server:
    def get(k):
        connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
        connection.request("GET", "/", headers=script_header([write(20, json_response(k))]))
        return int(connection.getresponse().read())
    jobs = [gevent.spawn(get, k) for k in range(5)]
    assert len(server.wait_ended(5)) == 5
    assert [job.get(timeout=120) for job in jobs] == list(range(5))
"""
    command, folder = [sys.executable, "-c", program], str(Path(__file__).parents[1])
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


# --- Closing, aborting, stalling, refusing, slow reading and TLS, as raw sockets meet them


def test_close_ends_the_stream_after_what_was_sent(server: ScriptedServer) -> None:
    with connect(server) as sock:
        sock.sendall(request([write(0, b"part"), Step(at_ms=5, close=True)]))
        assert read(sock, 100) == b"part"
    assert server.wait_ended(1)[0].ended_by == "script"


def test_reset_aborts_the_connection(server: ScriptedServer) -> None:
    with connect(server) as sock:
        sock.sendall(request([write(0, b"part"), Step(at_ms=20, reset=True)]))
        assert sock.recv(100) == b"part"
        with pytest.raises(ConnectionResetError):
            sock.recv(100)


def test_stall_says_nothing_until_the_client_goes(server: ScriptedServer) -> None:
    with connect(server) as sock:
        sock.sendall(request([write(0, b"part"), Step(stall=True), write(1, b"never")]))
        assert sock.recv(100) == b"part"
        sock.settimeout(0.05)
        with pytest.raises(TimeoutError):
            sock.recv(100)
        with pytest.raises(TimeoutError, match="0 of 1 requests"):
            server.wait_ended(1, timeout_s=0.01)
    (served,) = server.wait_ended(1)
    assert (served.ended_by, len(served.writes)) == ("client", 1)


def test_a_client_that_aborts_midway_ends_its_request(server: ScriptedServer) -> None:
    script = stream_script(ttft_ms=0, gap_ms=5, tokens=1000)
    with connect(server) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.sendall(request(script))
        assert read(sock, 1000) == said(script)[:1000]
    (served,) = server.wait_ended(1)
    assert served.ended_by == "client"
    assert 0 < len(served.writes) < len(script)


def test_an_idle_connection_can_be_closed_after_its_answer(server: ScriptedServer) -> None:
    with connect(server) as sock:
        sock.sendall(request([write(0, OK), Step(at_ms=10, close=True)]))
        assert read(sock, len(OK) + 1) == OK


def test_the_next_request_can_be_met_by_a_close(server: ScriptedServer) -> None:
    with connect(server) as sock:
        sock.sendall(request([write(0, OK), Step(close_next=True)]))
        assert read(sock, len(OK)) == OK
        server.wait_ended(1)
        sock.sendall(request([write(0, OK)]))
        assert sock.recv(100) == b""
    first, second = server.wait_ended(2)
    assert (first.ended_by, second.ended_by, second.writes) == ("script", "server", [])


def test_the_next_request_can_be_met_by_a_reset(server: ScriptedServer) -> None:
    with connect(server) as sock:
        sock.sendall(request([Step(reset_next=True), write(5, OK)]))
        assert read(sock, len(OK)) == OK
        sock.sendall(request([write(0, OK)]))
        with pytest.raises(ConnectionResetError):
            sock.recv(100)


def first_meeting(server: ScriptedServer) -> str:
    """How the server meets a connection on which nothing is sent."""
    try:
        with connect(server) as sock:  # a reset may come so soon that connecting already fails
            sock.settimeout(0.3)
            return "data" if sock.recv(1) else "close"
    except ConnectionResetError:
        return "reset"
    except TimeoutError:
        return "stall"


@pytest.mark.parametrize("refuse_by", ["reset", "close", "stall"])
def test_the_first_connections_can_be_refused(refuse_by: RefuseBy) -> None:
    with scripted_server(refuse=2, refuse_by=refuse_by) as server:
        assert [first_meeting(server) for _ in range(2)] == [refuse_by] * 2
        with connect(server) as sock:
            sock.sendall(request([write(0, OK)]))
            assert read(sock, len(OK)) == OK
        assert server.wait_ended(1)[0].connection == 3


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_ports_without_a_server_refuse_or_are_silent(host: str) -> None:
    with refusing_port(host) as port, pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port), timeout=120)
    with silent_port(host) as port, pytest.raises(TimeoutError):
        socket.create_connection((host, port), timeout=0.05)


def test_a_slow_reader_blocks_the_sender_and_gets_everything() -> None:
    body = bytes(range(256)) * 4096
    with scripted_server(slow_read=SlowRead(every_ms=1)) as server, connect(server) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        rest = send_until_blocked(sock, request([write(0, OK)], body=body))
        assert len(rest) > len(body) // 2
        sock.sendall(rest)
        assert read(sock, len(OK)) == OK
        assert server.wait_ended(1)[0].body == body


def test_a_write_to_a_client_that_does_not_read_waits_and_the_script_goes_on() -> None:
    flood = b"x" * 20_000_000
    routes = {"*": [write(0, flood), write(0, b"end")]}
    with scripted_server(routes=routes) as server, connect(server) as sock:
        sock.sendall(request(None))
        with pytest.raises(TimeoutError):
            server.wait_ended(1, timeout_s=0.05)
        assert read(sock, len(flood) + 3)[-4:] == b"xend"
        first, second = server.wait_ended(1)[0].writes
    assert first.done_ns is not None
    assert first.write_ns < first.done_ns <= second.write_ns


def test_what_is_not_http_is_logged_and_closed(server: ScriptedServer) -> None:
    with connect(server) as sock:
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert sock.recv(100) == b""
    (connection,) = server.wait_closed(1)
    assert connection.error is not None
    assert connection.error.startswith("HttpParser")


# TLS


def test_tls_carries_the_same_bytes_at_the_same_times(
    tls_server: ScriptedServer, tls_files: TlsFiles
) -> None:
    script = stream_script(ttft_ms=20, gap_ms=5, tokens=20)
    assert tls_server.url.startswith("https://127.0.0.1:")
    context = tls_files.client_context()

    def late_ms() -> float:
        tls_server.forget()
        with context.wrap_socket(connect(tls_server), server_hostname="localhost") as sock:
            for _ in range(2):
                sock.sendall(request(script, body=b"b" * 100_000))
                assert read(sock, len(said(script))) == said(script)
        served = tls_server.wait_ended(2)
        assert [(r.number, len(r.body)) for r in served] == [(1, 100_000), (2, 100_000)]
        return statistics.median(lateness_ms(served[1], script))

    assert best_of(5, late_ms, 0.1) < 0.1


@pytest.mark.parametrize("notify", [True, False])
def test_a_tls_stream_can_end_with_or_without_close_notify(
    tls_server: ScriptedServer, tls_files: TlsFiles, notify: bool
) -> None:
    raw, context = connect(tls_server), tls_files.client_context()
    with context.wrap_socket(raw, server_hostname="127.0.0.1", suppress_ragged_eofs=False) as sock:
        sock.sendall(request([write(0, b"part"), Step(at_ms=5, close=True, close_notify=notify)]))
        assert read(sock, 4) == b"part"
        if notify:
            assert sock.recv(100) == b""
        else:
            with pytest.raises(ssl.SSLError, match=r"(?i)\bEOF\b"):
                sock.recv(100)


def test_mutual_tls_takes_only_clients_of_its_authority(tls_files: TlsFiles) -> None:
    with scripted_server(tls=tls_files, mutual=True, host="::1") as server:
        assert server.url == f"https://[::1]:{server.port}"
        context = tls_files.client_context(mutual=True)
        with context.wrap_socket(connect(server), server_hostname="::1") as sock:
            sock.sendall(request([write(0, OK)]))
            assert read(sock, len(OK)) == OK
        with (
            tls_files.client_context().wrap_socket(connect(server), server_hostname="::1") as stranger,
            pytest.raises(ssl.SSLError, match="certificate required"),
        ):
            stranger.recv(100)  # in TLS 1.3 the server's alert comes after the client's handshake
        known, unknown = server.wait_closed(2)
    assert known.client_name == "scripted-client"
    assert unknown.error is not None
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in unknown.error
