"""What the samples of one run are worth for a figure, whether they can tell its interval, and that interval.

A run of a queue that happens to be quiet has a low level, small errors and a short memory, all at once. If
the error of a figure alone decided whether the run can tell it, quiet runs would be chosen, and their
intervals lie below the truth. Two things keep that small. The **memory** of the run decides too: the
effective sample size of the share at or below its median, which depends least on how its tail turned out,
must be enough for every figure that is told. And where the memory leaves little to spare, the end of the
interval towards the longer tail is moved out, because that tail is what a quiet run has seen too little of.
Independent samples are not concerned: their error follows from their number.
"""

import math
from dataclasses import dataclass

from llm_locust.metrics.stats.bootstrap import StandardError

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
class Worth:
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


def is_told(worth: Worth | None, fewest: float) -> bool:
    """Whether there are blocks enough, and samples enough."""
    return (
        worth is not None
        and worth.error.settled
        and worth.memory is not None
        and worth.memory.margin(fewest) >= 1
        and worth.n_eff >= _LEAST_OWN * fewest
    )


def mean_ends(value: float, worth: Worth, confidence: float) -> Ends:
    """The interval of a mean."""
    low, high = scaled_ends(value, worth.error, confidence)
    stretch = worth.stretch(FEWEST_OF_MEAN)
    far_low, far_high = scaled_ends(value, worth.error, confidence, stretch)
    return (low, far_high) if worth.known_memory.upward else (far_low, high)


def percentile_shares(percent: float, worth: Worth, confidence: float) -> Ends:
    """The interval of the share of samples at or below a percentile."""
    return _stretched_share(percent / 100, worth, needed(percent), confidence, worth.known_memory.upward)


def ratio_ends(share: float, worth: Worth, confidence: float) -> Ends:
    """The interval of a share of requests. Its tail is the rarer outcome, which may come all at once."""
    return _stretched_share(share, worth, 2 * FEWEST, confidence, share < 0.5)


def _stretched_share(share: float, worth: Worth, fewest: float, confidence: float, upward: bool) -> Ends:
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
