"""The run's clock, and the offset of each worker's clock to it."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import SystemRandom
from typing import NoReturn

import gevent
from gevent.event import Event

from llm_locust.client.http.clock import STEP_THRESHOLD_NS, ClockPair, clock_step_ns, read_clocks
from llm_locust.core.manifest import ClockFacts
from llm_locust.swarm.channel.messages import PingMessage, PongMessage

# --------------------
# The run's clock, which no clock step moves, and the offset of another clock measured by pings.
#
# A ping and its pong have four times: sent (t0) and received (t3) on the worker's realtime clock, received
# (t1) and answered (t2) on the run's clock. If both ways take equally long,
#
#     offset     = ((t1 - t0) + (t2 - t3)) / 2
#     round trip = (t3 - t0) - (t2 - t1)
#     error      = round trip / 2
#
# However the round trip is split between the two ways, the true offset lies within offset ± error. So the
# exchange with the shortest round trip is used.
# --------------------


logger = logging.getLogger(__name__)

#: Interval at which a process checks its clock for a step.
LOOK_INTERVAL_S = 0.5

#: Assumed drift between two clocks, in parts per million. Quartz stays within it, and so does the kernel
#: under NTP unless it corrects a large difference.
DRIFT_PPM = 100

#: A round whose error exceeds the known one's by more than this factor was measured on a busy channel.
BUSY_FACTOR = 4

ReadClocks = Callable[[], ClockPair]


class StepDetector:
    """Detector of steps of the realtime clock against the monotonic clock between two readings.

    NTP slewing moves both clocks alike and is not a step. ``last`` is the last reading.
    """

    __slots__ = ("_read", "last")

    def __init__(self, read: ReadClocks) -> None:
        self._read = read
        self.last = read()

    def look(self) -> int | None:
        """Return the step of the realtime clock since the last call, ns; None if there was none."""
        before, self.last = self.last, self._read()
        return clock_step_ns(before, self.last)


class RunClock:
    """The run's clock, in the process that owns the run directory.

    It starts at this process's realtime and is carried on by ``CLOCK_MONOTONIC``, so that changes to the
    machine's clock do not move it.

    Attributes:
        offset_ns: to add to this process's realtime to get the run's time, as of the last look; 0 until the
            difference exceeds the error of two readings of the clocks.
        error_ns: error bound of ``offset_ns``: a smaller difference counts as none.
        steps: number of realtime steps in this run.

    Args:
        on_step: called when a step was detected, while ``offset_ns`` is still the one before the step; it
            must not block.
        read, monotonic_ns: the clocks.
    """

    error_ns = STEP_THRESHOLD_NS

    def __init__(
        self,
        on_step: Callable[[], None] = lambda: None,
        *,
        read: ReadClocks = read_clocks,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._on_step = on_step
        self._monotonic_ns = monotonic_ns
        self._detector = StepDetector(read)
        self._ahead_ns = self._detector.last.offset_ns  # of the monotonic clock
        self.offset_ns = 0
        self._is_stepping = False
        self.begin()

    def begin(self) -> None:
        """Start a new run: reset the count of steps. The clock goes on."""
        self.steps = self._step_ns = 0
        self._least_ns = self._most_ns = self.offset_ns

    def now_ns(self) -> int:
        """The run's time, nanoseconds since the epoch; differences are those of the monotonic clock."""
        return self._ahead_ns + self._monotonic_ns()

    def look(self) -> int | None:
        """Read the clocks; return the step of the realtime clock since the last call, ns, or None.

        ``on_step`` may look, too: until it returns the offset is the one before the step.
        """
        if self._is_stepping:
            return None
        step_ns = self._detector.look()
        if step_ns is not None:
            logger.warning(
                "this machine's clock was stepped by %+.6f s; the run's time goes on without the step",
                step_ns * 1e-9,
            )
            self._is_stepping = True
            try:
                self._on_step()
            finally:
                self._is_stepping = False
            self.steps += 1
            self._step_ns += step_ns
        apart_ns = self._ahead_ns - self._detector.last.offset_ns
        if step_ns is not None or abs(apart_ns - self.offset_ns) > STEP_THRESHOLD_NS:
            self.offset_ns = apart_ns
            self._least_ns = min(self._least_ns, apart_ns)
            self._most_ns = max(self._most_ns, apart_ns)
        return step_ns

    def watch(self, interval_s: float = LOOK_INTERVAL_S) -> NoReturn:
        """Call :meth:`look` forever."""
        while True:
            gevent.sleep(interval_s)
            self.look()

    def facts(self) -> ClockFacts:
        """Clock facts of a process that is master and worker in one: no exchange is needed."""
        return ClockFacts(
            offset_ns=self.offset_ns,
            error_ns=self.error_ns,
            least_offset_ns=self._least_ns,
            most_offset_ns=self._most_ns,
            exchanges=0,
            steps=self.steps,
            step_ns=self._step_ns,
        )


def pong(ping: PingMessage, clock: RunClock, received_ns: int) -> PongMessage:
    """Answer to a ping that was received at ``received_ns`` of the run's clock; to be sent at once."""
    return PongMessage(
        number=ping.number,
        sent_ns=ping.sent_ns,
        received_ns=received_ns,
        answered_ns=clock.now_ns(),
    )


