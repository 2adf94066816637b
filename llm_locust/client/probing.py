"""Single looks at a target, the event loop and receive timestamps: for diagnosis, never for measured load."""

import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TypeVar, cast

import gevent
import msgspec

from llm_locust.client.call import LlmClient
from llm_locust.client.http.clock import ANCILLARY_BYTES, SO_TIMESTAMPNS, stamp_ns
from llm_locust.client.http.exchange import Exchange
from llm_locust.client.http.pool import Address, Pool, dial
from llm_locust.client.http.target import Target
from llm_locust.client.http.timers import Timeouts
from llm_locust.client.http.tls import Tls
from llm_locust.client.recording import Answer, Call
from llm_locust.client.routes import make_head
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.wire.payload import DECODE_ERRORS, excess

# --- Single plain requests over a pool, for checks, never for measured load


#: Most bytes of an answer to a check, such as the list of models.
MAX_PLAIN_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Plain:
    """A complete answer. Header names are in lower case."""

    status: int
    body: bytes
    headers: Mapping[bytes, bytes] = field(default_factory=dict)


def get(pool: Pool, path: str, headers: Mapping[str, str], timeout_s: float) -> tuple[int, bytes]:
    """Get ``path`` on the pool's target; return status and body. Raises as :func:`ask`."""
    found = ask(pool, "GET", path, headers, timeout_s)
    return found.status, found.body


def ask(
    pool: Pool, method: str, path: str, headers: Mapping[str, str], timeout_s: float, body: bytes = b""
) -> Plain:
    """Send a request to the pool's target, on a new connection. Headers that are templates are left out.

    Raises:
        ClientError: no complete answer within the time limit.
    """
    head = make_head(pool.target.authority, headers).fixed
    if method != "GET":
        head += b"Content-Length: %d\r\n" % len(body)
    exchange = Exchange(MAX_PLAIN_BYTES)
    slices: list[bytes] = []
    exchange.on_slice = slices.append
    connection = pool.open()
    try:
        bound = Timeouts(first_s=timeout_s, gap_s=timeout_s, total_s=timeout_s)
        request = b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method.encode(), path.encode(), head, body)
        connection.send(request, exchange, bound)
        connection.wait_complete()
    finally:
        connection.finish()
        connection.close()
        exchange.drain()
        exchange.release()
    return Plain(exchange.status or 0, b"".join(slices), exchange.headers)


# --- List of a server's models


#: Answers that refuse access.
REFUSALS = (401, 403)


@dataclass(frozen=True, slots=True)
class Listing:
    """Answer to ``GET /models``.

    Attributes:
        base: path of the API under which it was given; the target's own if no path gave a list.
        names: ids of the models, as the server gives them; None if it has no list.
        answer: the answer that gave the list, or refused access; else the last one.
    """

    base: str
    names: list[str] | None
    answer: Plain

    @property
    def is_refused(self) -> bool:
        """Whether the server refuses access."""
        return self.answer.status in REFUSALS


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def list_models(pool: Pool, headers: dict[str, str], timeout_s: float) -> Listing:
    """List the models of the pool's target.

    If the server has no ``/v1`` below a prefix, that path answers 404: then the path is tried as it was
    given.

    Args:
        timeout_s: for each of the two paths.

    Raises:
        ClientError: no complete answer.
    """
    own = pool.target.base
    for base in dict.fromkeys([own, own.removesuffix("/v1") or own]):
        answer = ask(pool, "GET", pool.target.with_base(base).path("/models"), headers, timeout_s)
        if answer.status in REFUSALS:
            break
        if answer.status == 200 and (names := _names(answer.body)) is not None:
            return Listing(base, names, answer)
    return Listing(own, None, answer)


def _names(body: bytes) -> list[str] | None:
    if excess(body) is not None:
        return None
    try:
        return [model.id for model in msgspec.json.decode(body, type=_Models).data]
    except DECODE_ERRORS:
        return None


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


def try_stamps(reads: int) -> StampTrial:
    """Receive on loopback with the client's own socket option.

    The kernel starts to stamp some time after it is asked: reads before the first stamp are not counted,
    within half a second. Raises OSError if loopback cannot be used.
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
                first_until_s = time.monotonic() + 0.5
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


# --- Streams over a run's own client, one after another by each of several users, for a given time


_PATH = "/chat/completions"
_BODY = b'{"model":"known","stream":true,"messages":[{"role":"user","content":"t"}]}'

#: Time limits of a call, and how long all of them may take beyond the time for which they are asked.
_LIMITS = Timeouts(first_s=5.0, gap_s=5.0, total_s=6.0)
_BEYOND_S = 6.0

#: Time in which the users start, evenly.
_START_S = 0.5


def stream_for(target: Target, users: int, seconds: float) -> list[RequestRecord]:
    """Ask for chat streams with this many users at once; return the record of every call.

    The first call is made alone, and no other one is made if it fails. Each user makes one call at a time,
    and none after ``seconds``. Takes at most 12 s more.
    """
    records: list[RequestRecord] = []

    def keep(answer: Answer) -> None:
        records.append(answer.record)

    pool = Pool(target, connect_timeout_s=5.0)
    client = LlmClient(pool, sink=keep, timeouts=_LIMITS, worker="doctor")

    def ask() -> Outcome:
        call = Call(request_id=client.new_request_id(), name="calibration", scheduled_ns=time.time_ns())
        return client.post(_PATH, _BODY, call).record.outcome

    def use(place: int) -> None:
        gevent.sleep(_START_S * place / users)
        while time.monotonic() < end_s:
            ask()

    try:
        if ask() is Outcome.OK:
            end_s = time.monotonic() + seconds
            greenlets = [gevent.spawn(use, place) for place in range(users)]
            gevent.joinall(greenlets, timeout=seconds + _BEYOND_S)
            gevent.killall(greenlets)
    finally:
        pool.close()
    return records
