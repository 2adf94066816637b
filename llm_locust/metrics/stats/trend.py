"""The trend of a series over time, and how far a level wanders, where neighbours resemble each other.

What slows a server down slows many requests in a row, so successive values of a run are no independent
samples. Each estimate here counts them as fewer: k values whose neighbours correlate by ρ as
k (1 − ρ) / (1 + ρ). ρ is measured on the residuals and corrected for its bias in short series.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

import numpy as np

from llm_locust.metrics.columns import Floats

#: With fewer values a serial correlation cannot be told from none.
FEWEST = 12

_MOST_CORRELATED = 0.95

#: Of Gauss and Legendre's rule, which integrates powers of a cosine to 12 digits.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)
_STEPS = 12

#: Beyond so many degrees of freedom two terms of the expansion in 1 / degrees have 8 digits.
_MANY_DEGREES = 10_000

#: So many independent values a series is taken to be worth at least: with fewer, an interval is as wide as
#: the quantile of Student's t for one or two degrees of freedom, and says nothing.
_LEAST_WORTH = 4.0

#: Values that differ by less than this share of them are one value and the rounding of floats.
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line through a series: ``level`` at time 0, ``slope`` per unit of time.

    ``error`` is the slope's standard error, with ``degrees`` of freedom; both are of as many values as
    the series is worth by its ``correlation``, that of each residual with the next (never below 0).
    """

    level: float
    slope: float
    error: float
    degrees: float
    correlation: float

    def interval(self, confidence: float) -> tuple[float, float]:
        """Where the true slope lies with this confidence: slope ± t × error."""
        reach = student_t(self.degrees, confidence) * self.error
        return self.slope - reach, self.slope + reach

    def is_beyond_noise(self, confidence: float) -> bool:
        low, high = self.interval(confidence)
        return low > 0 or high < 0


@dataclass(frozen=True, slots=True)
class Level:
    """Values that wander about a ``mean``: another one of them lies within ± ``reach``."""

    mean: float
    reach: float


def fit_trend(times: Floats, values: Floats) -> Trend | None:
    """Least squares over the values that are not NaN.

    Returns:
        None for fewer than :data:`FEWEST` values.
    """
    known = ~np.isnan(values)
    t, x = times[known], values[known]
    k = len(x)
    if k < FEWEST:
        return None
    middle, mean = float(t.mean()), float(x.mean())
    if _are_alike(x):
        return Trend(mean, 0.0, 0.0, k - 2.0, 0.0)
    t = t - middle
    spread = float(t @ t)
    slope = float(t @ (x - mean)) / spread
    residuals = x - mean - slope * t
    correlation = serial_correlation(residuals, fitted=2)
    degrees = _worth(k, correlation) - 2
    error = math.sqrt(float(residuals @ residuals) / degrees / spread)
    return Trend(mean - slope * middle, slope, error, degrees, correlation)


def level_of(values: Floats, confidence: float) -> Level | None:
    """The mean of the values that are not NaN, and how far from it another single one may lie.

    The reach is t × s √(1 + 1/k), s being the standard deviation about the true mean and k what the values
    are worth.

    Returns:
        None for fewer than five values.
    """
    x = values[~np.isnan(values)]
    if len(x) < 5:
        return None
    mean = float(x.mean())
    if _are_alike(x):
        return Level(mean, 0.0)
    residuals = x - mean
    worth = _worth(len(x), serial_correlation(residuals, fitted=1))
    variance = float(residuals @ residuals) / len(x) / (1 - 1 / worth)
    return Level(mean, student_t(worth - 1, confidence) * math.sqrt(variance * (1 + 1 / worth)))


def serial_correlation(residuals: Floats, fitted: int) -> float:
    """The correlation ρ of each residual with the next, from 0 to 0.95.

    Args:
        fitted: f parameters that were fitted (1: a mean, 2: a line). They pull the correlation of k
            residuals down by (f + (f + 2) ρ) / k, which is put back.
    """
    k = len(residuals)
    squares = float(residuals @ residuals)
    if not squares or k < 5:
        return 0.0
    raw = float(residuals[1:] @ residuals[:-1]) / squares
    unbiased = (raw * k + fitted) / (k - fitted - 2)
    return min(max(0.0, unbiased), _MOST_CORRELATED)


@lru_cache(4096)
def student_t(degrees: float, confidence: float) -> float:
    """The two-sided quantile of Student's t, of 1 degree or more: ``student_t(10, 0.95)`` is 2.228.

    It is √ν tan θ for ν degrees, where the integral of cos^(ν − 1) from 0 to θ is the share ``confidence`` of
    that from 0 to π / 2. Newton's steps begin at the normal quantile, which is too small, and do not go too
    far, because the integral is concave.
    """
    z, v = NormalDist().inv_cdf((1 + confidence) / 2), degrees
    if v > _MANY_DEGREES:
        return z + (z**3 + z) / (4 * v)
    asked = confidence * math.sqrt(math.pi) / 2 * math.exp(math.lgamma(v / 2) - math.lgamma((v + 1) / 2))
    angle = math.atan(z / math.sqrt(v))
    for _ in range(_STEPS):
        integral = angle / 2 * float(_WEIGHTS @ np.cos(angle * (_NODES + 1) / 2) ** (v - 1))
        angle += (asked - integral) / math.cos(angle) ** (v - 1)
    return math.sqrt(v) * math.tan(angle)


