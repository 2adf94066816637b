"""One TCP or TLS connection on gevent's loop, read by a :class:`~llm_locust.client.http.reader.SocketReader`.

The reader calls when the response's first bytes are there, and when it is complete or 64 KiB wait: a whole
answer wakes Python twice, however many tokens it has. Over TLS it calls at each read, for only Python can
decrypt. A greenlet is switched to only when it has something to do (the
response is complete, or the greenlet asked for every piece). An idle connection is read too, so that one
that the peer closed is detected before it is used again.
"""

import _socket
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import gevent
from gevent.hub import Waiter

from llm_locust.client.http.clock import READ, ClockPair, read_clocks
from llm_locust.client.http.errors import (
    ClientError,
    ConnectionBrokenError,
    ResponseError,
)
from llm_locust.client.http.exchange import Exchange
from llm_locust.client.http.reader import Unread, hub_reader
from llm_locust.client.http.timers import DECODE_BUDGET, OneTimer, Timeouts
from llm_locust.client.http.tls import Tls, tls_reason
from llm_locust.wire.headers import as_last

if TYPE_CHECKING:
    from gevent._types import _IoWatcher, _TimerWatcher


# --- What the kernel knows of a TCP connection (``struct tcp_info``); None where it does not say


_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)

#: tcpi_rtt (µs, smoothed), tcpi_bytes_acked (Linux 4.1) and tcpi_min_rtt (µs, 4.6).
_FIELDS = struct.Struct("=68xI48xQ20xI")

#: The kernel's value of tcpi_min_rtt before its first sample.
_NO_RTT = 2**32 - 1


#: Longest time, or two round trips if longer, until a stale connection breaks after a request was sent.
STALE_WITHIN_S = 0.05


class TcpFacts(NamedTuple):
    """Smoothed and least round-trip time, 0 if unknown; bytes that the peer's kernel has acknowledged.

    The smoothed time has acknowledgements in it that the peer delayed, by up to 40 ms; the least, of some
    minutes, is that of the network."""

    rtt_ns: int
    least_rtt_ns: int
    bytes_acked: int


def tcp_facts(sock: _socket.socket) -> TcpFacts | None:
    """Facts of a connection."""
    if _TCP_INFO is None:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _FIELDS.size)
    except OSError:  # it is closed
        return None
    if len(info) != _FIELDS.size:
        return None
    rtt_us, bytes_acked, least_us = _FIELDS.unpack(info)
    return TcpFacts(rtt_us * 1000, 0 if least_us == _NO_RTT else least_us * 1000, bytes_acked)


def was_unprocessed(
    sock: _socket.socket, before: TcpFacts | None, handed: int, waited_ns: int, *, by_end: bool
) -> bool:
    """Whether a request was certainly not processed, on a connection that broke soon after it was sent.

    True if the socket accepted none of its bytes, or if the peer's FIN acknowledges none: a FIN acknowledges
    what the peer has received, so it was sent before the request arrived. A reset proves nothing: a peer that
    aborts after its work may not have acknowledged anything either.

    Args:
        before: facts of the connection before the request.
        handed: bytes of it that the socket accepted.
        waited_ns: time since it was sent.
        by_end: the connection broke by the peer's FIN.
    """
    now = tcp_facts(sock)
    rtt_ns = 0 if now is None else now.rtt_ns
    if waited_ns > max(STALE_WITHIN_S * 1e9, 2 * rtt_ns):
        return False
    if not handed:
        return True
    return by_end and now is not None and before is not None and now.bytes_acked == before.bytes_acked


_EV_WRITE = 2

#: An answer that is decoded when it is whole is looked at meanwhile, whether it is over and only its response
#: goes on: if nothing has come for so long, and else after so long.
_FLOWS_NS = 250_000_000
_LOOK_AGAIN_NS = 5_000_000_000

#: Longest wait for a server to close a connection.
PARTING_S = 0.5


