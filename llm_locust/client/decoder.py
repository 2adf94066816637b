"""The body of one response into a reply, in slices."""

from llm_locust.client.exchange import Exchange
from llm_locust.wire.reply import Endpoint, Reply, read_body, reply_reader
from llm_locust.wire.sse import SseDecoder, SseError


class BodyDecoder:
    """Decodes an exchange's body as its slices come. With ``tapped`` their bytes are kept in ``tap``."""

    __slots__ = (
        "_body",
        "_exchange",
        "_reader",
        "_sse",
        "asked_stream",
        "endpoint",
        "fault",
        "tap",
        "tapped",
    )

    def __init__(self, exchange: Exchange, endpoint: Endpoint | None, *, streamed: bool) -> None:
        self.asked_stream = streamed
        self.fault: str | None = None  # why the body is not an event stream
        self.tapped = False
        self.tap: list[bytes] = []
        self._exchange = exchange
        self.endpoint = endpoint
        self._sse = SseDecoder()
        self._reader = reply_reader(endpoint or Endpoint.CHAT)
        self._body: list[bytes] = []
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
        if not self.event_stream:
            self._body.append(body)
        elif self.fault is None:
            try:
                self._reader.feed(self._sse.feed(body))
            except SseError as e:
                self._reader.feed(e.events)
                self.fault = str(e)

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
        return b"".join(self._body)

    def finish(self) -> Reply:
        """The reply out of all that came."""
        self._exchange.drain()
        if self.endpoint is None or self.event_stream or not self._body:
            return self._reader.finish()
        return read_body(self.endpoint, self.body())

    @property
    def answered(self) -> bool:
        """The events so far make a whole answer."""
        return self.event_stream and self._reader.done
