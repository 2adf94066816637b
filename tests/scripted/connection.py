"""One connection: its bytes, requests and scripts, played one after the other on a precise loop."""

import contextlib
import functools
import heapq
import itertools
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import httptools
import msgspec

from scripted.script import (
    SCRIPT_HEADER,
    ClosedBy,
    ServedConnection,
    ServedRequest,
    SlowRead,
    Step,
    Write,
    decode_script,
    json_response,
    write,
)

#: The kernel wakes a sleeper late by up to some tenths of a millisecond: the last stretch is spun.
SPIN_NS = 300_000


class Loop:
    """Calls back when a file is ready and when a time has come; a due timer goes before any file."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def rewatch(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        self._epoll.unregister(fd)
        del self._handlers[fd]

    def call_at(self, due_ns: int, callback: Callable[[], None]) -> None:
        """Call at this time of ``time.monotonic_ns``."""
        heapq.heappush(self._timers, (due_ns, next(self._order), callback))

    def run_once(self) -> None:
        """Wait for the next thing, and do it."""
        for fd, events in self._wait():
            self._run_due()
            if handler := self._handlers.get(fd):
                handler(events)
        self._run_due()

    def _wait(self) -> list[tuple[int, int]]:
        if not self._timers:
            return self._epoll.poll()
        if (wait_ns := self._timers[0][0] - time.monotonic_ns()) > SPIN_NS:
            # select() sleeps to the microsecond, epoll_wait() to the millisecond only.
            select.select([self._epoll], [], [], (wait_ns - SPIN_NS) * 1e-9)
        return self._epoll.poll(0)

    def _run_due(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic_ns():
            heapq.heappop(self._timers)[2]()


class Transport(Protocol):
    """Bytes in, bytes out; it never touches a socket."""

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """(what the peer says, what has to be sent back) for bytes off the wire."""

    def encode(self, data: bytes) -> bytes:
        """The wire's form of our bytes."""

    def farewell(self) -> bytes:
        """What goes on the wire before an orderly close."""

    def pending(self) -> bytes:
        """What the transport itself wants to send."""

    def peer_name(self) -> str | None:
        """The common name of the peer's certificate."""


class Plain:
    """The wire's bytes are HTTP's."""

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        return data, b""

    def encode(self, data: bytes) -> bytes:
        return data

    def farewell(self) -> bytes:
        return b""

    def pending(self) -> bytes:
        return b""

    def peer_name(self) -> str | None:
        return None


class Tls:
    """A server's side of TLS. ``receive`` raises ``ssl.SSLError`` where the peer breaks it, and
    ``pending`` then gives the alert for the wire."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._ready = False

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        self._incoming.write(data)
        said = bytearray()
        try:
            if not self._ready:
                self._tls.do_handshake()
                self._ready = True
            while part := self._tls.read(65536):
                said += part
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass  # the rest is not here yet; or close_notify, which a FIN follows
        return bytes(said), self.pending()

    def encode(self, data: bytes) -> bytes:
        self._tls.write(data)
        return self._outgoing.read()

    def farewell(self) -> bytes:
        with contextlib.suppress(ssl.SSLError, ValueError):  # the peer's own close_notify is not waited for
            self._tls.unwrap()
        return self._outgoing.read()

    def pending(self) -> bytes:
        return self._outgoing.read()

    def peer_name(self) -> str | None:
        certificate = self._tls.getpeercert() if self._ready else None
        return _common_name(certificate) if certificate else None


def _common_name(certificate: Mapping[str, Any]) -> str | None:
    pairs = (pair for part in certificate.get("subject", ()) for pair in part)
    return next((value for key, value in pairs if key == "commonName"), None)


@dataclass(slots=True)
class Message:
    """One request as it was sent."""

    method: str = ""
    path: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = True

    def header(self, name: str) -> str | None:
        """The first header of that name, whatever its case."""
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)


class RequestReader:
    """Feeds on the bytes of one connection, split anywhere."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._message = Message()
        self._complete: list[Message] = []

    def feed(self, data: bytes) -> list[Message]:
        """The requests that these bytes completed.

        Raises:
            httptools.HttpParserError: this is not HTTP/1.1.
        """
        self._parser.feed_data(data)
        complete, self._complete = self._complete, []
        return complete

    # httptools calls these by name.

    def on_message_begin(self) -> None:
        self._message = Message()

    def on_url(self, url: bytes) -> None:
        self._message.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._message.headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self._message.body += body

    def on_message_complete(self) -> None:
        self._message.method = self._parser.get_method().decode()
        self._message.keep_alive = self._parser.should_keep_alive()
        self._complete.append(self._message)


