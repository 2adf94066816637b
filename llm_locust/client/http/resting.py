"""Connections that are not read packet by packet, because their packets are seen in a capture.

A read costs a system call and an acknowledgement. A connection at rest is read when the end of its response
was seen, or some packets are unread (see :mod:`~llm_locust.client.packets.stream`), or none came for
:data:`SILENCE_S`.

An unread packet may be acknowledged up to 40 ms late. That must not change what is measured: a server
without ``TCP_NODELAY`` would wait for it before its next small packet (Nagle, RFC 896). So a connection rests
only after proof: if ``n`` small packets came and this machine sent fewer than ``n - 1`` acknowledgements
meanwhile, one of them was sent while an earlier one was unacknowledged. There are three steps, of one or more
responses:

1. It is read packet by packet, as any other. Most servers send the last packets of an answer at once; if one
   was sent before the one before it was acknowledged, the server does not wait for that.
2. It is read so again, and only every second packet is acknowledged at once: Linux does that by itself where
   requests follow responses closely, until it has acknowledged one late. At least :data:`_UNACKED_SENT`
   packets must be sent before an earlier one was acknowledged, more than those of the answer's end. The
   server has then also measured round trips as long as the pauses between packets, and does not send its last
   packet again because an acknowledgement is late (tail loss probe, RFC 8985).
3. It rests, and each response of :data:`_ENOUGH_PACKETS` or more has to give the proof of step 2 again, and a
   shorter one that of step 1. If one does not, or the capture did not see its end, the connection never rests
   again. If packets came twice, it does not rest for the rest of the response and begins at step 2 again, but
   not if that is usual.
"""

import _socket
import sys
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from socket import IPPROTO_TCP, SOL_SOCKET, TCP_QUICKACK

import gevent

from llm_locust.client.http.clock import STEP_THRESHOLD_NS, ClockPair, monotonic_times
from llm_locust.client.http.tcp_info import TcpFacts, tcp_facts
from llm_locust.client.packets.capture import Capture, Tracked
from llm_locust.client.packets.looks import Looks
from llm_locust.client.packets.stream import Stream

#: A connection at rest of which no packet came for so long is read, and watched by the loop again.
SILENCE_S = 0.05

#: The kernel wakes the loop for a connection at rest if it has this many unread bytes, whatever the capture
#: has seen, and always at the end of the connection.
_WAKE_BYTES = 16 << 10

#: With ``SO_RCVLOWAT`` the kernel acknowledges at once when more than a full packet of the peer's is
#: unacknowledged (since Linux 4.18). That is in time if so many small packets are as many bytes.
_ACKED_PACKETS = 6

#: Of the proof in step 2: packets sent before an earlier one was acknowledged, small packets of the response,
#: and the longest round trip, because packets that are under way are unacknowledged too.
_UNACKED_SENT = 8
_FEWEST_PACKETS = 16
_ENOUGH_PACKETS = 4 * _UNACKED_SENT
_LONGEST_RTT_NS = 20_000_000

_MOST_STRIKES = 3
_SO_RCVLOWAT = 18

#: Steps of the proof that a connection has passed.
_NONE, _SENT_UNACKED, _PROVEN, _WITHDRAWN = range(4)


