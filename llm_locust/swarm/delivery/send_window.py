"""What is sent and not acknowledged: how much of it there may be, and when it is sent again.

Arithmetic on times that the caller gives, in seconds of one clock.
"""

import math

from llm_locust.swarm.delivery.unacked_batches import UnackedBatch

#: A batch without an acknowledgement is sent again after this time. While nothing is acknowledged at
#: all, the oldest alone is, each time after twice as long, up to the second figure: Locust ends a worker
#: after a minute without its master, so that no more than a handful pile up in zmq's queue.
RESEND_AFTER_S = 5.0
PROBE_AFTER_S = 20.0

#: zmq takes whatever it is given into memory, here and at the master, whom hundreds of workers fill at
#: once when its disk is slow. So no more than this is on its way; one batch always may be.
WINDOW_BATCHES = 8
WINDOW_BYTES = 4 << 20

Key = tuple[str, int]  # a batch's run and number


class SendWindow:
    """Batches on their way, in the order in which they were first sent."""

    def __init__(self) -> None:
        self._batches: dict[Key, UnackedBatch] = {}
        self._interval_s = RESEND_AFTER_S
        self._probe_at_s = math.inf

    @property
    def silent(self) -> bool:
        """Nothing was acknowledged for so long that nothing new is sent."""
        return self._interval_s > RESEND_AFTER_S

    def has_room(self, size: int) -> bool:
        """Whether a batch of so many bytes may be sent."""
        if not self._batches:
            return True
        under_way = sum(batch.size for batch in self._batches.values())
        return not self.silent and len(self._batches) < WINDOW_BATCHES and under_way + size <= WINDOW_BYTES

    def put(self, batch: UnackedBatch, now_s: float) -> None:
        """The batch is sent now, for the first time or again."""
        if not self._batches:
            self.heard(now_s)  # what was not asked could not be answered: the silence begins now
        self._batches[batch.key] = batch
        batch.sent_at_s = now_s

    def remove(self, key: Key) -> None:
        self._batches.pop(key, None)

    def heard(self, now_s: float) -> None:
        """Something was acknowledged: the other side is there."""
        self._interval_s = RESEND_AFTER_S
        self._probe_at_s = now_s + RESEND_AFTER_S

    def recall(self, run: str) -> None:
        """Nothing of this run is waited for any more."""
        for key in [key for key in self._batches if key[0] == run]:
            del self._batches[key]

    def overdue(self, now_s: float) -> list[UnackedBatch]:
        """What to send again now: everything that is overdue, but in silence the oldest batch alone."""
        if self._batches and now_s >= self._probe_at_s:
            self._interval_s = min(2 * self._interval_s, PROBE_AFTER_S)
            self._probe_at_s = now_s + self._interval_s
            return [next(iter(self._batches.values()))]
        if self.silent:
            return []
        return [b for b in self._batches.values() if now_s >= b.sent_at_s + RESEND_AFTER_S]

    def due_in_s(self, now_s: float) -> float | None:
        """The time until something will be overdue; None where nothing is on its way."""
        if not self._batches:
            return None
        due_at_s = self._probe_at_s
        if not self.silent:
            due_at_s = min(due_at_s, *(b.sent_at_s + RESEND_AFTER_S for b in self._batches.values()))
        return max(0.0, due_at_s - now_s)

    def __contains__(self, batch: UnackedBatch) -> bool:
        return self._batches.get(batch.key) is batch
