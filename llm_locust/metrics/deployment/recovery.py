"""When the share of good requests is back where it was before a change of the load."""

import numpy as np

from llm_locust.metrics.columns import Floats, Mask
from llm_locust.metrics.stats.certified import at_most
from llm_locust.metrics.stats.proportions import Proportion

#: Successive requests that a rolling share is of.
ROLLING = 50

#: Probability that chance alone makes any of the rolling shares of one call a fall.
_LEVEL = 0.05


def recovered_s(at_s: Floats, good: Mask, before: Proportion, since_s: float) -> float | None:
    """Seconds from ``since_s`` until the rolling share of good requests is back at the share ``before``.

    The rolling share at a request is that of it and the next :data:`ROLLING` − 1. It is back at the first
    request after its last fall from which on it is at or above the lower end p of the 95 % interval of the
    share before. A fall is a rolling share that is too low for chance: with the share p, so few good
    requests have a binomial probability of less than 5 % / number of rolling shares (Bonferroni).

    Args:
        at_s: when each judged request was due, on the axis of ``since_s``; earlier ones are left out.
        good: which of them were good.

    Returns:
        0 where the share never fell. None where it was not back by the last request, where there are fewer
        than :data:`ROLLING` requests, before or after, and where so few were good before that not even
        :data:`ROLLING` bad ones in a row are a fall.
    """
    bounds = before.interval()
    later = np.flatnonzero(at_s >= since_s)
    if bounds is None or not before.hits or before.n < ROLLING or len(later) < ROLLING:
        return None
    later = later[np.argsort(at_s[later], kind="stable")]
    sums = np.concatenate([[0], np.cumsum(good[later])])
    hits = sums[ROLLING:] - sums[:-ROLLING]
    chances = np.array([at_most(k, ROLLING, bounds[0]) for k in range(ROLLING + 1)])
    if chances[0] >= _LEVEL / len(hits):
        return None  # a server that ended altogether would not have fallen
    fallen = np.flatnonzero(chances[hits] < _LEVEL / len(hits))
    if not len(fallen):
        return 0.0
    back = np.flatnonzero(hits >= bounds[0] * ROLLING)
    back = back[back > fallen[-1]]
    return float(at_s[later[back[0]]] - since_s) if len(back) else None
