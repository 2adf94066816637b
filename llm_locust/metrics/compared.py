"""One run measured for a comparison: its figures, each with what its interval is made of."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_locust.batch import Requests
from llm_locust.manifest import Manifest
from llm_locust.metrics.bootstrap import CELLS, Resampler
from llm_locust.metrics.cells import Arrivals, order_cells, sum_arrivals, time_cells
from llm_locust.metrics.columns import Columns, Floats, Mask, Rows
from llm_locust.metrics.comparable import Metric
from llm_locust.metrics.completeness import requests_lost, requests_unsent
from llm_locust.metrics.cut import Samples
from llm_locust.metrics.estimates import Average, Estimate, Percentile, Share
from llm_locust.metrics.gates import Kind
from llm_locust.metrics.goodput import good_rates
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.percentiles import PERCENTILES, Ascending, moments, ordered, percentile
from llm_locust.metrics.slo import Slo
from llm_locust.metrics.throughput import rate_per_s
from llm_locust.metrics.validity import Scale, client_validity
from llm_locust.metrics.window import Population, Window


@dataclass(frozen=True, slots=True)
class Compared:
    """A run as a comparison takes it: every figure is the one of its summary."""

    manifest: Manifest
    slo: Slo
    measured: Measured
    population: Population
    arrivals: Arrivals
    gaps: Floats | Ascending  # of the ok requests, ascending, in seconds

    @property
    def c(self) -> Columns:
        return self.measured.c

    @property
    def window(self) -> Window:
        return self.measured.window

    def client(self) -> dict[str, Any]:
        """The verdict on the client, see :mod:`llm_locust.metrics.validity`."""
        values = {metric: self.latencies(metric) for metric in ("itl", "ttft", "e2el")}
        medians_ms = {m: percentile(v, 50.0) * 1e3 if len(v) else None for m, v in values.items()}
        scale = Scale.of(self.window, medians_ms, self.measured.gaps)
        return client_validity(self.c, self.population.judged, self.manifest, scale)

    def latencies(self, latency: str) -> Floats | Ascending:
        """The defined values of the ok requests in seconds, ascending."""
        if latency == "itl":
            return self.gaps
        return ordered(self.measured.values[latency][self.population.ok])

    def estimate(self, metric: Metric, resampler: Resampler) -> Estimate | None:
        """The figure in its unit (seconds for a latency); None where the run has no sample of it."""
        if metric.latency == "itl":
            return _gap(self, metric, resampler)
        if metric.kind is Kind.LATENCY:
            return _latency(self, metric, resampler)
        if metric.name == "on_time":
            return _on_time(self, resampler)
        if metric.kind is Kind.SHARE:
            return _share(self, metric, resampler)
        return _rate(self, metric, resampler)


def measure_for_comparison(
    requests: Requests, manifest: Manifest, slo: Slo, window: str | Window, warmup_s: float
) -> Compared:
    """Read the requests of a run, part by part.

    Args:
        window: one that is known, or ``run`` or ``steady``.

    Raises:
        ValueError: the manifest's ``slo_from`` is neither ``sent`` nor ``scheduled``.
    """
    measured = measure(requests, manifest, slo, window, warmup_s)
    population = measured.population(np.arange(len(measured.c)))
    gaps = measured.gaps.ascending()
    limits_s = {key: percentile(gaps, percent) for key, percent in PERCENTILES.items()}
    arrivals = sum_arrivals(requests, measured.c, measured.window, population.ok, limits_s)
    return Compared(manifest, slo, measured, population, arrivals, gaps)


def _latency(run: Compared, metric: Metric, resampler: Resampler) -> Estimate | None:
    """The figure of the summary; None, too, where cut requests leave it open."""
    durations = Samples.of(run.c, run.measured.values, metric.latency).durations(run.population)
    values = run.measured.values[metric.latency][run.population.ok]
    ascending, cells = ordered(values), order_cells(run.c, run.population.ok)
    if not len(ascending):
        return None
    known = cells.sums((~np.isnan(values)).astype(np.float64))
    if metric.statistic == "mean":
        mean = durations.moments()[0] if len(durations.censored) else moments(ascending)[0]
        error = resampler.standard_error(cells.sums(values), known)
        return None if np.isnan(mean) else Average(mean, error)
    value = durations.quantile(PERCENTILES[metric.statistic] / 100)
    if np.isnan(value):
        return None
    with_it = cells.sums((values <= value).astype(np.float64))
    return _percentile(metric, value, ascending, resampler, with_it, known)


def _gap(run: Compared, metric: Metric, resampler: Resampler) -> Estimate | None:
    """A request's gaps are in its cell as a whole: how they resemble each other is in the error."""
    sums = run.arrivals
    if not len(run.gaps):
        return None
    if metric.statistic == "mean":
        mean = moments(run.gaps)[0] if isinstance(run.gaps, np.ndarray) else run.gaps.moments()[0]
        return Average(mean, resampler.standard_error(sums.gaps_s, sums.gaps))
    value = percentile(run.gaps, PERCENTILES[metric.statistic])
    return _percentile(metric, value, run.gaps, resampler, sums.at_most[metric.statistic], sums.gaps)


