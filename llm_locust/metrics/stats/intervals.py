"""The 95 % interval of each figure of a run, and what its samples are worth.

Requests of one run are no independent samples: those in one queue wait together, those in one batch share
its engine steps. So each standard error is by blocks (:mod:`~llm_locust.metrics.stats.bootstrap`), and the
**effective sample size** n_eff says how many independent samples would have that error:
p (1 − p) / error² for a share p, variance / error² for a mean, never more than there are samples.

A percentile's interval is Woodruff's (1952): an interval for the share of samples at or below it, carried
back to values by the run's own quantile function. It is as skewed as the tail, and no density is estimated.
The share's interval is that of :func:`share_ends`, of n_eff samples and with Student's t (after Korn and
Graubard 1998). The interval of a mean or a rate is made on the scale of its logarithm, value × exp(± t ×
error / value), because what is skewed has its larger errors where it is large.

**Where the data cannot tell, there is no interval**: where the run's memory is longer than the blocks that
fit into it, and where its samples are worth too few independent ones. A percentile has one only where all
that are nearer the median have."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from llm_locust.metrics.columns import Floats, Times
from llm_locust.metrics.stats.bootstrap import Order, StandardError, seconds_of_cells, standard_error
from llm_locust.metrics.window import Window

# --------------------
# What the samples of one run are worth for a figure, whether they can tell its interval, and that interval.
#
# A run of a queue that happens to be quiet has a low level, small errors and a short memory, all at once.
# If the error of a figure alone decided whether the run can tell it, quiet runs would be chosen, and their
# intervals lie below the truth. Two things keep that small. The **memory** of the run decides too: the
# effective sample size of the share at or below its median, which depends least on how its tail turned out,
# must be enough for every figure that is told. And where the memory leaves little to spare, the end of the
# interval towards the longer tail is moved out, because that tail is what a quiet run has seen too little
# of. Independent samples are not concerned: their error follows from their number.
# --------------------


#: Effective samples that an interval needs at each side of its percentile, and in all.
FEWEST_BEYOND, FEWEST = 10, 40

#: Effective samples that the interval of a mean needs: a tail that a run has not seen is in no error.
FEWEST_OF_MEAN = 100

#: Samples that depend on each other must be worth up to so many times as many as independent ones.
_DEPENDENT = 2.0

#: A figure's own effective sample size is the less certain one: it must reach this share of what is needed.
_LEAST_OWN = 0.75

#: Where the memory leaves just enough, dependence counts so many times in the error towards the tail; where
#: it leaves _AMPLE times as much it counts once.
_MOST_STRETCH, _AMPLE = 3.5, 3.0

Ends = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Memory:
    """How far the samples of a run depend on each other.

    ``n`` samples are worth ``n_eff`` independent ones for the share at or below their median, 0 where the
    run's memory is too long for its length. ``upward``: their longer tail is above.
    """

    n: float
    n_eff: float
    upward: bool = True

    def margin(self, fewest: float) -> float:
        """How many times it has what a figure needs that needs ``fewest`` independent samples."""
        if not self.n_eff:
            return 0.0
        return self.n_eff / min(_DEPENDENT, self.n / self.n_eff) / fewest


@dataclass(frozen=True, slots=True)
class EffectiveSize:
    """The error of a figure, its effective sample size, and the memory of the samples, None of which nothing
    is known."""

    error: StandardError
    n_eff: float
    memory: Memory | None = None

    @property
    def known_memory(self) -> Memory:
        """That of a figure that :func:`is_told`."""
        assert self.memory is not None
        return self.memory

    def t(self, confidence: float) -> float:
        return self.error.t(confidence)

    def stretch(self, fewest: float) -> float:
        """By how much the error is larger towards the tail, for a figure that needs ``fewest`` samples.

        Of the variance the share n_eff / n is that of independent samples and stays; the rest is from their
        dependence, of which a quiet run shows too little.
        """
        memory = self.known_memory
        spare = min(max((_AMPLE - memory.margin(fewest)) / (_AMPLE - 1), 0.0), 1.0)
        independent = min(1.0, self.n_eff / memory.n)
        return math.sqrt(independent + (1 + (_MOST_STRETCH - 1) * spare) ** 2 * (1 - independent))


def needed(percent: float) -> int:
    """The fewest effective samples for the interval of a percentile: 40 for p50, 100 for p90, 1,000 for p99.

    max(10 / tail, 40 · √(½ / tail)), the tail being the smaller share beside it.
    """
    tail = min(percent, 100 - percent) / 100
    return math.ceil(round(max(FEWEST_BEYOND / tail, FEWEST * math.sqrt(0.5 / tail)), 6))


def is_told(worth: EffectiveSize | None, fewest: float) -> bool:
    """Whether there are blocks enough, and samples enough."""
    return (
        worth is not None
        and worth.error.settled
        and worth.memory is not None
        and worth.memory.margin(fewest) >= 1
        and worth.n_eff >= _LEAST_OWN * fewest
    )


def mean_ends(value: float, worth: EffectiveSize, confidence: float) -> Ends:
    """The interval of a mean."""
    low, high = scaled_ends(value, worth.error, confidence)
    stretch = worth.stretch(FEWEST_OF_MEAN)
    far_low, far_high = scaled_ends(value, worth.error, confidence, stretch)
    return (low, far_high) if worth.known_memory.upward else (far_low, high)


def percentile_shares(percent: float, worth: EffectiveSize, confidence: float) -> Ends:
    """The interval of the share of samples at or below a percentile."""
    return _stretched_share(percent / 100, worth, needed(percent), confidence, worth.known_memory.upward)


def ratio_ends(share: float, worth: EffectiveSize, confidence: float) -> Ends:
    """The interval of a share of requests. Its tail is the rarer outcome, which may come all at once."""
    return _stretched_share(share, worth, 2 * FEWEST, confidence, share < 0.5)


def _stretched_share(
    share: float, worth: EffectiveSize, fewest: float, confidence: float, upward: bool
) -> Ends:
    t, stretch = worth.t(confidence), worth.stretch(fewest)
    low, high = share_ends(share, worth.n_eff, t)
    far_low, far_high = share_ends(share, worth.n_eff / stretch**2, t)
    return (low, far_high) if upward else (far_low, high)


def score_ends(share: float, n_eff: float, z: float) -> Ends:
    """Wilson's interval of a share of ``n_eff`` samples."""
    zz = z * z / n_eff
    reach = z * math.sqrt(share * (1 - share) / n_eff + zz / n_eff / 4)
    return max(0.0, (share + zz / 2 - reach) / (1 + zz)), min(1.0, (share + zz / 2 + reach) / (1 + zz))


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


