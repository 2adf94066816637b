"""When the share of good requests is back where it was before a change of the load."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from llm_locust.metrics.columns import Floats, Mask, Rows
from llm_locust.metrics.stats.certified import at_most
from llm_locust.metrics.stats.proportions import Proportion

#: Successive requests that the shortest rolling share is of, and how many times as many the next one is.
ROLLING, LONGER = 50, 4

#: Probability that chance alone makes any of the rolling shares of one call a fall.
_LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long it took. ``seconds`` is 0 where the share never fell.

    ``at_least_s`` is a lower bound instead, where it was not back by the last request. Where both are None,
    ``why`` says why nothing is known.
    """

    seconds: float | None = None
    at_least_s: float | None = None
    why: str | None = None


def recovery(at_s: Floats, good: Mask, before: Proportion, since_s: float) -> Recovery:
    """Time from ``since_s`` until the rolling share of good requests is back at the share ``before``.

    The rolling share at a request is that of it and the next w − 1, for each width w of :data:`ROLLING`,
    4 times as many, 16 times and so on. A fall is a rolling share that is too low for chance: with p, the
    lower end of the 95 % interval of the share before, so few good requests have a binomial probability of
    less than 5 % / widths / number of rolling shares of this width (Bonferroni). The narrowest width sees
    when a deep fall ends, wider ones see a shallow fall. The share is back at the first request after its
    last fall from which on the rolling share of the width that saw this fall is p or more.

    Args:
        at_s: when each judged request was due, on the axis of ``since_s``; earlier ones are left out.
        good: which of them were good.
    """
    bounds = before.interval()
    later = np.flatnonzero(at_s >= since_s)
    if bounds is None or before.n < ROLLING:
        return Recovery(why=f"{before.n} requests before it are too few: {ROLLING} are needed")
    if not before.hits:
        return Recovery(why="no request before it was good")
    if len(later) < ROLLING:
        return Recovery(why=f"{len(later)} requests after it are too few: {ROLLING} are needed")
    later = later[np.argsort(at_s[later], kind="stable")]
    sums = np.concatenate([[0], np.cumsum(good[later])])
    widths = list(_widths(len(later), bounds[0]))
    if not widths:  # a server that ended altogether would not have fallen
        return Recovery(why="too few were good before it for a fall to show")
    ends = [(_last_fall(_hits(sums, width), most), width, most) for width, most in widths]
    fallen, width, _ = max(ends, key=lambda end: (end[0], -end[1]))
    if fallen < 0:
        return Recovery(seconds=0.0)
    back = np.flatnonzero(_hits(sums, width) >= bounds[0] * width)
    back = back[back > fallen]
    if len(back):
        return Recovery(seconds=float(at_s[later[back[0]]] - since_s))
    return Recovery(at_least_s=float(at_s[later[len(later) - width]] - since_s))


def _widths(n: int, share: float) -> Iterator[tuple[int, int]]:
    """Each width of rolling shares of ``n`` requests, and the most good ones that are a fall in it."""
    widths = [ROLLING]
    while widths[-1] * LONGER <= n:
        widths.append(widths[-1] * LONGER)
    for width in widths:
        level = _LEVEL / len(widths) / (n - width + 1)
        most, enough = -1, width
        while enough - most > 1:
            middle = (most + enough) // 2
            most, enough = (middle, enough) if at_most(middle, width, share) < level else (most, middle)
        if most >= 0:
            yield width, most


def _hits(sums: Rows, width: int) -> Rows:
    return sums[width:] - sums[:-width]


def _last_fall(hits: Rows, most: int) -> int:
    """Index of the last rolling share that is a fall; -1: none is."""
    fallen = np.flatnonzero(hits <= most)
    return int(fallen[-1]) if len(fallen) else -1
