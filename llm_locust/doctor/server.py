"""Checks of a server: the way to it, its certificate, clock, models and proxies, and answers as streams."""

import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_locust.client import probing
from llm_locust.client.call import LiveCall, LlmClient
from llm_locust.client.http.errors import ClientError
from llm_locust.client.http.pool import Address, Pool, address_text, resolve
from llm_locust.client.http.target import Target
from llm_locust.client.http.timers import Timeouts
from llm_locust.client.http.tls import tls_context, tls_reason
from llm_locust.client.probing import REFUSALS, Listing, Session, list_models
from llm_locust.client.recording import Call
from llm_locust.core.record import Outcome, RequestRecord, TokenSource
from llm_locust.core.texts import nearest
from llm_locust.doctor.finding import (
    NO_TIME,
    Examination,
    Finding,
    OutOfTimeError,
    Status,
    TimeLeft,
    fail,
    ok,
    skipped,
    warn,
    why,
)
from llm_locust.figures.text import clean, count, number, plural, short
from llm_locust.figures.tokens import delivery
from llm_locust.metrics.requests.rates import HELD_MS, LEAST_EVENTS, NO_GAP_MS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.draft import Reply
from llm_locust.wire.foreign_text import blanked, blanked_name, clean_name
from llm_locust.workload.body import body_template
from llm_locust.workload.prompts import Prompt

# --- Name and connections: DNS and TCP


#: Most addresses that are connected to.
MOST_TRIED = 8

#: A slower answer of the resolver is in the time of requests that open a connection.
SLOW_DNS_S = 0.5

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Resolved:
    """Addresses of the host; ``error`` if there are none."""

    host: str
    addresses: tuple[Address, ...] = ()
    seconds: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One connection: its time, or why there is none."""

    address: Address
    seconds: float | None
    error: str | None = None


def judge_dns(resolved: Resolved) -> Finding:
    """Resolution of the host's name."""
    if resolved.error is not None:
        return fail(
            f"{resolved.host!r} cannot be resolved: {resolved.error}",
            "check the spelling and the resolver (/etc/resolv.conf; in Kubernetes SERVICE.NAMESPACE)",
        )
    if is_address(resolved.host):
        return skipped("the host is an address")
    figure = (
        f"{plural(len(resolved.addresses), 'address', 'addresses')} in {number(resolved.seconds * 1e3)} ms"
    )
    if resolved.seconds > SLOW_DNS_S:
        return warn(
            figure,
            "use a faster resolver, or an address: a run resolves the name every 30 s, and its requests wait",
        )
    return ok(figure)


def is_address(host: str) -> bool:
    """Whether the host is an IP address."""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def try_addresses(addresses: tuple[Address, ...], connect: Callable[[Address], float]) -> tuple[Attempt, ...]:
    """Connect to the first :data:`MOST_TRIED` of them, one after another."""
    return tuple(_attempt(address, connect) for address in addresses[:MOST_TRIED])


def _attempt(address: Address, connect: Callable[[Address], float]) -> Attempt:
    try:
        return Attempt(address, connect(address))
    except OSError as e:
        return Attempt(address, None, e.strerror or str(e))


def judge_tcp(attempts: tuple[Attempt, ...]) -> Finding:
    """Connections to the addresses.

    A run leaves out an address that refuses. A family of addresses (IPv4, IPv6) of which none accepts is no
    warning: many servers listen on one of the two.
    """
    if not attempts:
        return skipped("no address")
    times = [attempt.seconds for attempt in attempts if attempt.seconds is not None]
    refused = [attempt for attempt in attempts if attempt.seconds is None]
    if not times:
        return fail(
            _listed(refused),
            "start the server, or check host, port and firewalls; a container has a localhost of its own",
        )
    most = f"{count(len(times))} of {count(len(attempts))} addresses accepted, at most after"
    figure = f"{'accepted after' if len(attempts) == 1 else most} {number(max(times) * 1e3)} ms"
    families = {attempt.address[0] for attempt in attempts if attempt.seconds is not None}
    if odd := [attempt for attempt in refused if attempt.address[0] in families]:
        return warn(f"{figure}; {_listed(odd)}", "remove the addresses that do not serve from the name")
    if refused:
        family = "IPv6" if refused[0].address[0] == socket.AF_INET6 else "IPv4"
        return ok(f"{figure} (none by {family})")
    return ok(figure)


