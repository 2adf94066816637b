"""Two runs set against each other: which differences are beyond noise.

Every figure of the table gets the interval of its difference (:mod:`llm_locust.metrics.stats.estimates`, its
errors by a block bootstrap). With 25 figures at 95 % each, three of four comparisons of a server with
itself would find something; so each interval is of 1 − 0.05 / (number of figures), by Bonferroni, and
all of them hold together with 95 %: where two runs are of the same server under the same load, no figure at
all is beyond noise in 95 of 100 comparisons. Figures of one run move together, so that it is more.

What is noise is learned inside each run. What differs from run to run, such as another machine or
another placement, is in no interval: runs that are repeated show it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from llm_locust.metrics.compare.comparable import Metric, table_metrics
from llm_locust.metrics.compare.compared import Compared
from llm_locust.metrics.gates import MetricKind
from llm_locust.metrics.stats.estimates import Difference, Estimate, alike, difference

#: Of all intervals of a comparison together.
CONFIDENCE = 0.95

#: A difference smaller than this share of the figures is the rounding of floats.
_SAME = 1e-9

#: Where an interval reaches further than this, as a share of the figures or in points of a share, the samples
#: are too few to say that there is no difference.
_COARSE, _COARSE_POINTS = 0.25, 0.05


class Verdict(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference beyond noise"
    TOO_FEW = "too few samples"  # a difference that matters could hide
    UNDETERMINED = "undetermined"  # requests without a known end leave the figure open


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of two runs, in its own unit (seconds for latencies); None where a run has none.

    ``difference`` is None too where a figure is infinite. ``why_open`` says why a run has no figure though it
    has samples.
    """

    metric: Metric
    base: float | None
    new: float | None
    difference: Difference | None
    verdict: Verdict
    why_open: str | None = None

    @property
    def missing(self) -> str:
        """The run without a figure, base where it is both."""
        return "base" if self.base is None else "new"

    @property
    def change(self) -> Difference | None:
        """The difference as a share of the base's figure, and its interval; None for a base of 0."""
        if self.difference is None or not self.base:
            return None
        d = self.difference
        return Difference(d.value / self.base, d.low / self.base, d.high / self.base)


@dataclass(frozen=True, slots=True)
class Comparison:
    """``confidence`` is that of each row's interval, such that all hold together with 95 %."""

    base: Compared
    new: Compared
    rows: tuple[Row, ...]
    confidence: float

    def having(self, verdict: Verdict) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.verdict is verdict)


def compare_in_turn(runs: Sequence[Compared]) -> list[Comparison]:
    """Each run against the one before: every figure of the table that one of the two has.

    The intervals of all comparisons hold together.
    """
    metrics = table_metrics(any(run.manifest.open_loop for run in runs))
    figures = [run.estimates(metrics) for run in runs]
    tested = [a[name] is not None and b[name] is not None for a, b in pairwise(figures) for name in a]
    confidence = joint_confidence(sum(tested))
    return [
        Comparison(
            base,
            new,
            tuple(
                explained(compare_figures(metric, a[metric.name], b[metric.name], confidence), base, new)
                for metric in metrics
                if a[metric.name] is not None or b[metric.name] is not None
            ),
            confidence,
        )
        for (base, new), (a, b) in zip(pairwise(runs), pairwise(figures), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class FigureOverTime:
    """One figure of several runs in its own unit, with the 95 % interval of each; None is not known."""

    metric: Metric
    values: tuple[float | None, ...]
    lows: tuple[float | None, ...]
    highs: tuple[float | None, ...]


def figures_over_time(runs: Sequence[Compared], metrics: Sequence[Metric]) -> dict[str, FigureOverTime]:
    """Each of ``metrics`` by its name, in the order of ``runs``."""
    found, of_runs = {}, [run.estimates(metrics) for run in runs]
    for metric in metrics:
        estimates = [each[metric.name] for each in of_runs]
        ends = [(None, None) if e is None else e.ends(CONFIDENCE) for e in estimates]
        found[metric.name] = FigureOverTime(
            metric,
            tuple(None if e is None else e.value for e in estimates),
            tuple(low for low, _ in ends),
            tuple(high for _, high in ends),
        )
    return found


def joint_confidence(tested: int) -> float:
    """What each of so many intervals needs for all to hold together with 95 %, by Bonferroni."""
    return 1 - (1 - CONFIDENCE) / max(1, tested)


def compare_figures(metric: Metric, base: Estimate | None, new: Estimate | None, confidence: float) -> Row:
    """One figure of two runs.

    It is beyond noise where its interval does not hold 0. Where it does and an end of it is not known, or is
    further than a quarter of the figure (5 points of a share), the samples are too few; so they are where a
    run has none. Of an infinite figure only that the other is finite
    is known.
    """
    if base is None or new is None:
        known = [None if estimate is None else estimate.value for estimate in (base, new)]
        return Row(metric, known[0], known[1], None, Verdict.TOO_FEW)
    if math.isinf(base.value) or math.isinf(new.value):
        worse, better = math.isfinite(base.value), math.isfinite(new.value)
        verdict = Verdict.WORSE if worse else Verdict.BETTER if better else Verdict.UNDETERMINED
        return Row(metric, base.value, new.value, None, verdict)
    found = _difference(metric, *alike(base, new), confidence)
    size = max(abs(base.value), abs(new.value))
    verdict = verdict_on(metric, found, size)
    coarse = _COARSE_POINTS if metric.kind is MetricKind.SHARE else _COARSE * size
    if verdict is Verdict.NO_DIFFERENCE and max(-found.low, found.high) > coarse:
        verdict = Verdict.TOO_FEW
    return Row(metric, base.value, new.value, found, verdict)


def _difference(metric: Metric, base: Estimate, new: Estimate, confidence: float) -> Difference:
    """New − base, no further than it can be: a share moves by 100 pp, and nothing loses more than all."""
    most = 1.0 if metric.kind is MetricKind.SHARE else math.inf
    return difference(base, new, confidence).within(-min(most, max(base.value, 0.0) or most), most)


def explained(row: Row, base: Compared, new: Compared) -> Row:
    """The row with the reason where requests without a known end leave a figure open."""
    if row.base is not None and row.new is not None:
        return row
    why = (base if row.base is None else new).why_open(row.metric)
    return row if why is None else replace(row, why_open=why, verdict=Verdict.UNDETERMINED)


def verdict_on(metric: Metric, found: Difference, size: float) -> Verdict:
    """What a difference says; ``size`` is that of the larger figure."""
    if abs(found.value) > _SAME * size and (found.low > 0 or found.high < 0):
        return Verdict.BETTER if (found.low > 0) != metric.lower_is_better else Verdict.WORSE
    return Verdict.NO_DIFFERENCE if found.is_known else Verdict.TOO_FEW