class Rests:
    """Connections of one capture that rest.

    Attributes:
        rested: number of responses that were read at rest.
        withdrawn: number of connections that rested once and never will again.
        closed: whether the capture is closed, or about to be: nothing rests any more.
    """

    def __init__(self, capture: Capture) -> None:
        self.rested = self.withdrawn = 0
        self.closed = False
        self._capture = capture
        self._asleep: dict[Stream, Rest] = {}
        self._looks = Looks(capture, self._look, self._sweep, SILENCE_S)
        self._dropped = 0

    def enter(self, stream: Stream, rest: "Rest", *, is_patient: bool) -> None:
        if not self._asleep:
            self._dropped = self._capture.dropped
        self._asleep[stream] = rest
        self._looks.begin(stream, is_patient=is_patient)

    def leave(self, stream: Stream) -> None:
        self._asleep.pop(stream, None)
        self._looks.end(stream)

    def close(self) -> None:
        """Let no connection rest any longer, before the capture is closed."""
        self.closed = True
        for rest in list(self._asleep.values()):
            rest.stop()

    def _look(self) -> None:
        """Read what is due."""
        self._capture.drain()
        for stream in self._capture.take_due():
            if (rest := self._asleep.get(stream)) is not None:
                self._try(rest.on_due)

    def _sweep(self) -> None:
        """Wake what is silent; all, if the ring was full: the end of any of them may have been missed."""
        before, self._dropped = self._dropped, self._capture.dropped
        now_ns, silence_ns = time.time_ns(), round(SILENCE_S * 1e9)
        for stream, rest in list(self._asleep.items()):
            # A packet from the future: the clock was set back.
            if abs(now_ns - stream.last_ns) > silence_ns or before != self._dropped:
                self._try(rest.on_silence if before == self._dropped else rest.on_loss)

    @staticmethod
    def _try(step: Callable[[], None]) -> None:
        """Take a step of one connection; its error is reported, and ends no other's turn."""
        try:
            step()
        except Exception:
            gevent.get_hub().handle_error(step, *sys.exc_info())