def _worth(k: int, correlation: float) -> float:
    return max(_LEAST_WORTH, k * (1 - correlation) / (1 + correlation))


def _are_alike(x: Floats) -> bool:
    return float(np.ptp(x)) <= _SAME * float(np.abs(x).max())


@dataclass(frozen=True, slots=True)
class RankTrend:
    """Mann–Kendall's test: ``z`` is standard normal without a trend; ``slope`` is Sen's, per value."""

    z: float
    slope: float


def mann_kendall(values: Floats) -> RankTrend:
    """The trend of at least two values by the signs of their differences.

    S = Σ sign(xⱼ − xᵢ) over i < j; its variance without ties, k (k − 1) (2 k + 5) / 18, is taken of as many
    independent values as the series is worth: × (1 + ρ) / (1 − ρ). Sen's slope is the median of all slopes.
    """
    k = len(values)
    i, j = np.triu_indices(k, 1)
    differences = values[j] - values[i]
    signs = float(np.sign(differences).sum())
    line = fit_trend(np.arange(k, dtype=np.float64), values)
    correlation = 0.0 if line is None else line.correlation
    variance = k * (k - 1) * (2 * k + 5) / 18 * (1 + correlation) / (1 - correlation)
    slope = float(np.median(differences / (j - i)))
    return RankTrend((signs - math.copysign(min(1.0, abs(signs)), signs)) / math.sqrt(variance), slope)


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """The likeliest change of a mean: before the value ``at``; ``statistic`` is large where there is one."""

    at: int
    statistic: float


def change_point(values: Floats) -> ChangePoint:
    """The change point of at least four values by the self-normalised CUSUM of Shao and Zhang (2010).

    G = max D(k)² / V(k), D(k) being the CUSUM at k, and V(k) the mean square of the CUSUMs of both sides,
    which grows with the dependence between values: no long-run variance has to be estimated. Without a
    change G is above 40.1 in 5 % of long series, above 121.9 in 0.1 %.
    """
    n, total = len(values), np.concatenate([[0.0], np.cumsum(values - values.mean())])
    found = ChangePoint(n // 2, 0.0)
    if _are_alike(values):
        return found
    steps = np.arange(n + 1.0)
    for k in range(2, n - 1):
        left = total[: k + 1] - total[k] / k * steps[: k + 1]
        right = total[k:] - total[k] - (total[-1] - total[k]) / (n - k) * steps[: n - k + 1]
        spread = float(left @ left + right @ right) / n**2
        distance = (total[k] - k / n * total[-1]) ** 2 / n
        statistic = distance / spread if spread > 0 else math.inf
        if statistic > found.statistic:
            found = ChangePoint(k, statistic)
    return found


# --- Whether a queue grows without end: requests come faster than they can ever be answered


#: Equal parts of a span, each of which has to have its share of the growth: a burst is in some of them only.
PARTS = 6

#: The least share of a part, of the mean growth of all.
PART_OF_MEAN = 0.4

#: The backlog has to grow by this share of what arrives in a span.
GROWN = 0.06

#: And by so many standard deviations of the number of arrivals in it, were they a Poisson process.
SIGMAS = 3.0

#: A server is known once it has answered what was under way so often: this by the length of the span.
TURNED_OVER_S = 300.0

#: Halves of a span in which a server that fills up would have caught up.
CAUGHT_UP = 4


@dataclass(frozen=True, slots=True)
class QueueCount:
    """Requests since the start of a run: those that ``arrived``, under way or held back, and those that
    ``ended``."""

    arrived: int
    ended: int

    @property
    def backlog(self) -> int:
        return self.arrived - self.ended


def grows(counts: Sequence[QueueCount], span_s: float) -> bool:
    """Whether the backlog has a trend in a span, by its counts at the edges of :data:`PARTS` equal parts.

    - It grew by more than :data:`SIGMAS`·√(arrivals in the span), beyond the noise of a Poisson process, and
      by more than :data:`GROWN` of them;
    - it grew in each part, by :data:`PART_OF_MEAN` of their mean growth or more: not in a burst that is over;
    - the server does not catch up: more requests may have ended in the second half than in the first, but so
      few more that the queue would still grow after :data:`CAUGHT_UP` halves. While a load fills up or ramps
      up, ever more of them end;
    - some had ended before the first part was over, and as many have ended as were under way before it,
      :data:`TURNED_OVER_S` / span times. Until then nothing is known of the server: answers of a minute fill
      it up for minutes.
    """
    first, middle, last = counts[0], counts[PARTS // 2], counts[-1]
    if not counts[1].ended or last.ended < TURNED_OVER_S / span_s * first.backlog:
        return False
    arrived, total = last.arrived - first.arrived, last.backlog - first.backlog
    if total <= max(SIGMAS * math.sqrt(arrived), GROWN * arrived):
        return False
    gained = (last.ended - middle.ended) - (middle.ended - first.ended)
    if CAUGHT_UP * gained > last.backlog - middle.backlog:
        return False
    least = min(after.backlog - before.backlog for before, after in pairwise(counts))
    return least >= PART_OF_MEAN * total / PARTS
