"""One HTTP/1.1 request and its response: bytes and stamps in, parts of the response out.

There are no sockets and no waiting here: a connection passes all reads to :meth:`Exchange.on_reads`. The
head is parsed by httptools; where the body ends is a :class:`~llm_locust.client.http.reader.Framing`.
"""

import re
from collections.abc import Callable
from typing import Any

import httptools
import numpy as np

from llm_locust.client.http.clock import READ, ReadLog
from llm_locust.client.http.errors import OversizeError, ResponseError, size_text
from llm_locust.client.http.reader import BY_CHUNKS, BY_END, BY_LENGTH, TOO_MUCH_FRAMING, Framing, new_framing

#: Bytes of a body at which they are decoded though more is to come, so that a long response holds neither
#: memory nor the event loop.
SLICE_BYTES = 32 << 10

#: Bytes of a body that are decoded at a time if there may be other work to do.
STEP_BYTES = 8 << 10

#: Most bytes of status lines and header fields, including interim responses.
MAX_HEAD_BYTES = 256 << 10

#: Most header fields of one response, including its interim responses.
MAX_FIELDS = 1000

#: Most bytes of an error response (status 300 and above), including framing.
MAX_ERROR_BYTES = 64 << 10

#: Most bytes of any other response unless the caller sets another limit, including framing.
MAX_ANSWER_BYTES = 64 << 20

#: The end of a header section, whose lines all have a character or more.
_BLANK_LINE = re.compile(rb"\n\r?\n")
_BLANK_LINE_REST = 2

#: Fewer bytes are not the end of an event.
_BLANK_LINE_BYTES = 4

#: Values of ``Content-Encoding`` that name none; some servers write one of them to keep proxies from packing.
_NO_CODINGS = frozenset({"", "identity", "none", "utf-8", "utf8"})