def _listed(refused: list[Attempt]) -> str:
    named = "; ".join(f"{address_text(a.address)}: {a.error}" for a in refused[:_MOST_NAMED])
    more = len(refused) - _MOST_NAMED
    return f"{named}; and {count(more)} more" if more > 0 else named


# --- TLS: version, certificate, its names and its expiry


#: A certificate that expires sooner is worth a warning.
SOON_DAYS = 14.0

_DAY_S = 86_400.0
_MOST_NAMES = 5

#: ``verify_code`` of a certificate for other names (of a host, of an address), expired, or not valid yet.
_OTHER_NAME, _EXPIRED, _NOT_YET = frozenset({62, 64}), 10, 9


@dataclass(frozen=True, slots=True)
class Certificate:
    """Names that a certificate is for, and the realtime second of its end; None if unknown."""

    names: tuple[str, ...]
    expires_s: float | None

    @classmethod
    def of(cls, decoded: dict[str, object]) -> "Certificate":
        """Read what :meth:`ssl.SSLSocket.getpeercert` returns."""
        end = decoded.get("notAfter")
        try:
            expires_s = float(ssl.cert_time_to_seconds(str(end))) if end else None
        except (ValueError, OverflowError):
            expires_s = None
        return cls(tuple(_names(decoded.get("subjectAltName"))), expires_s)


def _names(entries: Any) -> Iterator[str]:
    for entry in entries or ():
        if isinstance(entry, tuple) and len(entry) == 2 and entry[0] in ("DNS", "IP Address"):
            yield clean_name(str(entry[1]))


@dataclass(frozen=True, slots=True)
class TlsSeen:
    """A handshake with the server.

    Attributes:
        session: of the verified handshake; None if it failed.
        certificate: as the server sent it, if it can be read.
        error: of the verified handshake.
        now_s: realtime seconds at which it was made.
    """

    host: str
    session: Session | None
    certificate: Certificate | None
    error: OSError | None
    now_s: float


def judge_tls(seen: TlsSeen | None, *, is_https: bool) -> Finding:
    """The handshake and the certificate."""
    if not is_https:
        return skipped("the URL is http://")
    if seen is None:
        return skipped("no connection")
    if seen.session is None:
        return _judge_failure(seen)
    figure = f"{seen.session.version}, {number(seen.session.seconds * 1e3)} ms with TCP"
    certificate = seen.certificate
    if certificate is None or certificate.expires_s is None:
        return ok(figure)
    days = (certificate.expires_s - seen.now_s) / _DAY_S
    figure += f", certificate expires in {_days(days)}"
    return warn(figure, "renew the certificate") if days < SOON_DAYS else ok(figure)


def _judge_failure(seen: TlsSeen) -> Finding:
    error, certificate = seen.error, seen.certificate
    if isinstance(error, ssl.SSLCertVerificationError) and certificate is not None:
        if error.verify_code in _OTHER_NAME:
            return fail(
                f"the certificate is for {_shown_names(certificate.names)}, the URL has {seen.host!r}",
                "write one of the certificate's names into the URL, or give the server another certificate",
            )
        if error.verify_code == _EXPIRED and certificate.expires_s is not None:
            days = (seen.now_s - certificate.expires_s) / _DAY_S
            return fail(
                f"the certificate expired {_days(days)} ago", "renew it, or check this machine's clock"
            )
        if error.verify_code == _NOT_YET:
            return fail(
                "the certificate is not valid yet", "check the clocks of this machine and of the server"
            )
    if isinstance(error, ssl.SSLError):
        return fail(
            short(clean(tls_reason(error)), 200), "see what is in parentheses, or ask who runs the server"
        )
    return fail(str(error), "check that the port serves TLS; without TLS write http://")


def _days(days: float) -> str:
    return plural(round(days), "day") if days >= 2 else f"{number(days * 24)} hours"


def _shown_names(names: tuple[str, ...]) -> str:
    if not names:
        return "no name"
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {count(more)} more" if more > 0 else "")


# --- Its clock


#: Difference between the server's clock and this one from which logs are hard to join with records.
SERVER_CLOCK_OFF_S = 2.0

#: ``Date`` has whole seconds.
_DATE_RESOLUTION_S = 1.0


@dataclass(frozen=True, slots=True)
class ServerTime:
    """``Date`` of an answer, as sent, and the realtime seconds just before the request and after it."""

    date: str | None
    before_s: float
    after_s: float


