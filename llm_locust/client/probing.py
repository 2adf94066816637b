"""Single looks at a target, the event loop and receive timestamps: for diagnosis, never for measured load."""

import socket
import ssl
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar, cast

import gevent

from llm_locust.client.http.clock import ANCILLARY_BYTES, SO_TIMESTAMPNS, stamp_ns
from llm_locust.client.http.dial import Address, dial
from llm_locust.client.http.tls import Tls

T = TypeVar("T")

#: Interval of the timer that measures the event loop's lateness.
LAG_INTERVAL_S = 0.005

#: ``X509_V_FLAG_NO_CHECK_TIME`` of OpenSSL, which the module ssl does not name.
_NO_CHECK_TIME = 0x200000


def within(limit_s: float, work: Callable[[], T]) -> T:
    """Result of work that waits on gevent's loop (raises TimeoutError after ``limit_s``)."""
    timeout = gevent.Timeout.start_new(limit_s, TimeoutError(f"no answer within {limit_s:.3g} s"))
    try:
        return work()
    finally:
        timeout.close()


def in_thread(limit_s: float, work: Callable[[], T]) -> T:
    """Result of work that blocks, done in a thread; raises as :func:`within`. A late thread is left alone."""
    pool = gevent.get_hub().threadpool
    return within(limit_s, lambda: cast("T", pool.spawn(work).get()))


def connect_s(address: Address, limit_s: float) -> float:
    """Connect and close again; return the seconds until the connection stood (raises OSError)."""
    began_s = time.monotonic()
    connection = within(limit_s, lambda: dial(address, None))
    took_s = time.monotonic() - began_s
    connection.close()
    return took_s


@dataclass(frozen=True, slots=True)
class Session:
    """A TLS session after its handshake: version, time, and the certificate as the module ssl reads it."""

    version: str
    certificate: dict[str, object]
    seconds: float


def handshake(address: Address, host: str, context: ssl.SSLContext, limit_s: float) -> Session:
    """Connect and shake hands (raises OSError, including ``ssl.SSLError``)."""
    tls = Tls.to(host, context)
    began_s = time.monotonic()
    connection = within(limit_s, lambda: dial(address, tls))
    took_s = time.monotonic() - began_s
    connection.close()
    return Session(tls.session.version() or "", dict(tls.session.getpeercert() or {}), took_s)


def lenient(context: ssl.SSLContext) -> ssl.SSLContext:
    """Let a context accept certificates of other names and times, so that they can be read.

    The chain is still verified. To be used for a look at a certificate, never for a request.
    """
    context.check_hostname = False
    context.verify_flags = ssl.VerifyFlags(context.verify_flags | _NO_CHECK_TIME)
    return context


def loop_lags_ns(seconds: float) -> list[int]:
    """How late a timer of this thread's event loop ran, in nanoseconds, each time for this long."""
    lags, end_s = [], time.monotonic() + seconds
    while time.monotonic() < end_s:
        due_ns = time.monotonic_ns() + round(LAG_INTERVAL_S * 1e9)
        gevent.sleep(LAG_INTERVAL_S)
        lags.append(max(0, time.monotonic_ns() - due_ns))
    return lags


@dataclass(frozen=True, slots=True)
class StampTrial:
    """Receive timestamps of ``received`` reads on loopback.

    Attributes:
        stamped: how many of them had one.
        wrong: how many stamps were later than the read, or over a second earlier.
        lag_ns: shortest time from a stamp to the program's read of it; None without any.
    """

    received: int
    stamped: int
    wrong: int
    lag_ns: int | None


def try_stamps(reads: int, warm_up_s: float = 0.5) -> StampTrial:
    """Receive on loopback with the client's own socket option.

    The kernel starts to stamp some time after it is asked: reads before the first stamp are not counted,
    within ``warm_up_s``. Raises OSError if loopback cannot be used.
    """
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.settimeout(1.0)
        receiver = socket.create_connection(listener.getsockname()[:2], 1.0)
        with closing(receiver):
            sender, _ = listener.accept()
            with closing(sender):
                if ANCILLARY_BYTES:
                    receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                first_until_s = time.monotonic() + warm_up_s
                while _read_ns(sender, receiver)[0] is None and time.monotonic() < first_until_s:
                    pass
                return _trial([_read_ns(sender, receiver) for _ in range(reads)])


def _read_ns(sender: socket.socket, receiver: socket.socket) -> tuple[int | None, int]:
    """One byte sent and read: its stamp if it has one, and when the program had it, realtime."""
    sender.sendall(b"x")
    data, ancillary, _, _ = receiver.recvmsg(1, ANCILLARY_BYTES)
    now_ns = time.time_ns()
    if not data:
        raise OSError("loopback closed the connection")
    return (stamp_ns(ancillary[0][2]) if ancillary else None), now_ns


def _trial(reads: list[tuple[int | None, int]]) -> StampTrial:
    lags = [now_ns - stamp_ns for stamp_ns, now_ns in reads if stamp_ns is not None]
    right = [lag for lag in lags if 0 <= lag < 1_000_000_000]
    return StampTrial(len(reads), len(lags), len(lags) - len(right), min(right, default=None))
