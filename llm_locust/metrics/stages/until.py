"""``--until "p99_ttft±5%"``: whether the interval of a figure is narrow enough to end a stage early.

A stage is looked at a few times. Each look has an interval of its own confidence, 1 − 5 % / looks
(Bonferroni), so that all of them hold the truth together in 95 % of stages, whichever look ended it.
"""

import re
from dataclasses import dataclass, replace

import numpy as np

from llm_locust.metrics.catalogue import LATENCIES
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.stats.cells import order_cells
from llm_locust.metrics.stats.intervals import CONFIDENCE, CellSums, Observed, told
from llm_locust.metrics.stats.percentiles import PERCENTILES, ordered, percentile

#: Shares of the stage's time at which it is looked at before its end, which is the last look.
EARLY_LOOKS = (0.25, 0.5, 0.75)
LOOKS = len(EARLY_LOOKS) + 1

#: Confidence of the interval of one look.
LOOK_CONFIDENCE = 1 - (1 - CONFIDENCE) / LOOKS

STATISTICS = ("mean", *PERCENTILES)
#: One number a request: the gaps of ``itl`` are not.
_METRICS = tuple(metric.key for metric in LATENCIES if metric.is_gated and metric.key != "itl")

_ALLOWED = (
    "write FIGURE±SHARE, as p99_ttft±5% or p50_e2el+-2%; the figure is one of "
    f"{', '.join(STATISTICS)}, an underscore, and one of {', '.join(_METRICS)}"
)
_TEXT = re.compile(r"\s*(?P<figure>[a-z0-9_]+)\s*(?:±|\+-|\+/-)\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*%\s*")


@dataclass(frozen=True, slots=True)
class Until:
    """A figure and the greatest half of its interval, as a share of it."""

    text: str
    metric: str
    statistic: str
    precision: float


@dataclass(frozen=True, slots=True)
class FigureEstimate:
    """A figure in seconds with its interval; None where the requests are too few, or depend on each other."""

    value_s: float | None
    ends_s: tuple[float, float] | None

    @property
    def half(self) -> float | None:
        """Half the interval as a share of the figure."""
        if self.ends_s is None or not self.value_s:
            return None
        return (self.ends_s[1] - self.ends_s[0]) / 2 / self.value_s


def parse_until(text: str) -> Until:
    """Parse a figure and its precision (raises ValueError)."""
    match = _TEXT.fullmatch(text)
    statistic, _, metric = ("", "", "") if match is None else match["figure"].rpartition("_")
    if match is not None:
        for known in sorted(STATISTICS, key=len, reverse=True):
            if match["figure"].startswith(f"{known}_"):
                statistic, metric = known, match["figure"][len(known) + 1 :]
                break
    if match is None or statistic not in STATISTICS or metric not in _METRICS:
        raise ValueError(f"until {text!r}: {_ALLOWED}")
    precision = float(match["number"]) / 100
    if not 0.001 <= precision <= 1:
        raise ValueError(f"until {text!r}: {match['number']} % is not from 0.1 % to 100 %")
    return Until(f"{statistic}_{metric}±{match['number']}%", metric, statistic, precision)


def look_at(m: Measured, until: Until) -> FigureEstimate:
    """The figure of the ok requests that were scheduled in the window of ``m``, with its interval.

    There is no interval where failed requests, as the slowest ones, reach up to the figure: that of the ok
    ones is then not what users see.
    """
    population = m.population(np.arange(len(m.c)))
    values_s = m.values[until.metric][population.ok]
    found = look(values_s, Observed(order_cells(m.c, population.ok), values_s), until)
    percent = PERCENTILES.get(until.statistic, 100.0)  # a mean has no tail to be in
    reached = len(population.failed) * 100 > len(population.judged) * (100 - percent)
    return replace(found, ends_s=None) if reached else found


def is_enough(found: FigureEstimate, until: Until) -> bool:
    return found.half is not None and found.half <= until.precision


def look(values_s: Floats, course: CellSums, until: Until) -> FigureEstimate:
    """The figure of values, NaN being none, and its interval by their course in the order of the stage."""
    known_s = values_s[~np.isnan(values_s)]
    if not len(known_s):
        return FigureEstimate(None, None)
    ascending = ordered(known_s)
    mean_s = float(ascending.mean())

    def quantile(percent: float) -> float:
        return percentile(ascending, percent)

    ends, _ = told(course, PERCENTILES, quantile, mean_s, float(ascending.std()), LOOK_CONFIDENCE)
    value_s = mean_s if until.statistic == "mean" else quantile(PERCENTILES[until.statistic])
    return FigureEstimate(value_s, ends[until.statistic])
