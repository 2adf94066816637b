"""Two runs judged by ranks, where too few samples bound a figure.

**Separation** needs no independence of requests, and no error: if every sample of one run is above every
sample of the other, then so is each figure made of them. That k and m rounds of one server, in any order
equally likely, fall apart so has the chance 1 / C(k + m, k): 1 in 20 of three and three, 1 in 70 of four and
four (the extreme case of Wilcoxon's rank sum test).

**Tails**: Fisher's exact test of the samples above a value, see :func:`tail_p`.
"""

import math

import numpy as np

from llm_locust.metrics.stats.chance import hypergeometric_at_most
from llm_locust.metrics.stats.estimates import Average, Estimate, Percentile

#: More rounds of a run make no chance smaller than matters.
_ENOUGH = 30


def apart_p(low: Estimate, high: Estimate, factor: float) -> float:
    """The chance that all of ``high`` lie above ``factor`` times all of ``low``, if they are one server's.

    1 where they do not.
    """
    if not (isinstance(low, Average | Percentile) and isinstance(high, Average | Percentile)):
        return 1.0
    if low.span is None or high.span is None or not high.span.low > factor * low.span.high:
        return 1.0
    k, m = (min(_ENOUGH, math.floor(each.span.rounds + 1e-9)) for each in (low, high) if each.span)
    return 1 / math.comb(k + m, k) if k and m else 1.0


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

    They are no more than the run is worth for its median: samples in a rare tail seem more independent than
    they are.
    """
    course = figure.samples.course
    if course is None or figure.noise is None:
        return None
    at_most = float(course.at_most(np.array([value])).sum() / course.counts.sum())
    return 1 - at_most, math.floor(figure.noise.level / figure.noise.factor + 1e-9)
