"""Looks at this machine and at the server, one after another, each in its time."""

import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from llm_locust.client import probing
from llm_locust.client.http.errors import ClientError
from llm_locust.client.http.pool import Address, Pool, resolve
from llm_locust.client.http.reader import why_python
from llm_locust.client.http.target import Target
from llm_locust.client.http.tls import tls_context
from llm_locust.client.probing import Listing, StampTrial, list_models
from llm_locust.doctor.finding import Examination, OutOfTimeError, TimeLeft
from llm_locust.doctor.machine import Access, Cpu, LoopLag, ServerTime, look_at_kubernetes
from llm_locust.doctor.network import MOST_TRIED, Attempt, Certificate, Resolved, TlsSeen, try_addresses
from llm_locust.doctor.streams import TOKENS, DoctorRequester, SeenStream, chosen_model, was_read_late
from llm_locust.host import (
    ClockSource,
    CpuTaken,
    FileLimits,
    Ports,
    clock_source,
    cpu_limit_cores,
    ephemeral_ports,
    file_limits,
    memory_available_bytes,
)
from llm_locust.wire.foreign_text import blanked

#: Time of all looks together: none begins after it, and none has a limit beyond it, but for a request that
#: does not end by its limits (2.5 s more). The rest of the 30 s is the start of the process.
WHOLE_S = 24.0

#: Time limits of single looks.
DNS_S, CONNECT_S, MODELS_S, ANSWER_S, KUBERNETES_S = 5.0, 5.0, 5.0, 10.0, 3.0

#: Time limit of the connection of a request, in addition to that of its answer.
REQUEST_CONNECT_S = 2.0

#: Time by which a request may end after its own limits, which say why it ended.
CLOSE_S = 0.5

#: How long the event loop is watched, and how long one core is kept busy then.
LOOP_S, BUSY_S = 1.0, 0.5

#: How often the longer answer is asked for again where this machine read it too late to judge it.
MOST_READ_LATE = 2

_STAMPED_READS = 32

NO_TIME = "no time was left"


@dataclass(frozen=True, slots=True)
class HostSeen:
    """This machine."""

    files: FileLimits
    ports: Ports | None
    cpu: Cpu
    loop: LoopLag
    memory_bytes: int | None
    stamps: StampTrial | None
    why_python_reads: str | None
    clock: ClockSource


def look_at_host() -> HostSeen:
    """Look at this machine; takes about 2 s."""
    taken = CpuTaken()
    before, began_s = taken.read(), time.monotonic()
    lags_ms = sorted(ns / 1e6 for ns in probing.loop_lags_ns(LOOP_S))
    _keep_busy(BUSY_S)
    after = taken.read()
    cpu = Cpu(
        cores=_cores(),
        limit_cores=cpu_limit_cores(),
        steal_percent=after.steal_percent(before),
        throttled_percent=after.throttled_percent(before),
        measured_s=time.monotonic() - began_s,
    )
    loop = LoopLag(lags_ms[int(0.99 * (len(lags_ms) - 1))], lags_ms[-1], LOOP_S)
    return HostSeen(
        files=file_limits(),
        ports=ephemeral_ports(),
        cpu=cpu,
        loop=loop,
        memory_bytes=memory_available_bytes(),
        stamps=_stamps(),
        why_python_reads=why_python(),
        clock=clock_source(),
    )


