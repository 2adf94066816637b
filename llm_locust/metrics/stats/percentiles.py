"""Percentiles of a whole population.

Everything works on samples in ascending order, so that one sort serves every figure and the
result does not depend on the order in which workers delivered.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from llm_locust.metrics.columns import Floats
from llm_locust.metrics.stats.intervals import CellSums, as_json, told

#: Key in a summary -> percent.
PERCENTILES = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}

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


#: Deviations are squared so many at a time. Of more, BLAS would make several threads add up their shares:
#: that takes longer than it saves, and the last digits would be those of a number of processors.
_SLICE = 1 << 13


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
    course: CellSums | None = None,
) -> dict[str, Any]:
    """n, mean, std, min, percentiles, max, ci95, n_effective and beyond of samples times ``scale``.

    Undefined figures are None. With ``infinite`` samples of +∞, mean and std are None, and each
    order statistic that falls on one is None and named in ``beyond``. ``ci95`` holds for the mean and each
    percentile ``[low, high]``, an end being None where it falls on +∞; the whole is None where the
    ``course`` of the samples cannot tell (:mod:`~llm_locust.metrics.stats.intervals`), and where there is
    none.
    """
    mean, std = (math.nan, math.nan) if infinite else _moments(ascending)
    n = len(ascending) + infinite
    ranks = {"min": 0.0, **places, "max": 100.0}
    statistics = {key: percentile(ascending, percent, infinite) for key, percent in ranks.items()}
    ends, n_effective = told(
        course if n else None, places, lambda percent: percentile(ascending, percent, infinite), mean, std
    )
    figures = {"mean": mean, "std": std, **statistics}
    return {
        "n": n,
        **{key: _scaled(value, scale) for key, value in figures.items()},
        "ci95": as_json(ends, scale),
        "n_effective": n_effective,
        "beyond": [key for key, value in statistics.items() if math.isinf(value)],
    }


def _moments(ascending: Floats | Ascending) -> tuple[float, float]:
    return moments(ascending) if isinstance(ascending, np.ndarray) else ascending.moments()


def _scaled(value: float, scale: float) -> float | None:
    return value * scale if math.isfinite(value) else None
