"""Classification of how a call ended, as :class:`~llm_locust.core.record.Outcome`."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime

from llm_locust.client.decoder import BodyDecoder, header_text, readable
from llm_locust.client.http.errors import (
    AnswerOverError,
    ClientError,
    ConnectError,
    ConnectionBrokenError,
    OversizeError,
    RequestTimeoutError,
    ResponseError,
)
from llm_locust.client.http.exchange import Exchange
from llm_locust.core.record import Doubt, Outcome
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.draft import Reply
from llm_locust.wire.ends import AnswerEnd, error_among
from llm_locust.wire.foreign_text import CONTROL, blanked, blanked_name
from llm_locust.wire.payload import AskedResults, mismatch
from llm_locust.wire.usage import CountFault

_TEXT_LIMIT = 300

#: Content types of a text that needs no explanation.
_PLAIN_TYPES = frozenset({"", "text/plain", "text/event-stream"})

#: Characters of a quote in an error text.
_QUOTE_LIMIT = 160

#: By so much of it an answer's text may have fewer tokens than were generated.
_RETOKENISED = 0.1

#: Bytes of a body that are searched for an error text.
_BODY_LIMIT = 16_384

_SECONDS = re.compile(rb"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_MAX_DATE_CHARS = 64

Verdict = tuple[Outcome, str | None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What an answer must have.

    Attributes:
        results: of an API that gives one for each input.
        tokens: the bound of its length, if there was one.
        counted: its tokens by the run's tokenizer, if that had to count them.
    """

    results: AskedResults | None = None
    tokens: int | None = None
    counted: int | None = None


NOTHING_ASKED = Asked()


def judge(
    exchange: Exchange,
    error: ClientError | None,
    reply: Reply,
    decoder: BodyDecoder,
    *,
    cancelled: bool,
    asked: Asked = NOTHING_ASKED,
) -> Verdict:
    """Return the outcome of a call and its reason in words (None for ``ok``).

    What a server says outside of its API is quoted in the reason of a stream that did not end well.
    """
    if decoder.event_stream and _is_settled(error, reply):
        error = None
    outcome, why = _judge(exchange, error, reply, decoder, cancelled=cancelled)
    if outcome is Outcome.OK and asked.results is not None and reply.results is not None:
        why = mismatch(asked.results, reply.results)
        return (Outcome.OK if why is None else Outcome.INVALID), why
    if outcome is Outcome.OK and asked.tokens and decoder.endpoint is not None:
        why = _cut_short(reply, asked.tokens, asked.counted)
        return (Outcome.OK if why is None else Outcome.TRUNCATED), why
    return outcome, why


def _is_settled(error: ClientError | None, reply: Reply) -> bool:
    """Whether the outcome does not depend on how the connection ended."""
    if isinstance(error, ResponseError):
        return reply.decided or reply.error is not None
    return reply.done or reply.error is not None


def is_left_open(error: ClientError | None, reply: Reply) -> bool:
    """Whether the answer was over, and the client gave up waiting for the end of its response."""
    gave_up = isinstance(error, AnswerOverError | RequestTimeoutError)
    return gave_up and (reply.done or reply.error is not None)


def _judge(
    exchange: Exchange, error: ClientError | None, reply: Reply, decoder: BodyDecoder, *, cancelled: bool
) -> Verdict:
    broken = isinstance(error, ConnectionBrokenError)
    if isinstance(error, RequestTimeoutError):
        return Outcome.TIMEOUT, f"{error}{_quoted(reply, decoder)}"
    if isinstance(error, ConnectError) or (broken and not exchange.read_count):
        return Outcome.CONNECT_ERROR, str(error)
    refused = exchange.status is not None and exchange.status >= 300
    if isinstance(error, ResponseError) and not (refused and isinstance(error, OversizeError)):
        return Outcome.INVALID, str(error)
    if exchange.status is not None and refused:
        return _judge_status(exchange, exchange.status, reply, decoder)
    if decoder.tapped and decoder.fault is not None:
        return Outcome.INVALID, decoder.fault
    if reply.error is not None:
        return Outcome.API_ERROR, reply.error
    whole = exchange.complete if decoder.endpoint is None else reply.done
    if cancelled and not whole:
        return Outcome.CANCELLED, "given up before its end"
    if exchange.status is None:
        return Outcome.TRUNCATED, f"{error}, in the middle of the headers"
    if decoder.endpoint is None:
        return (Outcome.OK, None) if whole else (Outcome.TRUNCATED, str(error))
    return _judge_body(exchange, error, reply, decoder)


