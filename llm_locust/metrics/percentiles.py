"""Percentiles of a whole population, with intervals that assume no distribution.

Everything works on samples in ascending order, so that one sort serves every figure and the
result does not depend on the order in which workers delivered.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from llm_locust.metrics.columns import Floats

#: Key in a summary -> percent.
PERCENTILES = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}

_CONFIDENCE = 0.95


#: Most that one report is asked for.
_MOST = 20

_PERCENT = re.compile(r"[0-9]{1,2}(?:\.[0-9]{1,6})?")


def parse_percentiles(text: str) -> dict[str, float]:
    """Key in a summary -> percent, ascending, of ``50,90,99,99.9``.

    Raises:
        ValueError: not numbers above 0 and below 100, or too many of them.
    """
    words = [word for word in re.split(r"[\s,]+", text) if word]
    for word in words:
        if not _PERCENT.fullmatch(word) or not float(word):
            raise ValueError(f'"{word}" is no percentile: write numbers above 0 and below 100, as 50,99,99.9')
    places = {percentile_key(percent): percent for percent in sorted(map(float, words))}
    if not 1 <= len(places) <= _MOST:
        raise ValueError(f"{len(places)} percentiles: name 1 to {_MOST}, as 50,99,99.9")
    return places


def percentile_key(percent: float) -> str:
    """``p99`` of 99.0, ``p99_9`` of 99.9."""
    return f"p{percent:.6f}".rstrip("0").rstrip(".").replace(".", "_")


class Ascending(Protocol):
    """Samples in ascending order that are no array: the one at each rank, and their moments."""

    def __len__(self) -> int: ...

    def __getitem__(self, rank: int, /) -> float: ...

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation, as :func:`moments` of all samples would give them."""
        ...


_SLICE = 1 << 20


def ordered(values: Floats) -> Floats:
    """The defined values, ascending: a sorted copy without NaN."""
    out = np.sort(values)
    return out[: np.searchsorted(out, np.nan)]


def percentile(ascending: Floats | Ascending, percent: float, infinite: int = 0) -> float:
    """numpy's ``linear`` percentile of ``ascending`` followed by ``infinite`` times +∞.

    Returns:
        NaN without samples; +∞ where the percentile rests on an infinite one.
    """
    n = len(ascending) + infinite
    if n == 0:
        return math.nan
    position = percent / 100 * (n - 1)
    below = math.floor(position)
    fraction = position - below
    if below + (fraction > 0) >= len(ascending):
        return math.inf
    low = float(ascending[below])
    if fraction == 0:
        return low
    return interpolated(low, float(ascending[below + 1]), fraction)


def interpolated(low: float, high: float, fraction: float) -> float:
    """``low`` + (``high`` − ``low``) · ``fraction``, as numpy computes it."""
    # Each form is exact at its own end; numpy splits them in the same place.
    return low + (high - low) * fraction if fraction < 0.5 else high - (high - low) * (1 - fraction)


def interval_ranks(n: int, percent: float) -> tuple[int, int] | None:
    """Ranks (1-based) of the order statistics that enclose a percentile with 95 % confidence.

    The number of n independent samples below the true percentile is binomial. The lower rank l
    has P(B < l) <= 2.5 %, the upper rank u has P(B >= u) <= 2.5 %, whatever the distribution.

    Returns:
        None where no such ranks exist: n is too small (under 368 for p99, 3688 for p99.9).
    """
    p = percent / 100
    tail = (1 - _CONFIDENCE) / 2
    mean, spread = n * p, math.sqrt(n * p * (1 - p))
    # Further than this from the mean, less than 1e-20 is left, for skewed cases too.
    reach = 10 * spread + 40
    first, last = max(0, math.floor(mean - reach)), min(n, math.ceil(mean + reach))
    k = np.arange(first, last + 1, dtype=np.float64)
    log_pmf = np.concatenate([[0.0], np.cumsum(np.log((n - k[:-1]) / (k[:-1] + 1) * (p / (1 - p))))])
    pmf = np.exp(log_pmf - log_pmf.max())
    pmf /= pmf.sum()
    lower = first + int(np.searchsorted(np.cumsum(pmf), tail, side="right"))
    # P(B >= last - j) for j = 0, 1, ...: summed from its small end, where precision is needed.
    upper = last + 1 - int(np.searchsorted(np.cumsum(pmf[::-1]), tail, side="right"))
    return (lower, upper) if lower >= 1 and upper <= n else None


def needed_n(percent: float) -> int:
    """The fewest samples for which a percentile (>= 50) has a 95 % interval: 368 for p99."""
    return math.ceil(math.log((1 - _CONFIDENCE) / 2) / math.log(percent / 100))


def interval(ascending: Floats | Ascending, percent: float, infinite: int = 0) -> tuple[float, float] | None:
    """The 95 % interval of a percentile; its ends are samples (+∞ among the infinite ones)."""
    ranks = interval_ranks(len(ascending) + infinite, percent)
    if ranks is None:
        return None
    low, high = (float(ascending[r - 1]) if r <= len(ascending) else math.inf for r in ranks)
    return low, high


def moments(ascending: Floats) -> tuple[float, float]:
    """Mean and standard deviation (of the population, ddof 0); NaN without samples."""
    if not len(ascending):
        return math.nan, math.nan
    mean = float(np.mean(ascending))
    squares = 0.0
    for start in range(0, len(ascending), _SLICE):
        part = ascending[start : start + _SLICE] - mean
        squares += float(part @ part)
    return mean, math.sqrt(squares / len(ascending))


def summarise_ascending(
    ascending: Floats | Ascending,
    infinite: int = 0,
    scale: float = 1.0,
    places: Mapping[str, float] = PERCENTILES,
) -> dict[str, Any]:
    """n, mean, std, min, percentiles, max, ``ci95`` and ``beyond`` of samples times ``scale``.

    Undefined figures are None. With ``infinite`` samples of +∞, mean and std are None, and each
    order statistic that falls on one is None and named in ``beyond``. ``ci95`` holds for each
    percentile ``[low, high]``, an end being None where it falls on +∞; the whole is None where n
    is too small for an interval.
    """
    mean, std = (math.nan, math.nan) if infinite else _moments(ascending)
    n = len(ascending) + infinite
    ranks = {"min": 0.0, **places, "max": 100.0}
    statistics = {key: percentile(ascending, percent, infinite) for key, percent in ranks.items()}
    intervals = {key: interval(ascending, percent, infinite) for key, percent in places.items()}
    figures = {"mean": mean, "std": std, **statistics}
    return {
        "n": n,
        **{key: _scaled(value, scale) for key, value in figures.items()},
        "ci95": {key: ends and [_scaled(end, scale) for end in ends] for key, ends in intervals.items()},
        "beyond": [key for key, value in statistics.items() if math.isinf(value)],
    }


def _moments(ascending: Floats | Ascending) -> tuple[float, float]:
    return moments(ascending) if isinstance(ascending, np.ndarray) else ascending.moments()


def _scaled(value: float, scale: float) -> float | None:
    return value * scale if math.isfinite(value) else None