@dataclass(frozen=True, slots=True)
class OffsetEstimate:
    """Offset to add to a worker's realtime to get the run's time, with its error bound."""

    offset_ns: int
    error_ns: int

    def aged(self, elapsed_ns: int) -> "OffsetEstimate":
        """The estimate after ``elapsed_ns`` without a measurement: its error grows by the possible drift."""
        return replace(self, error_ns=self.error_ns + drift_ns(elapsed_ns))

    def stepped(self, step_ns: int) -> "OffsetEstimate":
        """The estimate after a step of the worker's realtime."""
        return replace(self, offset_ns=self.offset_ns - step_ns)

    def contradicts(self, other: "OffsetEstimate") -> bool:
        """Whether no true offset lies within both error bounds."""
        return abs(self.offset_ns - other.offset_ns) > self.error_ns + other.error_ns


@dataclass(frozen=True, slots=True)
class PingExchange:
    """A ping and its pong: send and receive times of the worker, and the run clock's times between."""

    sent: ClockPair
    received_ns: int
    answered_ns: int
    heard: ClockPair

    @property
    def round_trip_ns(self) -> int:
        """Time in transit. Measured by the monotonic clock, which no step changes.

        Realtime is used instead if it is longer, by the small difference between two readings: an error made
        of the shorter one would not bound an offset made of realtime.
        """
        by_monotonic = self.heard.monotonic_ns - self.sent.monotonic_ns
        by_realtime = self.heard.realtime_ns - self.sent.realtime_ns
        return max(by_monotonic, by_realtime) - (self.answered_ns - self.received_ns)

    @property
    def usable(self) -> bool:
        """Whether realtime was not stepped, and the answer took no longer than the whole exchange."""
        return clock_step_ns(self.sent, self.heard) is None and self.round_trip_ns >= 0

    @property
    def estimate(self) -> OffsetEstimate:
        there = self.received_ns - self.sent.realtime_ns
        back = self.answered_ns - self.heard.realtime_ns
        return OffsetEstimate((there + back) // 2, max(1, (self.round_trip_ns + 1) // 2))


def drift_ns(elapsed_ns: int) -> int:
    """Possible drift between two clocks in this time."""
    return -(-elapsed_ns * DRIFT_PPM // 1_000_000)


def best_of(exchanges: Iterable[PingExchange]) -> OffsetEstimate | None:
    """Estimate from the usable exchange with the shortest round trip; None if there is none."""
    usable = (exchange for exchange in exchanges if exchange.usable)
    best = min(usable, key=lambda exchange: exchange.round_trip_ns, default=None)
    return None if best is None else best.estimate


def update(old: OffsetEstimate | None, new: OffsetEstimate | None, elapsed_ns: int) -> OffsetEstimate | None:
    """Estimate after a round: its result ``new``, or the ``old`` one, ``elapsed_ns`` older.

    The new one is used unless its error is more than four times the old one's plus the drift allowance: on a
    channel that is busy with batches the clocks have hardly moved, but the measurement is much worse. Then,
    and after a round without a result, the old one is kept with its error grown by the drift allowance, so
    that eventually any new one is accepted. An old one that contradicts the new one is wrong, because the new
    one's error is a bound: the clock has moved without being noticed.
    """
    if old is None or new is None:
        return new if old is None else old.aged(elapsed_ns)
    aged = old.aged(elapsed_ns)
    much_worse = new.error_ns > BUSY_FACTOR * old.error_ns + drift_ns(elapsed_ns)
    return aged if much_worse and not aged.contradicts(new) else new


# --- Offset of a worker's clock to the run's time, measured over Locust's channel


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


@dataclass(slots=True)
class _Round:
    """A round in progress."""

    pings_left: int = ROUND_EXCHANGES
    sent: ClockPair | None = None  # when the last ping was, until its answer
    exchanges: list[PingExchange] = field(default_factory=list)

    @property
    def due_ns(self) -> int:
        """Monotonic time of its next ping if no pong comes before: that of the last one's timeout."""
        return 0 if self.sent is None else self.sent.monotonic_ns + PONG_TIMEOUT_NS


class WorkerClock:
    """Measures this process's clock against the run's clock, and detects steps.

    A round of exchanges starts soon after the start of a run and at once after a step, the next one 5 s
    later, then one every 30 s. :func:`~llm_locust.swarm.clocks.update` defines how a result is
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
        if round_ is None or round_.sent is None or pong.number != self._number:
            return
        exchange = PingExchange(round_.sent, pong.received_ns, pong.answered_ns, heard)
        round_.sent = None
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
        if round_ is not None and now_ns >= round_.due_ns:
            if round_.pings_left:
                self._ping(round_)
            else:
                self._end_round(round_)
        return self._rest_s()

    def _ping(self, round_: _Round) -> None:
        round_.pings_left -= 1
        self._number += 1
        number, round_.sent = self._number, self._read()
        try:
            self._send(PingMessage(number=number, sent_ns=round_.sent.realtime_ns))
        except Exception as e:  # Locust's channel raises its own and zmq's
            logger.debug("could not send ping %d: %s", number, e)
            round_.sent = None

    def _end_round(self, round_: _Round) -> None:
        self._round = None
        now_ns = self._read().monotonic_ns
        new = best_of(round_.exchanges)
        estimate = update(self._estimate, new, now_ns - self._updated_ns)
        if new is not None and estimate is not None and estimate != new:
            self._doubt_ns = max(self._doubt_ns, abs(estimate.offset_ns - new.offset_ns))
        self._updated_ns = now_ns
        if estimate is not None:
            self._take(estimate)
        self._due_ns = now_ns + (LATER_NS if self._settled and new is not None else SOON_NS)
        self._settled = new is not None

    def _rest_s(self) -> float:
        """Time until the next ping, the pong's timeout, the next round or the next look."""
        round_, due_ns = self._round, self._due_ns
        if round_ is not None:
            due_ns = round_.due_ns
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
