"""Several schedules as one: each class of requests arrives at its own rate."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from llm_locust.workload.arrivals.schedule import Schedule


class ClassArrival(NamedTuple):
    """An arrival of the class ``of``; ``k`` is its index among those of all classes and workers."""

    k: int
    at_s: float
    of: str


class MixedSchedule:
    """Union of schedules in order of time; worker i of W has k = i, i + W, i + 2W ... of it.

    Every worker draws the whole union, some 0.5 µs an arrival, so that all agree on each index.

    Args:
        classes: name -> the class's schedule for a single worker, without a limit.
        limit: only this many arrivals of all classes together.
    """

    def __init__(
        self,
        classes: Mapping[str, Schedule],
        *,
        worker_index: int = 0,
        worker_count: int = 1,
        limit: int | None = None,
    ) -> None:
        self._names = tuple(classes)
        self._schedules = tuple(classes.values())
        self._index, self._count = worker_index, worker_count
        self._limit = math.inf if limit is None else limit
        self._given = 0  # arrivals of all workers so far

    @property
    def ended(self) -> bool:
        """Whether ``limit`` is reached."""
        return self._given >= self._limit

    def before(self, until_s: float) -> list[ClassArrival]:
        """All of this worker's arrivals before ``until_s`` that no earlier call returned, ascending."""
        times = [schedule.times(until_s).at_s for schedule in self._schedules]
        of = np.repeat(np.arange(len(times)), [len(t) for t in times])
        at_s = np.concatenate(times)
        order = np.lexsort((of, at_s))
        k = self._given + np.arange(len(order))
        self._given += len(order)
        mine = (k % self._count == self._index) & (k < self._limit)
        chosen = order[mine]
        return [
            ClassArrival(place, due_s, self._names[which])
            for place, due_s, which in zip(
                k[mine].tolist(), at_s[chosen].tolist(), of[chosen].tolist(), strict=True
            )
        ]
