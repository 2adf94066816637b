"""The body of one response into a reply, in slices."""

from typing import cast

from llm_locust.client.http.exchange import MAX_ERROR_BYTES, Exchange
from llm_locust.core.record import MAX_ARRIVALS
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.payload import MAX_EVENT_BYTES, DocumentSize
from llm_locust.wire.reply import Reply, read_body, reply_reader
from llm_locust.wire.sse import SseDecoder, SseError


class BodyDecoder:
    """Decodes an exchange's body as its slices come. With ``tapped`` their bytes are kept in ``tap``."""

    __slots__ = (
        "_body",
        "_body_size",
        "_events",
        "_exchange",
        "_reader",
        "_sse",
        "asked_stream",
        "endpoint",
        "fault",
        "tap",
        "tapped",
    )

    def __init__(self, exchange: Exchange, endpoint: Dialect | None, *, streamed: bool) -> None:
        self.asked_stream = streamed
        self.fault: str | None = None  # why the body is not an event stream
        self.tapped = False
        self.tap: list[bytes] = []
        self._exchange = exchange
        self.endpoint = endpoint
        self._sse = SseDecoder(MAX_EVENT_BYTES, long_data=endpoint is not None and endpoint.long_events)
        self._reader = reply_reader(endpoint or CHAT)
        self._body = bytearray()
        self._body_size = DocumentSize()
        self._events = 0
        exchange.on_slice = self._on_slice

    @property
    def event_stream(self) -> bool:
        """The body is read as events: a stream was asked for, and the server does not say otherwise."""
        exchange = self._exchange
        return (
            self.asked_stream
            and self.endpoint is not None
            and exchange.status == 200
            and b"json" not in exchange.headers.get(b"content-type", b"").lower()
        )

    def _on_slice(self, body: bytes) -> None:
        if self.tapped:
            self.tap.append(body)
        if self.fault is not None:
            return
        if not self.event_stream:
            self._keep(body)
            return
        try:
            events = self._sse.feed(body)
        except SseError as e:
            events, self.fault = e.events, str(e)
        self._reader.feed(events[: MAX_ARRIVALS - self._events])
        self._events += len(events)
        if self._events > MAX_ARRIVALS:
            self.fault = f"the stream has more than {MAX_ARRIVALS:,} events"

    def _keep(self, body: bytes) -> None:
        """Keep the body's bytes; of an error, and of what is not decoded, those that a person is shown."""
        exchange = self._exchange
        if self.endpoint is None or exchange.status is None or exchange.status >= 300:
            self._body += body[: MAX_ERROR_BYTES - len(self._body)]
            return
        self._body += body
        self._body_size.add(body)
        if (what := self._body_size.excess) is not None:
            self.fault = f"the answer has {what}"
            self._body.clear()

    def last_event_ns(self) -> int | None:
        """When the program had the last event so far (monotonic), or the last read where none are sent.

        None before the first. Comments and other bytes that complete no event do not count: a proxy
        keeps a dead stream alive with them.
        """
        exchange = self._exchange
        if not self.event_stream:
            return exchange.last_read_ns
        exchange.drain()
        end = self._reader.last_event_end
        return exchange.event_ns(end) if end else None

    @property
    def has_token(self) -> bool:
        """A token event, of reasoning too, is among what was read; of an answer that is no stream, all."""
        self._exchange.drain()
        return self._exchange.complete or bool(self._reader.token_ends)

    def body(self) -> bytes:
        """All bytes of an answer that is not an event stream."""
        return bytes(self._body)

    def finish(self) -> Reply:
        """The reply out of all that came."""
        self._exchange.drain()
        if self.endpoint is None or self.event_stream or self.fault is not None or not self._body:
            return self._reader.finish()
        return read_body(
            self.endpoint, cast("bytes", self._body)
        )  # has all of bytes that is used; a copy takes 10 ms

    @property
    def answered(self) -> bool:
        """The events so far make a whole answer."""
        return self.event_stream and self._reader.done
