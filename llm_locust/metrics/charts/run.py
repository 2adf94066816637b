"""Everything that a report draws of one run, by one more pass over its records."""

from dataclasses import dataclass, replace

import numpy as np

from llm_locust.core.batch import Labels, Requests
from llm_locust.core.manifest import Manifest
from llm_locust.metrics.catalogue import shown_in
from llm_locust.metrics.charts.axis import TimeAxis
from llm_locust.metrics.charts.distributions import distributions
from llm_locust.metrics.charts.limits import (
    CURVES,
    LimitCurve,
    LimitedRun,
    LimitSurface,
    limit_curve,
    limit_surface,
)
from llm_locust.metrics.charts.over_time import failures_over_time, percentiles_over_time, rates_over_time
from llm_locust.metrics.charts.relations import Relation, tpot_by_load, ttft_by_input
from llm_locust.metrics.charts.slowest import SlowRequest, slow_request, slowest
from llm_locust.metrics.charts.tokens import TokenFacts, read_tokens
from llm_locust.metrics.columns import Floats, Rows
from llm_locust.metrics.deployment.replicas import replicas
from llm_locust.metrics.latency_metric import View
from llm_locust.metrics.measured import Measured, measured_from
from llm_locust.metrics.summary_types.deployment.replicas import ReplicaFigures


@dataclass(frozen=True, slots=True)
class RunCharts:
    """Durations are seconds, times seconds after the start of ``axis``, shares 0 .. 1, unknown NaN.

    ``windows_s`` are the spans that the run is judged over; what is over time is of the whole run,
    everything else of the requests scheduled in the window. ``requests`` is the number of records.
    """

    axis: TimeAxis
    windows_s: tuple[tuple[float, float], ...]
    requests: int
    measured_from: str
    percentiles: dict[str, dict[str, Floats]]
    rates: dict[str, Floats]
    failures: dict[str, Floats]
    given_up: int  # cut, left or timed out: in no latency over time
    distributions: dict[str, Floats]
    itl_relative_error: float
    gaps: Rows
    ttft_by_input: Relation
    tpot_by_load: Relation
    curves: tuple[LimitCurve, ...]
    surface: LimitSurface | None
    slowest: tuple[SlowRequest, ...]
    workers: tuple[ReplicaFigures, ...]


def run_charts(requests: Requests, manifest: Manifest, m: Measured, missing: int = 0) -> RunCharts:
    """Beside what ``m`` takes, memory grows by some 10 bytes a request, however many tokens each had.

    Args:
        requests: what was measured.
        missing: requests without a record that belong to them, lost and unsent ones, and stuck ones.

    Raises:
        ValueError: the manifest's ``slo_from`` is neither ``sent`` nor ``scheduled``.
    """
    c, values = m.c, m.values
    kept_from_ns = manifest.kept_from_ns
    kept_from_s = None if kept_from_ns is None else c.after_origin_s(kept_from_ns)
    axis = TimeAxis.of(c, c.after_origin_s(manifest.started_ns), kept_from_s)
    population = m.population(np.arange(len(c)))
    ok, judged = population.ok, population.judged
    slow = slowest(c, judged)
    tokens = read_tokens(requests, c.origin_ns, axis, slow)
    limited = LimitedRun(
        c, values, m.judgement, measured_from(manifest), ok, len(judged) + missing, population.cancelled
    )
    curves = (limit_curve(limited, metric) for metric in CURVES)
    return RunCharts(
        axis=axis,
        windows_s=_windows(m, axis),
        requests=len(c),
        measured_from=limited.measured_from,
        percentiles={
            metric.key: percentiles_over_time(axis, c, values[metric.key])
            for metric in shown_in(View.OVER_TIME)
        },
        rates=rates_over_time(axis, c, tokens.output_tokens),
        failures=failures_over_time(axis, c),
        given_up=int(c.given_up.sum()),
        distributions=distributions(m, ok, manifest.open_loop),
        itl_relative_error=m.gaps.relative_error,
        gaps=tokens.gaps,
        ttft_by_input=ttft_by_input(c, values, ok),
        tpot_by_load=tpot_by_load(c, values, ok),
        curves=tuple(curve for curve in curves if curve is not None),
        surface=limit_surface(limited),
        slowest=_slow_requests(m, axis, slow, tokens),
        workers=tuple(_by_worker(m, tokens.worker)),
    )


def _windows(m: Measured, axis: TimeAxis) -> tuple[tuple[float, float], ...]:
    spans = [(span.start_s(m.c), span.end_s(m.c)) for span in m.window.spans]
    return tuple((axis.after_start_s(start_s), axis.after_start_s(end_s)) for start_s, end_s in spans)


def _slow_requests(m: Measured, axis: TimeAxis, rows: Rows, tokens: TokenFacts) -> tuple[SlowRequest, ...]:
    found = []
    for row in rows.tolist():
        code = tokens.worker.codes[row]
        request = slow_request(m.c, row, tokens.details[row], tokens.worker.names[code])
        found.append(replace(request, scheduled_s=axis.after_start_s(request.scheduled_s)))
    return tuple(found)


def _by_worker(m: Measured, worker: Labels) -> list[ReplicaFigures]:
    """What a summary tells of each replica, told of each worker."""
    return replicas(replace(m.c, replica=worker), m.credits, m.judgement, m.stuck)
