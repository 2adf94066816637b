"""One TCP or TLS connection on gevent's loop, read by a watcher instead of a greenlet.

The watcher's callback does one read with its kernel stamp and passes it to the exchange. A greenlet is
switched to only when it has something to do (the response is complete, or the reader asked for every piece).
The watcher stays on while the connection is idle, so that a connection closed by the peer is detected before
it is used again.
"""

import _socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import gevent
from gevent.hub import Waiter

from llm_locust.client.http.clock import ANCILLARY_BYTES, ClockPair, read_clocks, stamp_message
from llm_locust.client.http.errors import ClientError, ConnectionBrokenError, ResponseError
from llm_locust.client.http.exchange import Exchange, Stamp
from llm_locust.client.http.polling import CUT, EXACT, FILLED, polls
from llm_locust.client.http.resting import Rest
from llm_locust.client.http.tcp_info import TcpFacts, tcp_facts, was_unprocessed
from llm_locust.client.http.timeouts import LATE_READS, OneTimer, Timeouts
from llm_locust.client.http.tls import Tls, tls_reason
from llm_locust.client.http.turns import TURN
from llm_locust.client.packets.capture import Tracked
from llm_locust.wire.headers import as_last

if TYPE_CHECKING:
    from gevent._types import _IoWatcher, _TimerWatcher

_READ_SIZE = 16_384
_EV_READ, _EV_WRITE = 1, 2

#: Longest wait for a server to close a connection.
PARTING_S = 0.5


