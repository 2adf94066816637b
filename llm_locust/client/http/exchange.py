"""One HTTP/1.1 request and its response: bytes and stamps in, parts of the response out.

There are no sockets and no waiting here: a connection passes every read to :meth:`Exchange.on_read`.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import httptools

from llm_locust.client.http.clock import NO_STAMP, ReadLog, pack_stamps, stamp_message
from llm_locust.client.http.errors import OversizeError, ResponseError, size_text
from llm_locust.client.http.polling import EXACT, FILLED

#: Bytes of a response after which they are folded and decoded, so that a long response holds neither memory
#: nor the event loop. The limits below are checked at the same time.
SLICE_BYTES = 16 << 10

#: Bytes of a body that are decoded at a time if there may be other work to do.
STEP_BYTES = 8 << 10

#: Most bytes of status lines and header fields, including interim responses; also the most consecutive bytes
#: of framing (chunk extensions, trailers) without body.
MAX_HEAD_BYTES = 256 << 10

#: Most header fields and trailers of one response, including its interim responses.
MAX_FIELDS = 1000

#: Most bytes of an error response (status 300 and above), including framing.
MAX_ERROR_BYTES = 64 << 10

#: Most bytes of any other response unless the caller sets another limit, including framing.
MAX_ANSWER_BYTES = 64 << 20

Stamp = list[tuple[int, int, bytes]]

_PARSER_ERRORS = (httptools.HttpParserError, httptools.HttpParserUpgrade)


class Exchange:
    """Receiving side of one request.

    ``on_slice`` is called with the body's bytes in order, each once: in slices while a long response arrives,
    and by :meth:`drain` for the rest. ``on_due``, if set, is called when a slice is due, instead of
    :meth:`drain`; it may process the slice in steps (:meth:`step`), and later.

    Args:
        max_answer_bytes: most bytes of a response that is not an error, including framing.
    """

    __slots__ = (
        *("_body_bytes", "_chunks", "_empty", "_fields", "_marks", "_max_answer_bytes", "_mono"),
        *("_most_bytes", "_parser", "_refusal", "_rest", "_slice_at", "_stamps", "_unbodied_from"),
        *("bytes_received", "complete", "completed_at", "framed", "headers", "headers_at", "on_body"),
        *("on_due", "on_slice", "overrun", "reads", "reusable", "status"),
    )

    def __init__(self, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        self.on_slice: Callable[[bytes], None] | None = None
        self.on_due: Callable[[], None] | None = None
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self.headers_at: int | None = None  # index of the read that completed the headers
        self.complete = False
        self.completed_at: int | None = None  # index of the read that completed the response, if one did
        self.reusable = False
        self.framed = False  # the body's end is given by its length or chunks, not by the connection's end
        self.overrun = False  # bytes followed the response's end
        self.bytes_received = 0
        self._chunks: list[bytes] = []
        self._marks: list[int] = []  # for each read of this slice, the number of body pieces after it
        self._stamps: list[bytes] = []  # of this slice
        self._mono: list[int] = []  # of this slice
        self._empty: list[int] = []  # of this slice
        self.reads = ReadLog()  # of the slices up to the last drain
        self._body_bytes = 0
        self._rest = b""  # slices that were folded, not decoded yet
        self._max_answer_bytes = max_answer_bytes
        self._most_bytes = MAX_HEAD_BYTES  # of bytes_received; raised once the head is known
        self._slice_at = SLICE_BYTES  # value of bytes_received at which the next slice is due
        self._unbodied_from = 0  # value of bytes_received when a slice last had a piece of the body
        self._fields = 0
        self._refusal: ResponseError | None = None  # why a callback has stopped the parser
        # The parser calls list.append itself, without a Python frame for a body piece.
        self.on_body = self._chunks.append
        self._parser: Any = httptools.HttpResponseParser(self)

    # -- called for every read ------------------------------------------------------------

    def on_read(self, data: bytes, ancillary: Stamp, monotonic_ns: int, empty_ns: int = 0) -> None:
        """Process one read: its bytes, its control messages, and when the program had it.

        Args:
            empty_ns: when the socket was last known to be empty, with the read's marks of
                :mod:`~llm_locust.client.http.polling`; 0 if unknown.

        Raises:
            ResponseError: the bytes are not HTTP, or exceed a limit.
        """
        self._stamps.append(ancillary[0][2] if ancillary else NO_STAMP)
        self._mono.append(monotonic_ns)
        self._empty.append(empty_ns)
        self.bytes_received += len(data)
        try:
            self._parser.feed_data(data)
        except _PARSER_ERRORS as e:
            self._judge(e)
        finally:
            self._marks.append(len(self._chunks))
        self._check_slice()

    def on_packets(
        self, data: bytes, pieces: Sequence[tuple[int, int]], monotonic_ns: Sequence[int], empty_ns: int
    ) -> int:
        """Process one read packet by packet, as if each had been read alone; return how many bytes of it the
        response has: fewer than all if it is complete before their end.

        Args:
            pieces: the end of each packet's part, and its stamp (realtime).
            monotonic_ns: when the program had each.
            empty_ns: as for :meth:`on_read`.

        Raises:
            ResponseError: as :meth:`on_read`.
        """
        if len(pieces) == 1:  # as it mostly is where a connection does not rest
            self.on_read(data, stamp_message(pieces[0][1]), monotonic_ns[0], empty_ns | EXACT)
            return len(data)
        feed, chunks, mark = self._parser.feed_data, self._chunks, self._marks.append
        first, begin, before = len(self._marks), 0, self.bytes_received
        self._mono += monotonic_ns
        try:
            for end, _ in pieces:
                self.bytes_received = before + end
                try:
                    feed(data[begin:end])
                finally:
                    mark(len(chunks))
                begin = end
                if self.complete:
                    break
        except _PARSER_ERRORS as e:
            self._judge(e)
        finally:
            count = len(self._marks) - first
            del self._mono[first + count :]
            self._stamps.append(pack_stamps([at_ns for _, at_ns in pieces[:count]]))
            # No piece but the last emptied the socket.
            self._empty += [empty_ns | EXACT | FILLED] * (count - 1) + [empty_ns | EXACT]
        self._check_slice()
        return begin

    def _judge(self, error: Exception) -> None:
        """Raise what an error of the parser means, unless the response is complete."""
        if isinstance(error, httptools.HttpParserUpgrade):
            raise ResponseError(f"HTTP {self.status}: the server changed the protocol unasked") from error
        if self._refusal is not None:
            raise self._refusal.without_frames() from None
        if not self.complete:
            raise ResponseError(f"not an HTTP/1.1 response: {error}") from error
        self.overrun = True

    def _check_slice(self) -> None:
        if self.bytes_received >= self._slice_at:
            self._check_bounds()
            if self.on_due is not None:
                self.on_due()
            else:
                self.drain()

    def on_eof(self) -> None:
        """Handle the end of the connection. It completes a response that only the end delimits."""
        self.reusable = False
        if self.headers_at is not None and not self.framed:
            self.complete = True

    def _check_bounds(self) -> None:
        if self._chunks:
            self._unbodied_from = self.bytes_received
        if self.bytes_received > self._most_bytes:
            if self.headers_at is None:
                raise OversizeError(f"the header section has more than {MAX_HEAD_BYTES >> 10} KiB")
            most = self._max_answer_bytes if self._succeeds else MAX_ERROR_BYTES
            raise OversizeError(f"the answer has more than {size_text(most)}")
        if self.bytes_received - self._unbodied_from > MAX_HEAD_BYTES:
            raise OversizeError(f"chunk extensions or trailers have more than {MAX_HEAD_BYTES >> 10} KiB")

    @property
    def in_chunks(self) -> bool:
        """Whether the body of a successful response has begun, and is to end with its last chunk."""
        return (
            (self._body_bytes > 0 or bool(self._chunks))
            and not self.complete
            and self._succeeds
            and self.framed
            and b"content-length" not in self.headers
        )

    @property
    def slice_due(self) -> bool:
        """Whether a slice waits to be drained."""
        return bool(self._rest) or self.bytes_received >= self._slice_at

    def drain(self) -> None:
        """Pass the body received since the last call to ``on_slice``."""
        self._fold()
        body, self._rest = self._rest, b""
        if self.on_slice is not None and body:
            self.on_slice(body)

    def step(self) -> bool:
        """Pass the next :data:`STEP_BYTES` of it on; return whether there is more."""
        if self._chunks or self._marks:
            self._fold()
        body, self._rest = self._rest[:STEP_BYTES], self._rest[STEP_BYTES:]
        if self.on_slice is not None and body:
            self.on_slice(body)
        return bool(self._rest)

    def _fold(self) -> None:
        """Store the times of the reads since the last call, and join their bytes."""
        self._slice_at = self.bytes_received + SLICE_BYTES
        ends = list(accumulate(map(len, self._chunks), initial=self._body_bytes))
        self.reads.add([ends[mark] for mark in self._marks], self._stamps, self._mono, self._empty)
        self._body_bytes = ends[-1]
        self._rest += b"".join(self._chunks)
        for taken in (self._chunks, self._marks, self._stamps, self._mono, self._empty):
            taken.clear()

    def release(self) -> None:
        """Release the parser after the last read: it and the exchange are a reference cycle."""
        self._parser = None
        self.on_slice = self.on_due = None

    # -- parser callbacks -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:
            raise ResponseError("a second response")  # stops the parser, so that no byte of it is used

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        if self._fields > MAX_FIELDS:
            self._refuse(OversizeError(f"the response has more than {MAX_FIELDS:,} header fields"))
        if self.status is None:  # otherwise a trailer
            key = name.lower()
            before = (
                self.headers.get(key) if key == b"set-cookie" else None
            )  # each stands in a line of its own
            self.headers[key] = value if before is None else b"%b\n%b" % (before, value)

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 and status != 101:  # an interim response; the real one follows
            self.headers.clear()
            return
        self.status = status
        self.headers_at = self.read_count
        self.framed = (
            b"content-length" in self.headers
            or b"chunked" in self.headers.get(b"transfer-encoding", b"").lower()
            or status in (204, 304)
        )
        most = self._max_answer_bytes if self._succeeds else MAX_ERROR_BYTES
        self._most_bytes = self.bytes_received + most
        encoding = self.headers.get(b"content-encoding", b"identity").decode("latin-1")
        if self._succeeds and encoding.strip().lower() not in ("identity", ""):
            self._refuse(ResponseError(f"the answer is {encoding}-encoded, which the request did not allow"))

    def on_message_complete(self) -> None:
        if self.status is not None and self.status != 101:
            self.complete = True
            self.completed_at = self.read_count
            self.reusable = self._parser.should_keep_alive()

    def _refuse(self, error: ResponseError) -> None:
        """Stop the parser; the read then raises ``error``."""
        self._refusal = error
        raise error.without_frames()

    @property
    def _succeeds(self) -> bool:
        return self.status is not None and self.status < 300

    # -- results of the reads --------------------------------------------------------------

    @property
    def pieces(self) -> int:
        """Number of body pieces that no slice has taken yet."""
        return len(self._chunks) + bool(self._rest)

    @property
    def read_count(self) -> int:  # for the parser's callbacks, those before the present one
        return len(self.reads) + len(self._marks)

    @property
    def last_read_ns(self) -> int | None:
        """When the program had the last read (monotonic); None before the first."""
        return self._mono[-1] if self._mono else self.reads.last_ns
