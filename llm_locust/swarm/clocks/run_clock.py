"""The run's time, a wall clock that nobody sets anew, and what an exchange of times tells of another clock.

An exchange is a ping and its pong, with four times: sent (t0) and heard (t3) by the worker's realtime,
received (t1) and answered (t2) on the run's clock. With the ways there and back taken for equally long,

    offset     = ((t1 - t0) + (t2 - t3)) / 2
    round trip = (t3 - t0) - (t2 - t1)
    error      = round trip / 2

However the round trip was shared between there and back, the true offset lies within offset ± error.
So of several exchanges the one with the shortest round trip counts.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NoReturn

import gevent

from llm_locust.client.http.clock import STEP_THRESHOLD_NS, ClockPair, clock_step_ns, read_clocks
from llm_locust.core.manifest import ClockFacts
from llm_locust.swarm.channel.messages import PingMessage, PongMessage

logger = logging.getLogger(__name__)

#: How often a process looks whether its clock was set anew.
LOOK_INTERVAL_S = 0.5

#: How fast two clocks may drift apart, in parts per million: quartz keeps within it, as does the kernel
#: under NTP but while it makes up for a large difference.
DRIFT_PPM = 100

#: A round whose error is larger than the known one's by more than this was made on a busy channel.
BUSY_FACTOR = 4

ReadClocks = Callable[[], ClockPair]


class StepDetector:
    """Tells whether realtime was stepped against monotonic between two looks at them.

    A clock that NTP slews moves both alike: that is no step. ``last`` is what the last look saw.
    """

    __slots__ = ("_read", "last")

    def __init__(self, read: ReadClocks) -> None:
        self._read = read
        self.last = read()

    def look(self) -> int | None:
        """How far realtime was stepped since the last look, ns; None where it was not."""
        before, self.last = self.last, self._read()
        return clock_step_ns(before, self.last)


class RunClock:
    """The run's time at the process that has the run directory.

    It is this process's realtime as it was when the clock was made, carried on by ``CLOCK_MONOTONIC``:
    it goes on without a step, whatever is done to the clock of the machine.

    Args:
        on_step: called when a step was noticed, while ``offset_ns`` is still that of the time before it;
            it must not wait.
        read, monotonic_ns: the clocks.
    """

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
        self._ahead_ns = self._detector.last.offset_ns  # of monotonic
        self._offset_ns = 0
        self.begin()

    def begin(self) -> None:
        """A new run: steps are counted anew. The clock goes on as it is."""
        self._steps = self._step_ns = 0
        self._least_ns = self._most_ns = self._offset_ns

    def now_ns(self) -> int:
        """The run's time now, nanoseconds since the epoch; differences are those of monotonic."""
        return self._ahead_ns + self._monotonic_ns()

    @property
    def offset_ns(self) -> int:
        """What to add to this process's realtime to get the run's time, as of the last look.

        0 until the two have come apart by more than two readings of the same clocks differ.
        """
        return self._offset_ns

    @property
    def error_ns(self) -> int:
        """How far ``offset_ns`` may be off: less than this is not taken for a difference."""
        return STEP_THRESHOLD_NS

    @property
    def steps(self) -> int:
        """How often realtime was stepped in this run."""
        return self._steps

    def look(self) -> int | None:
        """Look at the clocks; how far realtime was stepped since the last look, None where it was not."""
        step_ns = self._detector.look()
        if step_ns is not None:
            logger.warning(
                "this machine's clock was stepped by %+.6f s; the run's time goes on without the step",
                step_ns * 1e-9,
            )
            self._on_step()
            self._steps += 1
            self._step_ns += step_ns
        apart_ns = self._ahead_ns - self._detector.last.offset_ns
        if step_ns is not None or abs(apart_ns - self._offset_ns) > STEP_THRESHOLD_NS:
            self._offset_ns = apart_ns
            self._least_ns = min(self._least_ns, apart_ns)
            self._most_ns = max(self._most_ns, apart_ns)
        return step_ns

    def watch(self, interval_s: float = LOOK_INTERVAL_S) -> NoReturn:
        """:meth:`look` again and again: a greenlet's life."""
        while True:
            gevent.sleep(interval_s)
            self.look()

    def facts(self) -> ClockFacts:
        """The clock of a process that is all in one, which needs no exchange to know the run's clock."""
        return ClockFacts(
            offset_ns=self._offset_ns,
            error_ns=self.error_ns,
            least_offset_ns=self._least_ns,
            most_offset_ns=self._most_ns,
            exchanges=0,
            steps=self._steps,
            step_ns=self._step_ns,
        )


