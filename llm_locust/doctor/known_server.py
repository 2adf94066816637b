"""A server of known times, in a process of its own: it writes by a schedule, and logs when it wrote.

``python -m llm_locust.doctor.known_server FD GAP_NS TOKENS FILES`` answers every request at the listening
socket ``FD`` by a stream of ``TOKENS`` token events: the first :data:`TTFT_NS` after the request was read,
each further one ``GAP_NS`` after the one before was due, but not sooner than half of that after it was
written. It may need ``FILES`` open files. When its standard input
ends, it prints its log (msgpack) and ends. It ends without one after :data:`LIFETIME_S`, or after
:data:`MOST_WRITES` token events.
"""

import gc
import heapq
import os
import re
import selectors
import socket
import sys
import time
from itertools import count

import msgspec

from llm_locust.client.http.clock import ANCILLARY_BYTES, stamp_ns
from llm_locust.host import raise_file_limit

#: From the read of a request to its first token.
TTFT_NS = 50_000_000

LIFETIME_S = 30.0
MOST_WRITES = 2_000_000

_MOST_REQUEST_BYTES = 65_536
_STDIN = 0
_NAMED = re.compile(rb"\r\nx-request-id: *([!-~]{1,200})\r\n", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,6})\r\n", re.IGNORECASE)

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Logged(msgspec.Struct, kw_only=True):
    """What the server knows of one answer. All times are ``CLOCK_REALTIME`` in nanoseconds.

    Attributes:
        received_ns: the kernel's receive stamp of the request's last byte; None if it has none.
        before_ns, after_ns: just before and just after the write of each token event.
    """

    request_id: str
    received_ns: int | None
    before_ns: list[int] = []
    after_ns: list[int] = []


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_TOKEN = _chunk(b'data: {"choices":[{"index":0,"delta":{"content":"t"},"finish_reason":null}]}\n\n')
_END = (
    _chunk(b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
    + b"0\r\n\r\n"
)


class _Connection:
    """A connection: the bytes of the request that is not complete, and the answer under way."""

    __slots__ = ("answer", "received", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = b""
        self.answer: Logged | None = None

    def request(self) -> Logged | None:
        """Read; the answer to begin, if a request is complete (raises OSError if the connection is over)."""
        data, ancillary, _, _ = self.sock.recvmsg(_MOST_REQUEST_BYTES, ANCILLARY_BYTES)
        self.received += data
        if not data or self.answer is not None or len(self.received) > _MOST_REQUEST_BYTES:
            raise ConnectionError("closed, or not a request of this client's")
        head, end, body = self.received.partition(b"\r\n\r\n")
        if not end:
            return None
        named, length = _NAMED.search(head + b"\r\n"), _LENGTH.search(head + b"\r\n")
        if named is None or length is None:
            raise ConnectionError("not a request of this client's")
        if len(body) < int(length[1]):
            return None
        self.received = b""
        received_ns = stamp_ns(ancillary[0][2]) if ancillary else None
        self.answer = Logged(request_id=named[1].decode("ascii"), received_ns=received_ns)
        return self.answer


class _Server:
    """The loop of one thread over all connections."""

    def __init__(self, listener: socket.socket, gap_ns: int, tokens: int) -> None:
        self._listener, self._gap_ns, self._tokens = listener, gap_ns, tokens
        self._due: list[tuple[int, int, _Connection]] = []  # a heap by time, monotonic
        self._order = count()
        self._selector = selectors.DefaultSelector()
        self._selector.register(_STDIN, selectors.EVENT_READ)
        self._selector.register(listener, selectors.EVENT_READ)
        self._writes = 0
        self.log: list[Logged] = []

    def run(self) -> bool:
        """Serve until the standard input ends; return whether it did in time."""
        end_s = time.monotonic() + LIFETIME_S
        while time.monotonic() < end_s and self._writes < MOST_WRITES:
            wait_s = 0.5 if not self._due else (self._due[0][0] - time.monotonic_ns()) / 1e9
            for key, _ in self._selector.select(max(0.0, min(0.5, wait_s))):
                if key.fd == _STDIN:
                    if not os.read(_STDIN, 4096):
                        return True
                elif key.data is None:
                    self._accept()
                else:
                    self._read(key.data)
            self._write_due()
        return False

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(sock, selectors.EVENT_READ, _Connection(sock))

    def _read(self, connection: _Connection) -> None:
        try:
            answer = connection.request()
        except BlockingIOError:
            return
        except OSError:
            self._close(connection)
            return
        if answer is not None:
            self.log.append(answer)
            heapq.heappush(self._due, (time.monotonic_ns() + TTFT_NS, next(self._order), connection))

    def _write_due(self) -> None:
        """Write what is due, in the order in which it is."""
        while self._due and self._due[0][0] <= time.monotonic_ns():
            due_ns, _, connection = heapq.heappop(self._due)
            try:
                again = self._write(connection)
            except OSError:
                self._close(connection)
                continue
            if again:
                # What it could not write in time is not made up for in a burst.
                next_ns = max(due_ns + self._gap_ns, time.monotonic_ns() + self._gap_ns // 2)
                heapq.heappush(self._due, (next_ns, next(self._order), connection))

    def _write(self, connection: _Connection) -> bool:
        """Write the next event of an answer; return whether it has a further one."""
        answer = connection.answer
        if answer is None:  # the client has closed
            return False
        written = len(answer.before_ns)
        if written == self._tokens:
            connection.answer = None
            self._send(connection.sock, _END)
            return False
        data = _TOKEN if written else _HEAD + _TOKEN
        before_ns = time.time_ns()
        self._send(connection.sock, data)
        answer.after_ns.append(time.time_ns())
        answer.before_ns.append(before_ns)
        self._writes += 1
        return True

    @staticmethod
    def _send(sock: socket.socket, data: bytes) -> None:
        if sock.send(data) < len(data):
            raise ConnectionError("the client does not read")

    def _close(self, connection: _Connection) -> None:
        connection.answer = None
        self._selector.unregister(connection.sock)
        connection.sock.close()


def main() -> int:
    """Serve as the module says; return 1 without a log."""
    descriptor, gap_ns, tokens, files = map(int, sys.argv[1:])
    raise_file_limit(files)
    gc.disable()
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    server = _Server(listener, gap_ns, tokens)
    if not server.run():
        return 1
    sys.stdout.buffer.write(msgspec.msgpack.encode(server.log))
    return 0


if __name__ == "__main__":
    sys.exit(main())
