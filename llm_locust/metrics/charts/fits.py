"""A line through points that outliers cannot pull, with an interval that assumes no distribution."""

from dataclasses import dataclass

import numpy as np

from llm_locust.metrics.columns import Floats

#: Fewer points say nothing of a slope; of more, their pairs would be too many.
FEWEST_POINTS, MOST_POINTS = 20, 1_000

_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class FittedLine:
    """y = ``intercept`` + ``slope`` · x through ``n`` points; the slope's 95 % interval [low, high]."""

    slope: float
    intercept: float
    low: float
    high: float
    n: int

    @property
    def is_flat(self) -> bool:
        """Whether the slope is not beyond noise: its interval has 0 inside."""
        return self.low <= 0 <= self.high


def theil_sen(x: Floats, y: Floats) -> FittedLine | None:
    """The median of the slopes of all pairs, and of the residuals at that slope.

    The interval is Sen's: the slopes of ranks (N ∓ C) / 2 with C = 1.96 · √Var(S) of Kendall's S,
    Var(S) = (n(n − 1)(2n + 5) − Σ t(t − 1)(2t + 5)) / 18, over groups of t points with the same x.

    Returns:
        None for fewer than :data:`FEWEST_POINTS` points, and where all x are equal.
    """
    n = len(x)
    if n < FEWEST_POINTS:
        return None
    first, second = np.triu_indices(n, 1)
    dx, dy = x[second] - x[first], y[second] - y[first]
    slopes = np.sort(dy[dx != 0] / dx[dx != 0])
    if not len(slopes):
        return None
    slope = float(np.median(slopes))
    low, high = _interval(slopes, x)
    return FittedLine(slope, float(np.median(y - slope * x)), low, high, n)


def _interval(slopes: Floats, x: Floats) -> tuple[float, float]:
    n, ties = len(x), np.unique(x, return_counts=True)[1]
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    reach = _Z * float(np.sqrt(variance))
    low = max(0, int(np.floor((len(slopes) - reach) / 2)))
    high = min(len(slopes) - 1, int(np.ceil((len(slopes) + reach) / 2)))
    return float(slopes[low]), float(slopes[high])
