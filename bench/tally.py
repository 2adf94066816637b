"""Counts of fake workers, printed for the bench at their end."""

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Totals of the workers of one process. Times are seconds of the machine's monotonic clock."""

    began_s: float = 0.0  # when the last of them received the run
    stopped_s: float = 0.0  # when the first of them was told to stop
    settled_s: float = 0.0  # the last acknowledgement
    offered: int = 0  # batches
    offered_bytes: int = 0
    taken: int = 0  # batches acknowledged before the stop
    taken_bytes: int = 0
    unacknowledged: int = 0  # batches, at the end
    heartbeats_ms: list[float] = field(default_factory=list)  # until the master answered

    def acknowledged(self, size: int) -> None:
        self.settled_s = time.monotonic()
        if not self.stopped_s:
            self.taken += 1
            self.taken_bytes += size