#: Starts of what other protocols answer, and what to do.
_STRANGERS = (
    (re.compile(rb"[\x14-\x17]\x03[\x00-\x04]"), "the server speaks TLS: the URL must begin with https://"),
    (re.compile(rb"\x00\x00[\x00-\xff]\x04[\x00\x01]\x00{4}"), "the server speaks HTTP/2 only"),
    (re.compile(rb"(?!HTTP/)[\x00-\xff]"), "it begins with {!r}"),
)
_SHOWN_BYTES = 40

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
        *(
            "_decoded",
            "_fields",
            "_head_end",
            "_keeps_alive",
            "_max_answer_bytes",
            "_most_bytes",
            "_parser",
            "_refusal",
        ),
        *("_rest", "_rest_at", "bytes_received", "complete", "completed_at", "framed", "framing", "headers"),
        *("headers_at", "on_due", "on_slice", "overrun", "reads", "reusable", "status"),
    )

    def __init__(self, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        self.on_slice: Callable[[bytes], None] | None = None
        self.on_due: Callable[[], None] | None = None
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self.headers_at: int | None = None  # index of the read that completed the headers
        self.framing: Framing | None = None  # of the body, once the headers are complete
        self.complete = False
        self.completed_at: int | None = None  # index of the read that completed the response, if one did
        self.reusable = False
        self.framed = False  # the body's end is given by its length or chunks, not by the connection's end
        self.overrun = False  # bytes followed the response's end
        self.bytes_received = 0
        self.reads = ReadLog()
        self._rest = b""  # of the body; not decoded yet from here on:
        self._rest_at = 0
        self._decoded = 0  # bytes of it that were
        self._head_end = b""  # last bytes of the head so far
        self._max_answer_bytes = max_answer_bytes
        self._most_bytes = MAX_HEAD_BYTES  # of bytes_received; raised once the head is known
        self._fields = 0
        self._keeps_alive = False
        self._refusal: ResponseError | None = None  # why a callback has stopped the parser
        self._parser: Any = httptools.HttpResponseParser(self)

    # -- called for what was read ---------------------------------------------------------

    def on_reads(self, data: bytes, reads: bytes) -> None:
        """Process the bytes of one or more reads.

        Args:
            reads: of each, the number of bytes up to and with it and its times, packed
                (:data:`~llm_locust.client.http.clock.READ`).

        Raises:
            ResponseError: the bytes are not HTTP, or exceed a limit.
        """
        self.bytes_received += len(data)
        begin = 0
        if self.framing is None:
            begin = self._read_head(data, reads)
            if self.framing is None:
                self.reads.add(_without_body(reads))
                self._check_size()
                return
        first = len(self.reads)
        body, moved, used = self.framing.feed(data, begin, reads)
        self.reads.add(moved)
        if body:
            self._rest, self._rest_at = (self._rest[self._rest_at :] + body) if self._rest else body, 0
        if self.framing.done:
            self.complete, self.reusable, self.overrun = True, self._keeps_alive, used < len(data)
            self.completed_at = first + _read_of(reads, used)
            return
        if (error := self.framing.error) is not None:
            if error == TOO_MUCH_FRAMING:
                raise OversizeError(error)
            raise ResponseError(f"not an HTTP/1.1 response: {error}")
        self._check_size()
        if len(self._rest) - self._rest_at >= SLICE_BYTES:
            if self.on_due is not None:
                self.on_due()
            else:
                self.drain()

    def _read_head(self, data: bytes, reads: bytes) -> int:
        """Parse what belongs to the header section; return where the body begins, if it is complete."""
        known, begin, at = len(self._head_end), 0, 0
        joined = self._head_end + data
        try:
            while found := _BLANK_LINE.search(joined, at):
                at = found.end()
                self._parser.feed_data(data[begin : at - known])
                begin = at - known
                if self.status is not None:
                    self.headers_at = len(self.reads) + _read_of(reads, begin)
                    self._frame(self.bytes_received - len(data) + begin)
                    return begin
            self._parser.feed_data(data[begin:])
        except _PARSER_ERRORS as e:
            self._judge(e, data if len(data) == self.bytes_received else b"")
        self._head_end = joined[at:][-_BLANK_LINE_REST:]
        return 0

    def _frame(self, head_bytes: int) -> None:
        """Find out what ends the body."""
        status = self.status or 0
        chunked = b"chunked" in self.headers.get(b"transfer-encoding", b"").lower()
        length = self.headers.get(b"content-length")
        self.framed = length is not None or chunked or status in (204, 304)
        if status in (204, 304):
            self.framing = new_framing(BY_LENGTH, 0)
        elif chunked:
            self.framing = new_framing(BY_CHUNKS)
        else:
            self.framing = new_framing(BY_END) if length is None else new_framing(BY_LENGTH, int(length))
        self._most_bytes = head_bytes + (self._max_answer_bytes if self._succeeds else MAX_ERROR_BYTES)

    def _judge(self, error: Exception, start: bytes) -> None:
        """Raise what an error of the parser means, by the ``start`` of the response, if that is at hand."""
        if isinstance(error, httptools.HttpParserUpgrade):
            raise ResponseError(f"HTTP {self.status}: the server changed the protocol unasked") from error
        if self._refusal is not None:
            raise self._refusal.without_frames() from None
        if (what := next((said for begin, said in _STRANGERS if begin.match(start)), None)) is not None:
            raise ResponseError(f"not an HTTP/1.1 response: {what.format(start[:_SHOWN_BYTES])}") from error
        raise ResponseError(f"not an HTTP/1.1 response: {error}") from error

    def on_eof(self) -> None:
        """Handle the end of the connection. It completes a response that only the end delimits."""
        self.reusable = False
        if self.framing is not None and not self.framed:
            self.complete = True

    def _check_size(self) -> None:
        if self.bytes_received > self._most_bytes:
            if self.framing is None:
                raise OversizeError(f"the header section has more than {MAX_HEAD_BYTES >> 10} KiB")
            most = self._max_answer_bytes if self._succeeds else MAX_ERROR_BYTES
            raise OversizeError(f"the answer has more than {size_text(most)}")

    @property
    def has_body(self) -> bool:
        """Whether a part of the body waits to be drained."""
        return self._rest_at < len(self._rest)

    def drain(self) -> None:
        """Pass the body received since the last call to ``on_slice``."""
        body, self._rest, self._rest_at = self._rest[self._rest_at :], b"", 0
        self._decoded += len(body)
        if self.on_slice is not None and body:
            self.on_slice(body)

    def forget(self, *, beyond: int) -> None:
        """Drop what waits to be drained beyond so many bytes."""
        self._rest = self._rest[: self._rest_at + beyond]

    def step(self) -> bool:
        """Pass some of it on, :data:`STEP_BYTES` at most; return whether there may be more.

        An event of which more is to come, or that the step would cut in two, stays.
        """
        rest, begin = self._rest, self._rest_at
        most = min(len(rest), begin + STEP_BYTES)
        if self.complete and most == len(rest):
            self.drain()
            return False
        end = rest.rfind(b"\n\n", begin, most) + 2
        if end < begin + _BLANK_LINE_BYTES:
            end = rest.rfind(b"\n\r\n", begin, most) + 3
        if end < begin + _BLANK_LINE_BYTES:
            end = most
        self._rest_at = end
        self._decoded += end - begin
        if self.on_slice is not None and end > begin:
            self.on_slice(rest[begin:end])
        return begin < end < len(rest)

    @property
    def decoded_to_ns(self) -> int | None:
        """When the program had the last byte that is decoded (monotonic); None if none of the body is."""
        return self.reads.event_ns(self._decoded) if self._decoded else None

    def release(self) -> None:
        """Release the parser after the last read: it and the exchange are a reference cycle."""
        self._parser = None
        self.on_slice = self.on_due = None

    # -- parser callbacks -----------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        if self._fields > MAX_FIELDS:
            self._refuse(OversizeError(f"the response has more than {MAX_FIELDS:,} header fields"))
        key = name.lower()
        # Each cookie stands in a line of its own.
        before = self.headers.get(key) if key == b"set-cookie" else None
        self.headers[key] = value if before is None else b"%b\n%b" % (before, value)

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 and status != 101:  # an interim response; the real one follows
            self.headers.clear()
            return
        self.status = status
        self._keeps_alive = self._parser.should_keep_alive()
        encoding = self.headers.get(b"content-encoding", b"identity").decode("latin-1")
        if self._succeeds and encoding.strip().lower() not in _NO_CODINGS:
            self._refuse(ResponseError(f"the answer is {encoding}-encoded, which the request did not allow"))

    def _refuse(self, error: ResponseError) -> None:
        """Stop the parser; the read then raises ``error``."""
        self._refusal = error
        raise error.without_frames()

    @property
    def _succeeds(self) -> bool:
        return self.status is not None and self.status < 300

    # -- results of the reads --------------------------------------------------------------

    @property
    def read_count(self) -> int:
        return len(self.reads)

    @property
    def last_read_ns(self) -> int | None:
        """When the program had the last read (monotonic); None before the first."""
        return self.reads.last_ns


def _read_of(reads: bytes, end: int) -> int:
    """Index of the read that brought the byte before offset ``end``."""
    if READ.unpack_from(reads, len(reads) - READ.size)[0] == end:
        before = len(reads) - 2 * READ.size
        if before < 0 or READ.unpack_from(reads, before)[0] < end:
            return len(reads) // READ.size - 1
    return int(np.searchsorted(np.frombuffer(reads, dtype=np.int64)[::3], end))


def _without_body(reads: bytes) -> bytes:
    """Reads of which no byte is of the body."""
    columns = np.frombuffer(reads, dtype=np.int64).reshape(-1, 3).copy()
    columns[:, 0] = 0
    return columns.tobytes()
