"""The product limit (Kaplan and Meier 1958): the distribution of durations of which some were cut."""

import math

import numpy as np

from llm_locust.metrics.columns import Floats, Rows
from llm_locust.metrics.stats.percentiles import interpolated

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