class Connection:
    """An open connection: one exchange at a time."""

    __slots__ = (
        *("_alarm", "_before", "_exchange", "_failure", "_half_sent", "_handed", "_hub", "_last_event_ns"),
        *("_packets", "_pause", "_polls", "_readable", "_rest", "_sock", "_timeouts", "_tls", "_unwatched"),
        *("_waiter", "_waits_for_end", "_wake_on_read", "_writable", "carried", "closed", "limit"),
        *("local_port", "on_closed", "peer", "sent", "stale"),
    )

    def __init__(
        self,
        sock: _socket.socket,
        tls: Tls | None,
        peer: str,
        packets: Tracked | None = None,
        rest: Rest | None = None,
    ) -> None:
        self.peer = peer
        self.local_port = int(sock.getsockname()[1])
        self.carried = 0  # requests carried
        self.limit: int | None = None  # of requests, after which it is closed
        self.closed = False
        self.on_closed: Callable[[Connection], None] | None = None
        self.sent: ClockPair | None = None  # start of the last exchange
        self.stale = False  # it broke because the peer had closed it before the last exchange started
        self._handed = 0  # bytes of the last request that the socket accepted
        self._before: TcpFacts | None = None  # facts of the connection before it
        self._sock = sock
        self._tls = tls
        self._packets = packets
        self._rest = rest
        if rest is not None:
            rest.read = self._read_at_rest
        self._hub = gevent.get_hub()
        self._polls = polls()
        self._exchange: Exchange | None = None
        self._half_sent = False  # the response arrived before the whole request was handed over
        self._failure: ClientError | None = None
        self._waiter: Waiter[None] | None = None
        self._wake_on_read = self._waits_for_end = False
        self._timeouts = Timeouts()
        self._alarm = OneTimer()
        self._last_event_ns: Callable[[], int | None] | None = None
        self._writable: _IoWatcher | None = None
        self._pause: _TimerWatcher | None = None  # a slice waits for the next turn of the loop
        self._unwatched = False  # the next read has no poll before it that found the socket empty
        self._readable = self._hub.loop.io(sock.fileno(), _EV_READ)
        self._readable.start(self._on_readable)

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
        if self.carried > 1 or self._rest is not None:
            self._handed, self._before = 0, tcp_facts(self._sock)
            if self._rest is not None:
                self._rest.begin(self._before)
        self.sent = read_clocks()
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
        self._waits_for_end = True
        while not exchange.complete:
            self._wait()

    def wait_progress(self, enough: Callable[[], bool]) -> None:
        """Wait read by read until ``enough()`` or the response is complete; raises as wait_complete."""
        exchange = self._exchange
        assert exchange is not None
        self._wake_on_read, self._waits_for_end = True, False
        if self._rest is not None:
            self._rest.stop()
        try:
            while not exchange.complete and not enough():
                self._wait()
        finally:
            self._wake_on_read = False

    def finish(self) -> bool:
        """End the exchange; return whether the connection can carry another one. It is closed if not."""
        exchange, self._exchange, self._last_event_ns = self._exchange, None, None
        self._alarm.disarm()
        self._waits_for_end = False
        if self._rest is not None and not self.closed:
            self._rest.end(exchange is not None and exchange.complete)
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
        while not self.closed and self._on_readable():
            pass
        return not self.closed and self._exchange is None

    def rtt_ns(self) -> int | None:
        """The least round-trip time of this connection by the kernel; None if unavailable."""
        facts = tcp_facts(self._sock)
        return None if facts is None else facts.least_rtt_ns or None

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
        self._readable.stop()
        self._readable.close()
        if self._writable is not None:
            self._writable.stop()
        if self._rest is not None:
            self._rest.stop()
        self._sock.close()
        if self._packets is not None:
            self._packets.close()
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

    def _on_readable(self) -> bool:
        """Do one read; return whether there was one and the connection is still open."""
        try:
            data, ancillary, _, _ = self._sock.recvmsg(_READ_SIZE, ANCILLARY_BYTES)
        except BlockingIOError:
            return False
        except OSError as e:
            self._break(e.strerror or str(e))
            return False
        now, empty_ns = time.monotonic_ns(), 0 if self._unwatched else self._polls.empty_ns
        self._unwatched = self._rest is not None and self._rest.asleep
        if len(data) == _READ_SIZE:
            empty_ns |= FILLED
        pieces = None if self._packets is None or not data else self._packets.pieces(len(data))
        if pieces is None:
            return self._process(data, ancillary, now, empty_ns)
        if self._tls is None:
            return self._process(data, [], now, empty_ns, pieces)
        begin, is_open, marks = 0, True, empty_ns | EXACT
        for end, at_ns in pieces:
            part, known = data[begin:end], marks if end == len(data) else marks | FILLED
            is_open = is_open and self._process(part, stamp_message(at_ns), now, known)
            begin = end
        return is_open

    def _read_at_rest(self) -> None:
        """Read what the capture has seen."""
        assert self._packets is not None
        while self._pause is None and self._on_readable() and self._packets.stream.has_unread:
            pass

    def _process(
        self, data: bytes, stamp: Stamp, now: int, empty_ns: int, pieces: Sequence[tuple[int, int]] = ()
    ) -> bool:
        """Process a read, one packet's part of it, or all its ``pieces``; return whether the connection is
        still open."""
        exchange = self._exchange
        ended = not data
        try:
            if self._tls is not None:
                data, ended = self._tls.decrypt(data)
                if not self._tls.whole:
                    empty_ns |= CUT
            if exchange is None or exchange.complete:
                if data or ended:  # the peer closed an idle connection, or sent unrequested data
                    self.close()
                return not self.closed
            if pieces:
                self._process_packets(exchange, data, pieces, now, empty_ns)
            elif data:
                exchange.on_read(data, stamp, now, empty_ns)
            if ended:
                exchange.on_eof()
        except ssl.SSLError as e:
            self._break(tls_reason(e))
            return False
        except ClientError as e:
            self._fail(e)
            return False
        except Exception as e:  # a defect of this client must not leave the waiting greenlet to its timeout
            self._fail(ResponseError(f"this client failed on the response: {e!r}"))
            raise
        if exchange.complete or self._wake_on_read:
            self._wake()
        if ended and not exchange.complete:
            self._break("closed by the peer", by_end=True)
        return not ended and not self.closed

    def _process_packets(
        self, exchange: Exchange, data: bytes, pieces: Sequence[tuple[int, int]], now: int, empty_ns: int
    ) -> None:
        rest = self._rest
        if rest is not None and rest.asleep:
            assert self.sent is not None
            times = rest.times(pieces, now, exchange.last_read_ns or self.sent.monotonic_ns, self.sent)
        else:
            times = [now] * len(pieces)
        if exchange.on_packets(data, pieces, times, empty_ns) < len(data):
            self.close()  # unrequested data
        elif rest is not None and self._waits_for_end and not exchange.complete:
            self._unwatched |= rest.start(rest.is_ready and exchange.in_chunks and self._polls.are_grouped)

    def _decode_slice(self) -> None:
        """Decode what is due, unless this turn of the loop has decoded enough: then read no more in it."""
        if not self._decode() and self._pause is None and not self.closed:
            self._readable.stop()
            self._pause = timer = self._hub.loop.timer(0.0)
            timer.start(self._on_next_turn)

    def _decode(self) -> bool:
        """Decode as long as this turn of the loop has time for it; return whether all is decoded."""
        assert self._exchange is not None
        return TURN.take_steps(self._exchange.step)

    def _on_next_turn(self) -> None:
        self._end_pause()
        exchange = self._exchange
        if exchange is None or not exchange.slice_due:
            return
        try:
            self._decode_slice()
        except Exception as e:  # as in _on_readable
            self._fail(ResponseError(f"this client failed on the response: {e!r}"))
            raise

    def _end_pause(self) -> None:
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.close()
            self._unwatched = True
        if not self.closed:
            self._readable.start(self._on_readable)

    def _on_timer(self) -> None:
        exchange = self._exchange
        try:
            self._rearm(exchange)
        except ClientError:
            # After the event loop was held its timers run before its reads: what has come was no silence.
            self._end_pause()  # which this client made: all is decoded by now
            reads = LATE_READS
            while reads and self._pause is None and self._on_readable():
                reads -= 1
            try:
                self._rearm(exchange)
            except ClientError as e:
                self._fail(e)

    def _rearm(self, exchange: Exchange | None) -> None:
        """Set the timer to the next limit of an exchange that goes on; raises if one is exceeded."""
        if exchange is None or exchange is not self._exchange or exchange.complete or self.closed:
            return
        if self._last_event_ns is not None and not self._decode():
            self._alarm.arm(0.0, self._on_timer)
            return
        last_ns = exchange.last_read_ns if self._last_event_ns is None else self._last_event_ns()
        assert self.sent is not None
        left_s = self._timeouts.left_s(self.sent.monotonic_ns, last_ns, heard=exchange.read_count > 0)
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
        return was_unprocessed(self._sock, self._before, self._handed, waited_ns, by_end=by_end)

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
            while self._on_readable():
                pass
            if not self.closed and self._exchange is not None and not self._exchange.complete:
                self._break(e.strerror or str(e))
            return 0
