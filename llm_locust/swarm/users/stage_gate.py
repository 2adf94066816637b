"""The gate at which users of a closed loop wait between two stages, and the warm-up of what passes it."""

import time
from collections.abc import Callable

from gevent.event import Event

from llm_locust.core.manifest import PrefixShare
from llm_locust.core.record import LengthPair
from llm_locust.options.settings import Settings
from llm_locust.swarm.channel.shipping import Offset


class StageGate:
    """Open during a stage's load, closed between two stages; in a run without a sweep always open.

    Attributes:
        phase: number of times that it was opened after it had been closed.
        measured_ns: end of the current stage's warm-up on the run's clock; None: not known yet.
        lengths: of the current stage's prompts and answers, from before its load begins; None: as the run
            says.
        prefix: what the current stage's prompts share, and its number, from then; None: as the run says.

    Args:
        origin_ns: start of an open loop's schedule, on the run's clock.
        clock: returns this process's clock against the run's time.
    """

    def __init__(self, settings: Settings, origin_ns: int, clock: Callable[[], Offset]) -> None:
        self.measured_ns: int | None = None
        self.lengths: LengthPair | None = None
        self.prefix: tuple[PrefixShare, int] | None = None
        self.phase = 0
        self._sweep = settings.load.sweep
        self._warmup_s = settings.run.warmup_s
        self._origin_ns = origin_ns
        self._clock = clock
        self._began_s = time.monotonic()
        self._opened = Event()
        if self._sweep is None or self._sweep.kind == "rate":
            self._opened.set()

    def open(self) -> None:
        self.phase += not self._opened.is_set()
        self._opened.set()

    def close(self) -> None:
        self._opened.clear()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def wait(self) -> None:
        """Return at once if the gate is open, else when it opens."""
        if not self._opened.is_set():
            self._opened.wait()

    @property
    def is_warm_up_now(self) -> bool:
        """Whether the measured part of the run, or of the stage, has not begun; for a closed loop."""
        if self._sweep is None:
            return time.monotonic() - self._began_s < self._warmup_s
        offset_ns, _ = self._clock() or (0, 0)
        return self._is_before(time.time_ns() + offset_ns)

    def is_warm_up_at(self, at_s: float) -> bool:
        """Whether a request due ``at_s`` after the schedule's start is due before the measured part."""
        if self._sweep is None:
            return at_s < self._warmup_s
        return self._is_before(self._origin_ns + round(at_s * 1e9))

    def _is_before(self, at_ns: int) -> bool:
        return self.measured_ns is None or at_ns < self.measured_ns