def _judge_status(exchange: Exchange, status: int, reply: Reply, decoder: BodyDecoder) -> Verdict:
    if status < 400:
        location = exchange.headers.get(b"location", b"nowhere").decode("latin-1")
        return Outcome.INVALID, f"HTTP {status}: redirected to {location}, which is not followed"
    if (error := reply.error or error_among(decoder.body())) is not None:
        return Outcome.HTTP_ERROR, f"HTTP {status}: {error}"
    kind = _content_type(exchange)
    said = readable(decoder.body()[:_BODY_LIMIT], header_text(exchange, b"content-encoding"), kind)
    named = "" if "json" in kind or kind in _PLAIN_TYPES or not said else f" {kind}"
    return Outcome.HTTP_ERROR, f"HTTP {status}{named}: {said}" if said else f"HTTP {status}"


def _judge_body(exchange: Exchange, error: ClientError | None, reply: Reply, decoder: BodyDecoder) -> Verdict:
    if not decoder.event_stream:
        if not exchange.complete:
            return Outcome.TRUNCATED, str(error)
        if decoder.asked_stream:
            return Outcome.INVALID, _no_stream(exchange, decoder.body())
        if decoder.fault is None and not decoder.body():
            return Outcome.INVALID, "the answer has no body"
    if decoder.fault is not None or reply.invalid is not None:
        return Outcome.INVALID, f"{decoder.fault or reply.invalid}{_quoted(reply, decoder)}"
    if reply.choices > 1 and decoder.event_stream:
        return Outcome.INVALID, (
            f"the stream has {reply.choices} choices, whose tokens cannot be told apart in time: "
            "ask for one choice a request (n=1)"
        )
    if not reply.done:
        if error is None and _is_no_stream(exchange, decoder):
            return Outcome.INVALID, _no_stream(exchange, decoder.stray)
        why = "the stream ended without a finish reason or [DONE]" if error is None else str(error)
        if error is None and decoder.is_empty:
            why = f"the answer (HTTP {exchange.status}) has no body"
        return Outcome.TRUNCATED, why + _quoted(reply, decoder)
    if not reply.token_ends and reply.results is None:
        reason = (
            f": finish reason {reply.finish_reason!r}"
            if reply.end > AnswerEnd.LENGTH and reply.finish_reason
            else ""
        )
        return Outcome.EMPTY, f"the answer is complete, without a token{reason}{_quoted(reply, decoder)}"
    return Outcome.OK, None


def _is_no_stream(exchange: Exchange, decoder: BodyDecoder) -> bool:
    """Whether an answer that was read as a stream has nothing of one, and another content type."""
    kind = _content_type(exchange)
    if decoder.has_events or kind == "text/event-stream":
        return False
    return bool(kind or decoder.stray)


def _no_stream(exchange: Exchange, body: bytes) -> str:
    kind = header_text(exchange, b"content-type") or "without a type"
    quote = f": {_shortened(body[:_BODY_LIMIT])}" if body.strip() else ""
    return f"a stream was asked for, the answer (HTTP {exchange.status}) is {kind}{quote}"


def _quoted(reply: Reply, decoder: BodyDecoder) -> str:
    """What a stream had that was no event, or no part of an answer."""
    if stray := decoder.stray.strip():
        return f"; outside of any event it says {_shortened(stray)}"
    if decoder.begun and not decoder.has_events:
        return f"; no blank line ends its first event, {_shortened(decoder.begun)}"
    if reply.unread is not None:
        return f'; events have text in "{reply.unread}", which is not read'
    return f"; it sent {reply.beside}, which is no part of an answer" if reply.beside else ""


def _shortened(data: bytes) -> str:
    text = re.sub(r"\s+", " ", data.decode("utf-8", "replace")).strip()
    return repr(text if len(text) <= _QUOTE_LIMIT else text[: _QUOTE_LIMIT - 1] + "…")


