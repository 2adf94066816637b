"""Everything that a report draws of one run, by one more pass over its records."""

from dataclasses import dataclass, replace

import numpy as np

from llm_locust.core.batch import Labels, Requests
from llm_locust.core.manifest import Manifest
from llm_locust.figures.charts.course import (
    TimeAxis,
    failures_over_time,
    percentiles_over_time,
    rates_over_time,
)
from llm_locust.figures.charts.distributions import (
    Relation,
    RequestDetails,
    TokenFacts,
    distributions,
    read_tokens,
    tpot_by_load,
    ttft_by_input,
)
from llm_locust.figures.charts.limits import (
    CURVES,
    LimitCurve,
    LimitedRun,
    LimitSurface,
    limit_curve,
    limit_surface,
)
from llm_locust.figures.routing import ReplicaFigures, replicas
from llm_locust.metrics.catalogue import View, shown_in
from llm_locust.metrics.columns import OUTCOMES, Columns, Floats, Rows
from llm_locust.metrics.measured import Measured, measured_from

# --- The requests that took longest, each with what its time went to


MOST_SHOWN = 20

#: What a request's time goes to, in order; each ends where the next one begins.
PHASES = ("queue", "connect", "first byte", "first token", "tokens", "end")


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """One request; times are in seconds. ``phases`` has :data:`PHASES`, which add up to ``total_s``."""

    request_id: str
    name: str
    slo_class: str
    replica: str
    worker: str
    outcome: str
    scheduled_s: float  # on the axis of the columns
    total_s: float
    phases: dict[str, float]
    longest_gap_s: float
    input_tokens: float
    output_tokens: float


def slowest(c: Columns, judged: Rows) -> Rows:
    """Those of ``judged`` with the longest time from scheduled to ended, longest first."""
    total_s = c.ended_s[judged] - c.scheduled_s[judged]
    return judged[np.argsort(-total_s, kind="stable")[:MOST_SHOWN]]


def slow_request(c: Columns, row: int, details: RequestDetails, worker: str) -> SlowRequest:
    return SlowRequest(
        request_id=details.request_id,
        name=_text(c.name.names, c.name.codes[row]),
        slo_class=_text(c.slo_class.names, c.slo_class.codes[row]),
        replica=_text(c.replica.names, c.replica.codes[row]),
        worker=worker,
        outcome=OUTCOMES[c.outcome[row]].value,
        scheduled_s=float(c.scheduled_s[row]),
        total_s=float(c.ended_s[row] - c.scheduled_s[row]),
        phases=dict(zip(PHASES, _phases(c, row, details).tolist(), strict=True)),
        longest_gap_s=details.longest_gap_s,
        input_tokens=float(c.input_tokens[row]),
        output_tokens=float(c.output_tokens[row]),
    )


def _phases(c: Columns, row: int, details: RequestDetails) -> Floats:
    """What was waited for in vain has all the time to the end; what is not known, that to the next moment."""
    sent_s = c.sent_s[row]
    moments = [
        c.scheduled_s[row],
        c.started_s[row],
        sent_s,
        details.headers_s,
        sent_s + c.first_event_s[row],
        sent_s + c.last_event_s[row],
    ]
    # From the end backwards: none is later than the one after it.
    reached = np.fmin.accumulate(np.append(moments, c.ended_s[row])[::-1])[::-1]
    phases: Floats = np.diff(reached.astype(np.float64))
    return np.round(phases, 9)  # whole nanoseconds, without what floats add


def _text(names: tuple[str, ...], code: int) -> str:
    return names[code] if code >= 0 else ""


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