def _percentile(
    metric: Metric,
    value: float,
    ascending: Floats | Ascending,
    resampler: Resampler,
    at_most: Floats,
    known: Floats,
) -> Percentile:
    error = resampler.standard_error(at_most, known)
    return Percentile(value, PERCENTILES[metric.statistic], ascending, error)


def _on_time(run: Compared, resampler: Resampler) -> Estimate | None:
    if run.measured.on_time is None:
        return None
    shares = run.measured.on_time[run.population.ok]
    known = ~np.isnan(shares)
    if not known.any():
        return None
    cells = order_cells(run.c, run.population.ok)
    error = resampler.standard_error(cells.sums(shares), cells.sums(known.astype(np.float64)))
    return Average(float(np.sort(shares[known]).mean()), error)


def _share(run: Compared, metric: Metric, resampler: Resampler) -> Estimate | None:
    """A request without a record held no limit; it is spread over all cells: nobody knows its place."""
    judged = _denominator(run, metric)
    hits = _hits(run, metric)
    missing = 0
    if metric.name != "error_rate":
        missing = requests_lost(run.manifest, len(run.c)) + requests_unsent(run.manifest)
    if hits is None or not len(judged) + missing:
        return None
    cells = order_cells(run.c, judged)
    held = cells.sums(hits[judged].astype(np.float64))
    error = resampler.standard_error(held, cells.sums() + missing / max(1, cells.count))
    n = len(judged) + missing
    return Share(int(hits[judged].sum()) / n, n, error)


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


def _rate(run: Compared, metric: Metric, resampler: Resampler) -> Estimate | None:
    """Sums of the window's cells per second; each cell weighs as many seconds."""
    seconds = run.window.seconds
    if not seconds > 0 or not len(run.c):
        return None
    value = _rate_per_s(run, metric.name)
    if value is None:
        return None
    error = resampler.standard_error(_amounts(run, metric.name), np.full(CELLS, seconds / CELLS))
    return Average(value, error)


def _rate_per_s(run: Compared, name: str) -> float | None:
    """As :func:`~llm_locust.metrics.throughput.throughput` and ``goodput`` have it."""
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
    if name == "goodput_rps":
        rate = good_rates(run.measured.judgement, credits, np.arange(len(run.c)))["requests_per_s"]
        return None if rate is None else float(rate)
    return float(credits.finished.sum()) / seconds


def _amounts(run: Compared, name: str) -> Floats:
    """What each cell of the window gives to a rate."""
    c, credits, judgement = run.c, run.measured.credits, run.measured.judgement
    if name == "output_tps":
        return run.arrivals.output_tokens
    if name == "output_cps":
        return run.arrivals.output_chars
    if name == "input_tps":
        begun_s = np.where(c.events > 0, c.sent_s + c.first_event_s, c.ended_s)
        return _sums_over_time(run, begun_s, credits.input_tokens)
    if name == "total_tps":
        return _amounts(run, "input_tps") + _amounts(run, "output_tps")
    if name == "goodput_rps" and judgement is not None:
        return _sums_over_time(run, c.ended_s, judgement.good.astype(np.float64))
    return _sums_over_time(run, c.ended_s, credits.finished.astype(np.float64))


def _sums_over_time(run: Compared, times_s: Floats, amounts: Floats) -> Floats:
    return time_cells(run.window, run.c, times_s).sums(amounts)