class Rest:
    """Whether and when one connection rests.

    Args:
        packets: packets of the connection.

    Attributes:
        is_ready: whether it may rest in the present exchange.
        asleep: whether it rests.
        read: function that reads what is unread, set by the connection.
    """

    __slots__ = (
        *("_begun", "_begun_small", "_payload", "_repeats", "_rests", "_silent_ns", "_slept", "_sock"),
        *("_step", "_stream", "_strikes", "asleep", "is_ready", "read"),
    )

    def __init__(self, rests: Rests, sock: _socket.socket, packets: Tracked) -> None:
        self._rests, self._sock, self._stream = rests, sock, packets.stream
        self._begun: TcpFacts | None = None
        self._silent_ns: int | None = None  # stamp of the last packet before a silence
        self._begun_small = 0, 0  # small packets before the response, and their payload
        self._payload = 0.0  # usual payload of a small packet
        self._repeats = self._strikes = 0
        self._step, self._slept = _NONE, False
        self.asleep = self.is_ready = False
        self.read: Callable[[], object] = lambda: None

    def begin(self, facts: TcpFacts | None) -> None:
        """Begin an exchange, with the facts of the connection just before its request."""
        self._begun, self._slept, self._silent_ns = facts, False, None
        self._begun_small, self._repeats = (
            (self._stream.small, self._stream.small_bytes),
            self._stream.repeats,
        )
        self.is_ready = self._step == _PROVEN and facts is not None
        self.delay_acks()

    def delay_acks(self) -> None:
        """Acknowledge every second packet only, if that is known to change nothing. Linux stops doing so when
        no second packet has come for 40 ms, such as between the headers and the first token."""
        if self._step in (_SENT_UNACKED, _PROVEN):
            self._sock.setsockopt(IPPROTO_TCP, TCP_QUICKACK, 0)

    def start(self, is_useful: bool = True) -> bool:
        """Rest from now on if that may be, is of use, and all captured packets are read; return whether it
        rests.

        The loop does not watch the socket for single packets then: when it was empty is not known.
        """
        if self.asleep:
            return True
        if not self.is_ready or not is_useful or self._rests.closed or self._stream.has_unread:
            self.delay_acks()
            return False
        self.asleep = self._slept = True
        self.is_ready = False
        self._sock.setsockopt(SOL_SOCKET, _SO_RCVLOWAT, _WAKE_BYTES)
        is_patient = self._is_acked()
        self._stream.due_ns, self._stream.resting = 0, True
        self._rests.enter(self._stream, self, is_patient=is_patient)
        return True

    def _is_acked(self) -> bool:
        """Whether the kernel acknowledges what is unread before the peer has to wait for that."""
        facts = tcp_facts(self._sock)
        return facts is not None and 0 < facts.full_bytes <= _ACKED_PACKETS * self._payload

    def stop(self) -> None:
        """Rest no longer: the loop watches it again."""
        if self.asleep:
            self.asleep = self._stream.resting = False
            self._rests.leave(self._stream)
            try:
                self._sock.setsockopt(SOL_SOCKET, _SO_RCVLOWAT, 1)
            except OSError:  # it is closed
                return

    def on_due(self) -> None:
        """Read, and rest again unless packets came twice or out of order, or are not in the socket yet."""
        self.read()
        if self.asleep:
            if self._stream.has_unread or self._stream.repeats != self._repeats:
                self.stop()
            else:
                self._stream.due_ns, self._stream.resting = 0, True

    def on_silence(self) -> None:
        """Read what has come, and rest no longer in this exchange."""
        self._silent_ns = self._stream.last_ns
        self.on_loss()

    def on_loss(self) -> None:
        """As in silence, but packets may have been lost to the capture."""
        self._stream.due_ns = self._stream.due_ns or self._stream.last_ns + round(SILENCE_S * 1e9)
        self.read()
        self.stop()

    def times(
        self, pieces: Sequence[tuple[int, int]], now_ns: int, floor_ns: int, sent: ClockPair
    ) -> list[int]:
        """Monotonic times of a read's packets: when a program that is as late as this one had read each.

        This one is late by the time since the read was due. Realtime may have been stepped since ``sent``.
        """
        due_ns, before_ns, after_ns = self._stream.due_ns, sent.offset_ns, time.time_ns() - now_ns
        late_ns = max(0, now_ns + before_ns - due_ns) if due_ns else 0
        times = [at_ns + late_ns - before_ns for _, at_ns in pieces]
        if abs(after_ns - before_ns) > STEP_THRESHOLD_NS:
            stamps = [due_ns, *(at_ns for _, at_ns in pieces)]
            due, *came = monotonic_times(stamps, (before_ns, after_ns), floor_ns, now_ns)
            late_ns = max(0, now_ns - due) if due_ns else 0
            times = list(accumulate((at + late_ns for at in came), max))
        if min(times) < floor_ns or max(times) > now_ns:
            return [min(now_ns, max(floor_ns, time_ns)) for time_ns in times]
        return times

    def end(self, complete: bool) -> None:
        """End the exchange: see whether its response proves that the connection may rest."""
        self.stop()
        self.is_ready = False
        begun, small = self._begun, self._stream.small - self._begun_small[0]
        self._begun = None
        if small:
            self._payload = (self._stream.small_bytes - self._begun_small[1]) / small
        if complete and self._silent_ns == self._stream.last_ns:  # its end rang no bell and was noticed late
            self._step, self._rests.withdrawn = _WITHDRAWN, self._rests.withdrawn + 1
        if begun is None or self._step == _WITHDRAWN or small < _FEWEST_PACKETS:
            return
        facts, came_twice = tcp_facts(self._sock), self._stream.repeats != self._repeats
        unacked = 0  # at least so many packets were sent before an earlier one was acknowledged
        if facts is not None and facts.rtt_ns <= _LONGEST_RTT_NS:
            unacked = small - 1 - (facts.acks - begun.acks)
        passed = _PROVEN if unacked >= _UNACKED_SENT else _SENT_UNACKED if unacked >= 1 else _NONE
        if passed == _SENT_UNACKED and small < _ENOUGH_PACKETS:  # it could not have shown more
            passed = max(passed, self._step)
        if self._slept:
            self._rests.rested += 1
            self._strikes = max(0, self._strikes + (1 if came_twice else -1))
            if self._strikes >= _MOST_STRIKES or (passed != _PROVEN and not came_twice):
                passed = _WITHDRAWN
                self._rests.withdrawn += 1
            elif came_twice:
                passed = min(passed, _SENT_UNACKED)
        self._step = passed
