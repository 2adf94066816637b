"""Classification of how a call ended, as :class:`~llm_locust.core.record.Outcome`."""

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime

from llm_locust.client.decoder import BodyDecoder
from llm_locust.client.http.errors import (
    ClientError,
    ConnectError,
    ConnectionBrokenError,
    OversizeError,
    RequestTimeoutError,
    ResponseError,
)
from llm_locust.client.http.exchange import Exchange
from llm_locust.core.record import Outcome
from llm_locust.wire.names import CONTROL
from llm_locust.wire.reply import Reply
from llm_locust.wire.results import AskedResults, mismatch
from llm_locust.wire.secrecy import blanked, blanked_name

_TEXT_LIMIT = 300

#: Bytes of a body that are searched for an error text.
_BODY_LIMIT = 16_384

_SECONDS = re.compile(rb"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_MAX_DATE_CHARS = 64

Verdict = tuple[Outcome, str | None]


def judge(
    exchange: Exchange,
    error: ClientError | None,
    reply: Reply,
    decoder: BodyDecoder,
    *,
    cancelled: bool,
    asked: AskedResults | None = None,
) -> Verdict:
    """Return the outcome of a call and its reason in words (None for ``ok``).

    Args:
        asked: what the answer must have, of an API that gives a result for each input.
    """
    broken = isinstance(error, ConnectionBrokenError)
    if isinstance(error, RequestTimeoutError):
        return Outcome.TIMEOUT, str(error)
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
    outcome, why = _judge_body(exchange, error, reply, decoder)
    if outcome is Outcome.OK and asked is not None and reply.results is not None:
        why = mismatch(asked, reply.results)
    return (outcome, why) if why is None or outcome is not Outcome.OK else (Outcome.INVALID, why)


def _judge_status(exchange: Exchange, status: int, reply: Reply, decoder: BodyDecoder) -> Verdict:
    if status < 400:
        location = exchange.headers.get(b"location", b"nowhere").decode("latin-1")
        return Outcome.INVALID, f"HTTP {status}: redirected to {location}, which is not followed"
    said = reply.error or decoder.body()[:_BODY_LIMIT].decode("utf-8", "replace").strip()
    return Outcome.HTTP_ERROR, f"HTTP {status}: {said}" if said else f"HTTP {status}"


def _judge_body(exchange: Exchange, error: ClientError | None, reply: Reply, decoder: BodyDecoder) -> Verdict:
    if not decoder.event_stream:
        if not exchange.complete:
            return Outcome.TRUNCATED, str(error)
        if decoder.asked_stream:
            content_type = exchange.headers.get(b"content-type", b"without a type").decode("latin-1")
            return Outcome.INVALID, f"a stream was asked for, the answer is {content_type}"
        if decoder.fault is None and not decoder.body():
            return Outcome.INVALID, "the answer has no body"
    if decoder.fault is not None or reply.invalid is not None:
        return Outcome.INVALID, decoder.fault or reply.invalid
    if reply.choices > 1 and decoder.event_stream:
        return Outcome.INVALID, (
            f"the stream has {reply.choices} choices, whose tokens cannot be told apart in time: "
            "ask for one choice a request (n=1)"
        )
    if not reply.done:
        why = "the stream ended without a finish reason or [DONE]"
        return Outcome.TRUNCATED, why if error is None else str(error)
    if not reply.token_ends and reply.results is None:
        return Outcome.EMPTY, "the answer is complete, without a token"
    return Outcome.OK, None


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


def hushed(reply: Reply, secrets: Sequence[str]) -> Reply:
    """The answer without secrets in its model and finish reason."""
    model = None if reply.model is None else blanked_name(reply.model, secrets)
    reason = None if reply.finish_reason is None else blanked_name(reply.finish_reason, secrets)
    if (model, reason) == (reply.model, reply.finish_reason):
        return reply
    return replace(reply, model=model, finish_reason=reason)
