"""A share that can only fall as the load grows, and the load at which it crosses what is required."""

import numpy as np

from llm_locust.metrics.columns import Floats


def falling(values: Floats, weights: Floats) -> Floats:
    """The non-increasing sequence nearest to each row of ``values`` in weighted least squares.

    By the min-max formula of Ayer et al. (1955): over all starts, the least of the largest mean from there.

    Args:
        values: shape (..., n).
        weights: shape (n,), above 0.
    """
    n = len(weights)
    if not n:
        return values
    means, sums = values, weights
    of_spans = np.full((*values.shape, n), -np.inf)  # (..., first, last) of each span
    for further in range(n):
        if further:
            sums = sums[:-1] + weights[further:]
            means = means[..., :-1]
            means = means + (values[..., further:] - means) * (weights[further:] / sums)
        first = np.arange(n - further)
        of_spans[..., first, first + further] = means
    largest = np.maximum.accumulate(of_spans[..., ::-1], axis=-1)[..., ::-1]
    return np.where(np.tri(n, k=-1, dtype=bool), np.inf, largest).min(axis=-2)  # type: ignore[no-any-return]


def crossing(loads: Floats, shares: Floats, required: float, parts: Floats | None = None) -> Floats:
    """The load at which each row of non-increasing ``shares`` falls below ``required``.

    Between the last load that is not below and the first that is, it lies at this part of the logarithm
    of the load: all that is known of a share that only falls is that it lies there. By default it is where a
    straight line through the log-odds of both shares crosses.

    Args:
        loads: shape (n,), ascending, above 0.
        shares: shape (rows, n), in (0, 1), non-increasing.
        required: in (0, 1).
        parts: shape (rows,).

    Returns:
        0 where the lowest load is below already, infinity where no load is.
    """
    below = shares < required
    first = below.argmax(axis=-1)
    found = np.where(below.any(axis=-1), 0.0, np.inf)
    (rows,) = np.nonzero(first)
    after = first[rows]
    if parts is None:
        high, low = (_log_odds(shares[rows, last]) for last in (after - 1, after))
        part = (high - _log_odds(required)) / (high - low)
    else:
        part = parts[rows]
    start, end = np.log(loads[after - 1]), np.log(loads[after])
    found[rows] = np.exp(start + part * (end - start))
    return found


def _log_odds(share: Floats | float) -> Floats:
    return np.log(share / (1 - share))