_cached_script = functools.lru_cache(maxsize=256)(decode_script)


def script_of(message: Message, routes: Mapping[str, list[Step]]) -> list[Step]:
    """The script of a request: from its header, its JSON body, or the routes (path, else ``*``)."""
    header = message.header(SCRIPT_HEADER)
    try:
        if header is not None:
            return _cached_script(header)
        if (inside := _script_in(bytes(message.body))) is not None:
            return inside
    except ValueError as e:
        return _complaint(f"the script of this request is not one: {e}")
    path = message.path.partition("?")[0]
    found = routes.get(path, routes.get("*"))
    if found is None:
        return _complaint(f"no script came with this request, and there is no route for {path}")
    return found


def _script_in(body: bytes) -> list[Step] | None:
    if b'"script"' not in body:
        return None
    content = msgspec.json.decode(body)
    if not isinstance(content, dict) or "script" not in content:
        return None
    return msgspec.convert(content["script"], list[Step])


def _complaint(text: str) -> list[Step]:
    return [write(0, json_response({"error": {"message": text, "type": "scripted_server"}}, 500))]


_READ_BYTES = 1 << 18
_LINGER_0 = struct.pack("ii", 1, 0)
_GONE = select.EPOLLHUP | select.EPOLLERR


@dataclass(slots=True)
class Exchange:
    """A request whose script is to be played; times of steps count from ``origin_ns`` (monotonic)."""

    served: ServedRequest
    script: list[Step]
    origin_ns: int
    keep_alive: bool
    step: int = 0
    due_ns: int = 0


