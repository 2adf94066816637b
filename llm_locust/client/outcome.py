"""How a call ended, in the words of :class:`~llm_locust.record.Outcome`."""

import re
from collections.abc import Sequence

from llm_locust.client.decoder import BodyDecoder
from llm_locust.client.errors import (
    ClientError,
    ConnectError,
    ConnectionBrokenError,
    OversizeError,
    RequestTimeoutError,
    ResponseError,
)
from llm_locust.client.exchange import Exchange
from llm_locust.record import Outcome
from llm_locust.wire.names import CONTROL
from llm_locust.wire.reply import Reply

_TEXT_LIMIT = 300

#: No more of a body than this is looked at for an error text.
_BODY_LIMIT = 16_384

#: So much of a secret's start is as good as the secret: an excerpt may have cut off the rest.
_SECRET_START = 8

Verdict = tuple[Outcome, str | None]


def judge(
    exchange: Exchange, error: ClientError | None, reply: Reply, decoder: BodyDecoder, *, cancelled: bool
) -> Verdict:
    """The outcome of a call and its reason in words (None for ``ok``)."""
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
    said = reply.error or decoder.body()[:_BODY_LIMIT].decode("utf-8", "replace").strip()
    return Outcome.HTTP_ERROR, f"HTTP {status}: {said}" if said else f"HTTP {status}"


def _judge_body(exchange: Exchange, error: ClientError | None, reply: Reply, decoder: BodyDecoder) -> Verdict:
    if not decoder.event_stream:
        if not exchange.complete:
            return Outcome.TRUNCATED, str(error)
        if decoder.asked_stream:
            content_type = exchange.headers.get(b"content-type", b"without a type").decode("latin-1")
            return Outcome.INVALID, f"a stream was asked for, the answer is {content_type}"
        if not decoder.body():
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
    if not reply.token_ends:
        return Outcome.EMPTY, "the answer is complete, without a token"
    return Outcome.OK, None


def error_text(text: str | None, secrets: Sequence[str]) -> str | None:
    """An error text fit for files and pages: one line, bounded, without secrets."""
    if text is None:
        return None
    for secret in secrets:
        text = _blanked(text, secret)
    text = CONTROL.sub("\ufffd", re.sub(r"\s+", " ", text).strip())
    return text if len(text) <= _TEXT_LIMIT else text[: _TEXT_LIMIT - 1] + "…"


def _blanked(text: str, secret: str) -> str:
    """The text with asterisks for the secret, and for what an excerpt has left of it."""
    start, begin = secret[:_SECRET_START], 0
    while (at := text.find(start, begin)) >= 0:
        end = at + next(n for n in range(len(secret), 0, -1) if text.startswith(secret[:n], at))
        text, begin = f"{text[:at]}***{text[end:]}", at + 3
    return text
