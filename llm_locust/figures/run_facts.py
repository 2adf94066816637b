"""What ran, in which window, and what was asked of it."""

from typing import Annotated

import numpy as np
from msgspec import UNSET, UnsetType, convert

from llm_locust.figures.figure import Run
from llm_locust.metrics.columns import Mask
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.requests.latency import latency_figures
from llm_locust.metrics.structs import SummaryPart, key
from llm_locust.metrics.window import Population, Window, iso, run_window, why_empty

_RUN = "the run"


class TaskExceptionKind(SummaryPart, frozen=True):
    """An exception that the locustfile's tasks raised."""

    error: Annotated[str, key("its type and text, at most 500 characters", _RUN)]
    where: Annotated[
        str, key("innermost line of its traceback that is the locustfile's, as `file:line in function`", _RUN)
    ]
    count: Annotated[int, key("how many times", _RUN)]


class RunFacts(SummaryPart, frozen=True):
    """Which run it is."""

    id: Annotated[str, key("as the manifest has it", _RUN)]
    name: Annotated[str, key("as the manifest has it", _RUN)]
    started: Annotated[str, key("start of the run, ISO 8601, UTC", _RUN)]
    host: Annotated[str | None, key("as the manifest has it", _RUN)]
    model: Annotated[str | None, key("as the manifest has it", _RUN)]
    scenario: Annotated[str | None, key("as the manifest has it", _RUN)]
    seed: Annotated[
        int | None, key("as the manifest has it; null where runs of several seeds are put together", _RUN)
    ]
    versions: Annotated[dict[str, str], key("versions of the packages that took part", _RUN)]
    stop_reason: Annotated[
        str | None,
        key(
            "why the load ended before its time: a stop rule, a lost worker; null where it did not",
            _RUN,
        ),
    ]
    task_exceptions: Annotated[
        list[TaskExceptionKind],
        key(
            "exceptions that the locustfile's tasks raised, most frequent first; beyond 20 kinds the last "
            "entry counts the rest. Any of them makes the run invalid",
            _RUN,
        ),
    ]
    skipped_lines: Annotated[
        dict[str, int] | UnsetType,
        key(
            "lines of each file of the load that could not be read and were skipped (`--skip-bad-lines`); "
            "absent without any",
            _RUN,
        ),
    ] = UNSET
    insecure: Annotated[
        bool | UnsetType,
        key("true where `--insecure` accepted any certificate of the server; absent in others", _RUN),
    ] = UNSET
    so_far: Annotated[
        bool | UnsetType, key("true in the rolling summary of a run that goes on; absent in others", _RUN)
    ] = UNSET
    is_sweep: Annotated[
        bool | UnsetType,
        key(
            "true where the figures of `stages` replace those of the whole run; absent in others",
            _RUN,
        ),
    ] = UNSET


class LeftOut(SummaryPart, frozen=True):
    """What of the run is outside of a steady window."""

    seconds: Annotated[float, key("length of the run's window − that of this one, s", "the run's window")]
    requests: Annotated[int, key("number of requests", "scheduled in the run's window and outside this one")]
    ttft_p99_ms: Annotated[
        float | None,
        key(
            "p99 TTFT as in `latency_ms`; without lost and unsent ones, whose times are not known, and "
            "without stuck ones",
            "scheduled in the run's window and outside this one",
        ),
    ]
    goodput_ratio: Annotated[
        float | None,
        key(
            "good / judged; without lost, unsent and stuck ones", "scheduled in the run's window and outside"
        ),
    ]
    requests_run: Annotated[int, key("the same", "scheduled in the run's window")]
    ttft_p99_ms_run: Annotated[float | None, key("the same", "scheduled in the run's window")]
    goodput_ratio_run: Annotated[float | None, key("the same", "scheduled in the run's window")]


class WindowFacts(SummaryPart, frozen=True):
    """Which part of the run is judged."""

    start: Annotated[str, key("edge of the window, ISO 8601, UTC; the end is outside")]
    end: Annotated[str, key("edge of the window, ISO 8601, UTC; the end is outside")]
    seconds: Annotated[float, key("length of the window without its gaps, s: the denominator of every rate")]
    rule: Annotated[str, key("how the window was chosen, in words")]
    left_out: Annotated[
        LeftOut | None, key("of `--window steady`: what of the run is outside; null for other windows")
    ]
    why_empty: Annotated[
        str | None, key("why no request was scheduled in the window, and how long to run; null if one was")
    ]


class AnalysisFacts(SummaryPart, frozen=True):
    """What a report was asked for beside what the run's manifest says."""

    runs: Annotated[list[str], key("ids of the runs that are one population", "the report")]
    where: Annotated[
        str | None, key("condition on requests, as it was written; null without one", "the report")
    ]
    requests: Annotated[int, key("number of requests that meet it", "the report")]
    of: Annotated[int, key("number of requests that the runs have", "the report")]
    percentiles: Annotated[
        list[str] | None, key("percentiles asked for; null for the usual ones", "the report")
    ]
    by: Annotated[list[str], key("dimensions that figures are broken down by", "the report")]


def run_of(run: Run) -> RunFacts:
    manifest = run.manifest
    return RunFacts(
        id=manifest.id,
        name=manifest.name,
        started=iso(manifest.started_ns),
        host=manifest.host,
        model=manifest.model,
        scenario=manifest.scenario,
        seed=manifest.seed,
        versions=dict(manifest.versions),
        stop_reason=manifest.stop_reason or None,
        task_exceptions=convert(manifest.task_exceptions, list[TaskExceptionKind], from_attributes=True),
        skipped_lines=dict(manifest.skipped_lines) if manifest.skipped_lines else UNSET,
        insecure=True if manifest.options.get("insecure") is True else UNSET,
        is_sweep=True if manifest.is_sweep else UNSET,
    )


def window_of(run: Run) -> WindowFacts:
    m = run.m
    of_run = run_window(m.c, run.manifest, run.warmup_s)
    steady = run.question.window_of(run.manifest) == "steady"
    return WindowFacts(
        start=iso(m.window.start_ns),
        end=iso(m.window.end_ns),
        seconds=m.window.seconds,
        rule=m.window.rule,
        left_out=_left_out(m, of_run) if steady else None,
        why_empty=why_empty(m.c, m.window, run.warmup_s),
    )


def _left_out(m: Measured, run: Window) -> LeftOut:
    in_run = run.scheduled(m.c)
    requests, ttft_p99_ms, goodput_ratio = _rest(m, in_run & ~m.window.scheduled(m.c))
    requests_run, ttft_p99_ms_run, goodput_ratio_run = _rest(m, in_run)
    return LeftOut(
        seconds=run.seconds - m.window.seconds,
        requests=requests,
        ttft_p99_ms=ttft_p99_ms,
        goodput_ratio=goodput_ratio,
        requests_run=requests_run,
        ttft_p99_ms_run=ttft_p99_ms_run,
        goodput_ratio_run=goodput_ratio_run,
    )


def _rest(m: Measured, scheduled: Mask) -> tuple[int, float | None, float | None]:
    """Number, p99 TTFT in ms and goodput of some requests."""
    population = Population.of(m.c, scheduled, np.arange(len(m.c)))
    (found,) = latency_figures(m.c, [population], ["ttft"], {"p99": 99.0})
    ratio = None
    if m.judgement is not None and m.judgement.judged[population.all].any():
        ratio = float(m.judgement.good[population.all[m.judgement.judged[population.all]]].mean())
    return int(scheduled.sum()), found["ttft"]["p99"], ratio
