"""Percentiles: exact, certified, and by the product limit where durations were cut before their end."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from llm_locust.metrics.columns import Floats, Mask, Rows
from llm_locust.metrics.stats.bootstrap import Order
from llm_locust.metrics.stats.intervals import CellSums, Observed, WithInfinite, as_json, told

# --------------------
# Percentiles of a whole population.
#
# Everything works on samples in ascending order, so that one sort serves every figure and the result does
# not depend on the order in which workers delivered.
# --------------------


#: Key in a summary -> percent.
PERCENTILES = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}

#: Most that one report is asked for.
_MOST = 20

_PERCENT = re.compile(r"[0-9]{1,2}(?:\.[0-9]{1,6})?")


def parse_percentiles(text: str) -> dict[str, float]:
    """Key in a summary -> percent, ascending, of ``50,90,99,99.9``.

    Raises:
        ValueError: not numbers above 0 and below 100, or too many of them.
    """
    words = [word for word in re.split(r"[\s,]+", text) if word]
    for word in words:
        if not _PERCENT.fullmatch(word) or not float(word):
            raise ValueError(f'"{word}" is no percentile: write numbers above 0 and below 100, as 50,99,99.9')
    places = {percentile_key(percent): percent for percent in sorted(map(float, words))}
    if not 1 <= len(places) <= _MOST:
        raise ValueError(f"{len(places)} percentiles: name 1 to {_MOST}, as 50,99,99.9")
    return places


def percentile_key(percent: float) -> str:
    """``p99`` of 99.0, ``p99_9`` of 99.9."""
    return f"p{percent:.6f}".rstrip("0").rstrip(".").replace(".", "_")


class Ascending(Protocol):
    """Samples in ascending order that are no array: the one at each rank, and their moments."""

    def __len__(self) -> int: ...

    def __getitem__(self, rank: int, /) -> float: ...

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation, as :func:`moments` of all samples would give them."""
        ...


#: Deviations are squared so many at a time. Of more, BLAS would make several threads add up their shares:
#: that takes longer than it saves, and the last digits would be those of a number of processors.
_SLICE = 1 << 13


def ordered(values: Floats) -> Floats:
    """The defined values, ascending: a sorted copy without NaN."""
    out = np.sort(values)
    return out[: np.searchsorted(out, np.nan)]


def percentile(ascending: Floats | Ascending, percent: float, infinite: int = 0) -> float:
    """numpy's ``linear`` percentile of ``ascending`` followed by ``infinite`` times +∞.

    Returns:
        NaN without samples; +∞ where the percentile rests on an infinite one.
    """
    n = len(ascending) + infinite
    if n == 0:
        return math.nan
    position = percent / 100 * (n - 1)
    below = math.floor(position)
    fraction = position - below
    if below + (fraction > 0) >= len(ascending):
        return math.inf
    low = float(ascending[below])
    if fraction == 0:
        return low
    return interpolated(low, float(ascending[below + 1]), fraction)


def interpolated(low: float, high: float, fraction: float) -> float:
    """``low`` + (``high`` − ``low``) · ``fraction``, as numpy computes it."""
    # Each form is exact at its own end; numpy splits them in the same place.
    return low + (high - low) * fraction if fraction < 0.5 else high - (high - low) * (1 - fraction)


def moments(ascending: Floats) -> tuple[float, float]:
    """Mean and standard deviation (of the population, ddof 0); NaN without samples."""
    if not len(ascending):
        return math.nan, math.nan
    mean = float(np.mean(ascending))
    squares = 0.0
    for start in range(0, len(ascending), _SLICE):
        part = ascending[start : start + _SLICE] - mean
        squares += float(part @ part)
    return mean, math.sqrt(squares / len(ascending))


