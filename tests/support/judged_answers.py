"""Whole answers judged without a network: bytes in, outcome and words out."""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from llm_locust.client.decoder import BodyDecoder
from llm_locust.client.http.errors import ClientError
from llm_locust.client.http.exchange import Exchange
from llm_locust.client.outcome import Asked, doubt_of, judge
from llm_locust.core.record import Doubt, Outcome
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.draft import Reply


@dataclass
class _Response:
    """What a decoder sees of an exchange."""

    status: int
    headers: dict[bytes, bytes]
    complete: bool = True
    read_count: int = 1
    last_read_ns: int = field(default_factory=time.monotonic_ns)
    on_slice: Any = None

    def drain(self) -> None:
        pass


@dataclass(frozen=True)
class Judged:
    outcome: Outcome
    why: str | None
    reply: Reply
    decoder: BodyDecoder
    doubt: Doubt | None


def judged(
    pieces: Iterable[bytes] | bytes,
    endpoint: Dialect = CHAT,
    *,
    error: ClientError | None = None,
    status: int = 200,
    content_type: str = "text/event-stream",
    coding: str = "",
    streamed: bool = True,
    asked_tokens: int | None = None,
    counted: int | None = None,
) -> Judged:
    """The end of a response whose body came in these pieces, and then ended well or with an error."""
    headers = {b"content-type": content_type.encode(), b"content-encoding": coding.encode()}
    response = _Response(status, {k: v for k, v in headers.items() if v}, complete=error is None)
    exchange = cast("Exchange", response)
    decoder = BodyDecoder(exchange, endpoint, streamed=streamed)
    for piece in (pieces,) if isinstance(pieces, bytes) else pieces:
        response.on_slice(piece)
    reply = decoder.finish()
    asked = Asked(None, asked_tokens, counted)
    outcome, why = judge(exchange, error, reply, decoder, cancelled=False, asked=asked)
    doubt = doubt_of(reply, endpoint, asked) if outcome is Outcome.OK else None
    return Judged(outcome, why, reply, decoder, doubt)


def cut_at(data: bytes, places: Iterable[int]) -> Iterator[bytes]:
    """The data in pieces that end at these places."""
    begin = 0
    for place in sorted({place % (len(data) + 1) for place in places}):
        yield data[begin:place]
        begin = place
    yield data[begin:]


def sse(payload: Any, event: str = "") -> bytes:
    """One event; a text stands for itself."""
    data = payload if isinstance(payload, str) else json.dumps(payload)
    return (f"event: {event}\n" if event else "").encode() + f"data: {data}\n\n".encode()
