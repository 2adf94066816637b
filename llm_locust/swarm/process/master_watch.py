"""When a worker last heard its master, and what it has to do about a silence."""

import time
from collections.abc import Callable
from typing import Literal

#: A worker that has heard nothing of its master for this long ends its load. A master answers every second.
SILENT_S = 8.0

#: Silence after which a worker gives up.
GIVE_UP_S = 30.0

#: Interval of the steps, at most.
STEP_S = 1.0

#: ``load``: the load may go on; ``stop``: it ends now; ``rejoin``: a master is there again, which does not
#: know this worker's load; ``leave``: give up. ZeroMQ connects again by itself, and looks the address up.
Step = Literal["load", "stop", "wait", "rejoin", "leave"]


class MasterWatch:
    """Decides what a silence of the master means for its worker.

    Nothing is decided before the first sign of life: how long a worker looks for its first master is
    Locust's own limit (5 min). Between two steps at most :data:`STEP_S` of silence counts, so that a process
    that was stopped, or had no CPU, first reads what has arrived meanwhile.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stepped_s = clock()
        self.silent_s = 0.0
        self._met = self._stopped = self._is_stranger = False

    def heard(self) -> None:
        """Note a sign of life of a master that knows this worker."""
        self._met = True
        self.silent_s = 0.0

    def unknown(self) -> None:
        """Note the answer of a master that does not know this worker: it is another one than before."""
        self.heard()
        self._is_stranger = True

    def step(self) -> Step:
        """The next thing to do; ``stop`` is returned once."""
        now_s = self._clock()
        if self._met:
            self.silent_s += min(now_s - self._stepped_s, STEP_S)
        self._stepped_s = now_s
        silent_s = self.silent_s
        if silent_s >= GIVE_UP_S:
            return "leave"
        if (silent_s >= SILENT_S or self._is_stranger) and not self._stopped:
            self._stopped = True
            return "stop"
        if not self._stopped:
            return "load"
        return "rejoin" if silent_s < SILENT_S else "wait"