def pong(ping: PingMessage, clock: RunClock, received_ns: int) -> PongMessage:
    """The answer to a ping that came at ``received_ns`` of the run's clock; to be sent at once."""
    return PongMessage(
        number=ping.number,
        sent_ns=ping.sent_ns,
        received_ns=received_ns,
        answered_ns=clock.now_ns(),
    )


@dataclass(frozen=True, slots=True)
class OffsetEstimate:
    """What to add to a worker's realtime to get the run's time, and how far that may be off."""

    offset_ns: int
    error_ns: int

    def aged(self, elapsed_ns: int) -> "OffsetEstimate":
        """The same, unchecked for so long: the error has grown by what clocks may drift in that time."""
        return replace(self, error_ns=self.error_ns + drift_ns(elapsed_ns))

    def stepped(self, step_ns: int) -> "OffsetEstimate":
        """The same after the worker's realtime was stepped."""
        return replace(self, offset_ns=self.offset_ns - step_ns)

    def contradicts(self, other: "OffsetEstimate") -> bool:
        """No true offset would be within the errors of both."""
        return abs(self.offset_ns - other.offset_ns) > self.error_ns + other.error_ns


@dataclass(frozen=True, slots=True)
class PingExchange:
    """A ping and its pong: when the worker sent and heard them, and the run's clock' times between."""

    sent: ClockPair
    received_ns: int
    answered_ns: int
    heard: ClockPair

    @property
    def round_trip_ns(self) -> int:
        """Time on the way. By monotonic, which no step lengthens or shortens.

        Or by realtime where that is longer by the little that two readings of a pair differ: an error made
        of the shorter one would not bound an offset made of realtime.
        """
        by_monotonic = self.heard.monotonic_ns - self.sent.monotonic_ns
        by_realtime = self.heard.realtime_ns - self.sent.realtime_ns
        return max(by_monotonic, by_realtime) - (self.answered_ns - self.received_ns)

    @property
    def usable(self) -> bool:
        """Realtime was not stepped meanwhile, and the answer did not take longer than the whole."""
        return clock_step_ns(self.sent, self.heard) is None and self.round_trip_ns >= 0

    @property
    def estimate(self) -> OffsetEstimate:
        there = self.received_ns - self.sent.realtime_ns
        back = self.answered_ns - self.heard.realtime_ns
        return OffsetEstimate((there + back) // 2, max(1, (self.round_trip_ns + 1) // 2))


def drift_ns(elapsed_ns: int) -> int:
    """How far two clocks may drift apart in this time."""
    return -(-elapsed_ns * DRIFT_PPM // 1_000_000)


def best_of(exchanges: Iterable[PingExchange]) -> OffsetEstimate | None:
    """What the usable exchange of the shortest round trip says; None where there is none."""
    usable = (exchange for exchange in exchanges if exchange.usable)
    best = min(usable, key=lambda exchange: exchange.round_trip_ns, default=None)
    return None if best is None else best.estimate


def update(old: OffsetEstimate | None, new: OffsetEstimate | None, elapsed_ns: int) -> OffsetEstimate | None:
    """What is known after a round: its result ``new``, or the ``old`` one, ``elapsed_ns`` older.

    The new one is taken, unless its error is more than four times the old one's and the drift allowance
    beyond: on a channel that was busy with batches the clocks have hardly moved, and the measurement has
    become much worse. Then, and after a round that brought nothing, the old one stays, its error grown by
    the drift allowance, which in time lets any new one in. An old one that contradicts the new is wrong,
    for a new one's error is certain: something has moved a clock unnoticed.
    """
    if old is None or new is None:
        return new if old is None else old.aged(elapsed_ns)
    aged = old.aged(elapsed_ns)
    much_worse = new.error_ns > BUSY_FACTOR * old.error_ns + drift_ns(elapsed_ns)
    return aged if much_worse and not aged.contradicts(new) else new
