"""A figure of one run with its interval, and the difference of two runs' figures with its own.

The interval of a difference is made of those of the two figures by the method of variance estimates
recovery (Zou and Donner 2008), of which Newcombe's interval for two shares is a case: with the figures
a, b and their intervals [l, u], a − b lies from a − b − √((a − l_a)² + (u_b − b)²) to
a − b + √((u_a − a)² + (b − l_b)²). Unlike a single standard error it keeps the two sides of a skewed
figure, such as a p99, apart. An end that is not known is infinite.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from llm_locust.metrics.bootstrap import StandardError
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.percentiles import Ascending

Ends = tuple[float, float]


class Estimate(Protocol):
    """A figure, in its own unit."""

    @property
    def value(self) -> float: ...

    def ends(self, confidence: float) -> Ends:
        """The two-sided interval of that confidence."""
        ...


@dataclass(frozen=True, slots=True)
class Average:
    """A mean or a rate: its interval is value ± t × standard error."""

    value: float
    error: StandardError | None

    def ends(self, confidence: float) -> Ends:
        if self.error is None:
            return -math.inf, math.inf
        reach = self.error.reach(confidence)
        return self.value - reach, self.value + reach


@dataclass(frozen=True, slots=True)
class Share:
    """A share of ``n``: at each side the further of Wilson's interval and of value ± t × error.

    Wilson's holds near 0 and 1, where the other has no width. It is of as many as ``n`` are worth,
    value (1 − value) / error² and at most n: failures that come together are one event. Where they are
    worth less than a few, its nearer end is too near, and the other's is not.
    """

    value: float
    n: int
    error: StandardError | None

    def ends(self, confidence: float) -> Ends:
        if self.error is None:
            return 0.0, 1.0
        p, z = self.value, self.error.t(confidence)
        variance, squared = p * (1 - p), self.error.value**2
        worth = min(self.n, variance / squared) if variance and squared else self.n
        zz = z * z / worth
        middle, reach = p + zz / 2, z * math.sqrt(variance / worth + zz / worth / 4)
        low, high = (middle - reach) / (1 + zz), (middle + reach) / (1 + zz)
        beside = z * self.error.value
        # Rounding must not leave an end beside the 0 or 1 that it is exactly.
        return max(0.0, min(p, low, p - beside)), min(1.0, max(p, high, p + beside))


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile: the samples between which it lies (Woodruff 1952).

    ``error`` is that of the share of samples at or below it. The ends are the samples whose shares are
    ``percent`` ± t × that error: no density is estimated, and the interval is as skewed as the tail.
    """

    value: float
    percent: float
    ascending: Floats | Ascending
    error: StandardError | None

    def ends(self, confidence: float) -> Ends:
        if self.error is None:
            return -math.inf, math.inf
        n, p, reach = len(self.ascending), self.percent / 100, self.error.reach(confidence)
        low, high = math.floor(n * (p - reach)), math.ceil(n * (p + reach)) + 1
        return (
            float(self.ascending[low - 1]) if low >= 1 else -math.inf,
            float(self.ascending[high - 1]) if high <= n else math.inf,
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """New − base, and the interval it lies in; an infinite end is not known."""

    value: float
    low: float
    high: float

    @property
    def is_known(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


def difference(base: Estimate, new: Estimate, confidence: float) -> Difference:
    """New − base of two independent runs."""
    (base_low, base_high), (new_low, new_high) = base.ends(confidence), new.ends(confidence)
    value = new.value - base.value
    return Difference(
        value,
        value - math.hypot(new.value - new_low, base_high - base.value),
        value + math.hypot(new_high - new.value, base.value - base_low),
    )