def _keep_busy(seconds: float) -> None:
    """Use one core: without work nothing is throttled or stolen."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        pass


def _cores() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _stamps() -> StampTrial | None:
    try:
        return probing.try_stamps(_STAMPED_READS)
    except OSError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSeen:
    """The server, as far as it was reached.

    Attributes:
        listing: the list of models, or why it failed; None if no connection came so far.
        clock: None if no answer came.
        first, stream: answers of one token and of 32, or why no request was sent.
        others: answers of one token of the further models.
    """

    resolved: Resolved
    attempts: tuple[Attempt, ...] = ()
    tls: TlsSeen | None = None
    listing: Listing | str | None = None
    clock: ServerTime | None = None
    first: SeenStream | str = "no connection"
    stream: SeenStream | str = "no connection"
    others: Mapping[str, SeenStream | str] = field(default_factory=dict)


def _tls(options: Examination) -> ssl.SSLContext:
    return tls_context(options.ca_cert, options.client_cert, insecure=options.insecure)


def look_at_server(options: Examination, target: Target, time_left: TimeLeft) -> ServerSeen:
    """Look at the server, as far as one look after another succeeds and time is left.

    Raises:
        TargetError: a certificate of this machine's cannot be used.
    """
    tls = _tls(options) if target.scheme == "https" else None
    seen = ServerSeen(resolved=_resolve(target, time_left))
    seen = replace(seen, attempts=_attempts(seen.resolved, time_left))
    reached = next((attempt.address for attempt in seen.attempts if attempt.seconds is not None), None)
    if reached is None:
        return seen
    if tls is not None:
        seen = replace(seen, tls=_shake_hands(options, target, reached, tls, time_left))
        if seen.tls is None or seen.tls.session is None:
            return seen
    listing, clock = _list(options, target, tls, time_left)
    base = target.base if isinstance(listing, str) else listing.base
    first, stream, others = _answers(options, target.with_base(base), tls, listing, time_left)
    return replace(seen, listing=listing, clock=clock, first=first, stream=stream, others=others)


def _resolve(target: Target, time_left: TimeLeft) -> Resolved:
    began_s = time.monotonic()
    try:
        found = probing.within(time_left.at_most(DNS_S), lambda: resolve(target.host, target.port))
    except (OSError, UnicodeError, OutOfTimeError) as e:
        return Resolved(target.host, error=_why(e))
    return Resolved(target.host, tuple(found), time.monotonic() - began_s)


def _attempts(resolved: Resolved, time_left: TimeLeft) -> tuple[Attempt, ...]:
    """Connections to the addresses; all share :data:`CONNECT_S`."""
    share_s = CONNECT_S / max(1, min(MOST_TRIED, len(resolved.addresses)))
    try:
        return try_addresses(
            resolved.addresses, lambda address: probing.connect_s(address, time_left.at_most(share_s))
        )
    except OutOfTimeError:
        return ()


def _shake_hands(
    options: Examination, target: Target, address: Address, tls: ssl.SSLContext, time_left: TimeLeft
) -> TlsSeen | None:
    """A verified handshake; if the certificate is not accepted, a second one that only reads it."""

    def handshake(context: ssl.SSLContext) -> probing.Session:
        return probing.handshake(
            address, options.tls_name or target.host, context, time_left.at_most(CONNECT_S)
        )

    now_s = time.time()
    try:
        session = handshake(tls)
        return TlsSeen(target.host, session, Certificate.of(session.certificate), None, now_s)
    except ssl.SSLCertVerificationError as e:
        try:
            looked = handshake(probing.lenient(_tls(options)))
            return TlsSeen(target.host, None, Certificate.of(looked.certificate), e, now_s)
        except (OSError, OutOfTimeError):
            return TlsSeen(target.host, None, None, e, now_s)
    except OSError as e:
        return TlsSeen(target.host, None, None, e, now_s)
    except OutOfTimeError:
        return None


def _list(
    options: Examination, target: Target, tls: ssl.SSLContext | None, time_left: TimeLeft
) -> tuple[Listing | str, ServerTime | None]:
    """The list of models, or why there is none; and the server's clock."""
    try:
        pool = Pool(
            target, tls=tls, tls_name=options.tls_name, connect_timeout_s=time_left.at_most(CONNECT_S)
        )
    except OutOfTimeError:
        return NO_TIME, None
    before_s = time.time()
    try:
        limit_s = time_left.at_most(MODELS_S)
        listing = probing.within(
            time_left.at_most(2 * MODELS_S), lambda: list_models(pool, options.headers, limit_s)
        )
    except (ClientError, TimeoutError, OutOfTimeError) as e:
        return blanked(_why(e), options.secrets), None
    finally:
        pool.close()
    date = listing.answer.headers.get(b"date")
    text = None if date is None else date[:100].decode("latin-1")
    return listing, ServerTime(text, before_s, time.time())


def _answers(
    options: Examination,
    target: Target,
    tls: ssl.SSLContext | None,
    listing: Listing | str,
    time_left: TimeLeft,
) -> tuple[SeenStream | str, SeenStream | str, dict[str, SeenStream | str]]:
    """The answers of one token and of 32, the second only after the first; and those of the other models."""
    model = chosen_model(listing, options.model)
    if model is None:
        return "no model is known", "no model is known", {}
    try:
        requester = DoctorRequester(options, target, tls, time_left.at_most(REQUEST_CONNECT_S))
    except OutOfTimeError:
        return NO_TIME, NO_TIME, dict.fromkeys(options.others, NO_TIME)

    def answer(tokens: int, model: str = model) -> SeenStream | str:
        try:
            limit_s = time_left.at_most(ANSWER_S)
            return probing.within(
                REQUEST_CONNECT_S + limit_s + CLOSE_S, lambda: requester.stream(model, tokens, limit_s)
            )
        except (OutOfTimeError, TimeoutError):
            return NO_TIME

    try:
        first = answer(1)
        stream: SeenStream | str = "the request for one token failed"
        if not isinstance(first, str) and first.record.status == 200:
            stream = answer(TOKENS)
            for _ in range(MOST_READ_LATE):
                if isinstance(stream, str) or not was_read_late(stream, first):
                    break
                stream = answer(TOKENS)
        return first, stream, {name: answer(1, name) for name in options.others}
    finally:
        requester.close()


def look_around(environ: dict[str, str], time_left: TimeLeft) -> Access | None:
    """Look at Kubernetes in a thread: it blocks, and its name may not be resolved soon."""
    try:
        limit_s = time_left.at_most(KUBERNETES_S)
        return probing.in_thread(limit_s + 0.5, lambda: look_at_kubernetes(environ, limit_s))
    except (TimeoutError, OutOfTimeError) as e:
        return Access("the API server", False, error=_why(e))


def _why(error: Exception) -> str:
    if isinstance(error, OutOfTimeError):
        return NO_TIME
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
