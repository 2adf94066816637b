"""One run measured for a comparison: its figures, each with what its interval is made of."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.metrics.catalogue import FORMULAS, LATENCY
from llm_locust.metrics.columns import Columns, Floats, Mask, Rows
from llm_locust.metrics.compare.comparable import Metric
from llm_locust.metrics.durations import durations_of
from llm_locust.metrics.gates import MetricKind
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.goodput import good_rates
from llm_locust.metrics.requests.goodput_intervals import ratio_worth
from llm_locust.metrics.requests.throughput import amounts_over_time, inputs_per_s, rate_per_s
from llm_locust.metrics.sections.completeness import requests_lost, requests_unsent
from llm_locust.metrics.sections.validity import Scale, client_validity
from llm_locust.metrics.select.selection import asked
from llm_locust.metrics.stats.cells import order_cells
from llm_locust.metrics.stats.estimates import Average, Estimate, Percentile, Rate, Share
from llm_locust.metrics.stats.intervals import Observed, rate_error, worths
from llm_locust.metrics.stats.percentiles import PERCENTILES, Ascending, moments, ordered, percentile
from llm_locust.metrics.stats.worth import Worth
from llm_locust.metrics.window import Population, Window


@dataclass(frozen=True, slots=True)
class Compared:
    """A run as a comparison takes it: every figure is the one of its summary."""

    manifest: Manifest
    measured: Measured
    population: Population
    gaps: Floats | Ascending  # of the ok requests, ascending, in seconds
    lost: int  # requests without a record
    unsent: int  # requests that were due and never sent

    @property
    def c(self) -> Columns:
        return self.measured.c

    @property
    def is_part(self) -> bool:
        """Whether there was more of the run: requests without a record, or load that it did not come to."""
        return bool(self.lost) or not self.manifest.complete or self.manifest.cut_short

    @property
    def window(self) -> Window:
        return self.measured.window

    def client(self) -> dict[str, Any]:
        """The verdict on the client, see :mod:`llm_locust.metrics.sections.validity`."""
        values = {metric: self.latencies(metric) for metric in ("itl", "ttft", "e2el")}
        medians_ms = {m: percentile(v, 50.0) * 1e3 if len(v) else None for m, v in values.items()}
        scale = Scale.of(self.window, medians_ms)
        return client_validity(self.c, self.population.judged, self.manifest, scale)

    def latencies(self, latency: str) -> Floats | Ascending:
        """The defined values of the ok requests in seconds, ascending."""
        if latency not in FORMULAS:
            return self.gaps
        return ordered(self.measured.values[latency][self.population.ok])

    def why_open(self, metric: Metric) -> str | None:
        """Why there is no estimate though there are samples; None where there are none."""
        if metric.kind is not MetricKind.LATENCY or not len(self.latencies(metric.latency)):
            return None
        row = LATENCY[metric.latency]
        if row.end is None:
            return None
        stuck = self.measured.stuck.among(np.arange(len(self.c)))
        given_up = len(self.population.given_up(self.c)) + len(stuck)
        causes = [f"{given_up} requests were given up before they ended"] if given_up else []
        if self.unsent and row.is_from_scheduled:
            causes.append(f"{self.unsent} were never sent")
        return " and ".join(causes) or None

    @property
    def error_rate(self) -> float:
        """The failed share of the judged requests, 0 without any."""
        return len(self.population.failed) / max(1, len(self.population.judged))

    def estimate(self, metric: Metric, *, adjusted: bool = False) -> Estimate | None:
        """The figure in its unit (seconds for a latency); None where the run has no sample of it.

        Args:
            adjusted: of a percentile of a latency, count each failed request as +∞.
        """
        if metric.kind is MetricKind.LATENCY:
            return _latency(self, metric.latency, [metric], adjusted)[0]
        if metric.name == "on_time":
            return _on_time(self)
        if metric.kind is MetricKind.SHARE:
            return _share(self, metric)
        return _rate(self, metric)

    def estimates(self, metrics: Iterable[Metric]) -> dict[str, Estimate | None]:
        """The figures of many metrics by name, those of one latency from one look at its samples."""
        found = dict[str, Estimate | None]()
        for latency, group in groupby(metrics, key=lambda metric: metric.latency):
            theirs = [*group]
            if latency:
                them = _latency(self, latency, theirs, adjusted=False)
            else:
                them = [self.estimate(metric) for metric in theirs]
            found |= zip((metric.name for metric in theirs), them, strict=True)
        return found


def measure_for_comparison(requests: Requests, manifest: Manifest, question: Question) -> Compared:
    """Read the requests of a run, part by part (raises ValueError as :func:`measure` does)."""
    requests = asked(requests)
    measured = measure(requests, manifest, question)
    lost = requests_lost(manifest, len(requests.stored))
    population = measured.population(np.arange(len(measured.c)))
    gaps = measured.gaps.ascending()
    unsent = requests_unsent(manifest, question.warmup_of(manifest))
    return Compared(manifest, measured, population, gaps, lost, unsent)


def _latency(run: Compared, latency: str, metrics: Sequence[Metric], adjusted: bool) -> list[Estimate | None]:
    """Each None also where requests that were given up leave the figure open."""
    found = durations_of(
        run.measured, run.population, latency, adjusted=adjusted, unsent=run.unsent, gaps=run.gaps
    )
    if not len(found.observed):
        return [None] * len(metrics)
    mean, std = found.moments()
    percents = [PERCENTILES.get(metric.statistic, math.nan) for metric in metrics]
    values = [mean if math.isnan(p) else found.quantile(p / 100) for p in percents]
    worth, of_values = None, list[Worth | None]([None] * len(metrics))
    if found.course is not None:
        worth, of_values = worths(found.course, mean, std, found.quantile(0.5), values)
    made = [
        Average(value, worth) if math.isnan(percent) else Percentile(value, percent, found, of_value)
        for value, percent, of_value in zip(values, percents, of_values, strict=True)
    ]
    return [None if math.isnan(each.value) else each for each in made]


def _on_time(run: Compared) -> Estimate | None:
    if run.measured.on_time is None:
        return None
    shares = run.measured.on_time[run.population.ok]
    ascending = ordered(shares)
    if not len(ascending):
        return None
    mean, std = moments(ascending)
    course = Observed(order_cells(run.c, run.population.ok), shares)
    worth, _ = worths(course, mean, std, percentile(ascending, 50.0))
    return Average(mean, worth)


def _share(run: Compared, metric: Metric) -> Estimate | None:
    """A request without a record held no limit; it is spread over all cells: nobody knows its place."""
    counted = counted_in_share(run, metric)
    missing = 0
    if metric.name != "error_rate":
        missing = run.lost + run.unsent
        missing += len(run.measured.stuck.among(np.arange(len(run.c))))
    if counted is None or not len(counted[0]) + missing:
        return None
    judged, held = counted[0], counted[1].astype(np.float64)
    return Share(float(held.sum()) / (len(judged) + missing), ratio_worth(run.c, judged, held, missing))


def counted_in_share(run: Compared, metric: Metric) -> tuple[Rows, Mask] | None:
    """The recorded requests that a share is of, and which of them it counts; None where there is none."""
    hits = _hits(run, metric)
    judged = _denominator(run, metric)
    return None if hits is None else (judged, hits[judged])


def _denominator(run: Compared, metric: Metric) -> Rows:
    """The recorded requests that the share is of."""
    judgement = run.measured.judgement
    if metric.name == "error_rate" or judgement is None:
        return run.population.judged
    scheduled = run.population.all
    if metric.name == "goodput":
        return scheduled[judgement.judged[scheduled]]
    if metric.limit not in judgement.limited:
        return scheduled
    mask = judgement.limited[metric.limit] & ~judgement.unjudged[metric.limit]
    return scheduled[mask[scheduled]]


def _hits(run: Compared, metric: Metric) -> Mask | None:
    """Of all requests, those that the share counts."""
    judgement = run.measured.judgement
    if metric.name == "error_rate":
        return ~run.c.ok
    if judgement is None:
        return None
    return judgement.good if metric.name == "goodput" else judgement.held.get(metric.limit)


def _rate(run: Compared, metric: Metric) -> Estimate | None:
    if not run.window.seconds > 0 or not len(run.c):
        return None
    value = _rate_per_s(run, metric.name)
    if value is None:
        return None
    return Rate(value, rate_error(value, _amounts(run, metric.name), run.window, run.c))


#: Rates that throughput has, by its names.
_CREDITED = {
    "rps": "requests_per_s",
    "input_tps": "input_tokens_per_s",
    "output_tps": "output_tokens_per_s",
    "output_cps": "output_chars_per_s",
    "total_tps": "total_tokens_per_s",
    "goodput_rps": "requests_per_s",
    "inputs_per_s": "inputs_per_s",
}


def _rate_per_s(run: Compared, name: str) -> float | None:
    """As :func:`~llm_locust.metrics.requests.throughput.throughput` and ``goodput`` have it."""
    credits, seconds = run.measured.credits, run.window.seconds
    credited = {
        "input_tps": credits.input_tokens,
        "output_tps": credits.output_tokens,
        "output_cps": credits.output_chars,
    }
    if name in credited:
        return rate_per_s(credited[name], credits.finished, seconds)
    if name == "total_tps":
        inputs, outputs = (_rate_per_s(run, each) for each in ("input_tps", "output_tps"))
        return None if inputs is None or outputs is None else inputs + outputs
    if name == "inputs_per_s":
        return inputs_per_s(credits, np.arange(len(run.c)))
    if name == "goodput_rps":
        rate = good_rates(run.measured.judgement, credits, np.arange(len(run.c)))["requests_per_s"]
        return None if rate is None else float(rate)
    return float(credits.finished.sum()) / seconds


def _amounts(run: Compared, name: str) -> Floats:
    """What each cell of the window gives to a rate."""
    rows, judgement = np.arange(len(run.c)), run.measured.judgement
    if name == "goodput_rps" and judgement is not None:
        rows = rows[judgement.good]
    return amounts_over_time(run.c, run.measured.credits, rows)[_CREDITED[name]]