class Connection:
    """Plays the scripts of one connection's requests. ``on_request`` sees each request when it is whole."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        transport: Transport,
        facts: ServedConnection,
        on_request: Callable[[ServedRequest], None],
        routes: Mapping[str, list[Step]],
        slow_read: SlowRead | None,
    ) -> None:
        self._loop, self._socket, self._transport, self.facts = loop, sock, transport, facts
        self._on_request, self._routes, self._slow_read = on_request, routes, slow_read
        self._reader = RequestReader()
        self._requests = 0
        self._queue: deque[Exchange] = deque()
        self._unsent = memoryview(b"")
        self._blocked = False  # the kernel's buffer was full: wait until the socket can be written
        self._writing: Write | None = None
        self._last: Literal["close", "reset"] | None = None  # what the next request meets
        self._reading = select.EPOLLIN
        loop.watch(sock.fileno(), self._reading, self._ready)

    @property
    def closed(self) -> bool:
        return self.facts.closed_ns is not None

    # Reading

    def _ready(self, events: int) -> None:
        if events & select.EPOLLOUT and not self.closed:
            self._flush()
            self._play()
        if self.closed:
            return
        if events & select.EPOLLIN and self._reading:
            self._read()
        elif events & _GONE:
            self.close("client")

    def _read(self) -> None:
        try:
            data = self._socket.recv(self._slow_read.read_bytes if self._slow_read else _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        realtime_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
        if not data:
            self.close("client")
            return
        if self._slow_read:
            self._pause_reading(self._slow_read.every_ms)
        try:
            said, reply = self._transport.receive(data)
            messages = self._reader.feed(said)
        except (ssl.SSLError, httptools.HttpParserError, httptools.HttpParserUpgrade) as e:
            self.facts.error = f"{type(e).__name__}: {e}"
            self._send(self._transport.pending())
            self.close("server")
            return
        self._send(reply)
        if self.closed:
            return
        for message in messages:
            self._queue.append(self._exchange(message, realtime_ns, monotonic_ns))
        self._play()

    def _pause_reading(self, pause_ms: float) -> None:
        self._reading = 0
        self._rewatch()
        self._loop.call_at(time.monotonic_ns() + int(pause_ms * 1e6), self._resume_reading)

    def _resume_reading(self) -> None:
        if not self.closed:
            self._reading = select.EPOLLIN
            self._rewatch()

    def _rewatch(self) -> None:
        events = self._reading | (select.EPOLLOUT if self._blocked else 0)
        self._loop.rewatch(self._socket.fileno(), events)

    def _exchange(self, message: Message, realtime_ns: int, monotonic_ns: int) -> Exchange:
        self._requests += 1
        self.facts.client_name = self._transport.peer_name()
        served = ServedRequest(
            connection=self.facts.id,
            number=self._requests,
            method=message.method,
            path=message.path,
            headers=[(k, v) for k, v in message.headers if k.lower() != SCRIPT_HEADER.lower()],
            body=bytes(message.body),
            received_ns=realtime_ns,
        )
        self._on_request(served)
        script = script_of(message, self._routes)
        return Exchange(served, script, monotonic_ns, message.keep_alive, due_ns=monotonic_ns)

    # Playing

    def _play(self) -> None:
        """Do what is due; with something left to do, be called again at its time or when the socket is."""
        while self._queue and not self._unsent and not self.closed:
            exchange = self._queue[0]
            if self._last and exchange.step == 0:
                self._hang_up(self._last, notify=True)
            elif exchange.step == len(exchange.script):
                self._end(exchange)
            else:
                step = exchange.script[exchange.step]
                if step.at_ms is not None:
                    exchange.due_ns = exchange.origin_ns + round(step.at_ms * 1e6)
                if step.stall:
                    return
                if exchange.due_ns > time.monotonic_ns():
                    self._loop.call_at(exchange.due_ns, self._play)
                    return
                self._perform(exchange, step)

    def _perform(self, exchange: Exchange, step: Step) -> None:
        exchange.step += 1
        if (data := step.data) is not None:
            wire = self._transport.encode(data) if data else b""
            self._writing = Write(exchange.step - 1, time.time_ns(), len(data))
            exchange.served.writes.append(self._writing)
            self._send(wire)
        elif step.close or step.reset:
            self._end_request(exchange.served, "script")
            self._hang_up("close" if step.close else "reset", notify=step.close_notify)
        else:
            self._last = "close" if step.close_next else "reset"

    def _end(self, exchange: Exchange) -> None:
        self._end_request(exchange.served, "script")
        self._queue.popleft()
        if not exchange.keep_alive:
            self._hang_up("close", notify=True)

    def _hang_up(self, how: Literal["close", "reset"], *, notify: bool) -> None:
        if how == "reset":
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
        elif notify:
            self._send(self._transport.farewell())
        self.close("server")

    @staticmethod
    def _end_request(served: ServedRequest, by: Literal["script"] | ClosedBy) -> None:
        if served.ended_ns is None:
            served.ended_ns, served.ended_by = time.time_ns(), by

    # Writing

    def _send(self, data: bytes) -> None:
        self._unsent = memoryview(bytes(self._unsent) + data)
        self._flush()

    def _flush(self) -> None:
        """Hand the kernel what it takes; the rest waits until the socket can be written again."""
        blocked = False
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            blocked = True
        except OSError:
            self.close("client")
            return
        if blocked != self._blocked:
            self._blocked = blocked
            self._rewatch()
        if self._writing and not blocked:
            self._writing.done_ns, self._writing = time.time_ns(), None

    def close(self, by: ClosedBy) -> None:
        """Close the socket and end every request that is still open on it."""
        if self.closed:
            return
        for exchange in self._queue:
            self._end_request(exchange.served, by)
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self.facts.closed_ns, self.facts.closed_by = time.time_ns(), by
