"""What each request does to a figure, and the error of a difference between two arms.

Both arms ran at the same time, so what drifts is in both. An error for each arm alone would count the drift
twice; the error of their difference must not have it at all. So the requests of both arms are put into the
same cells of time, and what is summed up in a cell is what its requests contribute to the **difference**: a
drift contributes as much to one arm as to the other.

The contribution of a request to a mean x̄ of n is (x − x̄) / n, to a share likewise; to a percentile Q(p) it
is −(1{x ≤ Q} − p) / (n f), where 1 / f, the slope of the quantile function, is its difference quotient over
twice the independent standard error on both sides (Siddiqui 1960, Bloch and Gastwirth 1968). The variance of
their sum is by blocks of cells (:mod:`~llm_locust.metrics.stats.bootstrap`). Where requests belong to
sessions, which are assigned as a whole, the variance by sessions is computed too, and the larger one counts.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from llm_locust.metrics.columns import Floats
from llm_locust.metrics.stats.bootstrap import CELLS, StandardError, standard_error
from llm_locust.metrics.stats.estimates import Difference
from llm_locust.metrics.stats.percentiles import ordered, percentile
from llm_locust.metrics.stats.worth import FEWEST, FEWEST_OF_MEAN, needed, share_ends

#: Independent standard errors of a share on each side over which the quantile function's slope is taken.
_SLOPE_REACH = 2.0

#: What contributes less than this share of a figure to it is the rounding of its mean.
_ROUNDING = 1e-12

#: As in :mod:`~llm_locust.metrics.stats.worth`: the share of the needed samples that a figure's own worth
#: must reach, and how many times as many samples are needed at most where they depend on each other.
_LEAST_OWN, _DEPENDENT = 0.75, 2.0


@dataclass(frozen=True, slots=True)
class Influence:
    """A figure of one arm and what it is made of.

    Attributes:
        value: in the figure's unit; +∞ where a percentile is.
        of: what each request contributes to it.
        times_s: of the requests, after the start of the window.
        sessions: the session of each request, by number; empty where requests have none.
        fewest: independent samples that its interval needs.
        share: number of hits and of requests, of a share.
    """

    value: float
    of: Floats
    times_s: Floats
    sessions: NDArray[np.int64]
    fewest: float
    share: tuple[float, int] | None = None

    @property
    def varies(self) -> bool:
        """Whether the samples show how they vary, beyond rounding; of a share their number does."""
        least = _ROUNDING * abs(self.value) / max(1, len(self.of))
        return self.share is not None or bool((np.abs(self.of) > least).any())


@dataclass(frozen=True, slots=True)
class ArmSamples:
    """Samples of an arm: their values, times after the start of the window, and sessions."""

    values: Floats
    times_s: Floats
    sessions: NDArray[np.int64]

    def known(self) -> "ArmSamples":
        """Those with a value."""
        mask = ~np.isnan(self.values)
        sessions = self.sessions[mask] if len(self.sessions) else self.sessions
        return ArmSamples(self.values[mask], self.times_s[mask], sessions)

    def mean(self) -> Influence | None:
        """Their mean; None without any."""
        n = len(self.values)
        if not n:
            return None
        value = float(self.values.mean())
        return self._made(value, (self.values - value) / n, fewest=FEWEST_OF_MEAN)

    def share(self) -> Influence | None:
        """The share of those that are 1 and not 0; None without any."""
        n = len(self.values)
        if not n:
            return None
        hits = float(self.values.sum())
        found = self._made(hits / n, (self.values - hits / n) / n, fewest=FEWEST)
        return replace(found, share=(hits, n))

    def percentile(self, percent: float) -> Influence | None:
        """One of their percentiles; None without any."""
        n = len(self.values)
        if not n:
            return None
        ascending, p = ordered(self.values), percent / 100
        value = percentile(ascending, percent)
        reach = max(_SLOPE_REACH * math.sqrt(p * (1 - p) / n), 1 / n)
        low, high = max(0.0, p - reach), min(1.0, p + reach)
        slope = (percentile(ascending, 100 * high) - percentile(ascending, 100 * low)) / (high - low)
        hits = (self.values <= value).astype(np.float64)
        of = -slope * (hits - hits.mean()) / n
        return self._made(value, of, fewest=needed(percent))

    def _made(self, value: float, of: Floats, *, fewest: float) -> Influence:
        return Influence(value, of, self.times_s, self.sessions, fewest)


def independence(base: Influence, new: Influence) -> float:
    """The variance that a difference of independent requests would have, as a share of its own; 1 at most.

    It is what one request is worth, in independent ones: n requests are worth n times as much. 0 where the
    arms' memory is too long for the run.
    """
    error = _error(base, new)
    if error is None or not error.settled:
        return 0.0
    variance = sum(float(arm.of @ arm.of) for arm in (base, new))
    return min(1.0, variance / error.value**2) if error.value else 1.0


def paired_difference(base: Influence, new: Influence, confidence: float, worth: float = 1.0) -> Difference:
    """New − base of two arms of one run; ends that are not known are infinite.

    Samples that are all equal do not show how they vary, so that the ends are not known either.

    Args:
        worth: :func:`independence` of the medians of the same samples. A tail that a run has seen too little
            of shows less dependence than there is: the medians decide too.
    """
    value = new.value - base.value
    error = _error(base, new)
    own = independence(base, new)
    enough = all(
        len(arm.of) * own >= _LEAST_OWN * arm.fewest
        and len(arm.of) * worth >= arm.fewest * min(_DEPENDENT, 1 / max(worth, 1e-9))
        for arm in (base, new)
    )
    if error is None or not error.settled or not enough or not (base.varies or new.varies):
        return Difference(value, -math.inf, math.inf)
    reach = error.reach(confidence)
    low, high = value - reach, value + reach
    if base.share is not None and new.share is not None:
        # Of few hits nobody knows how they vary: the interval is no narrower than that of independent ones.
        z = StandardError(1.0, math.inf).t(confidence)
        (base_low, base_high), (new_low, new_high) = (
            share_ends(arm.value, arm.share[1], z) for arm in (base, new) if arm.share is not None
        )
        low = min(low, value - math.hypot(new.value - new_low, base_high - base.value))
        high = max(high, value + math.hypot(new_high - new.value, base.value - base_low))
    return Difference(value, low, high)


def _error(base: Influence, new: Influence) -> StandardError | None:
    """Standard error of new − base: by blocks of time, or by sessions where that is larger."""
    by_time = _by_time(base, new)
    if by_time is None or not (len(base.sessions) and len(new.sessions)):
        return by_time
    by_session = _by_session(base, new)
    return by_session if by_session.value > by_time.value or not by_time.settled else by_time


def _by_time(base: Influence, new: Influence) -> StandardError | None:
    times_s = np.sort(np.concatenate([base.times_s, new.times_s]))
    cells = min(CELLS, len(times_s))
    if cells < 2:
        return None
    edges = times_s[np.arange(1, cells) * len(times_s) // cells]
    beside = sum(
        sign * np.bincount(np.searchsorted(edges, arm.times_s, side="right"), arm.of, cells)
        for sign, arm in ((-1.0, base), (1.0, new))
    )
    error = standard_error(np.asarray(beside), np.ones(cells))
    return error and replace(error, value=error.value * cells)


def _by_session(base: Influence, new: Influence) -> StandardError:
    """The sum of squares of what each session contributes, as of independent ones."""
    variance, fewest = 0.0, math.inf
    for arm in (base, new):
        _, numbers = np.unique(arm.sessions, return_inverse=True)
        sums = np.bincount(numbers, arm.of)
        fewest = min(fewest, len(sums))
        variance += float(sums @ sums) * len(sums) / max(1, len(sums) - 1)
    return StandardError(math.sqrt(variance), max(1.0, 2 * (fewest - 1)), settled=fewest >= 2)
