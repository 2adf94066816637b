"""Send times of requests: schedules that are absolute, reproducible and divided among the workers.

Times are seconds after an origin that all workers agree on. They are computed from the origin, never from the
previous arrival, so that delays do not accumulate.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from re import IGNORECASE, fullmatch
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llm_locust.core.texts import parse_duration, plain_number

# --- Rate of arrivals over time, its integral Λ, and the inverse that maps units to seconds
#
# The arrival k of a process in unit time, u_k, happens at t_k = Λ⁻¹(u_k). A Poisson process stays Poisson,
# with the varying rate; constant gaps stay evenly spaced in Λ. Λ⁻¹(u) is the first time after which Λ exceeds
# u: arrivals before t are those with u < Λ(t), and none falls into a span of rate 0.


#: Tolerance for the solution of an equation of order 1: the rounding error of its own evaluation.
_SOLVED = 4 * np.finfo(float).eps

#: Bisection alone has halved 1 down to the float's last digit by then.
_MOST_ROUNDS = 64


@dataclass(frozen=True, slots=True)
class RateSegment:
    """The rate from ``start_s`` to the next segment, in requests/s, τ seconds after ``start_s``:

    ``rate + slope·τ + amplitude·sin(2π·τ / period_s)``; ``slope`` in requests/s². A segment has a
    slope or an amplitude, not both.
    """

    start_s: float
    rate: float
    slope: float = 0.0
    amplitude: float = 0.0
    period_s: float = 1.0

    def rate_after(self, tau_s: float) -> float:
        wave = math.sin(math.tau * tau_s / self.period_s) if self.amplitude else 0.0
        return self.rate + self.slope * tau_s + self.amplitude * wave


@dataclass(frozen=True, slots=True)
class Leg:
    """A span of ``seconds`` in which the rate changes linearly from ``first`` to ``last``, requests/s."""

    first: float
    last: float
    seconds: float


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of the segments, and Λ at each one's start and end."""

    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    rate: NDArray[np.float64]
    slope: NDArray[np.float64]
    amplitude: NDArray[np.float64]
    period_s: NDArray[np.float64]
    start_load: NDArray[np.float64]
    end_load: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Profile:
    """A rate over time, from 0 s on; the last segment never ends. Equal when their segments are.

    Raises:
        ValueError: segments that do not start at 0 or do not ascend, or a rate that falls below 0.
    """

    segments: tuple[RateSegment, ...]
    _columns: _Columns = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_segments(self.segments)
        object.__setattr__(self, "_columns", _columns(self.segments))

    def rate(self, t_s: float) -> float:
        """Requests/s at ``t_s``; at a jump the rate after it; before 0 none."""
        if t_s < 0:
            return 0.0
        last = next(s for s in reversed(self.segments) if s.start_s <= t_s)
        return last.rate_after(t_s - last.start_s)

    def load(self, t_s: ArrayLike) -> NDArray[np.float64]:
        """Λ: number of arrivals expected before ``t_s``, of the same shape; 0 before 0."""
        c, t = self._columns, np.maximum(np.asarray(t_s, dtype=np.float64), 0.0)
        i = np.searchsorted(c.start_s, t, side="right") - 1
        tau = t - c.start_s[i]
        wave = c.amplitude[i] * c.period_s[i] / np.pi * np.sin(np.pi * tau / c.period_s[i]) ** 2
        load = c.start_load[i] + (c.rate[i] + 0.5 * c.slope[i] * tau) * tau + wave
        return np.asarray(np.minimum(load, c.end_load[i]))

    def time(self, load: ArrayLike) -> NDArray[np.float64]:
        """Λ⁻¹ in seconds, of the shape of ``load`` (>= 0); infinite where Λ never exceeds it.

        Exact except for the rounding of ``load`` and of the seconds themselves; near a rate of 0, where Λ is
        flat, that rounding has the most effect.
        """
        c, u = self._columns, np.asarray(load, dtype=np.float64)
        i = np.searchsorted(c.start_load, u, side="right") - 1
        v = u - c.start_load[i]
        tau = _straight_time(v, c.rate[i], c.slope[i])
        waves = c.amplitude[i] > 0
        if np.any(waves):
            w = i[waves]
            tau[waves] = _wave_time(v[waves], c.rate[w], c.amplitude[w], c.period_s[w])
        return np.asarray(np.minimum(c.start_s[i] + tau, c.end_s[i]))

    def changed_at(self, t_s: float, rate: float) -> "Profile":
        """This profile before ``t_s`` and the constant ``rate`` from then on.

        All workers with the same changes in the same order agree on every arrival; those before ``t_s`` do
        not move.
        """
        kept = tuple(s for s in self.segments if s.start_s < t_s)
        return Profile((*kept, RateSegment(max(0.0, t_s), rate)))


