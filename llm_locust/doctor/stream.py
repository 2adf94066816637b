"""Streamed answers of a server and their checks: first token, streaming, usage, end, kept connection."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_locust.client.call import LiveCall, LlmClient
from llm_locust.client.http.errors import ClientError
from llm_locust.client.http.pool import Pool
from llm_locust.client.http.target import Target
from llm_locust.client.http.timers import Timeouts
from llm_locust.client.recording import Call
from llm_locust.core.record import Outcome, RequestRecord, TokenSource
from llm_locust.doctor.finding import Examination, Finding, Status, fail, ok, skipped, warn
from llm_locust.figures.text import clean, count, number, plural, short
from llm_locust.figures.tokens import delivery
from llm_locust.metrics.requests.rates import HELD_MS, LEAST_EVENTS, NO_GAP_MS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.draft import Reply
from llm_locust.wire.foreign_text import clean_name
from llm_locust.workload.body import body_template
from llm_locust.workload.prompts import Prompt

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