def summarise_ascending(
    ascending: Floats | Ascending,
    infinite: int = 0,
    scale: float = 1.0,
    places: Mapping[str, float] = PERCENTILES,
    course: CellSums | None = None,
) -> dict[str, Any]:
    """n, mean, std, min, percentiles, max, ci95, n_effective and beyond of samples times ``scale``.

    Undefined figures are None. With ``infinite`` samples of +∞, mean and std are None, and each
    order statistic that falls on one is None and named in ``beyond``. ``ci95`` holds for the mean and each
    percentile ``[low, high]``, an end being None where it falls on +∞; the whole is None where the
    ``course`` of the samples cannot tell (:mod:`~llm_locust.metrics.stats.intervals`), and where there is
    none.
    """
    mean, std = (math.nan, math.nan) if infinite else _moments(ascending)
    n = len(ascending) + infinite
    ranks = {"min": 0.0, **places, "max": 100.0}
    statistics = {key: percentile(ascending, percent, infinite) for key, percent in ranks.items()}
    ends, n_effective = told(
        course if n else None, places, lambda percent: percentile(ascending, percent, infinite), mean, std
    )
    figures = {"mean": mean, "std": std, **statistics}
    return {
        "n": n,
        **{key: _scaled(value, scale) for key, value in figures.items()},
        "ci95": as_json(ends, scale),
        "n_effective": n_effective,
        "beyond": [key for key, value in statistics.items() if math.isinf(value)],
    }


def _moments(ascending: Floats | Ascending) -> tuple[float, float]:
    return moments(ascending) if isinstance(ascending, np.ndarray) else ascending.moments()


def _scaled(value: float, scale: float) -> float | None:
    return value * scale if math.isfinite(value) else None


# --- The product limit (Kaplan and Meier 1958): the distribution of durations of which some were cut


#: Two places of the distribution are the same below this: positions are products of shares.
SAME = 1e-12


def positions(observed: Floats, censored: Floats, infinite: int = 0) -> Floats:
    """Position of each observed duration in the distribution, from 0 to 1; shape (observed,).

    It is (1 − S) · N / (N − 1), S being the product-limit share of all N durations that last as long as it or
    longer. Without censored ones that is i / (N − 1) of the i-th: numpy's ``linear`` percentiles.

    Args:
        observed, censored: ascending. Of equal times the observed one counts as the earlier.
        infinite: number of durations without end.
    """
    total = len(observed) + len(censored) + infinite
    if total < 2 or not len(observed):
        return np.zeros(len(observed))
    first, weights, watched = blocks(observed, censored, infinite)
    lengths = np.diff(np.append(first, len(observed)))
    lasting = np.repeat(weights * (watched + first), lengths)
    lasting -= np.repeat(weights, lengths) * np.arange(len(observed))
    return (1 - lasting) * (total / (total - 1))


def blocks(observed: Floats, censored: Floats, infinite: int) -> tuple[Rows, Floats, Floats]:
    """The observed durations in blocks between cuts: the index of the first of each, the weight of each of
    its durations in the estimate, and how many were still at risk at its first.

    Within a block the factors (w - 1)/w of the product limit telescope, so that all have one weight.
    """
    after = np.searchsorted(observed, censored, side="right")  # what was cut is gone from there on
    first = np.unique(np.concatenate([np.zeros(1, np.int64), after[after < len(observed)]]))
    gone = np.searchsorted(after, first, side="right")
    watched = (len(observed) + len(censored) + infinite - first - gone).astype(np.float64)
    lengths = np.diff(np.append(first, len(observed)))
    lasting = np.cumprod(np.append(1.0, (watched - lengths) / watched))
    return first, lasting[:-1] / watched, watched


def quantile_at(observed: Floats, censored: Floats, places: Floats, share: float, infinite: int) -> float:
    """The product-limit quantile, linear between durations as numpy's ``linear`` is.

    Args:
        observed, censored: ascending.
        places: result of :func:`positions`.
        share: 0 to 1.
        infinite: number of durations without end.

    Returns:
        NaN without an observed duration there: too few of this length were seen to end. +∞ if it depends on
            an infinite one, whatever the censored ones are.
    """
    n = len(observed)
    after = int(np.searchsorted(places, share + SAME))  # the first that stands beyond
    if after < n:
        below = after - 1
        width = float(places[after] - places[below])
        fraction = min(1.0, max(0.0, (share - float(places[below])) / width))
        return interpolated(float(observed[below]), float(observed[after]), fraction)
    if n and share <= float(places[-1]) + SAME:
        return float(observed[-1])
    if n and censored[-1] < observed[-1]:
        return math.inf if infinite else float(observed[-1])
    # Whatever the censored ones are, the infinite ones are the last of all.
    last_finite = n + len(censored) - 1
    return math.inf if share * (last_finite + infinite) > last_finite * (1 + SAME) else math.nan