def constant(rate: float) -> Profile:
    """Always ``rate`` requests/s."""
    return Profile((RateSegment(0.0, rate),))


def piecewise(legs: Iterable[Leg]) -> Profile:
    """The legs in sequence; then the ``last`` of the last one stays. Legs of 0 s are left out."""
    segments, at_s, held = [], 0.0, 0.0
    for leg in legs:
        held, end_s = leg.last, at_s + leg.seconds
        if end_s > at_s:
            # Over the length after rounding, so that a short leg far out does not end below 0.
            segments.append(RateSegment(at_s, leg.first, (leg.last - leg.first) / (end_s - at_s)))
        at_s = end_s
    return Profile((*segments, RateSegment(at_s, held)))


def sine(mean: float, amplitude: float, period_s: float) -> Profile:
    """``mean + amplitude·sin(2π·t / period_s)`` requests/s: highest after a quarter of the period."""
    return Profile((RateSegment(0.0, mean, amplitude=amplitude, period_s=period_s),))


def _straight_time(
    v: NDArray[np.float64], rate: NDArray[np.float64], slope: NDArray[np.float64]
) -> NDArray[np.float64]:
    """τ with rate·τ + slope·τ²/2 = v, in the form that cancels no digits."""
    speeds = rate + np.sqrt(np.maximum(rate**2 + 2 * slope * v, 0.0))
    standing = np.where(slope > 0, 0.0, np.inf)  # a ramp from 0 at its start, or a rate of 0 forever
    return np.asarray(np.divide(2 * v, speeds, out=standing, where=speeds > 0))


