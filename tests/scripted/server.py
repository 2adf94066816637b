"""The server's process: ``python -m scripted.server``, told by lines on its standard input.

The first line in is the :class:`Options`, the first line out the port; then one line of JSON for each
command. The end of the input ends the process, so that it never outlives the test that started it.
"""

import gc
import os
import select
import socket
import struct
import sys
import time

import msgspec

from scripted.connection import Connection, Loop, Plain, Tls
from scripted.script import Command, Log, Options, ServedConnection


class Server:
    """Accepts connections, keeps the log, answers commands."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._loop = Loop()
        self._context = options.tls.server_context(mutual=options.mutual) if options.tls else None
        self._refusals = options.refuse
        self._log = Log()
        self._connections: list[Connection] = []
        self._refused: list[socket.socket] = []
        self._waiting: Command | None = None
        self._wait_until_ns = 0
        self._input = b""
        self._running = True
        self._listener = _listen(options)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def run(self) -> None:
        """Serve until the standard input ends."""
        self._loop.watch(self._listener.fileno(), select.EPOLLIN, self._accept)
        self._loop.watch(sys.stdin.fileno(), select.EPOLLIN, self._commanded)
        while self._running:
            self._loop.run_once()
            self._answer_waiting()

    def _accept(self, _: int) -> None:
        sock, _address = self._listener.accept()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, self._options.nodelay)
        facts = ServedConnection(len(self._log.connections) + 1, time.time_ns())
        self._log.connections.append(facts)
        if self._refusals:
            self._refusals -= 1
            self._refuse(sock, facts)
            return
        transport = Tls(self._context) if self._context else Plain()
        self._connections = [c for c in self._connections if not c.closed]
        self._connections.append(
            Connection(
                self._loop,
                sock,
                transport,
                facts,
                self._log.requests.append,
                self._options.routes,
                self._options.slow_read,
            )
        )

    def _refuse(self, sock: socket.socket, facts: ServedConnection) -> None:
        if self._options.refuse_by == "stall":
            self._refused.append(sock)  # kept open, never read
            return
        if self._options.refuse_by == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        facts.closed_ns, facts.closed_by = time.time_ns(), "server"

    def _commanded(self, _: int) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        self._running = bool(data)
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            command = msgspec.json.decode(line, type=Command)
            if command.do == "forget":
                self._forget()
            self._waiting = command
            self._wait_until_ns = time.monotonic_ns() + int(command.timeout_s * 1e9)
            self._loop.call_at(self._wait_until_ns, self._answer_waiting)

    def _forget(self) -> None:
        for connection in self._connections:
            connection.close("server")
        self._log, self._connections = Log(), []
        gc.collect()  # closed connections are cycles, and nothing else collects them

    def _answer_waiting(self) -> None:
        if (command := self._waiting) is None:
            return
        enough = self._log.ended >= command.ended and self._log.closed >= command.closed
        if enough or time.monotonic_ns() >= self._wait_until_ns:
            self._waiting = None
            tell(msgspec.json.encode(self._log))


def _listen(options: Options) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if options.slow_read:  # before listen(), so that connections are born with it
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.slow_read.buffer_bytes)
    listener.bind((options.host, options.port))
    listener.listen(1024)
    return listener


def tell(line: bytes) -> None:
    """Write one line for the test that started this process."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Read the options, say the port, serve."""
    options = bytearray()
    while not options.endswith(b"\n"):  # no command follows before the port is said
        options += os.read(sys.stdin.fileno(), 65536)
    server = Server(msgspec.json.decode(options, type=Options))
    gc.disable()  # a collection would come between a step and its time
    tell(b"%d" % server.port)
    server.run()


if __name__ == "__main__":
    main()
