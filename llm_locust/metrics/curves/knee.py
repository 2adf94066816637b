"""The knee of a latency over the load: from which load on more of it costs much latency.

Kneedle (Satopää et al. 2011) for a curve that rises and bends upwards: both axes are scaled to 0 .. 1 between
the first and the last load, and the knee is the load at which the curve is farthest below the straight line
between its ends. A straight line has none: the distance must be :data:`LEAST_DEPTH`. Its uncertainty is a
bootstrap: each latency is drawn from what its stage leaves possible, and the knee is computed again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_locust.core.figures import quantity
from llm_locust.metrics.columns import Floats

#: Fewer loads have no shape.
FEWEST_LOADS = 4

#: Distance below the straight line, of the height of the curve, that makes a knee.
LEAST_DEPTH = 0.2

#: Share of the draws that must have a knee.
_MOST_DRAWS = 0.95

_DRAWS = 1_000
_ENDS = (0.025, 0.975)


class NoKneeError(ValueError):
    """A curve without a knee; one line says why."""


@dataclass(frozen=True, slots=True)
class Knee:
    """``load`` is a load that was tried, ``low`` to ``high`` an interval of such loads: the curve between two
    of them is unknown. ``depth`` is the distance, in the height of the curve."""

    load: float
    low: float
    high: float
    depth: float


def find_knee(loads: Floats, latencies: Floats, errors: Floats, seed: int = 0) -> Knee:
    """The knee of latencies over loads.

    Args:
        loads: ascending, different.
        latencies: above 0.
        errors: standard errors of their logarithms.

    Raises:
        NoKneeError: there are too few loads, the latency does not grow, or it grows too evenly.
    """
    if len(loads) < FEWEST_LOADS:
        have = "load has" if len(loads) == 1 else "loads have"
        raise NoKneeError(f"{len(loads)} {have} a result; a knee needs {FEWEST_LOADS}")
    if latencies[-1] <= latencies[0]:
        raise NoKneeError("the latency does not grow with the load")
    at, depth = _deepest(loads, latencies)
    if depth < LEAST_DEPTH:
        raise NoKneeError(
            f"the latency grows too evenly: {quantity(depth)} of its growth lies between the curve and a "
            f"straight line, a knee needs {LEAST_DEPTH:g}"
        )
    noise = np.random.default_rng(seed).standard_normal((_DRAWS, len(loads)))
    found = [_deepest(loads, latencies * np.exp(errors * each)) for each in noise]
    knees = sorted(loads[i] for i, depth in found if depth >= LEAST_DEPTH)
    if len(knees) < _MOST_DRAWS * _DRAWS:
        raise NoKneeError(
            f"the latencies are too uncertain: with their errors {100 * len(knees) / _DRAWS:.0f} % of the "
            "curves have a knee"
        )
    low, high = np.quantile(knees, _ENDS, method="inverted_cdf").tolist()
    return Knee(float(loads[at]), low, high, depth)


def _deepest(loads: Floats, latencies: Floats) -> tuple[int, float]:
    """The point farthest below the line between the ends, and its distance; 0 where the curve falls."""
    height = latencies[-1] - latencies[0]
    if height <= 0:
        return 0, 0.0
    x = (loads - loads[0]) / (loads[-1] - loads[0])
    below = x - (latencies - latencies[0]) / height
    at = int(np.argmax(below))
    return at, float(below[at])


def pooled(
    loads: Sequence[float], values: Sequence[float], errors: Sequence[float]
) -> tuple[Floats, Floats, Floats]:
    """Loads ascending, each once: of repeated ones the geometric mean and its error."""
    load, logs, error = np.array(loads), np.log(values), np.array(errors)
    unique = np.unique(load)
    masks = [load == each for each in unique]
    mean = np.array([logs[mask].mean() for mask in masks])
    of_mean = np.array([np.sqrt((error[mask] ** 2).sum()) / mask.sum() for mask in masks])
    return unique, np.exp(mean), of_mean
