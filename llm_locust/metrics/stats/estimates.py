"""A figure of one run with its interval, and the difference of two runs' figures with its own.

The interval of a difference is made of those of the two figures by the method of variance estimates
recovery (Zou and Donner 2008), of which Newcombe's interval for two shares is a case: with the figures
a, b and their intervals [l, u], a − b lies from a − b − √((a − l_a)² + (u_b − b)²) to
a − b + √((u_a − a)² + (b − l_b)²). Unlike a single standard error it keeps the two sides of a skewed
figure, such as a p99, apart. An end that is not known is infinite.

A figure whose run is long enough has the interval of :mod:`~llm_locust.metrics.stats.intervals`; of a shorter
one it is by few long blocks (:mod:`~llm_locust.metrics.stats.estimates`), wider and with Student's t.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Protocol

import numpy as np

from llm_locust.metrics.columns import Floats
from llm_locust.metrics.stats.bootstrap import StandardError
from llm_locust.metrics.stats.censoring import Durations
from llm_locust.metrics.stats.intervals import (
    FEWEST,
    FEWEST_BEYOND,
    FEWEST_OF_MEAN,
    CellSums,
    EffectiveSize,
    Ends,
    ends_within,
    is_told,
    mean_ends,
    needed,
    percentile_shares,
    scaled_ends,
    score_ends,
    share_ends,
)

# --------------------
# The error of a figure by a few long blocks, for runs that are too short to show their own memory.
#
# The bootstrap (:mod:`~llm_locust.metrics.stats.bootstrap`) measures how long a run remembers, which takes
# a hundred requests or more. A shorter run is cut into at most :data:`MOST` consecutive blocks of equal
# size, and how these differ is the error, with Student's t of one degree less: the method of batch means
# (Schmeiser 1982). Requests under way together are one **round** and share what befalls the server, and
# some of it lasts to the next one, so a block is two rounds long, or one where there are few. Fewer than
# :data:`FEWEST` rounds show no error at all.
#
# Of few independent samples the memory is underestimated too. An error is therefore taken as 1 + 4 / n
# times as large, n being the number of independent samples that the run is worth, at most its rounds: by a
# fifth at 20, by a twenty-fifth at 100. ``make bench-compare`` shows what that is for.
# --------------------


#: Blocks that a run is cut into at most, and at least.
MOST, FEWEST_BLOCKS = 8, 3

#: By how much the error of n independent samples is larger than it seems: 1 + _UNSEEN / n.
_UNSEEN = 4.0


def merged(cells: Floats, blocks: int) -> Floats:
    """Sums of consecutive cells in so many blocks of as equal a number as can be."""
    found: Floats = np.add.reduceat(cells, np.arange(blocks) * len(cells) // blocks)
    return found


def blocks_of(cells: int, rounds: float) -> int | None:
    """The number of blocks for so many cells of so many rounds; None where there are too few."""
    rounds = math.floor(rounds + 1e-9)
    if min(cells, rounds) < FEWEST_BLOCKS:
        return None
    return max(FEWEST_BLOCKS, min(MOST, cells, rounds // 2))


def unseen(worth: float) -> float:
    """By how much the error of so many independent samples is larger than it seems."""
    return 1 + _UNSEEN / max(1.0, worth)


class Remembered:
    """A course that is asked for the same sums again."""

    def __init__(self, course: CellSums) -> None:
        self._course = course
        self._at_most: dict[bytes, Floats] = {}

    @cached_property
    def counts(self) -> Floats:
        return self._course.counts

    @cached_property
    def sums(self) -> Floats:
        return self._course.sums

    def at_most(self, limits: Floats) -> Floats:
        key = limits.tobytes()
        if key not in self._at_most:
            self._at_most[key] = self._course.at_most(limits)
        return self._at_most[key]


@dataclass(frozen=True, slots=True)
class InBlocks:
    """A course whose cells are so many blocks."""

    course: CellSums
    blocks: int

    @property
    def counts(self) -> Floats:
        return merged(self.course.counts, self.blocks)

    @property
    def sums(self) -> Floats:
        return merged(self.course.sums, self.blocks)

    def at_most(self, limits: Floats) -> Floats:
        return np.array([merged(cells, self.blocks) for cells in self.course.at_most(limits)])


@dataclass(frozen=True, slots=True)
class Noise:
    """The errors of one figure: by the bootstrap over ``cells``, and by few long ``blocks``.

    ``level``: how many independent samples the run is worth for its median, in so many ``rounds``.
    """

    cells: EffectiveSize
    blocks: EffectiveSize
    level: float
    rounds: float

    @property
    def factor(self) -> float:
        return unseen(min(self.level, self.rounds))

    def mean_ends(self, value: float, confidence: float) -> Ends:
        """The interval of a mean, by the larger error."""
        error = max((self.cells.error, self.blocks.error), key=lambda each: each.reach(confidence))
        return scaled_ends(value, error, confidence, self.factor)

    def effective(self, share: float) -> float:
        """How many independent samples show the share.

        How few come together is not known: they are worth no more than the run's level.
        """
        n_eff = min(self.cells.n_eff, self.blocks.n_eff)
        if n_eff * min(share, 1 - share) < FEWEST_BEYOND:
            n_eff = min(n_eff, self.level)
        return n_eff / self.factor**2

    def share_ends(self, share: float, confidence: float) -> Ends:
        """The interval of the share of samples at or below a value, by the larger error.

        An end is 0 or 1 where so few samples might all lie on one side of it (Wilks 1941).
        """
        beyond = (1 - confidence) / 2
        worth = max((self.cells, self.blocks), key=lambda each: each.t(confidence) / math.sqrt(each.n_eff))
        n_eff = self.effective(share)
        low, high = score_ends(share, n_eff, worth.t(confidence))
        return low if (1 - share) ** n_eff <= beyond else 0.0, high if share**n_eff <= beyond else 1.0


def of_none(n: float, confidence: float) -> float:
    """The upper bound of a share of which none of ``n`` independent samples was seen.

    1 − ((1 − confidence) / 2)^(1/n), Clopper and Pearson's (1934): about 3 / n for 90 %.
    """
    return 1 - math.pow((1 - confidence) / 2, 1 / max(n, 1e-9))


def normal_t(confidence: float) -> float:
    """The two-sided quantile of the normal distribution."""
    return NormalDist().inv_cdf((1 + confidence) / 2)


UNKNOWN = -math.inf, math.inf


class Estimate(Protocol):
    """A figure, in its own unit."""

    @property
    def value(self) -> float: ...

    def ends(self, confidence: float) -> Ends:
        """The two-sided interval of that confidence."""
        ...


@dataclass(frozen=True, slots=True)
class Extremes:
    """The smallest and the largest sample of a figure, and of how many rounds they are."""

    low: float
    high: float
    rounds: float


@dataclass(frozen=True, slots=True)
class Average:
    """A mean. ``noise`` is None where blocks show none."""

    value: float
    worth: EffectiveSize | None
    noise: Noise | None = None
    span: Extremes | None = None

    def ends(self, confidence: float) -> Ends:
        if self.worth is not None and is_told(self.worth, FEWEST_OF_MEAN):
            return mean_ends(self.value, self.worth, confidence)
        return UNKNOWN if self.noise is None else self.noise.mean_ends(self.value, confidence)


@dataclass(frozen=True, slots=True)
class Rate:
    """An amount per second.

    ``error`` is that over the run's ``rounds``, ``blocks`` that by few long blocks, ``edge`` that of the
    rounds which the ends of the window cut.
    """

    value: float
    error: StandardError | None
    blocks: StandardError | None = None
    rounds: float = math.inf
    edge: float = 0.0

    def ends(self, confidence: float) -> Ends:
        if self.error is None:
            return UNKNOWN
        if self.error.settled and self.value**2 >= FEWEST * self.error.value**2:
            reach = self.error.reach(confidence)
        elif self.blocks is not None:
            reach = unseen(self.rounds) * max(each.reach(confidence) for each in (self.error, self.blocks))
        else:
            return UNKNOWN
        return ends_within(self.value, math.hypot(reach, normal_t(confidence) * self.edge))


@dataclass(frozen=True, slots=True)
class Share:
    """A share of ``n`` requests, which are ``worth`` so much by cells and by few long ``blocks``.

    Of none or of all its interval is the exact one of n independent requests, or of ``n`` / ``together``
    where so many are known to fail together.
    """

    value: float
    n: float
    worth: EffectiveSize | None
    blocks: EffectiveSize | None = None
    together: float = 1.0

    @property
    def hits_together(self) -> float:
        """How many requests that count, or that do not, come together; 1 where all or none count."""
        if self.worth is None or not 0 < self.value < 1:
            return 1.0
        return self.n / min(each.n_eff for each in (self.worth, self.blocks) if each is not None)

    def ends(self, confidence: float) -> Ends:
        if not 0 < self.value < 1:
            bound = of_none(self.n / self.together, confidence)
            return (0.0, bound) if self.value <= 0 else (1 - bound, 1.0)
        if self.worth is None:
            return 0.0, 1.0
        rarer = min(self.value, 1 - self.value)
        worth = self.worth
        if self.blocks is not None and not (worth.error.settled and worth.n_eff * rarer >= FEWEST_BEYOND):
            worth = max((worth, self.blocks), key=lambda each: each.t(confidence) / math.sqrt(each.n_eff))
        return share_ends(self.value, min(worth.n_eff, self.n / self.together), worth.t(confidence))


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile of samples, which are ``worth`` so much for it; ``noise`` as of an :class:`Average`."""

    value: float
    percent: float
    samples: Durations
    worth: EffectiveSize | None
    noise: Noise | None = None
    span: Extremes | None = None

    def ends(self, confidence: float) -> Ends:
        if self.worth is not None and is_told(self.worth, needed(self.percent)):
            low, high = percentile_shares(self.percent, self.worth, confidence)
        elif self.noise is not None:
            low, high = self.noise.share_ends(self.percent / 100, confidence)
        else:
            return UNKNOWN
        # An end among all samples is beyond them. NaN: requests that were given up leave it open.
        ends = (
            self.samples.quantile(low) if low > 0 else math.nan,
            self.samples.quantile(high) if high < 1 else math.nan,
        )
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

    def within(self, low: float, high: float) -> "Difference":
        """The same, no end of it beyond what a difference can be."""
        ends = [end if math.isinf(end) else min(max(end, low), high) for end in (self.low, self.high)]
        return Difference(self.value, *ends)


