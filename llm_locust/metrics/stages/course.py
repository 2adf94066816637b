"""Requests of a stage as times: what the looks at its course are taken of."""

from dataclasses import dataclass

import numpy as np

from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCourse:
    """Requests that reach into a stage's measured part, ``start_s`` to ``end_s`` on the axis of all times.

    A request begins when it was due in an open loop, when it was sent in a closed one. Those that never were
    sent are left out of a closed loop. Whatever its outcome, it is there until it ended.
    """

    start_s: float
    end_s: float
    begun_s: Floats
    ended_s: Floats
    open_loop: bool

    @classmethod
    def of(cls, c: Columns, window: Window, open_loop: bool) -> "StageCourse":
        begun_s = c.scheduled_s if open_loop else c.sent_s
        start_s, end_s = window.start_s(c), window.end_s(c)
        theirs = (begun_s < end_s) & (c.ended_s >= start_s)
        return cls(
            start_s=start_s,
            end_s=end_s,
            begun_s=begun_s[theirs],
            ended_s=c.ended_s[theirs],
            open_loop=open_loop,
        )

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    @property
    def lasted_s(self) -> Floats:
        return self.ended_s - self.begun_s

    def in_order(self) -> Rows:
        """Those that began inside, in that order; of equal times the shorter one first."""
        rows = np.flatnonzero(self.begun_s >= self.start_s)
        return rows[np.lexsort((self.ended_s[rows], self.begun_s[rows]))]

    @property
    def ended_inside(self) -> int:
        return int((self.ended_s < self.end_s).sum())

    def in_flight(self, at_s: Floats) -> Floats:
        """Number of requests in flight at each of these times."""
        begun = np.searchsorted(np.sort(self.begun_s), at_s, side="right")
        ended = np.searchsorted(np.sort(self.ended_s), at_s, side="right")
        return (begun - ended).astype(np.float64)
