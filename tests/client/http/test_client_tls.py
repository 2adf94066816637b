"""The same transport under TLS."""

import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent.server
import numpy as np
import pytest
from calls import Caller, ask_on_a_stale_connection, caller
from scripted import (
    ScriptedServer,
    Step,
    TlsFiles,
    chat_chunk,
    chunk,
    last_chunk,
    response_head,
    scripted_server,
    sse,
    stream_script,
    write,
)
from scripted.raw import best_of

from llm_locust.client.http.target import TargetError
from llm_locust.client.http.tls import Tls, tls_context, tls_reason
from llm_locust.core.record import Outcome

BODY = sse(chat_chunk("t")) + sse(chat_chunk(finish_reason="stop")) + sse("[DONE]")
GOOD = write(0, response_head() + chunk(BODY) + last_chunk())


pytestmark = pytest.mark.usefixtures("kernel_stamping")


@pytest.fixture
def ask(tls_server: ScriptedServer, tls_files: TlsFiles) -> Iterator[Caller]:
    with caller(tls_server.url, tls=tls_context(Path(tls_files.ca))) as found:
        yield found
    assert found.client.in_flight == 0


def test_token_times_are_those_at_which_the_server_wrote(tls_server: ScriptedServer, ask: Caller) -> None:
    script = stream_script(ttft_ms=20, gap_ms=5, tokens=20)

    def worst_ms() -> float:
        tls_server.forget()
        record = ask.ask(script).record
        assert (record.outcome, record.kernel_stamps) == (Outcome.OK, True)
        assert record.sent_ns is not None
        written = tls_server.wait_ended(1)[0].write_ns[1:-1]
        transit_ns = record.sent_ns + record.arrivals_ns - np.array(written)
        assert transit_ns.min() >= 0
        return float(transit_ns.max()) / 1e6

    assert best_of(6, worst_ms, 0.4) < 0.4


def test_a_connection_is_used_again(tls_server: ScriptedServer, ask: Caller) -> None:
    assert [ask.ask([GOOD]).record.reused for _ in range(3)] == [False, True, True]
    assert len(tls_server.connections()) == 1


def test_a_large_request_and_a_large_answer_pass(tls_server: ScriptedServer, ask: Caller) -> None:
    texts = ["x" * 50_000] * 20
    events = b"".join(chunk(sse(chat_chunk(text))) for text in texts)
    answer = ask.ask([write(0, response_head() + events + chunk(BODY) + last_chunk())], pad=3_000_000)
    assert (answer.record.outcome, len(answer.reply.text)) == (Outcome.OK, 1_000_001)
    assert len(tls_server.wait_ended(1)[0].body) > 3_000_000


@pytest.mark.parametrize("notify", [True, False])
@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        (response_head(chunked=False) + BODY, Outcome.OK),
        (response_head(chunked=False) + BODY[:200], Outcome.TRUNCATED),
        (response_head() + chunk(sse(chat_chunk("t"))), Outcome.TRUNCATED),
        (b"", Outcome.CONNECT_ERROR),
    ],
)
def test_an_end_is_an_end_with_or_without_close_notify(
    ask: Caller, data: bytes, outcome: Outcome, notify: bool
) -> None:
    script = [write(0, data)] if data else []
    record = ask.ask([*script, Step(at_ms=5, close=True, close_notify=notify)]).record
    assert record.outcome is outcome
    assert (
        outcome is Outcome.OK
        or "closed by the peer" in (record.error or "")
        or "ended" in (record.error or "")
    )


def test_a_reset_midway_keeps_the_tokens(ask: Caller) -> None:
    script = [write(0, response_head() + chunk(sse(chat_chunk("t")))), Step(at_ms=5, reset=True)]
    record = ask.ask(script).record
    assert (record.outcome, len(record.arrivals_ns)) == (Outcome.TRUNCATED, 1)
    assert "Connection reset by peer" in (record.error or "")


@pytest.mark.parametrize("fate", [Step(at_ms=100, close=True), Step(at_ms=100, reset=True)])
def test_a_stale_connection_is_replaced(tls_server: ScriptedServer, ask: Caller, fate: Step) -> None:
    ask.ask([GOOD, fate])
    record = ask_on_a_stale_connection(ask, [GOOD])
    assert (record.outcome, record.retries) == (Outcome.OK, 1)


@pytest.mark.parametrize("fate", [Step(close_next=True), Step(reset_next=True)])
def test_a_server_that_ends_the_connection_on_a_request_has_failed(
    tls_server: ScriptedServer, ask: Caller, fate: Step
) -> None:
    ask.ask([GOOD, fate])
    record = ask.ask([GOOD]).record
    assert (record.outcome, record.retries) == (Outcome.CONNECT_ERROR, 0)


def test_an_idle_connection_that_the_server_closed_is_not_used(
    tls_server: ScriptedServer, ask: Caller
) -> None:
    ask.ask([GOOD, Step(at_ms=1, close=True)])
    tls_server.wait_closed(1)
    record = ask.ask([GOOD]).record
    assert (record.outcome, record.reused, record.retries) == (Outcome.OK, False, 0)


# Who is trusted


