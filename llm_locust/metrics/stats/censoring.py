"""Durations of which some were cut before their end: percentiles and mean by the product limit.

A duration that was cut at c is *right-censored*: it is longer than c, and no more is known. The product-limit
estimate (Kaplan and Meier 1958) distributes the weight of each of these among all that lasted longer. It is
valid if a cut is independent of the duration that it cuts. The end of a run is such a cut as long as requests
that are sent late take no longer than those that were sent early; if they do, see :func:`later_is_longer`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from llm_locust.metrics.columns import Floats, Mask
from llm_locust.metrics.stats.cells import Order
from llm_locust.metrics.stats.intervals import CellSums, Observed, WithInfinite, as_json, told
from llm_locust.metrics.stats.percentiles import (
    PERCENTILES,
    Ascending,
    moments,
    ordered,
    percentile,
    summarise_ascending,
)
from llm_locust.metrics.stats.product_limit import SAME, blocks, positions, quantile_at

#: Standard errors of the score from which on later requests last longer: by chance in one case of 740.
TREND_ERRORS = 3.0

#: Of more requests a random sample is tested for a trend: a second would be spent on a million.
MOST_TESTED = 200_000

#: A figure is told in spite of such a trend where no ending of the cut requests moves it by more than this.
CLOSE = 0.05

_NONE = np.empty(0)


def later_is_longer(observed: Floats, censored: Floats, observed_at: Floats, censored_at: Floats) -> bool:
    """Whether requests that were scheduled later last longer, beyond chance; False if it cannot be tested.

    The score test of the proportional hazards model (Cox 1972) of the time at which they were scheduled. If
    it is positive, the end of the run cuts the long ones, and the product limit is too low.

    Args:
        observed, censored: durations, in any order.
        observed_at, censored_at: when each was scheduled.
    """
    if not len(observed) or not len(censored):
        return False
    every = 1 + (len(observed) + len(censored)) // MOST_TESTED
    seen, cut = _sampled(observed_at, every), _sampled(censored_at, every)
    observed = observed[seen]
    lasted = np.concatenate([observed, censored[cut]])
    when = np.concatenate([observed_at[seen], censored_at[cut]])
    when -= np.mean(when) if len(when) else 0.0
    by_length = np.argsort(lasted)
    lasted, when = lasted[by_length], when[by_length]
    # Sums over all that last as long as each observed one or longer.
    ended = np.flatnonzero(by_length < len(observed))
    at = np.searchsorted(lasted, lasted[ended], side="left")
    watched = len(lasted) - at
    mean = _sums_from(when)[at] / watched
    square = _sums_from(when * when)[at] / watched
    score = float(np.sum(when[ended] - mean))
    variance = float(np.sum(np.maximum(0.0, square - mean * mean)))
    return variance > 0 and score < -TREND_ERRORS * math.sqrt(variance)


def _sampled(times_s: Floats, every: int) -> Mask:
    """One of ``every`` requests, chosen by the hash of its scheduled time, independent of their order."""
    if every == 1:
        return np.ones(len(times_s), np.bool_)
    ns = np.rint(times_s * 1e9).astype(np.int64).view(np.uint64)
    mask: Mask = (ns * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)) % np.uint64(every) == 0
    return mask


def _sums_from(values: Floats) -> Floats:
    return np.cumsum(values[::-1])[::-1]


@dataclass(frozen=True)
class Durations:
    """Durations in seconds, ascending: ``observed`` ones, those ``censored`` at this length, and ``infinite``
    ones without end.

    ``trend``: later ones last longer, or some are unknown, so that the product limit is too low. ``course``
    is that of all of them in their run; without it there are no confidence intervals.
    """

    observed: Floats | Ascending
    censored: Floats = field(default_factory=lambda: _NONE)
    infinite: int = 0
    trend: bool = False
    course: CellSums | None = None

    @classmethod
    def of(
        cls, observed: Floats, censored: Floats = _NONE, *, failed: int = 0, trend: bool = False
    ) -> "Durations":
        """Make them from durations in any order; NaN is no sample."""
        return cls(ordered(observed), ordered(censored), failed, trend)

    def quantile(self, share: float) -> float:
        """Value at a share of all; NaN if the censored ones leave it open, +∞ among infinite ones.

        Without censored ones it is numpy's ``linear`` percentile. With a ``trend`` it is open unless no
        ending of the censored ones could move it by more than :data:`CLOSE`.
        """
        if not len(self.censored):
            return percentile(self.observed, share * 100, self.infinite)
        assert isinstance(self.observed, np.ndarray)
        if self.trend and not self._is_close(share):
            least = self.at_least(share)
            return least if math.isinf(least) else math.nan
        return quantile_at(self.observed, self.censored, self._positions, share, self.infinite)

    @cached_property
    def _positions(self) -> Floats:
        assert isinstance(self.observed, np.ndarray)
        return positions(self.observed, self.censored, self.infinite)

    def at_least(self, share: float) -> float:
        """Lower bound of the value at a share: that if each censored duration had ended at its cut."""
        return percentile(self._as_if_ended, share * 100, self.infinite)

    def lasting(self, limits: Floats) -> Floats:
        """Product-limit share of all that last longer than each limit."""
        assert isinstance(self.observed, np.ndarray)
        left = np.concatenate([[1.0], np.maximum(0.0, 1 - np.cumsum(self._weights))])
        return left[np.searchsorted(self.observed, limits, side="right")]

    def beyond(self, limits: Floats) -> Floats:
        """Mean of all that last longer than each limit, by the product limit; NaN if there is none."""
        assert isinstance(self.observed, np.ndarray)
        sums = np.append(_sums_from(self._weights * self.observed), np.nan)
        lasting = self.lasting(limits)
        first = np.searchsorted(self.observed, limits, side="right")
        return sums[first] / np.where(lasting > SAME, lasting, np.nan)

    @cached_property
    def _weights(self) -> Floats:
        assert isinstance(self.observed, np.ndarray)
        if not len(self.observed):
            return _NONE
        first, weights, _ = blocks(self.observed, self.censored, self.infinite)
        return np.repeat(weights, np.diff(np.append(first, len(self.observed))))

    def _is_close(self, share: float) -> bool:
        most = percentile(self.observed, share * 100, self.infinite + len(self.censored))
        return most <= (1 + CLOSE) * self.at_least(share)

    @cached_property
    def _as_if_ended(self) -> Floats:
        assert isinstance(self.observed, np.ndarray)
        return np.insert(self.observed, np.searchsorted(self.observed, self.censored), self.censored)

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation (ddof 0) by the product limit; NaN if the longest duration was
        censored, with a ``trend``, and with infinite ones."""
        if self.infinite:
            return math.nan, math.nan
        if not isinstance(self.observed, np.ndarray):
            return self.observed.moments()
        if not len(self.censored):
            return moments(self.observed)
        if self.trend or not len(self.observed) or self.censored[-1] >= self.observed[-1]:
            return math.nan, math.nan
        first, weights, _ = blocks(self.observed, self.censored, 0)
        mean = float(np.add.reduceat(self.observed, first) @ weights)
        return mean, math.sqrt(float(np.add.reduceat((self.observed - mean) ** 2, first) @ weights))


