"""Window of batches sent and not acknowledged: its size, and when a batch is sent again.

Pure arithmetic on times that the caller passes, in seconds of one clock.
"""

import math

from llm_locust.swarm.delivery.unacked_batches import UnackedBatch

#: Time after which a batch without acknowledgement is sent again. While nothing is acknowledged at all, only
#: the oldest is sent again, with the interval doubling up to the second value. Locust ends a worker after a
#: minute without its master, so that only a handful pile up in zmq's queue.
RESEND_AFTER_S = 5.0
PROBE_AFTER_S = 20.0

#: zmq accepts any amount into memory, here and at the master, where hundreds of workers pile up if its disk
#: is slow. So this limits what is in transit; one batch is always allowed.
WINDOW_BATCHES = 8
WINDOW_BYTES = 4 << 20

Key = tuple[str, int]  # run and number of a batch


class SendWindow:
    """Batches in transit, in the order in which they were first sent."""

    def __init__(self) -> None:
        self._batches: dict[Key, UnackedBatch] = {}
        self._interval_s = RESEND_AFTER_S
        self._probe_at_s = math.inf

    @property
    def silent(self) -> bool:
        """Whether nothing was acknowledged for so long that nothing new is sent."""
        return self._interval_s > RESEND_AFTER_S

    def has_room(self, size: int) -> bool:
        """Whether a batch of this size in bytes may be sent."""
        if not self._batches:
            return True
        under_way = sum(batch.size for batch in self._batches.values())
        return not self.silent and len(self._batches) < WINDOW_BATCHES and under_way + size <= WINDOW_BYTES

    def put(self, batch: UnackedBatch, now_s: float) -> None:
        """Note that a batch is sent now, for the first time or again."""
        if not self._batches:
            self.heard(now_s)  # without a batch in transit no acknowledgement was due: the silence starts now
        self._batches[batch.key] = batch
        batch.sent_at_s = now_s

    def remove(self, key: Key) -> None:
        self._batches.pop(key, None)

    def heard(self, now_s: float) -> None:
        """Note an acknowledgement: the other side is alive."""
        self._interval_s = RESEND_AFTER_S
        self._probe_at_s = now_s + RESEND_AFTER_S

    def recall(self, run: str) -> None:
        """Remove all batches of this run."""
        for key in [key for key in self._batches if key[0] == run]:
            del self._batches[key]

    def overdue(self, now_s: float) -> list[UnackedBatch]:
        """Batches to send again now: all that are overdue, or during a silence only the oldest."""
        if self._batches and now_s >= self._probe_at_s:
            self._interval_s = min(2 * self._interval_s, PROBE_AFTER_S)
            self._probe_at_s = now_s + self._interval_s
            return [next(iter(self._batches.values()))]
        if self.silent:
            return []
        return [b for b in self._batches.values() if now_s >= b.sent_at_s + RESEND_AFTER_S]

    def due_in_s(self, now_s: float) -> float | None:
        """Seconds until a batch will be overdue; None if nothing is in transit."""
        if not self._batches:
            return None
        due_at_s = self._probe_at_s
        if not self.silent:
            due_at_s = min(due_at_s, *(b.sent_at_s + RESEND_AFTER_S for b in self._batches.values()))
        return max(0.0, due_at_s - now_s)

    def __contains__(self, batch: UnackedBatch) -> bool:
        return self._batches.get(batch.key) is batch
