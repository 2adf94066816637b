"""One worker's arrivals, returned as time goes on: absolute, each once, none dropped.

Times are seconds after an origin that all workers agree on. They are computed from the origin, never from the
previous arrival, so that delays do not accumulate.
"""

import math
from collections.abc import Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from llm_locust.workload.arrivals.process import BLOCK, Process, unit_times
from llm_locust.workload.arrivals.profile import Profile


class Timed(Protocol):
    """Something that is due at a time; ``k`` is its index, from 0, among those of all workers."""

    @property
    def k(self) -> int: ...

    @property
    def at_s(self) -> float: ...


class Arrival(NamedTuple):
    k: int
    at_s: float


class ArrivalColumns(NamedTuple):
    """Arrivals as columns of shape (n,), both ascending, ``at_s`` except for a float's last digit."""

    k: NDArray[np.int64]
    at_s: NDArray[np.float64]


T = TypeVar("T", bound=Timed)


class Timetable(Protocol[T]):
    """Source of a sender's work: it is queried for the near future again and again."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come, whatever the rate is."""
        ...

    def before(self, until_s: float) -> list[T]:
        """All due before ``until_s`` that no earlier call returned, ascending."""
        ...


class Schedule:
    """Arrivals of a process at a rate: worker i of W has k = i, i + W, i + 2W ... of them.

    Args:
        process, profile, seed, stream: as for :func:`unit_times`; the same on all workers.
        worker_index, worker_count: this worker's index, from 0, and the number of workers.
        limit: only the arrivals k < ``limit`` of all workers together.

    Raises:
        ValueError: a negative seed or limit, or an index that is not below the count.
    """

    def __init__(
        self,
        process: Process,
        profile: Profile,
        *,
        seed: int,
        worker_index: int = 0,
        worker_count: int = 1,
        limit: int | None = None,
        stream: str = "",
    ) -> None:
        _check(seed, worker_index, worker_count, limit)
        self._profile = profile
        self._count = worker_count
        self._limit = math.inf if limit is None else limit
        self._blocks = unit_times(process, seed, stream)
        self._block_start = 0  # k of the next block's first arrival
        self._next_k = worker_index
        self._units = np.empty(0)  # drawn and not returned yet, only this worker's

    @property
    def profile(self) -> Profile:
        return self._profile

    @property
    def ended(self) -> bool:
        """Whether ``limit`` is reached. A rate of 0 is not an end: it may be changed."""
        return self._next_k >= self._limit

    def change_rate(self, at_s: float, rate: float) -> None:
        """Change the rate to ``rate`` requests/s from ``at_s`` on, as :meth:`Profile.changed_at`.

        Arrivals that were returned stay. If they extend past ``at_s``, the next arrivals may be due before
        the last one, or before now; each k still comes once.
        """
        self._profile = self._profile.changed_at(at_s, rate)

    def times(self, until_s: float) -> ArrivalColumns:
        """Arrivals before ``until_s`` that no earlier call returned.

        Raises:
            ValueError: ``until_s`` is not finite.
        """
        if not math.isfinite(until_s):
            raise ValueError(f"arrivals before {until_s} s are without end; give a finite time")
        load, first = float(self._profile.load(until_s)), self._next_k
        taken = []
        while not self.ended:
            n = int(np.searchsorted(self._units, load))
            taken.append(self._units[:n])
            self._units = self._units[n:]
            self._next_k += n * self._count
            if len(self._units):
                break
            self._draw()
        units = np.concatenate(taken) if taken else np.empty(0)
        k = first + self._count * np.arange(len(units), dtype=np.int64)
        return ArrivalColumns(k, self._profile.time(units))

    def before(self, until_s: float) -> list[Arrival]:
        """As :meth:`times`, one by one."""
        k, at_s = self.times(until_s)
        return list(map(Arrival, k.tolist(), at_s.tolist()))

    def _draw(self) -> None:
        """Draw this worker's part of the next block, cut at the limit."""
        units = next(self._blocks)[self._next_k - self._block_start :: self._count]
        self._block_start += BLOCK
        if math.isfinite(self._limit):
            units = units[: max(0, math.ceil((self._limit - self._next_k) / self._count))]
        self._units = units


class ListedSchedule(Generic[T]):
    """Arrivals at explicit times, as of a trace: read only as far as needed.

    Args:
        entries: this worker's, ascending by ``at_s``.
        limit: only those with k < ``limit``.
    """

    def __init__(self, entries: Iterable[T], limit: int | None = None) -> None:
        self._entries = iter(entries)
        self._limit = math.inf if limit is None else limit
        self._next = self._following()

    @property
    def ended(self) -> bool:
        return self._next is None

    def before(self, until_s: float) -> list[T]:
        """All due before ``until_s`` that no earlier call returned."""
        due = []
        while self._next is not None and self._next.at_s < until_s:
            due.append(self._next)
            self._next = self._following()
        return due

    def _following(self) -> T | None:
        # Ascending times have ascending k: the first one past the limit is the end.
        entry = next(self._entries, None)
        return None if entry is None or entry.k >= self._limit else entry


def _check(seed: int, worker_index: int, worker_count: int, limit: int | None) -> None:
    if seed < 0:
        raise ValueError(f"seed {seed} is negative; give a whole number from 0")
    if not 0 <= worker_index < worker_count:
        raise ValueError(f"worker {worker_index} of {worker_count}: its index must be in 0 .. count - 1")
    if limit is not None and limit < 0:
        raise ValueError(f"a limit of {limit} arrivals is negative")