class Censored:
    """The course of durations of which some were cut: NaN is none, ``cut`` marks those that were.

    Each of these is distributed among all that lasted longer (Efron 1967): of one that was cut at c the share
    1 − S(x) / S(c) is at or below x, S being the product-limit share that lasts longer.
    """

    def __init__(self, order: Order, lasted: Floats, cut: Mask, whole: Durations) -> None:
        self._order, self._whole = order, whole
        self._of = order, lasted, cut
        self._ended = Observed(order, np.where(cut, np.nan, lasted))
        self._cut = order.sorted(cut)
        self._cut_at = order.sorted(lasted)[self._cut]
        self._lasting = whole.lasting(self._cut_at)
        self.counts = order.sums(order.sorted(~np.isnan(lasted)))

    def among(self, whole: Durations) -> "Censored":
        """The same with other durations, which have no end, included in the whole."""
        return Censored(*self._of, whole)

    @property
    def sums(self) -> Floats:
        return self._ended.sums + self._spread(self._whole.beyond(self._cut_at))

    def at_most(self, limits: Floats) -> Floats:
        found = self._ended.at_most(limits)
        for i, (limit, lasting) in enumerate(zip(limits, self._whole.lasting(limits), strict=True)):
            over = self._cut_at <= limit
            share = np.where(
                over & (self._lasting > SAME), 1 - lasting / np.maximum(self._lasting, SAME), 0.0
            )
            found[i] += self._spread(share)
        return found

    def _spread(self, of_cut: Floats) -> Floats:
        amounts = np.zeros(len(self._cut))
        amounts[self._cut] = np.nan_to_num(of_cut)
        return self._order.sums(amounts)


def with_infinite(d: Durations, infinite: int, in_cells: Floats) -> Durations:
    """The same durations among so many that have no end, ``in_cells`` of the cells of their course."""
    whole = replace(d, infinite=infinite, course=None)
    course = d.course.among(whole) if isinstance(d.course, Censored) else d.course
    return whole if course is None else replace(whole, course=WithInfinite(course, in_cells))


def summarise(d: Durations, scale: float = 1.0, places: Mapping[str, float] = PERCENTILES) -> dict[str, Any]:
    """The figures of :func:`~llm_locust.metrics.stats.percentiles.summarise_ascending`, and two keys more.

    ``censored`` is the number of those; ``n`` has them not. ``at_least`` has, for the mean and each order
    statistic that the censored ones leave open, and which is None therefore, what it is at least. ``min`` is
    the least observed. An end of a ``ci95`` is None where it is open.
    """
    if not len(d.censored):
        plain = summarise_ascending(d.observed, d.infinite, scale, places, d.course)
        return plain | {"censored": 0, "at_least": {}}
    ranks = {**places, "max": 100.0}
    found = {key: d.quantile(percent / 100) for key, percent in ranks.items()}
    bounds = {key: d.at_least(ranks[key] / 100) for key, value in found.items() if math.isnan(value)}
    found = {"min": percentile(d.observed, 0.0, d.infinite)} | found
    mean, std = d.moments()
    if math.isnan(mean) and not d.infinite:
        bounds = {"mean": float(np.mean(d._as_if_ended))} | bounds
    ends, n_effective = told(d.course, places, lambda percent: d.quantile(percent / 100), mean, std)
    return {
        "n": len(d.observed) + d.infinite,
        **{key: _scaled(value, scale) for key, value in {"mean": mean, "std": std, **found}.items()},
        "ci95": as_json(ends, scale),
        "n_effective": n_effective,
        "beyond": [key for key, value in found.items() if math.isinf(value)],
        "censored": len(d.censored),
        "at_least": {key: value * scale for key, value in bounds.items()},
    }


def _scaled(value: float, scale: float) -> float | None:
    return value * scale if math.isfinite(value) else None
