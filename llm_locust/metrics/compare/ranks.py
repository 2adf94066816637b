"""Two percentiles judged by ranks, where too few samples bound them."""

import math

import numpy as np

from llm_locust.metrics.stats.chance import hypergeometric_at_most
from llm_locust.metrics.stats.estimates import Estimate, Percentile
from llm_locust.metrics.stats.intervals import worths


def tail_p(base: Estimate, new: Estimate, factor: float) -> float:
    """The chance of so many samples of new above ``factor`` × base's percentile, were new slower by no more.

    Fisher's exact test, one-sided, of base's samples above base's percentile and new's above ``factor``
    times it, each run counted as its effective samples. As the value is one of base's own, this is the
    exact precedence test. It needs no interval of the percentile: twenty samples cannot bound a p99,
    but twenty that are all above another run's are not chance. 1 where it is no percentile above 0,
    or effective samples are not known.
    """
    if not (isinstance(base, Percentile) and isinstance(new, Percentile)):
        return 1.0
    if not 0 < base.value < math.inf:
        return 1.0
    of_base, of_new = _above(base, base.value), _above(new, factor * base.value)
    if of_base is None or of_new is None:
        return 1.0
    (share_base, n_base), (share_new, n_new) = of_base, of_new
    above_base, above_new = math.ceil(share_base * n_base - 1e-9), math.floor(share_new * n_new + 1e-9)
    return hypergeometric_at_most(above_base, n_base, above_base + above_new, n_base + n_new)


def _above(figure: Percentile, value: float) -> tuple[float, int] | None:
    """The share of samples above ``value``, and how many effective samples it is of.

    They are no more than those of the mean: samples in a rare tail seem more independent than they are.
    """
    course = figure.samples.course
    if course is None:
        return None
    mean, std = figure.samples.moments()
    of_mean, (worth,) = worths(course, mean, std, figure.samples.quantile(0.5), [value])
    of_mean = of_mean or figure.worth
    worth = worth or of_mean
    if worth is None or of_mean is None or not (worth.error.settled and of_mean.error.settled):
        return None
    at_most = float(course.at_most(np.array([value])).sum() / course.counts.sum())
    return 1 - at_most, math.floor(min(worth.n_eff, of_mean.n_eff) + 1e-9)
