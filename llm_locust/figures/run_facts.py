"""What ran, in which window, and what the window does not have: gaps between parts, dropped records."""

from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import UNSET, UnsetType, convert

from llm_locust.figures.figure import Run
from llm_locust.figures.text import (
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    count,
    moment,
    number,
    percent,
    plural,
    seconds,
    sentence,
)
from llm_locust.metrics.catalogue import LATENCY
from llm_locust.metrics.columns import Mask
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.requests.latency import latency_figures
from llm_locust.metrics.structs import SummaryPart, key
from llm_locust.metrics.window import Population, Window, iso, run_window, why_empty

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary


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


# --- Parts: starts of the master that one run consists of, and the time without load between them


_PART = "the part"
_PARTS = "all parts"


class PartFacts(SummaryPart, frozen=True):
    """One part: what one start of the master has recorded."""

    name: Annotated[str, key("directory of the part in that of the whole run", _PART)]
    run: Annotated[str, key("id of its run", _PART)]
    start: Annotated[str, key("its first scheduled request, ISO 8601, UTC", _PART)]
    end: Annotated[
        str, key("its stop; its last scheduled request where the master died before it, ISO 8601, UTC", _PART)
    ]
    seconds: Annotated[float, key("end − start, s", _PART)]
    requests: Annotated[int, key("number of records", _PART)]
    lost: Annotated[
        int, key("requests without a record; of a sweep those of the stage that was under way", _PART)
    ]
    ended_by: Annotated[str, key("why its load ended, in words", _PART)]


class PartGap(SummaryPart, frozen=True):
    """A time between two parts, in which no load was sent. It is in no rate."""

    after: Annotated[str, key("name of the part before it", _PARTS)]
    start: Annotated[str, key("end of that part's load, ISO 8601, UTC", _PARTS)]
    end: Annotated[str, key("first scheduled request of the next part, ISO 8601, UTC", _PARTS)]
    seconds: Annotated[float, key("end − start, s", _PARTS)]
    why: Annotated[str, key("what ended the part before it, in words", _PARTS)]


class Parts(SummaryPart, frozen=True):
    """Parts that were joined to one run, and the gaps between them."""

    parts: Annotated[list[PartFacts], key("the parts, in order", _PARTS)]
    gaps: Annotated[list[PartGap], key("the gaps between them, in order", _PARTS)]
    down_s: Annotated[float, key("sum of the gaps, s", _PARTS)]
    down_share: Annotated[
        float | None,
        key("down_s / (end of the last part − start of the first); null without length", _PARTS),
    ]


def show_parts(summary: "Summary") -> Section | None:
    """Starts of the master that one run consists of, and the time without load between them."""
    found = summary.parts
    if found is None or len(found.parts) < 2:
        return None
    share = "" if found.down_share is None else f" ({percent(found.down_share)} of the whole)"
    lines = [Line(f"{seconds(found.down_s)} without load{share}, excluded from rates", Tone.WARN)]
    for gap in found.gaps:
        text = f"gap of {seconds(gap.seconds)} after {gap.after}, from {moment(gap.start)}: {clean(gap.why)}"
        lines.append(Line(text, verbatim=True))
    columns = (Column("part", verbatim=True), Column("from"), Column("load"), Column("requests"))
    rows = tuple(
        TableRow((clean(part.name), moment(part.start), seconds(part.seconds), count(part.requests)))
        for part in found.parts
    )
    return Section(plural(len(found.parts), "part"), tuple(lines), Table(columns, rows))


# --- All requests of a run that goes on, or that has dropped some


_WHOLE = "the whole run"
_ENDED = "scheduled after the warm-up, ended by now"


class LatencySinceStart(SummaryPart, frozen=True):
    """One latency of the ok requests, from a sketch; times are off by at most ``relative_error`` of them."""

    samples: Annotated[int, key("number of values", _ENDED)]
    mean: Annotated[float | None, key("mean, ms; exact", _ENDED)]
    p50: Annotated[float | None, key("50th percentile, ms; sketch", _ENDED)]
    p90: Annotated[float | None, key("90th percentile, ms; sketch", _ENDED)]
    p99: Annotated[float | None, key("99th percentile, ms; sketch", _ENDED)]


class SinceStart(SummaryPart, frozen=True):
    """All requests of a run so far. Counts are exact. Other sections are of the latest span, or of what was
    not dropped."""

    start: Annotated[str, key("first scheduled request, ISO 8601, UTC", _ENDED)]
    until: Annotated[str, key("last end, ISO 8601, UTC", _ENDED)]
    requests: Annotated[int, key("requests that ended, of any outcome", _ENDED)]
    ok: Annotated[int, key("of these, ok", _ENDED)]
    failed: Annotated[int, key("of these, failed", _ENDED)]
    cancelled: Annotated[int, key("of these, cancelled", _ENDED)]
    error_rate: Annotated[float | None, key("failed / (ok + failed)", _ENDED)]
    goodput_ratio: Annotated[
        float | None, key("good / (ok + failed) where the SLO applies; null without an SLO", _ENDED)
    ]
    input_tokens: Annotated[int, key("prompt tokens of answered requests", _ENDED)]
    output_tokens: Annotated[int, key("tokens received", _ENDED)]
    latency_ms: Annotated[dict[str, LatencySinceStart], key("by latency, as in `latency_ms`", _ENDED)]
    relative_error: Annotated[float, key("bound of the error of a percentile, as a share of it", "sketches")]


class DroppedPart(SummaryPart, frozen=True):
    """Records that a run no longer has (`--keep`). The window begins after them; `since_start` has them."""

    records: Annotated[int, key("number of records that were dropped", _WHOLE)]
    batches: Annotated[int, key("number of batches that they came in", _WHOLE)]
    until: Annotated[str, key("last end of a dropped request, ISO 8601, UTC", _WHOLE)]
    to: Annotated[str, key("folder that has their copy, for `llm-locust merge`", _WHOLE)]


def show_since_start(summary: "Summary") -> Section | None:
    """All requests of a run that goes on, or that has dropped some; the other sections are of its latest
    span, or of what it has."""
    found, gone = summary.since_start, summary.dropped
    if found is None:
        return None if gone is None else Section("Dropped", (_dropped(gone),))
    good = "" if found.goodput_ratio is None else f"goodput {percent(found.goodput_ratio)}"
    counted = [f"{count(found.requests)} requests", f"{count(found.failed)} failed", good]
    columns = (Column("since the start", left=True), *map(Column, ("mean", "p50", "p90", "p99")))
    rows = tuple(
        TableRow((f"{LATENCY[metric].label}, ms", *map(number, (each.mean, each.p50, each.p90, each.p99))))
        for metric, each in found.latency_ms.items()
        if each.samples and metric in LATENCY
    )
    others = "the span" if gone is None else "what was not dropped"
    note = Line(
        f"percentiles are right to {percent(found.relative_error)}; all other sections are of {others}"
    )
    total = Line(sentence([*counted, f"since {moment(found.start)}"]))
    title, lines = ("So far", (total,)) if gone is None else ("Whole run", (_dropped(gone), total))
    return Section(title, lines, Table(columns, rows) if rows else None, (note,))


def _dropped(gone: DroppedPart) -> Line:
    text = (
        f"{count(gone.records)} records until {moment(gone.until)} were dropped (--keep) after their upload "
        f"to {clean(gone.to)}: `llm-locust merge` of the run and that copy gives the whole run"
    )
    return Line(text, Tone.WARN, verbatim=True)
