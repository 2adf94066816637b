"""One worker's arrivals, returned as time goes on: absolute, each once, none dropped.

Times are seconds after an origin that all workers agree on. They are computed from the origin, never from the
previous arrival, so that delays do not accumulate.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from llm_locust.workload.arrivals.profile import Profile

# --------------------
# Arrival processes of rate 1: the distribution of the gaps, and one endless sequence for all workers.
#
# A sequence in *unit time* has one arrival per unit on average. A rate profile maps it to seconds
# (:mod:`llm_locust.workload.arrivals.profile`), so that a process keeps its distribution whatever the rate
# does.
# --------------------


#: Arrivals that are drawn at a time.
BLOCK = 4096

#: Range of the coefficient of variation: below it, the gaps are constant to three digits; above it, nearly
#: all load comes in single bursts.
LEAST_CV, MOST_CV = 0.001, 100.0

#: Separates these draws from all others with the same seed.
_KEY = int.from_bytes(b"arrivals", "big")


@dataclass(frozen=True, slots=True)
class Process:
    """A renewal process of rate 1: independent gaps of mean 1 and standard deviation ``cv``.

    ``cv`` 0 has constant gaps, the first arrival at 0. ``cv`` 1 is the Poisson process. Every other
    one has gamma gaps of shape 1/cv² and scale cv²: more even than Poisson below 1, burstier above.

    Raises:
        ValueError: a ``cv`` that is neither 0 nor in :data:`LEAST_CV` .. :data:`MOST_CV`.
    """

    cv: float

    def __post_init__(self) -> None:
        if self.cv != 0 and not LEAST_CV <= self.cv <= MOST_CV:
            raise ValueError(f"CV {self.cv:g} is not in {LEAST_CV:g} .. {MOST_CV:g}")

    def gaps(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw n gaps, shape (n,), each >= 0. With a high ``cv`` they may underflow to 0."""
        if self.cv == 0:
            return np.ones(n)
        variance = self.cv**2
        return rng.standard_gamma(1 / variance, n) * variance


def unit_times(process: Process, seed: int, stream: str = "") -> Iterator[NDArray[np.float64]]:
    """Arrivals u_0 <= u_1 <= ... of ``process`` in unit time, :data:`BLOCK` at a time, without end.

    They depend only on the arguments, so that every worker has the same. ``stream`` gives processes with one
    seed different sequences.

    Raises:
        ValueError: a negative seed.
    """
    seeds = np.random.SeedSequence(seed, spawn_key=(_KEY, *stream.encode()))
    rng = np.random.Generator(np.random.Philox(seeds))
    # The current time is kept as whole units and a fraction below 1. Both are exact, so that a long sequence
    # does not lose precision as a growing sum would.
    whole, fraction = (-1 if process.cv == 0 else 0), 0.0
    while True:
        reached = fraction + np.cumsum(process.gaps(rng, BLOCK))
        yield whole + reached
        carried = math.floor(reached[-1])
        whole, fraction = whole + carried, float(reached[-1]) - carried


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


# --- Several schedules as one: each class of requests arrives at its own rate


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
