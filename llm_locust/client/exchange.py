"""One HTTP/1.1 request and its response: bytes and stamps in, the response's parts out.

No sockets and no waiting here: a connection hands every read over by :meth:`Exchange.on_read`.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import httptools
import numpy as np
from numpy.typing import NDArray

from llm_locust.client.clock import NO_STAMP, decode_stamps
from llm_locust.client.errors import ResponseError

#: A response whose body has come in more pieces than this is folded and decoded in slices,
#: so that neither memory nor the event loop is held by a long one.
SLICE_PIECES = 512

#: No answer of a language model comes near this; a body that does would fill the memory.
MAX_BODY_BYTES = 256 << 20

Stamp = list[tuple[int, int, bytes]]


class Exchange:
    """The receiving side of one request.

    ``on_slice`` is called with the body's bytes in order, each once: in slices while a long
    response comes, and by :meth:`drain` for what is left.
    """

    __slots__ = (
        "_body_bytes",
        "_chunks",
        "_folded_mono",
        "_folded_stamps",
        "_marks",
        "_mono",
        "_parser",
        "_read_ends",
        "_stamps",
        "bytes_received",
        "complete",
        "completed_at",
        "framed",
        "headers",
        "headers_at",
        "on_body",
        "on_slice",
        "overrun",
        "reusable",
        "status",
    )

    def __init__(self) -> None:
        self.on_slice: Callable[[bytes], None] | None = None
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self.headers_at: int | None = None  # the read that completed the headers
        self.complete = False
        self.completed_at: int | None = None  # the read that completed the response, if one did
        self.reusable = False
        self.framed = False  # the body's end is told by its length or chunks, not by the connection's end
        self.overrun = False  # bytes came after the response's end
        self.bytes_received = 0
        self._chunks: list[bytes] = []
        self._marks: list[int] = []  # for each read of this slice, the number of body pieces after it
        self._stamps: list[bytes] = []  # of this slice
        self._mono: list[int] = []  # of this slice
        self._folded_stamps = bytearray()
        self._folded_mono = array("q")
        self._read_ends = array("q")
        self._body_bytes = 0
        # The parser calls list.append itself: no Python frame for a body piece.
        self.on_body = self._chunks.append
        self._parser: Any = httptools.HttpResponseParser(self)

    # -- called for every read ------------------------------------------------------------

    def on_read(self, data: bytes, ancillary: Stamp, monotonic_ns: int) -> None:
        """Take one read: its bytes, its control messages, and when the program had it.

        Raises:
            ResponseError: the bytes are not HTTP, or are more than an answer can have.
        """
        self._stamps.append(ancillary[0][2] if ancillary else NO_STAMP)
        self._mono.append(monotonic_ns)
        self.bytes_received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as e:
            raise ResponseError(f"HTTP {self.status}: the server changed the protocol, unasked") from e
        except httptools.HttpParserError as e:
            if not self.complete:
                raise ResponseError(f"not an HTTP/1.1 response: {e}") from e
            self.overrun = True
        finally:
            self._marks.append(len(self._chunks))
        if len(self._chunks) > SLICE_PIECES and self.on_slice is not None:
            self.drain()
            if self._body_bytes > MAX_BODY_BYTES:
                raise ResponseError(f"the body is larger than {MAX_BODY_BYTES >> 20} MiB")

    def on_eof(self) -> None:
        """The peer ended the connection. Completes a response that only the end delimits."""
        self.reusable = False
        if self.headers_at is not None and not self.framed:
            self.complete = True

    def drain(self) -> None:
        """Hand the body that came since the last time to ``on_slice``."""
        ends = list(accumulate(map(len, self._chunks), initial=self._body_bytes))
        self._read_ends += array("q", [ends[mark] for mark in self._marks])
        self._body_bytes = ends[-1]
        self._folded_stamps += b"".join(self._stamps)
        self._folded_mono += array("q", self._mono)
        body = b"".join(self._chunks)
        self._chunks.clear()
        self._marks.clear()
        self._stamps.clear()
        self._mono.clear()
        if self.on_slice is not None and body:
            self.on_slice(body)

    def release(self) -> None:
        """No read follows. Parser and exchange hold each other: this saves the collector from finding out."""
        self._parser = None
        self.on_slice = None

    # -- parser callbacks -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:
            raise ResponseError("a second response")  # ends the parse, so that no byte of it is taken

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status is None:  # else a trailer
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 and status != 101:  # an interim response; the real one follows
            self.headers.clear()
            return
        self.status = status
        self.headers_at = self.read_count - 1
        self.framed = (
            b"content-length" in self.headers
            or b"chunked" in self.headers.get(b"transfer-encoding", b"").lower()
            or status in (204, 304)
        )

    def on_message_complete(self) -> None:
        if self.status is not None and self.status != 101:
            self.complete = True
            self.completed_at = self.read_count - 1
            self.reusable = self._parser.should_keep_alive()

    # -- what the reads tell --------------------------------------------------------------

    @property
    def pieces(self) -> int:
        """Body pieces that no slice has taken yet."""
        return len(self._chunks)

    @property
    def read_count(self) -> int:
        return len(self._folded_mono) + len(self._mono)

    @property
    def last_read_ns(self) -> int | None:
        """When the program had the last read (monotonic); None before the first."""
        return self._mono[-1] if self._mono else self._folded_mono[-1] if self._folded_mono else None

    # The following know the reads up to the last drain.

    def event_ns(self, end: int) -> int:
        """When the program had the body's byte before offset ``end``."""
        return self._folded_mono[bisect_left(self._read_ends, end)]

    def read_ends(self) -> NDArray[np.int64]:
        """For each read, how many bytes of the body were there after it; shape (reads,)."""
        return np.array(self._read_ends, dtype=np.int64)

    def kernel_ns(self) -> NDArray[np.int64]:
        """For each read, the kernel's receive time (realtime, 0 where it gave none)."""
        return decode_stamps(self._folded_stamps)

    def monotonic_ns(self) -> NDArray[np.int64]:
        """For each read, when the program had it."""
        return np.array(self._folded_mono, dtype=np.int64)