class Connection:
    """An open connection: one exchange at a time."""

    __slots__ = (
        *("_alarm", "_exchange", "_facts", "_failure", "_half_sent", "_handed", "_hub", "_is_framed"),
        *("_event_ns", "_last_event_ns", "_looked_ns", "_pause", "_reader", "_slot", "_sock", "_timeouts"),
        *("_tls", "_waiter"),
        *(
            "_wake_on_read",
            "_writable",
            "carried",
            "closed",
            "limit",
            "local_port",
            "on_closed",
            "peer",
            "sent",
        ),
        "stale",
    )

    def __init__(self, sock: _socket.socket, tls: Tls | None, peer: str) -> None:
        self.peer = peer
        self.local_port = int(sock.getsockname()[1])
        self.carried = 0  # requests carried
        self.limit: int | None = None  # of requests, after which it is closed
        self.closed = False
        self.on_closed: Callable[[Connection], None] | None = None
        self.sent: ClockPair | None = None  # start of the last exchange
        self.stale = False  # it broke because the peer had closed it before the last exchange started
        self._handed = 0  # bytes of the last request that the socket accepted
        self._facts: TcpFacts | None = None  # at the end of the last exchange
        self._sock = sock
        self._tls = tls
        self._hub = gevent.get_hub()
        self._exchange: Exchange | None = None
        self._half_sent = False  # the response arrived before the whole request was handed over
        self._failure: ClientError | None = None
        self._waiter: Waiter[None] | None = None
        self._wake_on_read = False
        self._is_framed = False  # the reader knows where the response ends
        self._timeouts = Timeouts()
        self._alarm = OneTimer()
        self._last_event_ns: Callable[[], int | None] | None = None
        self._looked_ns = 0  # when all that had come was decoded (monotonic), or the request was sent
        self._event_ns: int | None = None  # the last event by then
        self._writable: _IoWatcher | None = None
        self._pause: _TimerWatcher | None = None  # a slice waits for the next turn of the loop
        self._reader = hub_reader()
        self._slot = self._reader.add(sock, self._on_ready)

    # -- one exchange ---------------------------------------------------------------------

    def send(
        self,
        request: bytes,
        exchange: Exchange,
        timeouts: Timeouts,
        last_event_ns: Callable[[], int | None] | None = None,
    ) -> None:
        """Start an exchange: stamp :attr:`sent` and hand the request's bytes to the socket.

        A response that is complete before all are handed over (an early refusal) ends the sending.

        Args:
            last_event_ns: returns the monotonic time of the last event so far, None before the first. It is
                called only when a time limit may be exceeded; without it the last read counts.

        Raises:
            ClientError: the connection broke, or a time limit was exceeded, before all was handed over.
        """
        self._exchange, self._timeouts, self._last_event_ns = exchange, timeouts, last_event_ns
        self.carried, self.sent = self.carried + 1, None
        exchange.on_due = self._decode_slice
        if self.carried == self.limit:
            request = as_last(request)
        try:
            wire = request if self._tls is None else self._tls.encrypt(request)
        except ssl.SSLError as e:
            self._break(tls_reason(e))
            return
        self._handed = 0
        self.sent = read_clocks()
        self._looked_ns, self._event_ns = self.sent.monotonic_ns, None
        self._alarm.arm(timeouts.slack_s(0.0, None, heard=False), self._on_timer)
        done = self._try_send(wire)
        if done < len(wire):
            self._send_rest(memoryview(wire)[done:])

    def wait_complete(self) -> None:
        """Wait until the response is complete.

        Raises:
            ClientError: it will never be.
        """
        exchange = self._exchange
        assert exchange is not None
        while not exchange.complete:
            self._wait()

    def wait_progress(self, enough: Callable[[], bool]) -> None:
        """Wait read by read until ``enough()`` or the response is complete; raises as wait_complete."""
        exchange = self._exchange
        assert exchange is not None
        self._wake_on_read = True
        self._expect_reads()
        try:
            while not exchange.complete and not enough():
                self._wait()
        finally:
            self._wake_on_read = False

    def finish(self) -> bool:
        """End the exchange; return whether the connection can carry another one. It is closed if not."""
        exchange, self._exchange, self._last_event_ns = self._exchange, None, None
        self._facts = tcp_facts(self._sock)
        self._is_framed = False  # behind a response that has ended, the reader calls at every read
        self._alarm.disarm()
        if exchange is not None:
            exchange.on_due = None
        self._end_pause()
        whole = exchange is not None and exchange.complete and not exchange.overrun and not self._half_sent
        if whole and self.carried == self.limit:
            self._part()
            return False
        if exchange is None or not whole or not exchange.reusable:
            self.close()
        return not self.closed

    def poll(self) -> bool:
        """Whether an idle connection can still be used; reads what the peer has sent meanwhile first."""
        if not self.closed:
            self._receive(self._reader.take(self._slot, drain=True))
        return not self.closed and self._exchange is None

    @property
    def failure(self) -> ClientError | None:
        """Why the exchange in progress failed; None if it did not."""
        return self._failure

    @property
    def last_read_ns(self) -> int | None:
        """When the last bytes of the exchange in progress were read, decoded or not (monotonic)."""
        exchange = self._exchange
        if exchange is None or self.closed:
            return None
        return self._reader.last_ns(self._slot) or exchange.last_read_ns

    @property
    def rtt_ns(self) -> int | None:
        """The least round-trip time by the kernel at the end of the last exchange; None if unavailable."""
        return None if self._facts is None else self._facts.least_rtt_ns or None

    def close(self) -> None:
        """Close the socket; an exchange in progress fails."""
        if self.closed:
            return
        self.closed = True
        if self._exchange is not None and not self._exchange.complete and self._failure is None:
            self._failure = ConnectionBrokenError(f"connection to {self.peer} was closed on this side")
            self._wake()
        self._alarm.disarm()
        if self._pause is not None:
            self._pause.close()
            self._pause = None
        if self._writable is not None:
            self._writable.stop()
        self._reader.drop(self._slot)
        self._sock.close()
        if self.on_closed is not None:
            self.on_closed(self)

    def _part(self) -> None:
        """Close once the peer has closed, which the request allowed; soon in any case.

        TIME_WAIT stays with the side that closes first. On this side each connection would hold a port for a
        minute: 500 requests per second, each on a new connection, would use them up.
        """
        if not self.closed:
            self._alarm.arm(PARTING_S, self.close)

    # -- in the hub -----------------------------------------------------------------------

    def _on_ready(self) -> None:
        if self._pause is None and not self.closed:  # otherwise it is taken once all is decoded
            self._receive(self._reader.take(self._slot))

    def _receive(self, taken: Unread) -> None:
        """Process what the reader had."""
        data, reads, over = taken
        exchange, failure = self._exchange, None
        try:
            if self._tls is not None:
                data, reads, ended, failure = _decrypted(self._tls, data, reads, over)
                over = over or ended
            if exchange is None or exchange.complete:
                if data or over:  # the peer closed an idle connection, or sent unrequested data
                    self.close()
                return
            if data:
                exchange.on_reads(data, reads)
                if self._tls is None and not (self._is_framed or self._wake_on_read) and exchange.framing:
                    self._is_framed = not exchange.complete
                    if self._is_framed:
                        self._reader.expect(self._slot, exchange.framing)
            if over > 0:
                exchange.on_eof()
            if failure is not None and not exchange.complete:
                raise failure
        except ssl.SSLError as e:
            self._break(tls_reason(e))
            return
        except ClientError as e:
            self._fail(e)
            return
        except Exception as e:  # a defect of this client must not leave the waiting greenlet to its timeout
            self._fail(ResponseError(f"this client failed on the response: {e!r}"))
            raise
        if exchange.complete or self._wake_on_read:
            self._wake()
        if over and not exchange.complete:
            self._break("closed by the peer" if over > 0 else os.strerror(-over), by_end=over > 0)

    def _expect_reads(self) -> None:
        """Be called at every read."""
        if self._is_framed and not self.closed:
            self._reader.expect(self._slot, None)
        self._is_framed = False

    def _decode_slice(self) -> None:
        """Decode what is due, unless this turn of the loop has decoded enough: then take no more in it."""
        if not self._decode() and self._pause is None and not self.closed:
            self._pause = timer = self._hub.loop.timer(0.0)
            timer.start(self._on_next_turn)

    def _decode(self) -> bool:
        """Decode as long as this turn of the loop has time for it; return whether all is decoded."""
        assert self._exchange is not None
        return DECODE_BUDGET.take_steps(self._exchange.step)

    def _on_next_turn(self) -> None:
        self._end_pause()
        exchange = self._exchange
        if exchange is None:
            return
        try:
            self._decode_slice()
        except Exception as e:  # as in _receive
            self._fail(ResponseError(f"this client failed on the response: {e!r}"))
            raise
        self._on_ready()  # what came meanwhile

    def _end_pause(self) -> None:
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.close()

    def _on_timer(self) -> None:
        """A limit may be exceeded. What the reader has by now was no silence, however late this is called."""
        exchange = self._exchange
        if exchange is None or exchange.complete or self.closed or self._flows(exchange):
            return
        self._receive(self._reader.take(self._slot, drain=True))
        if exchange is not self._exchange or exchange.complete or self.closed:
            return
        try:
            self._rearm(exchange)
        except ClientError as e:
            self._fail(e)

    def _flows(self, exchange: Exchange) -> bool:
        """Whether bytes still come, and no limit can be exceeded whatever they are.

        Then the answer needs no look, and this has set the timer to the next one.
        """
        last_ns = self._reader.last_ns(self._slot) or exchange.last_read_ns
        now_ns = time.monotonic_ns()
        if last_ns is None or now_ns - last_ns > _FLOWS_NS or now_ns - self._looked_ns > _LOOK_AGAIN_NS:
            return False
        assert self.sent is not None
        sent_ns, limits, event_ns = self.sent.monotonic_ns, self._timeouts, self._event_ns
        try:
            left_s = limits.left_s(sent_ns, event_ns or sent_ns, heard=True, now_ns=now_ns)
            if event_ns is None:
                left_s = min(left_s, limits.left_s(sent_ns, None, heard=True, now_ns=now_ns))
        except ClientError:  # what has come since may say otherwise
            return False
        self._alarm.arm(left_s, self._on_timer)
        return True

    def _rearm(self, exchange: Exchange) -> None:
        """Set the timer to the next limit of an exchange that goes on; raises if one is exceeded.

        Decoding that is behind delays no limit: the time of the whole needs none, and the silence between two
        events is that of the reads which are decoded.
        """
        assert self.sent is not None
        sent_ns, heard = self.sent.monotonic_ns, exchange.read_count > 0
        if self._last_event_ns is None:
            left_s = self._timeouts.left_s(sent_ns, exchange.last_read_ns, heard=heard)
        else:
            self._timeouts.check_total(sent_ns)
            decoded = self._decode()
            now_ns = None if decoded else exchange.decoded_to_ns
            self._event_ns = self._last_event_ns()
            left_s = self._timeouts.left_s(sent_ns, self._event_ns, heard=heard, now_ns=now_ns)
            if decoded:
                self._looked_ns = time.monotonic_ns()
            else:
                left_s = 0.0
        self._alarm.arm(left_s, self._on_timer)

    def _fail(self, error: ClientError) -> None:
        self._failure = error.without_frames()
        self._wake()
        self.close()

    def _break(self, reason: str, *, by_end: bool = False) -> None:
        """Mark the connection as broken: by the peer's end of it (FIN), or by an error."""
        if self._exchange is None:
            self.close()
            return
        self.stale = self._was_stale(by_end)
        self._fail(ConnectionBrokenError(f"connection to {self.peer} broke: {reason}"))

    def _was_stale(self, by_end: bool) -> bool:
        """Whether the last request was certainly not processed, and the connection broke soon."""
        if self.carried < 2 or self.sent is None:
            return False
        waited_ns = time.monotonic_ns() - self.sent.monotonic_ns
        return was_unprocessed(self._sock, self._facts, self._handed, waited_ns, by_end=by_end)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            # The greenlet runs from the loop, not from here, so that this callback ends first. A greenlet
            # killed meanwhile is no longer the waiter, and is not switched to.
            self._hub.loop.run_callback(waiter.switch, None)

    # -- helpers --------------------------------------------------------------------------

    def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure.without_frames()
        waiter: Waiter[None] = Waiter(self._hub)
        self._waiter = waiter
        try:
            waiter.get()
        finally:
            self._waiter = None
        if self._failure is not None:
            raise self._failure.without_frames()

    def _send_rest(self, rest: memoryview) -> None:
        """Send the rest as the peer accepts it; stop if it has answered already."""
        exchange = self._exchange
        assert exchange is not None
        if not self.closed:
            self._writable = watcher = self._hub.loop.io(self._sock.fileno(), _EV_WRITE)
            watcher.start(self._wake)
        try:
            while rest and not exchange.complete:
                self._wait()
                rest = rest[self._try_send(rest) :]
        finally:
            self._half_sent = bool(rest)
            if self._writable is not None:
                self._writable.close()
                self._writable = None

    def _try_send(self, data: bytes | memoryview) -> int:
        """Send; return the number of bytes accepted. Reads the answer of a peer that has hung up."""
        try:
            taken = self._sock.send(data)
            self._handed += taken
            return taken
        except BlockingIOError:
            return 0
        except OSError as e:
            self._receive(self._reader.take(self._slot, drain=True))
            if not self.closed and self._exchange is not None and not self._exchange.complete:
                self._break(e.strerror or str(e))
            return 0


def _decrypted(
    tls: Tls, data: bytes, reads: bytes, over: int
) -> tuple[bytes, bytes, int, ssl.SSLError | None]:
    """Plain bytes, their reads, whether the peer ended the stream, and what broke it after them.

    A plain byte is of the read that completed its record.
    """
    parts, ends, begin, plain_bytes, ended = list[bytes](), list[bytes](), 0, 0, False
    failure = None
    try:
        for end, kernel_ns, program_ns in READ.iter_unpack(reads):
            plain, ended = tls.decrypt(data[begin:end])
            parts.append(plain)
            plain_bytes += len(plain)
            ends.append(READ.pack(plain_bytes, kernel_ns, program_ns))
            begin = end
        if over > 0 and not ended:
            plain, ended = tls.decrypt(b"")
            parts.append(plain)
    except ssl.SSLError as e:
        failure = e
    return b"".join(parts), b"".join(ends), int(ended), failure
