"""One TCP or TLS connection on gevent's loop, read by a watcher instead of by a greenlet.

The watcher's callback takes one read with its kernel stamp and hands it to the exchange; a
greenlet is switched to only when it has something to do (the response is complete, or the reader
asked for every piece). The watcher stays on while the connection is idle, so that a connection
that the peer has closed is found out before it is used again.
"""

import _socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from socket import IPPROTO_TCP, TCP_INFO
from typing import TYPE_CHECKING

import gevent
from gevent.hub import Waiter

from llm_locust.client.clock import ANCILLARY_BYTES, ClockPair, read_clocks
from llm_locust.client.errors import ClientError, ConnectionBrokenError, RequestTimeoutError
from llm_locust.client.exchange import Exchange

if TYPE_CHECKING:
    from gevent._types import _TimerWatcher as _Timer

_READ_SIZE = 65_536
_EV_READ, _EV_WRITE = 1, 2

# struct tcp_info: eight single bytes, then 32-bit fields; tcpi_rtt (µs, smoothed) is the 16th of them.
_TCP_INFO_RTT = slice(68, 72)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Bounds of one request, seconds: wait for the first byte, gap between events, the whole."""

    first_s: float = 60.0
    gap_s: float = 30.0
    total_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Tls:
    """A TLS session over memory buffers; the bytes themselves travel through the one socket."""

    session: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO


class Connection:
    """An open connection: one exchange at a time."""

    __slots__ = (
        "_exchange",
        "_failure",
        "_hub",
        "_last_event_ns",
        "_sock",
        "_timeouts",
        "_timer",
        "_tls",
        "_waiter",
        "_wake_on_read",
        "_watcher",
        "closed",
        "on_closed",
        "peer",
        "sent",
        "used",
    )

    def __init__(self, sock: _socket.socket, tls: Tls | None, peer: str) -> None:
        self.peer = peer
        self.used = False  # it has carried a request
        self.closed = False
        self.on_closed: Callable[[Connection], None] | None = None
        self._sock = sock
        self._tls = tls
        self._hub = gevent.get_hub()
        self._exchange: Exchange | None = None
        self._failure: ClientError | None = None
        self._waiter: Waiter[None] | None = None
        self._wake_on_read = False
        self.sent: ClockPair | None = None  # when the exchange began; kept until the next one
        self._timeouts = Timeouts()
        self._timer: _Timer | None = None
        self._last_event_ns: Callable[[], int | None] | None = None
        self._watcher = self._hub.loop.io(sock.fileno(), _EV_READ)
        self._watcher.start(self._on_readable)

    # -- one exchange ---------------------------------------------------------------------

    def send(
        self,
        request: bytes,
        exchange: Exchange,
        timeouts: Timeouts,
        last_event_ns: Callable[[], int | None] | None = None,
    ) -> None:
        """Start an exchange: stamp :attr:`sent` and hand the request's bytes to the socket.

        Args:
            last_event_ns: the monotonic time of the last event so far, asked only when the gap bound
                may have been passed; without it the last read counts.

        Raises:
            ClientError: the connection broke, or a bound was passed, before all was handed over.
        """
        if self._tls is not None:
            self._tls.session.write(request)
            request = self._tls.outgoing.read()
        self._exchange = exchange
        self._timeouts = timeouts
        self._last_event_ns = last_event_ns
        self.used = True
        self.sent = read_clocks()
        self._arm(min(timeouts.first_s, timeouts.total_s))
        try:
            done = self._sock.send(request)
        except BlockingIOError:
            done = 0
        except OSError as e:
            self._break(e.strerror or str(e))
            return
        if done < len(request):
            self._send_rest(request[done:])

    def wait_complete(self) -> None:
        """Wait until the response is whole.

        Raises:
            ClientError: it will not be.
        """
        exchange = self._exchange
        assert exchange is not None
        while not exchange.complete:
            self._wait()

    def wait_progress(self, enough: Callable[[], bool]) -> None:
        """Wait read by read until ``enough()`` or the response is whole; raises as wait_complete."""
        exchange = self._exchange
        assert exchange is not None
        self._wake_on_read = True
        try:
            while not exchange.complete and not enough():
                self._wait()
        finally:
            self._wake_on_read = False

    def finish(self) -> bool:
        """End the exchange. Gives whether the connection can carry another one; it is closed if not."""
        exchange, self._exchange = self._exchange, None
        self._disarm()
        if exchange is None or not exchange.complete or not exchange.reusable or exchange.overrun:
            self.close()
        return not self.closed

    @property
    def usable(self) -> bool:
        return not self.closed and self._exchange is None

    def rtt_ns(self) -> int | None:
        """The kernel's smoothed round-trip time of this connection, None where it does not tell."""
        try:
            info = self._sock.getsockopt(IPPROTO_TCP, TCP_INFO, _TCP_INFO_RTT.stop)
        except OSError:
            return None
        micros = int.from_bytes(info[_TCP_INFO_RTT], "little")
        return micros * 1000 or None

    def close(self) -> None:
        """Close the socket; a waiting exchange fails."""
        if self.closed:
            return
        self.closed = True
        self._disarm()
        self._watcher.stop()
        self._watcher.close()
        self._sock.close()
        if self.on_closed is not None:
            self.on_closed(self)

    # -- in the hub -----------------------------------------------------------------------

    def _on_readable(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(_READ_SIZE, ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError as e:
            self._break(e.strerror or str(e))
            return
        now = time.monotonic_ns()
        ended = not data
        if self._tls is not None:
            data, ended = self._decrypt(data)
        exchange = self._exchange
        if exchange is None or exchange.complete:
            if data or ended:  # the peer closed an idle connection, or spoke out of turn
                self.close()
            return
        try:
            if data:
                exchange.on_read(data, ancillary, now)
            if ended:
                exchange.on_eof()
        except ClientError as e:
            self._fail(e)
            return
        if exchange.complete or self._wake_on_read:
            self._wake()
        if ended and not exchange.complete:
            self._break("closed by the peer")

    def _on_timer(self) -> None:
        assert self.sent is not None
        exchange = self._exchange
        if exchange is None:
            return
        now = time.monotonic_ns()
        waited_s = (now - self.sent.monotonic_ns) * 1e-9
        limits = self._timeouts
        if waited_s >= limits.total_s:
            self._fail(RequestTimeoutError(f"not complete within {limits.total_s:g} s (total)"))
            return
        last = exchange.last_read_monotonic_ns
        if last is None:
            if waited_s >= limits.first_s:
                self._fail(RequestTimeoutError(f"no byte within {limits.first_s:g} s (first)"))
                return
            due_s = limits.first_s - waited_s
        else:
            if self._last_event_ns is not None:
                last = self._last_event_ns() or last
            silent_s = (now - last) * 1e-9
            if silent_s >= limits.gap_s:
                self._fail(RequestTimeoutError(f"no event for {limits.gap_s:g} s (gap)"))
                return
            due_s = limits.gap_s - silent_s
        self._arm(min(due_s, limits.total_s - waited_s))

    def _fail(self, error: ClientError) -> None:
        self._failure = error
        self._wake()
        self.close()

    def _break(self, reason: str) -> None:
        if self._exchange is None:
            self.close()
            return
        self._fail(ConnectionBrokenError(f"connection to {self.peer} broke: {reason}"))

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            # The greenlet runs from the loop, not from here: this callback ends first.
            self._hub.loop.run_callback(waiter.switch, None)

    # -- helpers --------------------------------------------------------------------------

    def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        waiter: Waiter[None] = Waiter(self._hub)
        self._waiter = waiter
        try:
            waiter.get()
        finally:
            self._waiter = None
        if self._failure is not None:
            raise self._failure

    def _send_rest(self, rest: bytes) -> None:
        """The socket's buffer is full: go on as the peer takes bytes, unless it has answered already."""
        exchange = self._exchange
        assert exchange is not None
        view = memoryview(rest)
        watcher = self._hub.loop.io(self._sock.fileno(), _EV_WRITE)
        watcher.start(self._wake)
        try:
            while view and not exchange.complete:
                self._wait()
                try:
                    view = view[self._sock.send(view) :]
                except BlockingIOError:
                    continue
                except OSError as e:
                    self._break(e.strerror or str(e))
        finally:
            watcher.stop()
            watcher.close()

    def _decrypt(self, data: bytes) -> tuple[bytes, bool]:
        """Plain bytes out of a read, and whether the peer has ended the stream."""
        assert self._tls is not None
        tls = self._tls
        if data:
            tls.incoming.write(data)
        else:
            tls.incoming.write_eof()
        parts: list[bytes] = []
        ended = not data
        try:
            while part := tls.session.read(_READ_SIZE):
                parts.append(part)
            ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # an end without close_notify, or a broken record: no more bytes can be trusted
            ended = True
        return b"".join(parts), ended

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = timer = self._hub.loop.timer(max(seconds, 0.001))
        timer.start(self._on_timer)

    def _disarm(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()
            timer.close()
