"""One connection: reads requests, plays their scripts one after the other, and says what happened."""

import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import httptools

from scripted.http1 import Message, RequestReader
from scripted.lookup import script_of
from scripted.loop import Loop
from scripted.options import SlowRead
from scripted.script import SCRIPT_HEADER, Step
from scripted.transport import Transport
from scripted.truth import ClosedBy, ServedConnection, ServedRequest, Write

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
