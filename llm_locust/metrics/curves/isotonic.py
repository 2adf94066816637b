"""A share that can only fall as the load grows, and the load at which it crosses what is required."""

import math

import numpy as np

from llm_locust.metrics.columns import Floats


def falling(values: Floats, weights: Floats) -> Floats:
    """The non-increasing sequence nearest to ``values`` in weighted least squares.

    By pooling adjacent violators (Ayer et al. 1955): neighbours that rise become their weighted mean.

    Args:
        values, weights: shape (n,), weights above 0.
    """
    means: list[float] = []
    sums: list[float] = []
    sizes: list[int] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        means.append(value)
        sums.append(weight)
        sizes.append(1)
        while len(means) > 1 and means[-2] < means[-1]:
            mean, weight, size = means.pop(), sums.pop(), sizes.pop()
            total = sums[-1] + weight
            means[-1] += (mean - means[-1]) * weight / total
            sums[-1] = total
            sizes[-1] += size
    return np.repeat(np.array(means, dtype=np.float64), sizes)


def crossing(loads: Floats, shares: Floats, required: float, part: float | None = None) -> float:
    """The load at which non-increasing ``shares`` fall below ``required``.

    Between the last load that is not below and the first that is, it lies at this ``part`` of the logarithm
    of the load: all that is known of a share that only falls is that it lies there. By default it is where a
    straight line through the log-odds of both shares crosses.

    Args:
        loads: ascending, above 0.
        shares: in (0, 1), non-increasing.
        required: in (0, 1).

    Returns:
        0 where the lowest load is below already, infinity where no load is.
    """
    below = np.flatnonzero(shares < required)
    if not len(below):
        return math.inf
    first = int(below[0])
    if not first:
        return 0.0
    if part is None:
        high, low, wanted = _log_odds(shares[first - 1]), _log_odds(shares[first]), _log_odds(required)
        part = (high - wanted) / (high - low)
    start, end = math.log(loads[first - 1]), math.log(loads[first])
    return math.exp(start + part * (end - start))


def _log_odds(share: float) -> float:
    return math.log(share / (1 - share))
