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

from llm_locust.metrics.stats.bootstrap import StandardError
from llm_locust.metrics.stats.censoring import Durations
from llm_locust.metrics.stats.worth import (
    FEWEST,
    FEWEST_OF_MEAN,
    Ends,
    Worth,
    is_told,
    mean_ends,
    needed,
    percentile_shares,
    ratio_ends,
    scaled_ends,
)


class Estimate(Protocol):
    """A figure, in its own unit."""

    @property
    def value(self) -> float: ...

    def ends(self, confidence: float) -> Ends:
        """The two-sided interval of that confidence."""
        ...


@dataclass(frozen=True, slots=True)
class Average:
    """A mean. Its interval, as each of these, is that of :mod:`~llm_locust.metrics.stats.intervals`."""

    value: float
    worth: Worth | None

    def ends(self, confidence: float) -> Ends:
        if self.worth is None or not is_told(self.worth, FEWEST_OF_MEAN):
            return -math.inf, math.inf
        return mean_ends(self.value, self.worth, confidence)


@dataclass(frozen=True, slots=True)
class Rate:
    """An amount per second."""

    value: float
    error: StandardError | None

    def ends(self, confidence: float) -> Ends:
        if self.error is None or not self.error.settled:
            return -math.inf, math.inf
        return scaled_ends(self.value, self.error, confidence)


@dataclass(frozen=True, slots=True)
class Share:
    """A share."""

    value: float
    worth: Worth | None

    def ends(self, confidence: float) -> Ends:
        if self.worth is None or not is_told(self.worth, FEWEST):
            return 0.0, 1.0
        return ratio_ends(self.value, self.worth, confidence)


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile of samples, which are ``worth`` so much for it."""

    value: float
    percent: float
    samples: Durations
    worth: Worth | None

    def ends(self, confidence: float) -> Ends:
        if self.worth is None or not is_told(self.worth, needed(self.percent)):
            return -math.inf, math.inf
        low, high = percentile_shares(self.percent, self.worth, confidence)
        ends = self.samples.quantile(low), self.samples.quantile(high)
        # NaN: requests that were given up leave it open, at one end or at both.
        return -math.inf if math.isnan(ends[0]) else ends[0], math.inf if math.isnan(ends[1]) else ends[1]


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
