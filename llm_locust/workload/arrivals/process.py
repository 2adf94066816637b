"""Arrival processes of rate 1: the distribution of the gaps, and one endless sequence for all workers.

A sequence in *unit time* has one arrival per unit on average. A rate profile maps it to seconds
(:mod:`llm_locust.workload.arrivals.profile`), so that a process keeps its distribution whatever the rate
does.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
