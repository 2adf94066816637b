"""The 95 % interval of each figure of a run, and what its samples are worth.

Requests of one run are no independent samples: those in one queue wait together, those in one batch share
its engine steps. So each standard error is by blocks (:mod:`~llm_locust.metrics.bootstrap`), and the
**effective sample size** n_eff says how many independent samples would have that error:
p (1 − p) / error² for a share p, variance / error² for a mean, never more than there are samples.

A percentile's interval is Woodruff's (1952): an interval for the share of samples at or below it, carried
back to values by the run's own quantile function. It is as skewed as the tail, and no density is estimated.
The share's interval is that of :func:`share_ends`, of n_eff samples and with Student's t (after Korn and
Graubard 1998). The interval of a mean or a rate is made on the scale of its logarithm, value × exp(± t ×
error / value), because what is skewed has its larger errors where it is large.

**Where the data cannot tell, there is no interval**: where the run's memory is longer than the blocks that
fit into it, and where n_eff leaves too few samples to know the error itself by (:func:`needed`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from llm_locust.metrics.bootstrap import StandardError, standard_error
from llm_locust.metrics.cells import Order, seconds_of_cells
from llm_locust.metrics.columns import Floats, Times
from llm_locust.metrics.window import Window

CONFIDENCE = 0.95

#: Effective samples that an interval needs at each side of its percentile, and in all.
FEWEST_BEYOND, FEWEST = 10, 40

#: Effective samples that the interval of a mean needs: a tail that a run has not seen is in no error.
FEWEST_OF_MEAN = 100

#: Values that differ by less than this share of them are one value and the rounding of floats.
_SAME = 1e-9

Ends = tuple[float, float]


class Course(Protocol):
    """What the samples of a population sum up to in the cells of their run, in its order.

    ``counts`` is their number and ``sums`` their sum, one value a cell.
    """

    @property
    def counts(self) -> Floats: ...

    @property
    def sums(self) -> Floats: ...

    def at_most(self, limits: Floats) -> Floats:
        """The number of samples at or below each of the ascending ``limits``, shape (limits, cells)."""
        ...


class Observed:
    """The course of samples that are there, NaN being none, one for each item of ``order``."""

    def __init__(self, order: Order, values: Floats) -> None:
        self._order, self._values = order, order.sorted(values)
        known = ~np.isnan(self._values)
        whole = bool(known.all())
        self.counts = order.sums(known)
        self.sums = order.sums(self._values if whole else np.where(known, self._values, 0.0))

    def at_most(self, limits: Floats) -> Floats:
        return np.array([self._order.sums(self._values <= limit) for limit in limits])


@dataclass(frozen=True, slots=True)
class WithInfinite:
    """A course with so many samples of +∞ in each cell beside its own."""

    finite: Course
    infinite: Floats

    @property
    def counts(self) -> Floats:
        return self.finite.counts + self.infinite

    @property
    def sums(self) -> Floats:
        return self.finite.sums + np.where(self.infinite > 0, np.inf, 0.0)

    def at_most(self, limits: Floats) -> Floats:
        return self.finite.at_most(limits)


def in_order(values: Floats, infinite: int = 0) -> Course:
    """The course of samples in the order of their run; infinite ones lie evenly between them."""
    n = len(values) + infinite
    finite = np.ones(n, dtype=np.bool_)
    finite[np.linspace(0, n - 1, infinite).astype(np.int64)] = False
    order = Order.even(n)
    course = Observed(order.having(finite), values)
    return WithInfinite(course, order.sums(~finite)) if infinite else course


def needed(percent: float) -> int:
    """The fewest effective samples for the interval of a percentile: 40 for p50, 1,000 for p99."""
    tail = min(percent, 100 - percent) / 100
    return max(FEWEST, math.ceil(round(FEWEST_BEYOND / tail, 6)))


def share_ends(share: float, n_eff: float, z: float) -> Ends:
    """Wilson's interval of a share of ``n_eff`` samples, with the correction for continuity."""
    zz, spread = z * z, 4 * n_eff * share * (1 - share)
    middle = 2 * n_eff * share + zz
    low = middle - z * math.sqrt(max(0.0, zz - 1 / n_eff + spread + (4 * share - 2))) - 1
    high = middle + z * math.sqrt(max(0.0, zz - 1 / n_eff + spread - (4 * share - 2))) + 1
    whole = 2 * (n_eff + zz)
    # Where the share stands for less than one sample, the correction would leave it outside.
    return (
        max(0.0, min(share, low / whole)) if share > 0 else 0.0,
        min(1.0, max(share, high / whole)) if share < 1 else 1.0,
    )


def scaled_ends(value: float, error: StandardError, confidence: float) -> Ends:
    """value × exp(± t × error / value) of a mean or a rate above 0, else value ± t × error."""
    reach = error.reach(confidence)
    if value <= 0:
        return value - reach, value + reach
    factor = math.exp(min(reach / value, 50.0))
    return value / factor, value * factor


@dataclass(frozen=True, slots=True)
class Worth:
    """The error of a figure and its effective sample size."""

    error: StandardError
    n_eff: float

    def t(self, confidence: float) -> float:
        return self.error.t(confidence)


