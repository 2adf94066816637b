"""How a call ended, in the words of :class:`~llm_locust.record.Outcome`."""

import re
from collections.abc import Sequence

from llm_locust.client.decoder import BodyDecoder
from llm_locust.client.errors import (
    ClientError,
    ConnectError,
    ConnectionBrokenError,
    RequestTimeoutError,
    ResponseError,
)
from llm_locust.client.exchange import Exchange
from llm_locust.record import Outcome
from llm_locust.wire.reply import Reply

_TEXT_LIMIT = 300

Verdict = tuple[Outcome, str | None]


def judge(
    exchange: Exchange, error: ClientError | None, reply: Reply, decoder: BodyDecoder, *, cancelled: bool
) -> Verdict:
    """The outcome of a call and its reason in words (None for ``ok``)."""
    if isinstance(error, RequestTimeoutError):
        return Outcome.TIMEOUT, str(error)
    if isinstance(error, ConnectError) or (
        isinstance(error, ConnectionBrokenError) and not exchange.read_count
    ):
        return Outcome.CONNECT_ERROR, str(error)
    if isinstance(error, ResponseError):
        return Outcome.INVALID, str(error)
    if exchange.status is not None and exchange.status >= 300:
        return _judge_status(exchange, reply, decoder)
    if reply.error is not None:
        return Outcome.API_ERROR, reply.error
    if decoder.endpoint is None:
        return (Outcome.OK, None) if exchange.complete else (Outcome.TRUNCATED, str(error or "no whole body"))
    if cancelled and not reply.done:
        return Outcome.CANCELLED, "given up before its end"
    return _judge_body(exchange, error, reply, decoder)


def _judge_status(exchange: Exchange, reply: Reply, decoder: BodyDecoder) -> Verdict:
    status = exchange.status
    if status is not None and status < 400:
        location = exchange.headers.get(b"location", b"nowhere").decode("latin-1")
        return Outcome.INVALID, f"HTTP {status}: redirected to {location}, which is not followed"
    said = reply.error or decoder.body().decode("utf-8", "replace").strip()
    return Outcome.HTTP_ERROR, f"HTTP {status}: {said}" if said else f"HTTP {status}"


def _judge_body(exchange: Exchange, error: ClientError | None, reply: Reply, decoder: BodyDecoder) -> Verdict:
    encoding = exchange.headers.get(b"content-encoding", b"identity").decode("latin-1")
    if encoding.lower() != "identity":
        return Outcome.INVALID, f"the answer is {encoding}-encoded, which was refused"
    if decoder.fault is not None or reply.invalid is not None:
        return Outcome.INVALID, decoder.fault or reply.invalid
    if decoder.asked_stream and not decoder.event_stream:
        content_type = exchange.headers.get(b"content-type", b"").decode("latin-1")
        return Outcome.INVALID, f"a stream was asked for, the answer is {content_type}"
    if not reply.done:
        why = str(error) if error is not None else "the stream ended without a finish reason or [DONE]"
        return Outcome.TRUNCATED, why
    if not reply.token_ends:
        return Outcome.EMPTY, "the answer is complete, without a token"
    return Outcome.OK, None


def error_text(text: str | None, secrets: Sequence[str]) -> str | None:
    """An error text fit for files and pages: one line, bounded, without secrets."""
    if text is None:
        return None
    for secret in secrets:
        text = text.replace(secret, "***")
    text = re.sub(r"\s+", " ", text).strip()
    return text if len(text) <= _TEXT_LIMIT else text[: _TEXT_LIMIT - 1] + "…"
