"""Single looks at a target, the event loop and receive timestamps."""

import socket
import ssl
import threading
import time

import gevent
import pytest
from scripted import ScriptedServer, TlsFiles, silent_port

from llm_locust.client import probing
from llm_locust.client.http.pool import Address
from llm_locust.client.http.tls import tls_context

pytestmark = pytest.mark.usefixtures("kernel_stamping")


def address(server: ScriptedServer) -> Address:
    return socket.AF_INET, ("127.0.0.1", server.port)


def test_work_has_its_time_and_its_result_comes_back() -> None:
    assert probing.within(0.01, lambda: "done") == "done"
    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        probing.within(0.01, lambda: gevent.sleep(120))
    gevent.sleep(0.02)  # a limit that was not taken back would end this


def test_work_that_blocks_is_done_beside_the_loop() -> None:
    assert probing.in_thread(120, threading.get_ident) != threading.get_ident()
    may_end = threading.Event()
    with pytest.raises(TimeoutError, match="no answer within"):
        probing.in_thread(0.01, may_end.wait)
    may_end.set()


def test_a_connection_is_timed_and_closed_again(server: ScriptedServer) -> None:
    began_s = time.monotonic()
    assert 0 < probing.connect_s(address(server), 120) <= time.monotonic() - began_s
    server.wait_closed(1)
    with silent_port() as port, pytest.raises(TimeoutError):
        probing.connect_s((socket.AF_INET, ("127.0.0.1", port)), 0.01)


def test_a_handshake_shows_its_certificate_and_how_long_it_took(
    tls_server: ScriptedServer, tls_files: TlsFiles
) -> None:
    began_s = time.monotonic()
    session = probing.handshake(address(tls_server), "localhost", tls_files.client_context(), 120)
    assert 0 < session.seconds <= time.monotonic() - began_s
    assert session.version.startswith("TLSv1.")
    assert ("DNS", "localhost") in session.certificate["subjectAltName"]  # type: ignore[operator]
    tls_server.wait_closed(1)


def test_a_lenient_look_takes_another_name_and_no_other_authority(
    tls_server: ScriptedServer, tls_files: TlsFiles
) -> None:
    context = tls_files.client_context()
    with pytest.raises(ssl.SSLCertVerificationError):
        probing.handshake(address(tls_server), "other", context, 120)
    assert probing.handshake(address(tls_server), "other", probing.lenient(context), 120).certificate
    assert context.verify_flags & probing._NO_CHECK_TIME
    with pytest.raises(ssl.SSLCertVerificationError):
        probing.handshake(address(tls_server), "localhost", probing.lenient(tls_context()), 120)


def test_a_loop_that_is_held_is_late() -> None:
    def hold() -> None:
        gevent.sleep(0.01)
        time.sleep(0.05)

    began_s = time.monotonic()
    holder = gevent.spawn(hold)
    lags = probing.loop_lags_ns(0.1)
    took_s = time.monotonic() - began_s
    holder.join()
    assert took_s >= 0.1
    assert min(lags) >= 0
    assert 0.03e9 < max(lags) < took_s * 1e9
    assert len(lags) <= took_s / probing.LAG_INTERVAL_S


def test_loopback_gives_each_read_a_stamp_that_is_not_after_it() -> None:
    trial = probing.try_stamps(5)
    assert (trial.received, trial.stamped, trial.wrong) == (5, 5, 0)
    assert trial.lag_ns is not None
    assert 0 <= trial.lag_ns < 10**9


@pytest.mark.parametrize(
    ("reads", "trial"),
    [
        ([(None, 10)], probing.StampTrial(1, 0, 0, None)),
        ([(10, 10), (10, 15), (None, 20)], probing.StampTrial(3, 2, 0, 0)),
        ([(11, 10)], probing.StampTrial(1, 1, 1, None)),
        ([(10, 10 + 10**9 - 1), (10, 10 + 10**9)], probing.StampTrial(2, 2, 1, 10**9 - 1)),
    ],
)
def test_a_stamp_is_wrong_after_the_read_and_a_second_before_it(
    reads: list[tuple[int | None, int]], trial: probing.StampTrial
) -> None:
    assert probing._trial(reads) == trial
