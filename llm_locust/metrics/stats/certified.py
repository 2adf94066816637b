"""Certified percentiles: a one-sided upper bound of a percentile, as MLPerf's early stopping has it.

If more than a share 1 − p of all durations were longer than the t-th highest of n independent samples, at
most t samples this long would occur with a probability below 1 − :data:`CONFIDENCE`. So the t-th highest
sample is at least the percentile, with that confidence.

Source: the rules of MLPerf Inference, early stopping with c = 0.99 and the tolerance d = 0. There t is the
largest number for which the regularised incomplete beta function I_p(n − t, t + 1) is below 1 − c. If it is
below 1, there is no bound.
"""

import math

import numpy as np

from llm_locust.metrics.stats.censoring import Durations

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
