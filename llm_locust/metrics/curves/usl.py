"""The universal scalability law, fitted to throughput over concurrency (Gunther 1993).

X(N) = γ N / (1 + α (N − 1) + β N (N − 1)): γ is the throughput of one request at a time, **contention** α the
share of the work that is done one after the other, **coherency** β what each pair of requests costs. With
β > 0 the throughput has its peak at N = √((1 − α) / β) and falls beyond it; with β = 0 it approaches γ / α.

N / X is linear in the parameters, so that the fit is least squares of its relative errors with α, β ≥ 0.
"""

import math
from dataclasses import dataclass

import numpy as np

from llm_locust.core.figures import quantity
from llm_locust.metrics.columns import Floats

#: Three parameters and one degree of freedom.
FEWEST_LOADS = 4

#: The largest concurrency over the smallest from which the law can be seen.
LEAST_SPAN = 4.0

_DRAWS = 1_000
_ENDS = (0.025, 0.975)

Ends = tuple[float, float]


class NoFitError(ValueError):
    """Throughputs that the law cannot be fitted to; one line says why."""


@dataclass(frozen=True, slots=True)
class Usl:
    """The law's parameters, requests/s and shares."""

    gamma: float
    alpha: float
    beta: float

    def at(self, n: Floats) -> Floats:
        """Throughput at a concurrency."""
        found: Floats = self.gamma * n / (1 + self.alpha * (n - 1) + self.beta * n * (n - 1))
        return found

    @property
    def peak(self) -> float:
        """Concurrency with the highest throughput; infinite where more never hurts."""
        if self.alpha >= 1:
            return 1.0
        return math.sqrt((1 - self.alpha) / self.beta) if self.beta > 0 else math.inf

    @property
    def plateau(self) -> float:
        """The highest throughput: at the peak, or what it approaches; infinite where it grows for ever."""
        if math.isfinite(self.peak):
            return float(self.at(np.array([max(1.0, self.peak)]))[0])
        return self.gamma / self.alpha if self.alpha > 0 else math.inf


@dataclass(frozen=True, slots=True)
class UslFit:
    """The law, the fits of the bootstrap, and the root mean square of the relative residuals."""

    law: Usl
    draws: tuple[Usl, ...]
    residual: float

    def ends(self, name: str) -> Ends:
        """The 95 % interval of a parameter, ``peak`` or ``plateau``; an end may be infinite.

        A parameter that cannot be negative is biased under noise, so that most draws may be on one side of
        the fit: the interval is widened to hold it.
        """
        value = getattr(self.law, name)
        low, high = np.quantile([getattr(each, name) for each in self.draws], _ENDS, method="inverted_cdf")
        return min(float(low), value), max(float(high), value)

    def at(self, n: float) -> tuple[float, Ends]:
        """Throughput at a concurrency, with its 95 % interval."""
        point = np.array([n])
        drawn = [each.at(point)[0] for each in self.draws]
        low, high = np.quantile(drawn, _ENDS, method="inverted_cdf").tolist()
        return float(self.law.at(point)[0]), (low, high)


def fit_usl(n: Floats, x: Floats, errors: Floats, seed: int = 0) -> UslFit:
    """Fit the law to throughputs ``x`` at concurrencies ``n``.

    The error of each throughput is the larger of its own and of the residuals, which have what the law
    misses.

    Args:
        errors: standard errors of the logarithms of ``x``.

    Raises:
        NoFitError: there are too few concurrencies, or they are too near to each other.
    """
    kept = (n >= 1) & (x > 0)
    n, x, errors = n[kept], x[kept], errors[kept]
    if len(np.unique(n)) < FEWEST_LOADS:
        raise NoFitError(
            f"{FEWEST_LOADS} loads with a result and a concurrency of 1 or more are needed, "
            f"there {'is' if len(np.unique(n)) == 1 else 'are'} {len(np.unique(n))}"
        )
    if n.max() < LEAST_SPAN * n.min():
        raise NoFitError(
            f"the concurrency went from {quantity(n.min())} to {quantity(n.max())}: it needs to grow at "
            f"least {LEAST_SPAN:g}-fold"
        )
    (law,) = _fits(n, x[None])
    residuals = np.log(x / law.at(n))
    residual = math.sqrt(float((residuals**2).sum()) / (len(n) - 3))
    sigma = np.maximum(errors, residual)
    fitted, noise = law.at(n), np.random.default_rng(seed).standard_normal((_DRAWS, len(n)))
    return UslFit(law, _fits(n, fitted * np.exp(sigma * noise)), residual)


def _fits(n: Floats, x: Floats) -> tuple[Usl, ...]:
    """Least squares of (fit − N / X) over N / X; the best of the fits whose parameters are not negative.

    Args:
        n: shape (loads,).
        x: shape (fits, loads).
    """
    terms = np.stack([np.ones(len(n)), n - 1, n * (n - 1)], axis=1) * (x / n)[..., None]
    best, least = np.tile([1.0, 0.0, 0.0], (len(x), 1)), np.full(len(x), np.inf)
    for columns in ((0, 1, 2), (0, 1), (0, 2), (0,)):
        some = terms[..., columns]
        found = np.linalg.pinv(some).sum(axis=-1)
        errors = ((np.einsum("ijk,ik->ij", some, found) - 1) ** 2).sum(axis=-1)
        better = np.flatnonzero((found[:, 0] > 0) & (found >= 0).all(axis=-1) & (errors < least))
        best[better] = 0.0
        best[better[:, None], columns] = found[better]
        # No part of the law fits better than the whole of it.
        least[better] = errors[better] if len(columns) < 3 else 0.0
    return tuple(Usl(1 / one, serial / one, pairs / one) for one, serial, pairs in best.tolist())
