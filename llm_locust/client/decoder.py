"""The body of one response into a reply, in slices; the body of an error into a text."""

import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, cast

from llm_locust.client.http.errors import AnswerOverError, OversizeError
from llm_locust.client.http.exchange import MAX_ERROR_BYTES, Exchange
from llm_locust.core.record import MAX_ARRIVALS
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import Dialect, ReplyReader, read_body
from llm_locust.wire.draft import Reply
from llm_locust.wire.ends import error_among
from llm_locust.wire.payload import MAX_EVENT_BYTES, DocumentSize
from llm_locust.wire.sse import SseDecoder, SseError, SseEvent

#: Most objects and lists of one document that is passed on to the SDK, and most values. The SDK makes Python
#: objects of all of them at once: 36 µs and 2 kB for each object.
_MAX_PASSED_OBJECTS = 20_000
_MAX_PASSED_VALUES = 4_000_000

#: Of an answer with so many events in a row that are not alike, the rest is decoded event by event.
_MOST_MISSES = 4

#: So few are decoded event by event at once: the end of an answer is like nothing before it.
_FEW_BYTES = 1024

#: First bytes of a comment, and of ``data``, ``event``, ``id`` and ``retry``, with which no JSON begins.
_EVENT_STARTS = frozenset(b":deir")

#: So long the end of a response is waited for after the last event of an answer that is over.
_OVER_NS = 250_000_000


def header_text(exchange: Exchange, name: bytes) -> str:
    """The value of a response's header of this lower-case name; empty without one."""
    return exchange.headers.get(name, b"").decode("latin-1").strip()


