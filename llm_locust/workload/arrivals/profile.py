"""Rate of arrivals over time, its integral Λ, and the inverse that maps units to seconds.

The arrival k of a process in unit time, u_k, happens at t_k = Λ⁻¹(u_k). A Poisson process stays Poisson, with
the varying rate; constant gaps stay evenly spaced in Λ. Λ⁻¹(u) is the first time after which Λ exceeds u:
arrivals before t are those with u < Λ(t), and none falls into a span of rate 0.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
        _check(self.segments)
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


def _check(segments: tuple[RateSegment, ...]) -> None:
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