def scaled_ends(value: float, error: StandardError, confidence: float, stretch: float = 1.0) -> Ends:
    """The interval of a mean or a rate, which reaches stretch × t × error: see :func:`ends_within`."""
    return ends_within(value, stretch * error.reach(confidence))


def ends_within(value: float, reach: float) -> Ends:
    """value × exp(± reach / value) of what is above 0, else value ± reach."""
    if value <= 0:
        return value - reach, value + reach
    factor = math.exp(min(reach / value, 50.0))
    return value / factor, value * factor


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


def share_size(hits: Floats, counts: Floats, fallback: EffectiveSize | None = None) -> EffectiveSize | None:
    """What the cells' ``hits`` of ``counts`` are worth; None where cells do not show how they differ.

    Where fewer than :data:`FEWEST_BEYOND` effective samples are hits, or are
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
        return EffectiveSize(error, n_eff)
    if n_eff * min(share, 1 - share) < FEWEST_BEYOND:
        return EffectiveSize(fallback.error, min(n_eff, fallback.n_eff), fallback.memory)
    return EffectiveSize(error, n_eff, fallback.memory)


def effective_sizes(
    course: CellSums, mean: float, std: float, median: float, values: Sequence[float] = ()
) -> tuple[EffectiveSize | None, list[EffectiveSize | None]]:
    """What the samples of a course are worth for their mean, and for the share at or below each value.

    None where cells do not show how they differ, and for what is not finite. Where all samples, or none, are
    at or below a value, they are worth as much as for the mean.
    """
    of_mean = _mean_size(course, mean, std) if math.isfinite(mean) else None
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
    found: list[EffectiveSize | None] = []
    for value in values:
        if value in known:
            worth = share_size(known[value], counts)
            found.append(worth and replace(worth, memory=memory))
        else:
            found.append(of_mean if value in hits else None)
    return of_mean, found


def _parts(hits: Floats, counts: Floats) -> bool:
    """Whether some samples are at or below a limit, and some above."""
    return _SAME < float(hits.sum() / counts.sum()) < 1 - _SAME


def _memory(
    hits: Floats | None, counts: Floats, of_mean: EffectiveSize | None, *, upward: bool
) -> Memory | None:
    """``hits`` are the samples at or below the median; None where all are, or it is not known.

    The median then says nothing, and the mean decides.
    """
    worth = of_mean if hits is None else share_size(hits, counts, of_mean)
    if worth is None:
        return None
    return Memory(float(counts.sum()), worth.n_eff if worth.error.settled else 0.0, upward)


def _mean_size(course: CellSums, mean: float, std: float) -> EffectiveSize | None:
    counts = course.counts
    error = standard_error(course.sums, counts)
    if error is None:
        return None
    n = float(counts.sum())
    if std <= _SAME * abs(mean):
        return EffectiveSize(StandardError(0.0, error.degrees), n, Memory(n, n))
    return EffectiveSize(error, min(n, std**2 / error.value**2) if error.value else n)


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
    of_mean, of_places = effective_sizes(
        course, mean, std, quantile(50.0), [quantile(p) for p in places.values()]
    )
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


def _can_tell(places: Mapping[str, float], of: Mapping[str, EffectiveSize | None]) -> set[str]:
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


def as_json(
    ends: Mapping[str, Ends | None], scale: float = 1.0
) -> dict[str, tuple[float | None, float | None] | None]:
    """The intervals as a summary has them; an end on +∞ is None."""

    def scaled(end: float) -> float | None:
        return rounded(end * scale) if math.isfinite(end) else None

    return {key: pair and (scaled(pair[0]), scaled(pair[1])) for key, pair in ends.items()}