# --------------------
# Durations of which some were cut before their end: percentiles and mean by the product limit.
#
# A duration that was cut at c is *right-censored*: it is longer than c, and no more is known. The product-
# limit estimate (Kaplan and Meier 1958) distributes the weight of each of these among all that lasted
# longer. It is valid if a cut is independent of the duration that it cuts. The end of a run is such a cut
# as long as requests that are sent late take no longer than those that were sent early; if they do, see
# :func:`later_is_longer`.
# --------------------


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
    """The figures of :func:`~llm_locust.metrics.stats.censoring.summarise_ascending`, and two keys more.

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


# --------------------
# Certified percentiles: a one-sided upper bound of a percentile, as MLPerf's early stopping has it.
#
# If more than a share 1 − p of all durations were longer than the t-th highest of n independent samples, at
# most t samples this long would occur with a probability below 1 − :data:`CONFIDENCE`. So the t-th highest
# sample is at least the percentile, with that confidence.
#
# Source: the rules of MLPerf Inference, early stopping with c = 0.99 and the tolerance d = 0. There t is
# the largest number for which the regularised incomplete beta function I_p(n − t, t + 1) is below 1 − c. If
# it is below 1, there is no bound.
# --------------------


#: Confidence of the bound.
CONFIDENCE = 0.99

#: Terms of a binomial tail this many logarithms below its largest do not change the sum.
_NEGLIGIBLE = 50.0


def at_most(k: int, n: int, share: float) -> float:
    """Probability of at most ``k`` hits in ``n`` independent trials, each with the probability ``share``.

    It equals I_{1 − share}(n − k, k + 1).
    """
    if k >= n:
        return 1.0
    # The terms grow up to the mode, so that those far below the largest are left out.
    mode = min(k, int((n + 1) * share))
    reach = math.ceil(math.sqrt(2 * _NEGLIGIBLE * (n * share + _NEGLIGIBLE))) + 1
    hits = np.arange(max(0, mode - reach), k + 1)
    steps = np.log(n - hits[1:] + 1) - np.log(hits[1:]) + math.log(share) - math.log1p(-share)
    first = _log_term(int(hits[0]), n, share)
    terms = first + np.concatenate([[0.0], np.cumsum(steps)])
    return float(np.sum(np.exp(terms)))


def _log_term(k: int, n: int, share: float) -> float:
    choices = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return choices + k * math.log(share) + (n - k) * math.log1p(-share)


def certified_rank(n: int, percent: float) -> int | None:
    """Rank from the top (1 is the longest) of the sample that bounds the percentile; None of too few samples.

    p99 of 10,000 samples: 77.
    """
    share = (100 - percent) / 100
    low, high = 0, int(n * share) + 1
    if at_most(1, n, share) >= 1 - CONFIDENCE:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at_most(middle, n, share) < 1 - CONFIDENCE else (low, middle)
    return low


def certified_share(n: int, percent: float) -> float | None:
    """Least share of n samples that must be below a limit for the bound to be below it; None of too few."""
    rank = certified_rank(n, percent)
    return None if rank is None else (n - rank + 1) / n


def fewest_samples(percent: float) -> int:
    """The least number of samples that certify the percentile: p90 64, p95 130, p99 662, p99.9 6,636."""
    low, high = 1, 2
    while certified_rank(high, percent) is None:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if certified_rank(middle, percent) is None else (low, middle)
    return high


def certified(d: Durations, percent: float) -> float:
    """The bound in seconds. Durations that were cut count as longer than all others, as failures do.

    Returns:
        NaN of too few samples; +∞ if the bound falls on a failed or cut one.
    """
    n = len(d.observed) + len(d.censored) + d.infinite
    rank = certified_rank(n, percent)
    if rank is None:
        return math.nan
    index = n - rank
    return float(d.observed[index]) if index < len(d.observed) else math.inf