def _content_type(exchange: Exchange) -> str:
    return header_text(exchange, b"content-type").partition(";")[0].strip().lower()


def _cut_short(reply: Reply, asked_tokens: int, counted: int | None) -> str | None:
    """That an answer says it is at its bound, and has fewer tokens; None where it may be true."""
    if reply.end is not AnswerEnd.LENGTH:
        return None
    most, slack = _most_tokens(reply, counted)
    if most is None or most + max(1, slack * asked_tokens) >= asked_tokens:
        return None
    return (
        f"finish reason {reply.finish_reason!r} after {most:,} of {asked_tokens:,} tokens: cut short, "
        "by the server or by the length of its context"
    )


def _most_tokens(reply: Reply, counted: int | None) -> tuple[int | None, float]:
    """The most tokens that an answer may have, or None, and the error of their count as a share."""
    events, usage, made = len(reply.token_ends), reply.usage, reply.count.tokens
    if made is not None:
        reasoning = (
            0 if usage is None or reply.count.fault is CountFault.REASONING else usage.reasoning_tokens
        )
        apart = reasoning and events > made - reasoning  # the server counts reasoning apart from the rest
        return max(events, made + (reasoning or 0) if apart else made), 0.0
    if reply.unread is not None or reply.count.fault is CountFault.REASONING:
        return None, 0.0  # there are tokens whose text nobody has read
    if counted is not None:
        return max(events, counted), _RETOKENISED
    texts = (reply.text, reply.reasoning, reply.refusal, *(call.arguments for call in reply.tool_calls))
    return max(events, sum(len(text.encode()) for text in texts)), 0.0  # a token has a byte


def doubt_of(reply: Reply, dialect: Dialect | None, asked: Asked) -> Doubt | None:
    """Why an answer whose outcome is ``ok`` may not be what was asked for; None without a reason.

    An answer of all tokens that were asked for needs no finish reason to be whole.
    """
    if dialect is None or not dialect.generates:
        return None
    if reply.end is AnswerEnd.FILTERED or (reply.refusal and not (reply.text or reply.tool_calls)):
        return Doubt.CONTENT_FILTER
    if reply.first_answer is None:
        return Doubt.NO_ANSWER
    if reply.end is AnswerEnd.MISSING:
        is_full = asked.tokens is not None and _least_tokens(reply, asked.counted) >= asked.tokens
        return None if is_full else Doubt.NO_FINISH_REASON
    return Doubt.UNKNOWN_FINISH_REASON if reply.end is AnswerEnd.UNKNOWN else None


def _least_tokens(reply: Reply, counted: int | None) -> int:
    return max(len(reply.token_ends), reply.count.tokens or counted or 0)


def retry_after_s(exchange: Exchange) -> float | None:
    """Seconds that a failed answer's ``Retry-After`` asks to wait, from a number or a date; else None."""
    value = exchange.headers.get(b"retry-after")
    if value is None or exchange.status is None or exchange.status < 300:
        return None
    if _SECONDS.fullmatch(value):
        return float(value)
    try:
        return max(
            0.0, parsedate_to_datetime(value[:_MAX_DATE_CHARS].decode("latin-1")).timestamp() - time.time()
        )
    except (ValueError, OverflowError):  # whatever a server writes
        return None


def error_text(text: str | None, secrets: Sequence[str]) -> str | None:
    """Error text fit for files and pages: one line, bounded, without secrets."""
    if text is None:
        return None
    text = CONTROL.sub("\ufffd", re.sub(r"\s+", " ", blanked(text, secrets)).strip())
    return text if len(text) <= _TEXT_LIMIT else text[: _TEXT_LIMIT - 1] + "…"


def redacted(reply: Reply, secrets: Sequence[str]) -> Reply:
    """The answer without secrets in its model and finish reason."""
    model = None if reply.model is None else blanked_name(reply.model, secrets)
    reason = None if reply.finish_reason is None else blanked_name(reply.finish_reason, secrets)
    if (model, reason) == (reply.model, reply.finish_reason):
        return reply
    return replace(reply, model=model, finish_reason=reason)
