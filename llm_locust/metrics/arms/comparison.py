"""Each arm of a run set against the first: the rows of a comparison of two runs, with paired intervals."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from llm_locust.metrics.arms.influence import ArmSamples, Influence, independence, paired_difference
from llm_locust.metrics.catalogue import FORMULAS
from llm_locust.metrics.columns import Rows
from llm_locust.metrics.compare.comparable import Metric, table_metrics
from llm_locust.metrics.compare.compared import Compared, counted_in_share
from llm_locust.metrics.compare.comparison import Row, Verdict, explained, joint_confidence, verdict_on
from llm_locust.metrics.gates import MetricKind
from llm_locust.metrics.stats.percentiles import PERCENTILES

#: Why the interval of a difference is not known though there are samples enough.
SAME = "all values of each arm are equal: how they vary is not known"

#: An arm as it is compared: its requests, and the session of each by number (empty where they have none).
Measured = tuple[Compared, NDArray[np.int64]]


def compared_metrics(open_loop: bool) -> tuple[Metric, ...]:
    """The rows of the table: those of two runs but for rates, and for gaps between single tokens.

    How many requests an arm gets is drawn, so that its rates are not a result. Gaps are pooled over all
    requests, so that nobody knows which session they are of; TPOT has them per request.
    """
    return tuple(
        metric
        for metric in table_metrics(open_loop)
        if metric.kind is MetricKind.SHARE
        or (metric.kind is MetricKind.LATENCY and metric.latency in FORMULAS)
    )


def compare_arms(arms: Sequence[Measured], *, open_loop: bool) -> tuple[list[list[Row]], float]:
    """The rows of each arm but the first, against the first, and the confidence of each interval.

    All intervals together hold with 95 % (Bonferroni).
    """
    metrics = compared_metrics(open_loop)
    figures = [{metric.name: _influence(arm, metric) for metric in metrics} for arm in arms]
    first = figures[0] if figures else {}
    tested = sum(
        first[name] is not None and other[name] is not None for other in figures[1:] for name in other
    )
    confidence = joint_confidence(tested)
    return [
        [
            explained(_row(metric, first, other, confidence), arms[0][0], run)
            for metric in metrics
            if first[metric.name] is not None or other[metric.name] is not None
        ]
        for (run, _), other in zip(arms[1:], figures[1:], strict=True)
    ], confidence


#: The figures of an arm by their names; None where it has no sample.
Figures = Mapping[str, Influence | None]


def _row(metric: Metric, first: Figures, other: Figures, confidence: float) -> Row:
    base, new = first[metric.name], other[metric.name]
    if base is None or new is None:
        known = [None if figure is None else figure.value for figure in (base, new)]
        return Row(metric, known[0], known[1], None, Verdict.TOO_FEW)
    found = paired_difference(base, new, confidence, _worth(metric, first, other))
    if not (base.varies or new.varies):
        return Row(metric, base.value, new.value, found, Verdict.UNDETERMINED, SAME)
    verdict = verdict_on(metric, found, max(abs(base.value), abs(new.value)))
    return Row(metric, base.value, new.value, found, verdict)


def _worth(metric: Metric, first: Figures, other: Figures) -> float:
    """What a request is worth by the medians of the metric's latency; 1 for a share."""
    medians = [figures.get(f"p50_{metric.latency}") for figures in (first, other)]
    base, new = medians
    return 1.0 if base is None or new is None else independence(base, new)


def _influence(arm: Measured, metric: Metric) -> Influence | None:
    """The figure as :meth:`Compared.estimate` has it; None where the arm has no sample of it."""
    run, _ = arm
    estimate = run.estimate(metric)
    if estimate is None or not math.isfinite(estimate.value):
        return None
    if metric.kind is MetricKind.LATENCY:
        rows = run.population.ok
        samples = _samples(arm, rows, run.measured.values[metric.latency][rows]).known()
        if metric.statistic == "mean":
            return samples.mean()
        return samples.percentile(PERCENTILES[metric.statistic])
    if metric.name == "on_time":
        rows = run.population.ok
        assert run.measured.on_time is not None
        return _samples(arm, rows, run.measured.on_time[rows]).known().mean()
    counted = counted_in_share(run, metric)
    return None if counted is None else _samples(arm, counted[0], counted[1].astype(np.float64)).share()


def _samples(arm: Measured, rows: Rows, values: NDArray[np.float64]) -> ArmSamples:
    run, sessions = arm
    times_s = run.c.scheduled_s[rows] - run.window.start_s(run.c)
    return ArmSamples(values, times_s, sessions[rows] if len(sessions) else sessions)