def _wave_time(
    v: NDArray[np.float64],
    mean: NDArray[np.float64],
    amplitude: NDArray[np.float64],
    period_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """τ with mean·τ + amplitude·period/π·sin²(π·τ/period) = v.

    In periods: x + r/π·sin²(πx) = y over 0 .. 1 with r = amplitude/mean, by Newton's method, with bisection
    for steps that would leave the bracket.
    """
    periods, y = np.divmod(v / (mean * period_s), 1.0)
    r = amplitude / mean
    low, high, x = np.zeros_like(y), np.ones_like(y), y.copy()
    for _ in range(_MOST_ROUNDS):
        excess = x + r / np.pi * np.sin(np.pi * x) ** 2 - y
        unsolved = np.abs(excess) > _SOLVED
        if not np.any(unsolved):
            break
        low, high = np.where(excess < 0, x, low), np.where(excess >= 0, x, high)
        slope = np.maximum(1 + r * np.sin(2 * np.pi * x), _SOLVED)
        step = x - excess / slope
        step = np.where((step > low) & (step < high), step, 0.5 * (low + high))
        # Solved values stay: a time must not depend on which others are computed with it.
        x = np.where(unsolved, step, x)
    return np.asarray((periods + x) * period_s)


def _columns(segments: tuple[RateSegment, ...]) -> _Columns:
    rows = [(s.start_s, s.rate, s.slope, s.amplitude, s.period_s) for s in segments]
    start, rate, slope, amplitude, period = np.array(rows, dtype=np.float64).T
    end = np.append(start[1:], np.inf)
    tau = np.diff(start)
    wave = amplitude[:-1] * period[:-1] / np.pi * np.sin(np.pi * tau / period[:-1]) ** 2
    loads = np.cumsum((rate[:-1] + 0.5 * slope[:-1] * tau) * tau + wave)
    start_load, end_load = np.append(0.0, loads), np.append(loads, np.inf)
    return _Columns(start, end, rate, slope, amplitude, period, start_load, end_load)


def _check_segments(segments: tuple[RateSegment, ...]) -> None:
    if not segments or segments[0].start_s != 0 or segments[-1].slope:
        raise ValueError("a profile starts at 0 s, and its last rate has no end")
    for s, after in zip(segments, (*segments[1:], None), strict=True):
        if after is not None and not s.start_s < after.start_s:
            raise ValueError(f"a segment at {after.start_s:g} s follows one at {s.start_s:g} s")
        if not all(map(math.isfinite, (s.start_s, s.rate, s.slope, s.amplitude, s.period_s))):
            raise ValueError(f"{s} is not finite")
        if s.rate < 0 or (s.slope and after and s.rate_after(after.start_s - s.start_s) < -1e-9 * s.rate):
            raise ValueError(f"the rate falls below 0 after {s.start_s:g} s")
        if not 0 <= s.amplitude <= s.rate:
            raise ValueError(f"the amplitude {s.amplitude:g} is not in 0 .. {s.rate:g}, the mean")
        if s.period_s <= 0 or (s.amplitude and s.slope):
            raise ValueError(f"{s} is not a sine: it needs a period above 0 s and no slope")


# --- Arrival processes of rate 1: the distribution of the gaps, and one endless sequence for all workers
#
# A sequence in *unit time* has one arrival per unit on average. A rate profile maps it to seconds, so that a
# process keeps its distribution whatever the rate does.


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
        _check_part(seed, worker_index, worker_count, limit)
        self._profile = profile
        self._count = worker_count
        self._limit = math.inf if limit is None else limit
        self._blocks = unit_times(process, seed, stream)
        self._block_start = 0  # k of the next block's first arrival
        self._next_k = worker_index
        self._units = np.empty(0)  # drawn and not returned yet, only this worker's

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


def _check_part(seed: int, worker_index: int, worker_count: int, limit: int | None) -> None:
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


# --- Arrivals as text: the grammars of ``--arrival`` and ``--request-rate``
#
# ============================== ==============================================================
# ``constant``                   equal gaps
# ``poisson``                    independent arrivals: exponential gaps
# ``gamma:CV``                   gamma gaps with that coefficient of variation
# ``trace:FILE``                 the recorded times of a trace
# ============================== ==============================================================
#
# ============================== ==============================================================
# ``R``                          always R requests/s
# ``ramp:A..B,D``                from A to B in the time D, then B; more legs may follow:
#                                ``ramp:0..100,1m,100..100,5m,100..0,1m``
# ``steps:R@D,R@D,...``          each rate for its time; the last one stays, its time is optional
# ``sine:MEAN,AMPLITUDE,PERIOD`` MEAN + AMPLITUDE·sin(2π·t/PERIOD), as ``sine:50,40,24h``
# ``spike:BASE,PEAK,AT,FOR``     BASE, but PEAK from AT on for the time FOR
# ============================== ==============================================================
#
# Rates are requests per second of all workers together; times are durations such as 90s or 1h30m.


#: Highest rate: a typing error must not ask for a schedule that fills the memory.
MAX_RATE = 1_000_000.0

ALLOWED_ARRIVALS = "constant, poisson, gamma:CV or trace:FILE"
ALLOWED_RATES = (
    "10, ramp:10..100,60s, steps:10@60s,50@30s, sine:MEAN,AMPLITUDE,PERIOD or spike:BASE,PEAK,AT,FOR"
)


class ArrivalError(ValueError):
    """A text that is not an arrival process or a rate; has the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """Arrivals at the times of a trace, which is not opened yet."""

    path: Path


def parse_arrival(text: str) -> Process | TraceFile:
    """Parse the process in ``text``, in the grammar above.

    Raises:
        ArrivalError: unknown name, or a parameter that is missing, superfluous or out of range.
    """
    name, colon, rest = text.strip().partition(":")
    try:
        match name, bool(colon):
            case "constant", False:
                return Process(0.0)
            case "poisson", False:
                return Process(1.0)
            case "gamma", True:
                return Process(_gamma_cv(rest))
            case "trace", True if rest.strip():
                return TraceFile(Path(rest))
    except ValueError as e:
        raise ArrivalError(f"arrival {text!r}: {e}; allowed are {ALLOWED_ARRIVALS}") from None
    raise ArrivalError(f"arrival {text!r}: allowed are {ALLOWED_ARRIVALS}")


def parse_rate(text: str) -> Profile:
    """Parse the rate over time in ``text``, in the grammar above.

    Raises:
        ArrivalError: unknown name, a parameter that is missing, superfluous or out of range, or a profile
            without any request.
    """
    name, colon, rest = text.strip().partition(":")
    try:
        if meant := _meant(name) if not colon else "":
            raise ValueError(meant)
        profile = _profile(name, rest) if colon else constant(_rate("the rate", name))
        if not any(s.rate or s.slope for s in profile.segments):
            raise ValueError("the rate is always 0, so that no request would be sent")
    except ValueError as e:
        raise ArrivalError(f"request rate {text!r}: {e}; allowed are {ALLOWED_RATES}") from None
    return profile


def _meant(word: str) -> str:
    """What a word that other tools take for a rate is called here; empty if it is none of those."""
    if word.lower() in ("inf", "infinity", "max", "unlimited"):
        return (
            "a load without a rate is a closed loop: leave the rate out, and give the requests at once by "
            "--users 100; all at once is --users N --num-requests N"
        )
    per_second = fullmatch(r"(\d+(?:\.\d*)?) *(?:/ *s(?:ec(?:ond)?)?|rps|r/s|req/s|qps|hz)", word, IGNORECASE)
    per_minute = fullmatch(r"(\d+(?:\.\d*)?) *(?:/ *m(?:in(?:ute)?)?|rpm)", word, IGNORECASE)
    if per_second:
        return f"rates are per second: write {per_second[1]}"
    if per_minute:
        return f"rates are per second: write {float(per_minute[1]) / 60:.4g}"
    return ""


def _profile(name: str, rest: str) -> Profile:
    words = rest.split(",")
    match name:
        case "ramp":
            return piecewise(_ramp_legs(words))
        case "steps":
            return piecewise([_step(word, last=i == len(words)) for i, word in enumerate(words, 1)])
        case "sine":
            mean, amplitude, period = _named(words, "MEAN", "AMPLITUDE", "PERIOD")
            return sine(_rate("MEAN", mean), _rate("AMPLITUDE", amplitude), _seconds("PERIOD", period))
        case "spike":
            base, peak, at, span = _named(words, "BASE", "PEAK", "AT", "FOR")
            low, high = _rate("BASE", base), _rate("PEAK", peak)
            calm = Leg(low, low, _seconds("AT", at, positive=False))
            return piecewise([calm, Leg(high, high, _seconds("FOR", span)), Leg(low, low, 0.0)])
    raise ValueError(f"no profile {name!r}")


def _ramp_legs(words: list[str]) -> list[Leg]:
    if len(words) % 2:
        raise ValueError(f"{words[-1].strip()!r} has no partner: each leg is FROM..TO,DURATION")
    legs = []
    for span, duration in zip(words[::2], words[1::2], strict=True):
        first, dots, last = span.partition("..")
        if not dots:
            raise ValueError(f"{span.strip()!r} is not FROM..TO")
        legs.append(Leg(_rate("FROM", first), _rate("TO", last), _seconds("DURATION", duration)))
    return legs


def _step(word: str, *, last: bool) -> Leg:
    rate_text, at, duration = word.partition("@")
    if not at and not last:
        raise ValueError(f"{word.strip()!r} is not RATE@DURATION")
    rate = _rate("RATE", rate_text)
    return Leg(rate, rate, _seconds("DURATION", duration) if at else 0.0)


def _gamma_cv(word: str) -> float:
    cv = _number("CV", word)
    if cv <= 0:  # the process would interpret 0 as constant gaps
        raise ValueError(f"CV {word.strip()!r} is not above 0 (for gaps that are all alike: constant)")
    return cv


def _named(words: list[str], *names: str) -> list[str]:
    if len(words) != len(names):
        raise ValueError(f"{','.join(words)!r} should be {','.join(names)}")
    return words


def _rate(name: str, word: str) -> float:
    value = _number(name, word)
    if not 0 <= value <= MAX_RATE:
        raise ValueError(f"{name} {word.strip()!r} is not in 0 .. {MAX_RATE:,.0f} requests/s")
    return value


def _seconds(name: str, word: str, *, positive: bool = True) -> float:
    text = word.strip()
    try:
        seconds = parse_duration(text)
    except ValueError as e:
        raise ValueError(f"{name} {text!r}: {e}") from None
    if positive and seconds <= 0:
        raise ValueError(f"{name} {text!r} is not above 0 s")
    return seconds


def _number(name: str, word: str) -> float:
    value = plain_number(word)
    if math.isnan(value):
        raise ValueError(f"{name} {word.strip()!r} is not a number")
    return value