def judge_server_clock(seen: ServerTime | None) -> Finding:
    """How far the server's clock is off, as far as ``Date`` tells. No latency depends on it."""
    if seen is None:
        return skipped("no answer")
    if seen.date is None:
        return skipped("the answer has no Date")
    try:
        date_s = parsedate_to_datetime(seen.date).replace(tzinfo=UTC).timestamp()
    except (ValueError, TypeError, OverflowError, OSError):
        return skipped("the answer's Date is not a date")
    # The server read its clock between before and after, and cut off the part of a second.
    ahead_s, behind_s = date_s - seen.after_s, seen.before_s - (date_s + _DATE_RESOLUTION_S)
    off_s = max(ahead_s, behind_s, 0.0)
    if off_s == 0:
        return ok("within 1 s of this machine's, as far as Date tells")
    figure = f"{number(off_s)} s {'ahead of' if ahead_s > behind_s else 'behind'} this machine's"
    if off_s > SERVER_CLOCK_OFF_S:
        return warn(
            figure, "synchronise both (NTP), to join server logs with records; no latency depends on it"
        )
    return ok(figure)


# --- Requests of an examination: bodies, answers as they were seen


#: Most bytes of an answer. One of 32 tokens has some KiB.
MAX_ANSWER_BYTES = 1 << 20

#: A question whose answer is long enough.
QUESTION = "Count from 1 to 100 in words."


@dataclass(frozen=True, slots=True)
class SeenStream:
    """One streamed answer.

    Attributes:
        asked_tokens: bound of its length.
        headers: of the response, names in lower case.
        has_done: whether the stream has a line ``data: [DONE]``.
    """

    asked_tokens: int
    record: RequestRecord
    reply: Reply
    headers: Mapping[bytes, bytes]
    has_done: bool


class DoctorRequester:
    """Sends requests over connections of its own to ``target``, with the client of a run.

    Args:
        connect_s: time limit of a connection.
    """

    def __init__(
        self, options: Examination, target: Target, tls: ssl.SSLContext | None, connect_s: float
    ) -> None:
        self._options = options
        self._pool = Pool(target, tls=tls, tls_name=options.tls_name, connect_timeout_s=connect_s)
        self._client = LlmClient(
            self._pool,
            sink=lambda answer: None,  # what is seen is judged at once
            headers=options.headers,
            secrets=options.secrets,
            max_answer_bytes=MAX_ANSWER_BYTES,
            worker="doctor",
        )

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def stream(self, model: str, tokens: int, limit_s: float) -> SeenStream:
        """Send one request for a stream of ``tokens`` tokens, and wait for its end at most ``limit_s``.

        Failures are in the record. Raises BodyError or PromptError if the endpoint takes no such request.
        """
        options, client = self._options, self._client
        template = body_template(options.endpoint, model, extra_body=options.body)
        body = template.encode(Prompt(text=QUESTION, asked_output_tokens=tokens))
        call = Call(
            request_id=client.new_request_id(),
            name="doctor",
            scheduled_ns=0,
            endpoint=options.endpoint,
            model=model,
            asked_output_tokens=tokens,
        )
        route = client.routes.choose(call)
        request = client.request(route, options.endpoint.path_to(model, stream=True), body, call)
        bounds = Timeouts(first_s=limit_s, gap_s=limit_s, total_s=limit_s)
        live = LiveCall(client, route, request, call, timeouts=bounds)
        parts: list[bytes] = []
        try:
            live.open(keep_body=True)
            while part := live.read():
                parts.append(part)
        except ClientError:
            pass  # it is in the record
        answer = live.conclude()
        lines = b"".join(parts).splitlines()
        done = any(line.startswith(b"data:") and line[5:].strip() == b"[DONE]" for line in lines)
        return SeenStream(tokens, answer.record, answer.reply, dict(live.headers), done)


# --- Proxies by their response headers, and their settings that let a stream through


#: Word in ``Server`` or ``Via``, or start of a header's name -> name of the proxy, and its settings.
_SETTINGS = {
    "nginx": "nginx: `proxy_buffering off;`, `proxy_http_version 1.1;`, no `gzip` for text/event-stream",
    "haproxy": "haproxy: `option http-no-delay`",
    "envoy": "Envoy: remove filters that buffer or compress the response",
    "litellm": "LiteLLM: watch its CPU; at its limit it merges events",
    "cloudflare": "Cloudflare: `Cache-Control: no-transform` from the server, no compression",
}
_NAMED_BY = {"x-envoy-": "envoy", "x-litellm-": "litellm", "cf-ray": "cloudflare"}

