"""Offset of a worker's clock to the run's time, measured over Locust's channel."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from random import SystemRandom
from typing import NoReturn

from gevent.event import Event

from llm_locust.client.http.clock import ClockPair, read_clocks
from llm_locust.core.manifest import ClockFacts
from llm_locust.swarm.channel.messages import PingMessage, PongMessage
from llm_locust.swarm.clocks.run_clock import (
    LOOK_INTERVAL_S,
    OffsetEstimate,
    PingExchange,
    ReadClocks,
    StepDetector,
    best_of,
    update,
)

logger = logging.getLogger(__name__)

#: Exchanges of one round, in sequence.
ROUND_EXCHANGES = 8

#: Timeout of a pong.
PONG_TIMEOUT_NS = 2_000_000_000

#: Span of the first pings of a run's workers, so that hundreds of them do not block the master.
FIRST_WITHIN_NS = 500_000_000

#: Pauses between rounds: the second round soon checks the first, and a failed round is soon repeated.
SOON_NS = 5_000_000_000
LATER_NS = 30_000_000_000

_DRAW = SystemRandom().random


@dataclass(frozen=True, slots=True)
class _Ping:
    number: int
    sent: ClockPair


@dataclass(slots=True)
class _Round:
    """A round in progress."""

    pings_left: int = ROUND_EXCHANGES
    open: _Ping | None = None  # not answered yet
    exchanges: list[PingExchange] = field(default_factory=list)


class WorkerClock:
    """Measures this process's clock against the run's clock, and detects steps.

    A round of exchanges starts soon after the start of a run and at once after a step, the next one 5 s
    later, then one every 30 s. :func:`~llm_locust.swarm.clocks.run_clock.update` defines how a result is
    used.

    Args:
        send: sends a ping. It may raise; that exchange is lost.
        on_step: called when a step was detected, while ``offset_ns`` is still the one before the step, so
            that records from before the step can be sent with it. It must not block.
        read: the clocks of this process.
        draw: uniform in [0, 1). Not Python's own generator, which the run has seeded for its users.
    """

    def __init__(
        self,
        send: Callable[[PingMessage], None],
        on_step: Callable[[], None],
        *,
        read: ReadClocks = read_clocks,
        draw: Callable[[], float] = _DRAW,
    ) -> None:
        self._send = send
        self._on_step = on_step
        self._read = read
        self._draw = draw
        self._detector = StepDetector(read)
        self._wake = Event()
        self._number = 0  # of the last ping; never reset, so that a pong of an earlier run matches none
        self._round: _Round | None = None
        self._due_ns: int | None = None  # monotonic time of the next round
        self._settled = False  # a round has succeeded since the start or the last step
        self._estimate: OffsetEstimate | None = None
        self._updated_ns = 0  # monotonic
        self._bounds_ns: tuple[int, int] | None = None  # smallest and largest offset of this run
        self._doubt_ns = 0
        self._reset_counters()

    @property
    def offset_ns(self) -> int | None:
        """Offset to add to this process's realtime to get the run's time; None if not measured yet."""
        return None if self._estimate is None else self._estimate.offset_ns

    @property
    def error_ns(self) -> int | None:
        """Error bound of ``offset_ns``, as of the last round."""
        return None if self._estimate is None else self._estimate.error_ns

    def begin(self) -> None:
        """Start a new run: reset the counters and soon start a first round. The known offset is kept."""
        self._reset_counters()
        self._start_over(round(FIRST_WITHIN_NS * self._draw()))

    def facts(self) -> ClockFacts | None:
        """Clock facts of this run so far; None before the first result. Bounds cover all offsets used in it.

        The error is at least the difference to any round that was discarded, because that one may have been
        right.
        """
        if self._estimate is None or self._bounds_ns is None:
            return None
        least_ns, most_ns = self._bounds_ns
        return ClockFacts(
            offset_ns=self._estimate.offset_ns,
            error_ns=max(self._estimate.error_ns, self._doubt_ns),
            least_offset_ns=least_ns,
            most_offset_ns=most_ns,
            exchanges=self._exchanges,
            steps=self._steps,
            step_ns=self._step_ns,
        )

    def on_pong(self, pong: PongMessage) -> None:
        """Handle a pong. It must be called at once; an unexpected pong changes nothing."""
        heard = self._read()
        round_ = self._round
        if round_ is None or round_.open is None or round_.open.number != pong.number:
            return
        exchange = PingExchange(round_.open.sent, pong.received_ns, pong.answered_ns, heard)
        round_.open = None
        round_.exchanges.append(exchange)
        self._exchanges += exchange.usable
        self._wake.set()

    def look(self) -> int | None:
        """Read the clocks; return the step of the realtime clock since the last call, ns, or None.

        A step corrects the offset and voids the exchanges before it.
        """
        step_ns = self._detector.look()
        if step_ns is None:
            return None
        logger.warning(
            "this machine's clock was stepped by %+.6f s; no latency changes by it", step_ns * 1e-9
        )
        self._on_step()
        self._steps += 1
        self._step_ns += step_ns
        if self._estimate is not None:
            self._take(self._estimate.stepped(step_ns))
        if self._due_ns is not None:
            self._start_over(0)
        return step_ns

    def run(self) -> NoReturn:
        """Call :meth:`step` whenever something is due, forever."""
        while True:
            self._wake.wait(self.step())

    def step(self) -> float:
        """Read the clocks, then do the next thing that is due. Only one greenlet may call it at a time.

        Returns the seconds until the next call, if no pong arrives earlier.
        """
        self._wake.clear()
        self.look()
        now_ns = self._read().monotonic_ns
        if self._round is None and self._due_ns is not None and now_ns >= self._due_ns:
            self._round = _Round()
        round_ = self._round
        if round_ is not None and (round_.open is None or now_ns >= _time_out_ns(round_.open)):
            if round_.pings_left:
                self._ping(round_)
            else:
                self._end_round(round_)
        return self._rest_s()

    def _ping(self, round_: _Round) -> None:
        round_.pings_left -= 1
        self._number += 1
        round_.open = ping = _Ping(self._number, self._read())
        try:
            self._send(PingMessage(number=ping.number, sent_ns=ping.sent.realtime_ns))
        except Exception as e:  # Locust's channel raises its own and zmq's
            logger.debug("could not send ping %d: %s", ping.number, e)
            if round_.open is ping:
                round_.open = None

    def _end_round(self, round_: _Round) -> None:
        self._round = None
        now_ns = self._read().monotonic_ns
        new = best_of(round_.exchanges)
        known = update(self._estimate, new, now_ns - self._updated_ns)
        if new is not None and known is not None and known != new:
            self._doubt_ns = max(self._doubt_ns, abs(known.offset_ns - new.offset_ns))
        self._updated_ns = now_ns
        if known is not None:
            self._take(known)
        self._due_ns = now_ns + (LATER_NS if self._settled and new is not None else SOON_NS)
        self._settled = new is not None

    def _rest_s(self) -> float:
        """Time until the next ping, the pong's timeout, the next round or the next look."""
        round_, due_ns = self._round, self._due_ns
        if round_ is not None:
            due_ns = 0 if round_.open is None else _time_out_ns(round_.open)
        if due_ns is None:
            return LOOK_INTERVAL_S
        return min(LOOK_INTERVAL_S, max(0, due_ns - self._read().monotonic_ns) * 1e-9)

    def _start_over(self, after_ns: int) -> None:
        """Start a round after this time, and abandon one that is in progress."""
        self._round = None
        self._settled = False
        self._due_ns = self._read().monotonic_ns + after_ns
        self._wake.set()

    def _take(self, estimate: OffsetEstimate) -> None:
        self._estimate = estimate
        least_ns, most_ns = self._bounds_ns or (estimate.offset_ns, estimate.offset_ns)
        self._bounds_ns = min(least_ns, estimate.offset_ns), max(most_ns, estimate.offset_ns)

    def _reset_counters(self) -> None:
        self._exchanges = self._steps = self._step_ns = 0
        self._bounds_ns = None
        self._doubt_ns = 0  # largest difference of discarded rounds
        if self._estimate is not None:
            self._take(self._estimate)


def _time_out_ns(ping: _Ping) -> int:
    return ping.sent.monotonic_ns + PONG_TIMEOUT_NS
