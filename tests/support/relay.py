"""A network that fails when it is told to: a TCP relay on loopback, between workers and their master."""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

_LOOPBACK = "127.0.0.1"
_CHUNK = 1 << 16

#: Connections at once; one more is reset.
MOST_CONNECTIONS = 64

#: Chunks under way in one direction of a connection; their sender waits for room.
MOST_CHUNKS = 256

_PATIENCE_S = 120.0

#: Chunks of one direction and when each is due at the other end; b"" is the end.
_UnderWay = asyncio.Queue[tuple[float, bytes]]


class Relay:
    """Passes connections to :attr:`port` on to another port of this machine.

    It works in a thread of its own; :meth:`cut` and :meth:`mend` are called from any other and
    return when it is done.

    Args:
        target: the port that connections are passed on to.
        delays_s: how long what a connection carries is under way, in each direction. The n-th
            connection has the n-th delay, after the last one comes the first again.
        reorder: the first so many connections are passed on in the opposite order.
        longest_hold_s: a connection that waits for a later one to come is passed on after this time.
    """

    def __init__(
        self,
        target: int,
        delays_s: Sequence[float] = (0.0,),
        reorder: int = 0,
        longest_hold_s: float = 10.0,
    ) -> None:
        self.accepted = 0
        self._target = target
        self._delays_s = delays_s
        self._longest_hold_s = longest_hold_s
        self._passed_on = [asyncio.Event() for _ in range(reorder)]
        self._connections: set[asyncio.Task[None]] = set()
        self._acceptor: asyncio.Task[None] | None = None
        # Bound and never listening: keeps the port while connections are refused.
        self._place = _bound(0)
        self.port: int = self._place.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.mend()

    def mend(self) -> None:
        """Accept connections (again)."""
        self._call(self._open())

    def cut(self) -> None:
        """Reset every connection, and refuse new ones until :meth:`mend`."""
        self._call(self._close())

    def stop(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()
        self._place.close()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    async def _open(self) -> None:
        if self._acceptor is None:
            listener = _bound(self.port)
            listener.listen()
            self._acceptor = self._loop.create_task(self._accept(listener))

    async def _close(self) -> None:
        tasks = [*self._connections] if self._acceptor is None else [self._acceptor, *self._connections]
        self._acceptor = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                near, _ = await self._loop.sock_accept(listener)
                near.setblocking(False)
                if len(self._connections) >= MOST_CONNECTIONS:
                    _reset(near)
                    continue
                task = self._loop.create_task(self._serve(near, self.accepted))
                self.accepted += 1
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)

    async def _serve(self, near: socket.socket, number: int) -> None:
        """One connection's life. Whatever ends it but the ends of both directions is a reset."""
        far = socket.socket()
        far.setblocking(False)
        try:
            await self._turn(number)
            await self._loop.sock_connect(far, (_LOOPBACK, self._target))
            if number < len(self._passed_on):
                self._passed_on[number].set()
            delay_s = self._delays_s[number % len(self._delays_s)]
            async with asyncio.TaskGroup() as directions:
                for source, sink in ((near, far), (far, near)):
                    under_way = _UnderWay(MOST_CHUNKS)
                    directions.create_task(self._take(source, under_way, delay_s))
                    directions.create_task(self._give(under_way, sink))
            near.close()
            far.close()
        except* OSError:
            pass  # one side is gone; the other is told so
        finally:
            _reset(near)
            _reset(far)

    async def _turn(self, number: int) -> None:
        """Wait until the connection after this one was passed on, where the order is to be turned."""
        if number + 1 < len(self._passed_on):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._passed_on[number + 1].wait(), self._longest_hold_s)

    async def _take(self, source: socket.socket, under_way: _UnderWay, delay_s: float) -> None:
        chunk = b"-"
        while chunk:
            chunk = await self._loop.sock_recv(source, _CHUNK)
            await under_way.put((self._loop.time() + delay_s, chunk))

    async def _give(self, under_way: _UnderWay, sink: socket.socket) -> None:
        while True:
            due, chunk = await under_way.get()
            await asyncio.sleep(due - self._loop.time())
            if not chunk:
                sink.shutdown(socket.SHUT_WR)
                return
            await self._loop.sock_sendall(sink, chunk)


@contextmanager
def relay(
    target: int, delays_s: Sequence[float] = (0.0,), reorder: int = 0, longest_hold_s: float = 10.0
) -> Iterator[Relay]:
    """A :class:`Relay`, ended with the block."""
    between = Relay(target, delays_s, reorder, longest_hold_s)
    try:
        yield between
    finally:
        between.stop()


def _bound(port: int) -> socket.socket:
    place = socket.socket()
    place.setblocking(False)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    place.bind((_LOOPBACK, port))
    return place


def _reset(connection: socket.socket) -> None:
    """Close it with RST instead of FIN; one that is closed already stays so."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