#: haproxy names itself nowhere, and other proxies may be told not to.
_UNKNOWN = ("nginx", "haproxy")


def proxy_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The proxy that response headers name, as a key of the settings; None without one."""
    named = b" ".join(headers.get(name, b"") for name in (b"server", b"via")).decode("latin-1").lower()
    for word in _SETTINGS:
        if word in named:
            return word
    names = [name.decode("latin-1") for name in headers]
    return next((p for start, p in _NAMED_BY.items() if any(n.startswith(start) for n in names)), None)


def unbuffering(headers: Mapping[bytes, bytes]) -> str:
    """Advice for a stream that was buffered on the way."""
    proxy = proxy_of(headers)
    settings = "; ".join(_SETTINGS[name] for name in ((proxy,) if proxy else _UNKNOWN))
    return f"let the stream through: {settings} (documentation: balancers.md)"


def sender(headers: Mapping[bytes, bytes]) -> str:
    """What the ``Server`` header says, for a line of text; empty without one."""
    return short(clean_name(headers.get(b"server", b"").decode("latin-1")), 40)


# --- The target: its list of models, and the API key


_SHOWN = 3


def chosen_model(listing: Listing | str, options: str | None) -> str | None:
    """Model of the requests: the one that is asked for, else the first of the list."""
    if options is not None or isinstance(listing, str) or not listing.names:
        return options
    return listing.names[0]


def judge_models(listing: Listing | str | None, options: Examination) -> Finding:
    """The list of models, or why there is none, and whether the model asked for is in it."""
    if listing is None:
        return skipped("no connection")
    if isinstance(listing, str):
        return fail(listing, "check host, port and path of the URL")
    status = listing.answer.status
    if listing.is_refused:
        return skipped(f"access refused (HTTP {status})")
    if listing.names is None:
        figure = f"{listing.base}/models gives no list (HTTP {status})"
        if options.model is None:
            return fail(figure, "give --model NAME, and check the path of the URL")
        return ok(f"{figure}; not needed, --model is given")
    names = [short(clean_name(blanked_name(name, options.secrets)), 60) for name in listing.names]
    figure = f"{plural(len(names), 'model')}: {_shown(names)}" if names else "the list is empty"
    if options.model is None:
        if len(names) == 1:
            return ok(figure)
        return (
            warn(figure, "give --model NAME: a run needs it")
            if names
            else fail(figure, "load a model, or give --model")
        )
    if options.model not in listing.names:
        return fail(
            f"{options.model!r} is not there; {figure}",
            f"{nearest(options.model, names)}give --model with one of the list",
        )
    return ok(f"{short(clean_name(options.model), 60)!r} is one of {plural(len(names), 'model')}")


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def judge_key(listing: Listing | str | None, first: SeenStream | str, *, has_key: bool) -> Finding:
    """Whether the key that is given, or none, is accepted."""
    listed = listing.answer.status if isinstance(listing, Listing) else None
    generated = None if isinstance(first, str) else first.record.status
    refusal = next((status for status in (generated, listed) if status in REFUSALS), None)
    if refusal is not None and not has_key:
        return fail(
            f"absent, and the server asks for one (HTTP {refusal})", "give --api-key-env NAME or --header"
        )
    if refusal is not None:
        return fail(
            f"refused (HTTP {refusal})",
            "check the key: the right variable, not expired, allowed for this model and endpoint",
        )
    if (generated or listed) is None:
        return skipped("no answer")
    if generated is None or generated >= 300:
        return skipped("no request was answered that would need one")
    return ok("accepted, or not looked at" if has_key else "none given, none needed")


# --- Answers of one and of 32 tokens: first token, streaming, usage, end of the stream, kept connection


#: Tokens of the longer answer.
TOKENS = 32

#: Time by which a token may have arrived earlier than it was read, above which the doctor itself was late.
LATE_MS = 1.0

#: APIs whose streams end with ``[DONE]``.
_WITH_DONE = ("chat", "completions")

_ADVICE = {
    400: "see the server's words; `--endpoint` and `--body` change what is sent",
    404: "check the path of the URL, --endpoint and --model",
    405: "check the path of the URL and --endpoint",
    422: "see the server's words; `--endpoint` and `--body` change what is sent",
    429: "the server limits requests: raise the limit for a load test",
}


def judge_first_token(seen: SeenStream | str) -> Finding:
    """A streamed request for one token; ``seen`` is a text where none was sent."""
    if isinstance(seen, str):
        return skipped(seen)
    record = seen.record
    ttft_ms = _first_ms(record)
    if record.outcome is Outcome.OK and ttft_ms is not None:
        return ok(f"after {number(ttft_ms)} ms{_by(seen)}")
    if record.outcome is Outcome.EMPTY:
        return warn(
            "the answer is complete, without text", "one token may have no text; else check --endpoint"
        )
    return fail(_failure(record), _advice(record))


def judge_others(seen: Mapping[str, SeenStream | str]) -> Finding:
    """A request for one token to each of the further models of a run."""
    if not seen:
        return skipped("the run asks for one model")
    findings = {short(clean_name(name), 60): judge_first_token(each) for name, each in seen.items()}
    for status in (Status.FAIL, Status.WARN):
        bad = [(name, f) for name, f in findings.items() if f.status is status]
        if bad:
            name, worst = bad[0]
            more = f"; {len(bad)} of {plural(len(findings), 'further model')}" if len(findings) > 1 else ""
            return Finding(status, f"{name}: {worst.figure}{more}", worst.change)
    missed, n = sum(f.status is Status.SKIPPED for f in findings.values()), len(findings)
    if missed:
        return skipped(f"no time was left for {missed} of {plural(n, 'further model')}")
    return ok(f"{plural(n, 'further model')} answered")


def judge_streaming(seen: SeenStream | str, first: SeenStream | str) -> Finding:
    """Whether events come as the model makes them, or were held back on the way."""
    if isinstance(seen, str):
        return skipped(seen)
    record = seen.record
    if record.outcome is not Outcome.OK:
        return fail(_failure(record), _advice(record))
    arrivals_ms = record.arrivals_ns / 1e6
    tokens = record.output_tokens or len(arrivals_ms)
    if len(arrivals_ms) < LEAST_EVENTS:
        if tokens >= 2 * LEAST_EVENTS:
            figure = f"{tokens} tokens in {plural(len(arrivals_ms), 'event')}, {_after(arrivals_ms[-1])}"
            return fail(figure, unbuffering(seen.headers))
        return warn(f"only {plural(tokens, 'token')}: too few to tell", "try another --model or --body")
    finding = _judge_gaps(arrivals_ms, tokens, seen, first)
    if finding.status is Status.FAIL and was_read_late(seen, first):
        return warn(
            "cannot tell: this machine read late", "see the checks of CPU and event loop, and try again"
        )
    return finding


def was_read_late(seen: SeenStream, first: SeenStream | str) -> bool:
    """Whether reading late can have made a burst of events that came as the model made them.

    Late by less than half the time that the tokens after the first took, it cannot.
    """
    record = seen.record
    if not len(record.arrivals_ns):
        return False
    late_ms = 0.0 if record.client_lag_ns is None else record.client_lag_ns / 1e6
    one_ms = None if isinstance(first, str) else _first_ms(first.record)
    making_ms = 0.0 if one_ms is None else float(record.arrivals_ns[-1]) / 1e6 - one_ms
    return late_ms > max(LATE_MS, making_ms / 2)


def _judge_gaps(
    arrivals_ms: NDArray[np.float64], tokens: int, seen: SeenStream, first: SeenStream | str
) -> Finding:
    gaps_ms = np.diff(arrivals_ms)
    mean_ms, median_ms, events = float(gaps_ms.mean()), float(np.median(gaps_ms)), len(arrivals_ms)
    if mean_ms < NO_GAP_MS:
        burst_ms = number(float(gaps_ms.sum()))
        figure = f"all {events} events in one burst of {burst_ms} ms, {_after(arrivals_ms[-1])}"
        one_ms = None if isinstance(first, str) else _first_ms(first.record)
        held_ms = None if one_ms is None else (float(arrivals_ms[-1]) - one_ms) / (events - 1)
        if held_ms is not None and held_ms < HELD_MS:
            return warn(
                f"{figure}; a single token takes {number(one_ms)} ms",
                f"cannot tell whether the server is that fast; if not, {unbuffering(seen.headers)}",
            )
        return fail(f"{figure}: a proxy held it back", unbuffering(seen.headers))
    figure = f"{events} events, {number(median_ms)} ms between two (median)"
    if median_ms < NO_GAP_MS:
        return fail(
            f"{figure}, in bursts: a proxy holds events back, or the server decodes several tokens a step",
            unbuffering(seen.headers),
        )
    if delivery(tokens / events, median_ms, mean_ms, None) != "tokens":
        return warn(
            f"{figure}, {number(tokens / events)} tokens an event",
            "the server or a proxy merges tokens: ITL is a gap between events, see TPOT",
        )
    return ok(figure)


def judge_usage(seen: SeenStream | str) -> Finding:
    """Token counts at the end of the stream."""
    if isinstance(seen, str):
        return skipped(seen)
    record = seen.record
    if record.outcome is not Outcome.OK:
        return skipped("the stream is not complete")
    if record.token_source is not TokenSource.USAGE:
        return warn(
            "none in the stream, though stream_options asks for it",
            "give --tokenizer, or let the proxy pass stream_options on: tokens are counted by events",
        )
    figure = f"{count(record.input_tokens)} input and {count(record.output_tokens)} output tokens"
    if record.output_tokens is not None and record.output_tokens > seen.asked_tokens:
        return warn(
            f"{figure}, {seen.asked_tokens} were asked for",
            "the server ignores the bound of the answer's length: output lengths are its own",
        )
    return ok(figure)


def judge_end(seen: SeenStream | str, endpoint: Dialect) -> Finding:
    """The stream's end. Without one a cut stream looks like a complete one."""
    if isinstance(seen, str):
        return skipped(seen)
    reason = seen.reply.finish_reason
    if seen.record.outcome is Outcome.TIMEOUT:
        return skipped("the stream is not complete")
    if not seen.reply.done:
        return fail(
            "neither a finish reason nor [DONE]",
            "a cut stream cannot be told from a whole one: ask the server's people",
        )
    figure = f"finish reason {short(clean(reason), 40)}" if reason else "no finish reason"
    if seen.reply.error is not None:
        return fail(f"{figure}, after an error", "the server gave the answer up")
    if endpoint.name not in _WITH_DONE:
        return ok(figure)
    if not seen.has_done:
        return warn(f"{figure}, no [DONE]", "usage may be cut off unnoticed: check the proxy's timeouts")
    return ok(f"{figure}, [DONE]")


