"""The 95 % interval of each figure of a run, and what its samples are worth.

Requests of one run are no independent samples: those in one queue wait together, those in one batch share
its engine steps. So each standard error is by blocks (:mod:`~llm_locust.metrics.stats.bootstrap`), and the
**effective sample size** n_eff says how many independent samples would have that error:
p (1 − p) / error² for a share p, variance / error² for a mean, never more than there are samples.

A percentile's interval is Woodruff's (1952): an interval for the share of samples at or below it, carried
back to values by the run's own quantile function. It is as skewed as the tail, and no density is estimated.
The share's interval is that of :func:`~llm_locust.metrics.stats.worth.share_ends`, of n_eff samples and with
Student's t (after Korn and Graubard 1998). The interval of a mean or a rate is made on the scale of its
logarithm, value × exp(± t × error / value), because what is skewed has its larger errors where it is large.

**Where the data cannot tell, there is no interval**: where the run's memory is longer than the blocks that
fit into it, and where its samples are worth too few independent ones
(:mod:`~llm_locust.metrics.stats.worth`). A percentile has one only where all that are nearer the median have.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from llm_locust.metrics.columns import Floats, Times
from llm_locust.metrics.stats.bootstrap import StandardError, standard_error
from llm_locust.metrics.stats.cells import Order, seconds_of_cells
from llm_locust.metrics.stats.worth import (
    FEWEST,
    FEWEST_BEYOND,
    FEWEST_OF_MEAN,
    Ends,
    Memory,
    Worth,
    is_told,
    mean_ends,
    needed,
    percentile_shares,
    scaled_ends,
)
from llm_locust.metrics.window import Window

CONFIDENCE = 0.95

#: Values that differ by less than this share of them are one value and the rounding of floats.
_SAME = 1e-9


class CellSums(Protocol):
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

    finite: CellSums
    infinite: Floats

    @property
    def counts(self) -> Floats:
        return self.finite.counts + self.infinite

    @property
    def sums(self) -> Floats:
        return self.finite.sums + np.where(self.infinite > 0, np.inf, 0.0)

    def at_most(self, limits: Floats) -> Floats:
        return self.finite.at_most(limits)


def in_order(values: Floats, infinite: int = 0) -> CellSums:
    """The course of samples in the order of their run; infinite ones lie evenly between them."""
    n = len(values) + infinite
    finite = np.ones(n, dtype=np.bool_)
    finite[np.linspace(0, n - 1, infinite).astype(np.int64)] = False
    order = Order.even(n)
    course = Observed(order.having(finite), values)
    return WithInfinite(course, order.sums(~finite)) if infinite else course


def share_worth(hits: Floats, counts: Floats, fallback: Worth | None = None) -> Worth | None:
    """What the cells' ``hits`` of ``counts`` are worth; None where cells do not show how they differ.

    Where fewer than :data:`~llm_locust.metrics.stats.worth.FEWEST_BEYOND` effective samples are hits, or are
    none, how these come together is not known: the share is then worth no more than the ``fallback``. The
    memory is the fallback's.
    """
    error = standard_error(hits, counts)
    if error is None:
        return None
    n = float(counts.sum())
    share = float(hits.sum()) / n
    variance = share * (1 - share)
    n_eff = min(n, variance / error.value**2) if error.value else n
    if fallback is None:
        return Worth(error, n_eff)
    if n_eff * min(share, 1 - share) < FEWEST_BEYOND:
        return Worth(fallback.error, min(n_eff, fallback.n_eff), fallback.memory)
    return Worth(error, n_eff, fallback.memory)


def worths(
    course: CellSums, mean: float, std: float, median: float, values: Sequence[float] = ()
) -> tuple[Worth | None, list[Worth | None]]:
    """What the samples of a course are worth for their mean, and for the share at or below each value.

    None where cells do not show how they differ, and for what is not finite. Where all samples, or none, are
    at or below a value, they are worth as much as for the mean.
    """
    of_mean = _mean_worth(course, mean, std) if math.isfinite(mean) else None
    if of_mean is not None and not of_mean.error.value:
        return of_mean, [of_mean] * len(values)  # all samples are one value and the rounding of floats
    counts = course.counts
    limits = np.unique([value for value in (median, *values) if math.isfinite(value)])
    hits = dict(zip(limits.tolist(), course.at_most(limits), strict=True))
    known = {limit: at_most for limit, at_most in hits.items() if _parts(at_most, counts)}
    # A mean above the median, or one that is not defined for samples of +∞: the longer tail is above.
    memory = _memory(known.get(median), counts, of_mean, upward=not mean < median)
    if of_mean is not None:
        of_mean = replace(of_mean, memory=memory)
    found: list[Worth | None] = []
    for value in values:
        if value in known:
            worth = share_worth(known[value], counts)
            found.append(worth and replace(worth, memory=memory))
        else:
            found.append(of_mean if value in hits else None)
    return of_mean, found


def _parts(hits: Floats, counts: Floats) -> bool:
    """Whether some samples are at or below a limit, and some above."""
    return _SAME < float(hits.sum() / counts.sum()) < 1 - _SAME


def _memory(hits: Floats | None, counts: Floats, of_mean: Worth | None, *, upward: bool) -> Memory | None:
    """``hits`` are the samples at or below the median; None where all are, or it is not known.

    The median then says nothing, and the mean decides.
    """
    worth = of_mean if hits is None else share_worth(hits, counts, of_mean)
    if worth is None:
        return None
    return Memory(float(counts.sum()), worth.n_eff if worth.error.settled else 0.0, upward)


def _mean_worth(course: CellSums, mean: float, std: float) -> Worth | None:
    counts = course.counts
    error = standard_error(course.sums, counts)
    if error is None:
        return None
    n = float(counts.sum())
    if std <= _SAME * abs(mean):
        return Worth(StandardError(0.0, error.degrees), n, Memory(n, n))
    return Worth(error, min(n, std**2 / error.value**2) if error.value else n)


def told(
    course: CellSums | None,
    places: Mapping[str, float],
    quantile: Callable[[float], float],
    mean: float,
    std: float,
    confidence: float = CONFIDENCE,
) -> tuple[dict[str, Ends | None], dict[str, float | None]]:
    """The intervals of the mean and of each percentile, and the effective sample size of each.

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
    of_mean, of_places = worths(course, mean, std, quantile(50.0), [quantile(p) for p in places.values()])
    if of_mean is not None:
        n_effective["mean"] = rounded(of_mean.n_eff)
        if is_told(of_mean, FEWEST_OF_MEAN):
            ends["mean"] = mean_ends(mean, of_mean, confidence)
    of = dict(zip(places, of_places, strict=True))
    can_tell = _can_tell(places, of)
    for key, worth in of.items():
        if worth is not None:
            n_effective[key] = rounded(worth.n_eff)
        if worth is not None and key in can_tell:
            low, high = percentile_shares(places[key], worth, confidence)
            ends[key] = quantile(100 * low), quantile(100 * high)
    return ends, n_effective


def _can_tell(places: Mapping[str, float], of: Mapping[str, Worth | None]) -> set[str]:
    """Percentiles that have an interval: each only where all that are nearer the median on its side have."""
    found = set()
    for side in (1, -1):
        outwards = sorted((side * (percent - 50), key) for key, percent in places.items())
        for far, key in outwards:
            if far < 0:
                continue
            if not is_told(of[key], needed(places[key])):
                break
            found.add(key)
    return found


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