def test_the_systems_authorities_do_not_know_ours_and_the_text_says_what_to_do(
    tls_server: ScriptedServer,
) -> None:
    with caller(tls_server.url) as ask:
        record = ask.ask([GOOD]).record
    assert (record.outcome, record.sent_ns) == (Outcome.CONNECT_ERROR, None)
    error = record.error or ""
    assert error.startswith(f"TLS with 127.0.0.1:{tls_server.port} failed: certificate not accepted: ")
    assert error.endswith(" (--ca-cert names an authority of your own; --insecure accepts any certificate)")
    assert "unknown ca" in (tls_server.wait_closed(1)[0].error or "").lower(), "the server is told why"


def test_a_certificate_for_another_host_is_refused(tls_files: TlsFiles) -> None:
    with (
        scripted_server(tls=tls_files, host="127.0.0.3") as server,
        caller(server.url, tls=tls_context(Path(tls_files.ca))) as ask,
    ):
        error = ask.ask([GOOD]).record.error or ""
    assert "certificate is not valid for '127.0.0.3'" in error
    assert "--ca-cert" not in error


def test_another_name_of_the_server_is_told_it_and_checked(tls_files: TlsFiles) -> None:
    with (
        scripted_server(tls=tls_files, host="127.0.0.3") as server,
        caller(server.url, tls=tls_context(Path(tls_files.ca)), tls_name="localhost") as ask,
    ):
        assert ask.ask([GOOD]).record.outcome is Outcome.OK
    with (
        scripted_server(tls=tls_files, host="127.0.0.3") as server,
        caller(server.url, tls=tls_context(Path(tls_files.ca)), tls_name="other.example.org") as ask,
    ):
        error = ask.ask([GOOD]).record.error or ""
    assert "not valid for 'other.example.org'" in error
    assert error.endswith("(--tls-name gives the name that the certificate has)")


def test_without_a_check_any_certificate_is_accepted(tls_files: TlsFiles) -> None:
    with (
        scripted_server(tls=tls_files, host="127.0.0.3") as server,
        caller(server.url, tls=tls_context(insecure=True)) as ask,
    ):
        assert ask.ask([GOOD]).record.outcome is Outcome.OK


def test_a_name_is_what_the_certificate_is_checked_for(
    tls_server: ScriptedServer, tls_files: TlsFiles
) -> None:
    url = f"https://localhost:{tls_server.port}"
    with caller(url, tls=tls_context(Path(tls_files.ca))) as ask:
        assert ask.ask([GOOD]).record.outcome is Outcome.OK


def test_mutual_tls_shows_the_clients_certificate(tls_files: TlsFiles, tmp_path: Path) -> None:
    both = tmp_path / "client.pem"
    both.write_text(Path(tls_files.client_cert).read_text() + Path(tls_files.client_key).read_text())
    with (
        scripted_server(tls=tls_files, mutual=True, host="::1") as server,
        caller(server.url, tls=tls_context(Path(tls_files.ca), both)) as ask,
    ):
        assert ask.ask([GOOD]).record.outcome is Outcome.OK
        assert server.connections()[0].client_name == "scripted-client"


def test_a_server_that_wants_a_certificate_says_so(tls_files: TlsFiles) -> None:
    with (
        scripted_server(tls=tls_files, mutual=True) as server,
        caller(server.url, tls=tls_context(Path(tls_files.ca))) as ask,
    ):
        record = ask.ask([GOOD]).record
    assert record.outcome is Outcome.CONNECT_ERROR
    assert "the server asks for a client's certificate; give --client-cert" in (record.error or "")


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_a_server_without_tls_is_said(said: bytes) -> None:
    def answer(sock: Any, _: Any) -> None:
        sock.recv(10_000)
        sock.sendall(said)
        sock.close()

    server = gevent.server.StreamServer(("127.0.0.1", 0), answer)
    server.start()
    with caller(f"https://127.0.0.1:{server.server_port}", tls=ssl.create_default_context()) as ask:
        record = ask.ask([GOOD]).record
    server.stop()
    assert record.outcome is Outcome.CONNECT_ERROR
    assert "does not speak TLS at this port" in (record.error or "")
    assert "try http://" in (record.error or "")


@pytest.mark.parametrize("option", ["--ca-cert", "--client-cert"])
def test_a_file_that_is_no_certificate_is_named(option: str, tmp_path: Path, tls_files: TlsFiles) -> None:
    (bad := tmp_path / "bad.pem").write_text("no certificate")
    for path in (bad, tmp_path / "absent.pem"):
        files = (path, None) if option == "--ca-cert" else (Path(tls_files.ca), path)
        with pytest.raises(TargetError, match=f"{option} '{path}' cannot be used"):
            tls_context(*files)


# The session by itself


def test_bytes_that_are_not_tls_raise_after_those_that_were(tls_files: TlsFiles) -> None:
    client = Tls.to("localhost", tls_files.client_context())
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = tls_files.server_context().wrap_bio(incoming, outgoing, server_side=True)
    for _ in range(3):  # flights of the handshake
        for session in (client.session, server):
            with suppress(ssl.SSLWantReadError):
                session.do_handshake()
            incoming.write(client.outgoing.read())
            client.incoming.write(outgoing.read())
    server.write(b"good")
    assert client.decrypt(outgoing.read() + b"\x17\x03\x03\x00\x20" + b"x" * 32) == (b"good", False)
    with pytest.raises(ssl.SSLError) as broken:
        client.decrypt(b"")
    assert tls_reason(broken.value) == "decryption failed or bad record mac"