def judge_keep_alive(seen: SeenStream | str) -> Finding:
    """Whether the second request went over the first one's connection."""
    if isinstance(seen, str):
        return skipped(seen)
    if seen.record.reused:
        return ok("the second request used the first one's connection")
    closes = seen.headers.get(b"connection", b"").decode("latin-1").lower() == "close"
    figure = "the server closes the connection after each answer"
    return warn(
        figure + (" (Connection: close)" if closes else ""),
        "let server and proxy keep connections: else each request waits for a handshake first (connect, and "
        "TTFT with connecting; not in TTFT)",
    )


def _first_ms(record: RequestRecord) -> float | None:
    return float(record.arrivals_ns[0]) / 1e6 if len(record.arrivals_ns) else None


def _after(ms: float) -> str:
    return f"{number(float(ms))} ms after the request"


def _by(seen: SeenStream) -> str:
    """Who answered, if the response says so."""
    return f" ({name})" if (name := sender(seen.headers)) else ""


def _failure(record: RequestRecord) -> str:
    return short(clean(f"{record.outcome}: {record.error or 'no reason given'}"), 240)


def _advice(record: RequestRecord) -> str:
    if record.status in (401, 403):
        return "see the check of the API key"
    if record.status is not None and record.status >= 300:
        return _ADVICE.get(record.status, "see the server's words and its log")
    if record.outcome is Outcome.TIMEOUT:
        return "see the server's load and log; a run waits longer (--timeouts first=60s)"
    return "see the server's log; check that --endpoint is the API that it has"


# --- Looks at the server, one after another, each in its time


#: Time limits of single looks.
DNS_S, CONNECT_S, MODELS_S, ANSWER_S = 5.0, 5.0, 5.0, 10.0

#: Time limit of the connection of a request, in addition to that of its answer.
REQUEST_CONNECT_S = 2.0

#: Time by which a request may end after its own limits, which say why it ended.
CLOSE_S = 0.5

#: How often the longer answer is asked for again where this machine read it too late to judge it.
MOST_READ_LATE = 2


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
        return Resolved(target.host, error=why(e))
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
        return blanked(why(e), options.secrets), None
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