class BodyDecoder:
    """Decodes an exchange's body as its slices come.

    With ``tapped`` their bytes are kept in ``tap``, for the SDK. What is in ``fault`` is not passed on.
    """

    __slots__ = (
        "_begins_event",
        "_body",
        "_body_size",
        "_events",
        "_exchange",
        "_misses",
        "_passed_objects",
        "_passed_values",
        "_reader",
        "_sse",
        "_unpacked",
        "asked_stream",
        "begun",
        "endpoint",
        "fault",
        "tap",
        "tapped",
    )

    def __init__(self, exchange: Exchange, endpoint: Dialect | None, *, streamed: bool) -> None:
        self.asked_stream = streamed
        self.begun = b""  # the start of an event that had no end
        self.fault: str | None = None  # why the body is not an event stream
        self.tapped = False
        self.tap: list[bytes] = []
        self._exchange = exchange
        self.endpoint = endpoint
        self._sse = SseDecoder(MAX_EVENT_BYTES, long_data=endpoint is not None and endpoint.long_events)
        self._reader = ReplyReader(endpoint or CHAT)
        self._begins_event: bool | None = None
        self._body = bytearray()
        self._body_size = DocumentSize()
        self._events = 0
        self._misses = 0  # events in a row that were not like the last one
        self._unpacked: bytes | None = None
        self._passed_objects = self._passed_values = 0  # of the document that is not whole yet
        exchange.on_slice = self._on_slice

    @property
    def event_stream(self) -> bool:
        """The body is read as events: a stream was asked for, and neither the server says otherwise, nor the
        body's first byte where it says JSON."""
        exchange = self._exchange
        return (
            self.asked_stream
            and self.endpoint is not None
            and exchange.status is not None
            and exchange.status < 300
            and (self._begins_event or b"json" not in exchange.headers.get(b"content-type", b"").lower())
        )

    def _on_slice(self, body: bytes) -> None:
        if self.fault is not None:
            return
        if self._begins_event is None and body:
            self._begins_event = body[0] in _EVENT_STARTS
        if not self.event_stream:
            self._keep(body)
            self._pass_on(body, [body])
            return
        if self._reader.ended:  # whatever follows
            return
        at = 0 if self.tapped else self._read_alike(body)
        if at < len(body) and self.fault is None and not self._reader.ended:
            self._read_events(body[at:] if at else body)

    def _read_alike(self, body: bytes) -> int:
        """Read like events at once, and single ones between them; return how much of the slice that is."""
        sse, reader, at = self._sse, self._reader, 0
        while at < len(body) and self._misses < _MOST_MISSES:
            if (
                self.fault is not None
                or reader.decided_end is not None
                or (start := sse.between_events) is None
            ):
                break
            count, size = reader.read_alike(body, at, start, MAX_ARRIVALS - self._events)
            if count:
                sse.skip(size)
                self._events += count
                self._misses, at = 0, at + size
                continue
            self._misses += 1
            if len(body) - at < _FEW_BYTES or (end := body.find(b"\n\n", at) + 2) < 2:
                break
            self._read_events(body[at:end])
            at = end
        return at

    def _read_events(self, body: bytes) -> None:
        try:
            events = self._sse.feed(body)
        except SseError as e:
            events, self.fault = e.events, str(e)
        self._reader.feed(events[: MAX_ARRIVALS - self._events], self._sse.take_errors())
        self._events += len(events)
        if self._events > MAX_ARRIVALS:
            self.fault = f"the stream has more than {MAX_ARRIVALS:,} events"
        if self._reader.decided_end is not None:
            self.fault = None
        self._pass_on(body, [event.data for event in events if len(event.data) > _MAX_PASSED_OBJECTS])

    def _pass_on(self, body: bytes, documents: Sequence[bytes]) -> None:
        """Keep a slice for the SDK, unless one of these documents, or of these parts of one, has too much."""
        if not self.tapped:
            return
        for data in documents:
            if self.event_stream:
                self._passed_objects = 0
            self._passed_objects += data.count(b"{") + data.count(b"[")
            self._passed_values += data.count(b",")
            if self._passed_objects > _MAX_PASSED_OBJECTS:
                self.fault = f"more than {_MAX_PASSED_OBJECTS:,} JSON objects and lists in one document"
            elif self._passed_values > _MAX_PASSED_VALUES:
                self.fault = f"more than {_MAX_PASSED_VALUES:,} JSON values"
        if self.fault is None:
            self.tap.append(body)

    def take(self) -> bytes:
        """Return what was kept for the SDK, and keep it no longer.

        Raises:
            OversizeError: the rest is not passed on.
        """
        body = b"".join(self.tap)
        self.tap.clear()
        if not body and self.fault is not None:
            raise OversizeError(self.fault)
        return body

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

        Raises:
            AnswerOverError: nothing more is waited for.
        """
        exchange = self._exchange
        if not self.event_stream:
            return exchange.last_read_ns
        end = self._reader.last_event_end
        event_ns = exchange.reads.event_ns(end) if end else None
        if event_ns is not None and self.over and time.monotonic_ns() - event_ns > _OVER_NS:
            raise AnswerOverError("the answer is over")
        return event_ns

    @property
    def is_empty(self) -> bool:
        """No byte of a body has come."""
        return self._begins_event is None

    @property
    def has_events(self) -> bool:
        """An event of a stream is among what was read and decoded."""
        return self._reader.last_event_end > 0

    @property
    def has_token(self) -> bool:
        """A token event, of reasoning too, is among what was read; of an answer that is no stream, all."""
        self._exchange.drain()
        return self._exchange.complete or bool(self._reader.token_ends)

    def body(self) -> bytes:
        """All bytes of an answer that is not an event stream. Those of an error are unpacked."""
        exchange = self._exchange
        if exchange.status is None or exchange.status < 300:
            return bytes(self._body)
        if self._unpacked is None:
            self._unpacked = unpacked(bytes(self._body), header_text(exchange, b"content-encoding"))
        return self._unpacked

    def finish(self) -> Reply:
        """The reply out of all that came."""
        self._exchange.drain()
        if self.event_stream:
            self._read_stray()
        if self.endpoint is None or self.event_stream or self.fault is not None or not self._body:
            return self._reader.finish()
        if self._exchange.status is None or self._exchange.status < 300:
            return read_body(self.endpoint, cast("bytes", self._body))  # as bytes: a copy takes 10 ms
        return read_body(self.endpoint, self.body())

    def _read_stray(self) -> None:
        """Look for an error in what was no event."""
        reader, begun = self._reader, self._sse.finish()
        reader.feed((), self._sse.take_errors())
        self.begun = begun
        for text in (self.stray, begun if reader.decided_end is None else b""):
            if text and (error := error_among(text)) is not None:
                reader.feed((), [SseEvent(error.encode("utf-8", "replace"), 0, b"error")])

    @property
    def stray(self) -> bytes:
        """The start of what a stream had that was no event, before the answer was decided."""
        return self._sse.stray(self._reader.decided_end)

    @property
    def answered(self) -> bool:
        """The events so far make a whole answer."""
        return self.event_stream and self._reader.done

    @property
    def over(self) -> bool:
        """Nothing that may follow is waited for: the server has said that it is the end, or an error."""
        return self._reader.closed or self._reader.failed


# --- Error bodies made readable: unpacked where a server packed them unasked, named where they are no text


#: Most bytes that a body is unpacked to.
MAX_UNPACKED_BYTES = 64 << 10

#: Most content codings of one body.
_MAX_CODINGS = 3

_STARTS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_NAMES = {"x-gzip": "gzip", "br": "br", "zstd": "zstd", "gzip": "gzip", "deflate": "deflate"}

#: What zlib is told of a stream: with a header of gzip or zlib, or with none.
_ZLIB_BITS = (47, -15)

#: Bytes that are read at a time, so that what came before a defect is kept.
_STEP_BYTES = 512

#: Of a text at most one character in so many is none that a page may have.
_ODD_PER = 10


def unpacked(body: bytes, coding: str) -> bytes:
    """The start of a body without its content codings, which the label may name wrongly.

    A body that cannot be unpacked is returned as it is.

    Args:
        coding: the value of ``Content-Encoding``; empty without one.
    """
    labelled = [name.strip().lower() for name in coding.split(",")][-_MAX_CODINGS:]
    for label in reversed(labelled):
        begins = next((name for start, name in _STARTS.items() if body.startswith(start)), "")
        plain = b""
        for name in dict.fromkeys((begins, _NAMES.get(label, ""))):
            plain = plain or _without(body, name)
        body = plain or body
    return body


def readable(body: bytes, coding: str, content_type: str) -> str:
    """A body that was :func:`unpacked` as text; what is no text is named by its size, coding and type."""
    text = body.decode("utf-8", "replace").strip()
    odd = sum(not (char.isprintable() or char in "\r\n\t") or char == "\ufffd" for char in text)
    if odd * _ODD_PER <= len(text):
        return text
    packed = f"{coding}-encoded " if coding else ""
    return f"{len(body):,} {packed}bytes of {content_type or 'no type'} that are no text"


def _without(body: bytes, name: str) -> bytes:
    """The start of a body without one coding; nothing where it is not in it."""
    if name in ("gzip", "deflate"):
        for bits in _ZLIB_BITS:
            with suppress(zlib.error):
                return zlib.decompressobj(bits).decompress(body, MAX_UNPACKED_BYTES)
    elif name in ("br", "zstd"):
        return _read_stream(body, "brotli" if name == "br" else name)
    return b""


def _read_stream(body: bytes, codec: str) -> bytes:
    pa: Any = import_module("pyarrow")  # which takes long, and few need it
    parts: list[bytes] = []
    with suppress(OSError, ValueError, NotImplementedError):
        stream = pa.CompressedInputStream(pa.BufferReader(body), codec)
        while len(parts) * _STEP_BYTES < MAX_UNPACKED_BYTES and (part := stream.read(_STEP_BYTES)):
            parts.append(part)
    return b"".join(parts)