def difference(base: Estimate, new: Estimate, confidence: float) -> Difference:
    """New − base of two independent runs."""
    (base_low, base_high), (new_low, new_high) = base.ends(confidence), new.ends(confidence)
    value = new.value - base.value
    return Difference(
        value,
        value - math.hypot(new.value - new_low, base_high - base.value),
        value + math.hypot(new_high - new.value, base.value - base_low),
    )


def change(base: Estimate, new: Estimate, confidence: float) -> Difference:
    """New / base − 1 of two independent runs; both figures are above 0.

    The interval is made as that of a difference, on the scale of logarithms: a change of −100 % is not
    reached, and what is twice as large is as far away as what is half as large.
    """
    (base_low, base_high), (new_low, new_high) = base.ends(confidence), new.ends(confidence)
    value = new.value / base.value
    down = math.hypot(_log(new.value, new_low), _log(base_high, base.value))
    up = math.hypot(_log(new_high, new.value), _log(base.value, base_low))
    low = -math.inf if new_low == -math.inf or base_high == math.inf else value * math.exp(-down) - 1
    return Difference(value - 1, low, value * math.exp(min(up, 700.0)) - 1 if up < math.inf else math.inf)


def _log(high: float, low: float) -> float:
    """ln(high / low); ∞ where the lower one is not above 0, or the upper one is not known."""
    return math.log(high / low) if low > 0 and high < math.inf else math.inf


def alike(base: Estimate, new: Estimate) -> tuple[Estimate, Estimate]:
    """The two figures as they are compared.

    Where one run has no failure, nobody knows how many would come together in it: as many as in the other.
    So a run without failures against one with a single outage is none against one, and not none against
    a hundred.
    """
    if not (isinstance(base, Share) and isinstance(new, Share)):
        return base, new
    together = max(base.hits_together, new.hits_together)
    return replace(base, together=together), replace(new, together=together)