def share_worth(hits: Floats, counts: Floats, fallback: Worth | None = None) -> Worth | None:
    """What the cells' ``hits`` of ``counts`` are worth; None where cells do not show how they differ.

    Where fewer than :data:`FEWEST_BEYOND` effective samples are hits, or are none, how these come together
    is not known: the share is then worth no more than the ``fallback``.
    """
    error = standard_error(hits, counts)
    if error is None:
        return None
    n = float(counts.sum())
    share = float(hits.sum()) / n
    variance = share * (1 - share)
    n_eff = min(n, variance / error.value**2) if error.value else n
    if fallback is not None and n_eff * min(share, 1 - share) < FEWEST_BEYOND:
        return Worth(fallback.error, min(n_eff, fallback.n_eff))
    return Worth(error, n_eff)


def mean_worth(course: Course, mean: float, std: float) -> Worth | None:
    """What the samples of a course are worth for their mean; None where cells do not show how they differ."""
    error = standard_error(course.sums, course.counts)
    if error is None:
        return None
    n = float(course.counts.sum())
    if std <= _SAME * abs(mean):
        return Worth(StandardError(0.0, error.degrees), n)
    return Worth(error, min(n, std**2 / error.value**2) if error.value else n)


def is_told(worth: Worth | None, fewest: float) -> bool:
    """Whether there are blocks enough, and samples enough."""
    return worth is not None and worth.error.settled and worth.n_eff >= fewest


def percentile_worths(course: Course, values: list[float], fallback: Worth | None) -> list[Worth | None]:
    """What the samples are worth for each percentile, ``values`` being what these are.

    Where all samples, or none, are at or below one, they are worth the ``fallback``.
    """
    if fallback is not None and not fallback.error.value:
        return [fallback] * len(values)  # all samples are one value and the rounding of floats
    counts = course.counts
    limits = np.unique([value for value in values if math.isfinite(value)])
    at_most = dict(zip(limits.tolist(), course.at_most(limits), strict=True))
    found: list[Worth | None] = []
    for value in values:
        hits = at_most.get(value)
        if hits is None:
            found.append(None)
        elif _SAME < float(hits.sum() / counts.sum()) < 1 - _SAME:
            found.append(share_worth(hits, counts))
        else:
            found.append(fallback)
    return found


def told(
    course: Course | None,
    places: Mapping[str, float],
    quantile: Callable[[float], float],
    mean: float,
    std: float,
) -> tuple[dict[str, Ends | None], dict[str, float | None]]:
    """The 95 % intervals of the mean and of each percentile, and the effective sample size of each.

    Args:
        course: None where there is none, or no sample.
        places: key to percent.
        quantile: the population's quantile function, of percent; +∞ where it rests on an infinite sample, NaN
            where it is not known.
        mean, std: NaN where they are not defined.
    """
    ends: dict[str, Ends | None] = dict.fromkeys(("mean", *places))
    n_effective: dict[str, float | None] = dict.fromkeys(("mean", *places))
    if course is None:
        return ends, n_effective
    of_mean = mean_worth(course, mean, std) if math.isfinite(mean) else None
    if of_mean is not None:
        n_effective["mean"] = rounded(of_mean.n_eff)
        if is_told(of_mean, FEWEST_OF_MEAN):
            ends["mean"] = scaled_ends(mean, of_mean.error, CONFIDENCE)
    percents = list(places.values())
    worths = percentile_worths(course, [quantile(percent) for percent in percents], of_mean)
    for key, percent, worth in zip(places, percents, worths, strict=True):
        if worth is None:
            continue
        n_effective[key] = rounded(worth.n_eff)
        if is_told(worth, needed(percent)):
            low, high = share_ends(percent / 100, worth.n_eff, worth.t(CONFIDENCE))
            ends[key] = quantile(100 * low), quantile(100 * high)
    return ends, n_effective


def rate_ends(value: float | None, amounts: Floats, window: Window, c: Times) -> Ends | None:
    """The 95 % interval of a rate, of which ``amounts`` are the parts of each cell of the window.

    None where as many independent arrivals as would have the error are fewer than :data:`FEWEST`.
    """
    error = rate_error(value, amounts, window, c)
    if value is None or error is None or not error.settled or value**2 < FEWEST * error.value**2:
        return None
    return scaled_ends(value, error, CONFIDENCE)


def rate_error(value: float | None, amounts: Floats, window: Window, c: Times) -> StandardError | None:
    """That of Σ ``amounts`` per second, as a share of it, times ``value``; None where it is not above 0."""
    total = float(amounts.sum())
    if value is None or not value > 0 or not total > 0 or not window.seconds > 0:
        return None
    seconds = seconds_of_cells(window, c)
    error = standard_error(amounts, seconds)
    return error and replace(error, value=error.value * value / (total / float(seconds.sum())))


def rounded(value: float) -> float:
    """To ten digits: sums of floats differ in their last ones by the order in which workers delivered."""
    return float(f"{value:.10g}")


def as_json(ends: Mapping[str, Ends | None], scale: float = 1.0) -> dict[str, list[float | None] | None]:
    """The intervals as a summary has them; an end on +∞ is None."""

    def scaled(end: float) -> float | None:
        return rounded(end * scale) if math.isfinite(end) else None

    return {key: None if pair is None else [scaled(end) for end in pair] for key, pair in ends.items()}
