"""Client's validity: whether the numbers can be trusted, as far as the client is concerned.

``suspect``: the client may have affected the load or part of the numbers. ``invalid``: the numbers depend
largely on the client. The thresholds are those of :mod:`llm_locust.figures.client_rules`. Delays under
1 ms never count against a client. With the kernel's timestamps, CPU that it used or lacked is the cause of
a finding, and none itself: what was late shows in first tokens, ends and sends."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from llm_locust.core.manifest import CalibrationFacts, Manifest, WorkerFacts, worker_names
from llm_locust.core.texts import quantity
from llm_locust.figures.client_rules import (
    CALIBRATION,
    CLOCK_ERROR,
    CLOCK_STEPS,
    LAG_FLOOR_MS,
    LAG_PROGRAM,
    LOAD_LATE,
    PROGRAM_SHARE,
    RUN_QUEUE,
    EndLags,
    Finding,
    Scale,
    WorstNodes,
    cpu_findings,
    delay_findings,
    explain,
    health_in,
    hub_lag_findings,
    made_bad_findings,
    mean_standstill_ms,
    standstill_findings,
    taken_findings,
    usual,
    waiting_findings,
    wide_findings,
)
from llm_locust.figures.figure import Run
from llm_locust.figures.littles_law import LittlesLaw, compute as littles_law, law_text, remark
from llm_locust.figures.text import Line, Section, Tone, clean, count, number, plural, sentence, short
from llm_locust.metrics.catalogue import end_lag, schedule_delay
from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.requests.gaps import first_token_wide, program_stamped
from llm_locust.metrics.requests.judgement import Judgement
from llm_locust.metrics.stats.censoring import ordered, percentile
from llm_locust.metrics.structs import SummaryPart, key, largest

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_POPULATION = "the population"
_WORKERS = "workers, in the window"
_END_LAG = "ok requests of the population whose answers came whole"


_CALIBRATION = "`--calibrate`, before the load, the master's machine"


class ClientCalibration(SummaryPart, frozen=True):
    """The client's error against a server that logs its own writes."""

    asked: Annotated[int, key("streams at once that were asked for", _CALIBRATION)]
    streams: Annotated[int, key("streams at once", _CALIBRATION)]
    workers: Annotated[int, key("processes that share the load: the streams are those of one", _CALIBRATION)]
    ttft_n: Annotated[int, key("number of TTFTs", _CALIBRATION)]
    ttft_ms: Annotated[
        float | None, key("p99 of the errors of TTFT, of fewer than 100 the largest, ms", _CALIBRATION)
    ]
    itl_ms: Annotated[float | None, key("the same of the gaps between tokens, ms", _CALIBRATION)]
    open_ms: Annotated[
        float | None, key("as much the server does not know of its own times, p99, ms", _CALIBRATION)
    ]
    tokens_per_s: Annotated[float | None, key("token events per second", _CALIBRATION)]
    wide_ratio: Annotated[float | None, key("share of reads that had several token events", _CALIBRATION)]
    answers: Annotated[int, key("number of answers", _CALIBRATION)]
    astray: Annotated[int, key("answers that are not as the server wrote them", _CALIBRATION)]
    why: Annotated[
        str, key("what was wrong with the first of those, or why nothing was measured", _CALIBRATION)
    ]


ClientVerdict = Literal["ok", "suspect", "invalid"]


class ClientFacts(SummaryPart, frozen=True):
    """Whether the client made these numbers."""

    verdict: Annotated[ClientVerdict, key("`ok`, `suspect` or `invalid`")]
    reasons: Annotated[list[str], key("why, worst first")]
    cause: Annotated[
        Literal["starved", "busy", "late"] | None,
        key(
            "why the client was late, if that moved a figure: `starved` (others had the CPU), `busy` (its "
            "own work), `late` (neither is known); null if it was not",
            "workers, in the window",
        ),
    ]
    timestamps: Annotated[
        str | None,
        key(
            "`kernel` (its receive time of each read), `program` or `mixed`",
            _POPULATION,
        ),
    ]
    kernel_share: Annotated[
        float | None, key("share of requests whose stamps are all the kernel's", "the population, answered")
    ]
    reader: Annotated[
        Literal["c", "python"] | None,
        key("what read the sockets: `c`, a thread that Python does not hold up, or `python`", _WORKERS),
    ]
    first_tokens_wide: Annotated[
        float | None,
        key(
            "share of first tokens that a read of a late client brought with later ones: they may have come "
            "earlier than their TTFT says",
            "first tokens of the population, streamed",
        ),
    ]
    lag_ms_p50: Annotated[
        float | None,
        key("median of the largest read delay of each request, ms", "the population, kernel stamps there"),
    ]
    lag_ms_p99: Annotated[
        float | None,
        key("p99 of the largest read delay of each request, ms", "the population, kernel stamps there"),
    ]
    end_lag_ms_p50: Annotated[float | None, key("median of `end_lag`, ms", _END_LAG)]
    end_lag_ms_p99: Annotated[float | None, key("p99 of `end_lag`, ms", _END_LAG)]
    end_lag_share: Annotated[
        float | None,
        key(
            "Σ end_lag / (Σ end_lag + Σ (ended − started)): the share of the users' time that the client let "
            "pass after a response",
            _END_LAG,
        ),
    ]
    schedule_delay_ms_p99: Annotated[
        float | None, key("p99 of sent − scheduled, ms; null in a closed loop", _POPULATION)
    ]
    bad_by_delay: Annotated[
        int | None,
        key(
            "requests that broke a limit counted from their schedule, and none counted from when they were "
            "sent: goodput counts the client's delay; null in a closed loop and without an SLO",
            _POPULATION,
        ),
    ]
    clock_steps: Annotated[int, key("requests during which the wall clock was set", _POPULATION)]
    misplaced: Annotated[int, key("requests that begin before the load or end after it", "all requests")]
    cpu_percent_max: Annotated[
        float | None, key("CPU of the busiest worker, % of a core: the largest mean of 3 s", _WORKERS)
    ]
    steal_percent_max: Annotated[
        float | None,
        key(
            "share of the CPU time that a worker's machine wanted and its hypervisor did not give, % "
            "(`steal` of `/proc/stat`); the largest of a worker",
            _WORKERS,
        ),
    ]
    throttled_percent_max: Annotated[
        float | None,
        key(
            "share of the periods of a worker's CPU limit in which it had used that up, % (`nr_throttled` / "
            "`nr_periods` of the cgroup); the largest of a worker",
            _WORKERS,
        ),
    ]
    run_queue_percent_max: Annotated[
        float | None,
        key(
            "time in which a worker's threads were ready and waited for a core, % of the time that went by "
            "(`/proc/self/task/*/schedstat`); the largest of a worker",
            _WORKERS,
        ),
    ]
    hub_lag_ms_p99: Annotated[
        float | None,
        key(
            "delay of the event loop, ms: largest p99 of a worker. A delay also stands for the samples that "
            "the held loop missed",
            "workers, in the window",
        ),
    ]
    hub_lag_ms_max: Annotated[
        float | None, key("delay of the event loop, ms: largest value of a worker", _WORKERS)
    ]
    hub_lag_master_ms_max: Annotated[
        float | None,
        key("delay of the event loop, ms: largest value of the master", "the master, in the window"),
    ]
    worker_clock_steps: Annotated[int, key("how often clocks of workers were set", "workers")]
    master_clock_steps: Annotated[int, key("how often the master's clock was set", "the master")]
    clock_error_ms_max: Annotated[
        float | None,
        key(
            "largest clock error, ms; with the offset where that is within its error, and so not added",
            "workers",
        ),
    ]
    calibration: Annotated[ClientCalibration | None, key("null without `--calibrate`")]


#: A clock that is known better than this is not held against a short window.
CLOCK_ERROR_S = 1.0

#: Workers that one reason names; the others it counts.
_MOST_NAMED = 3

_BLIND: Finding = (
    "suspect",
    "neither the client's lag nor its CPU is known: nothing shows that it read in time",
)


#: A request may begin so much before the load, and end so much after it.
MISPLACED_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Requests:
    """What ``n`` requests show of the client.

    Attributes:
        kernel: share of those with an answer whose timestamps are all the kernel's; None without one.
        program_lag_ms: p99 of the read delay in their latencies: 0 where the kernel took the times.
        wide: first tokens of ``first_tokens`` that a read of a late client brought with later ones.
        made_bad: bad by the client's delay alone; None in a closed loop and without an SLO.
    """

    n: int
    open_loop: bool
    kernel: float | None
    program_lag_ms: float | None
    first_tokens: int
    wide: int
    waits: EndLags
    end_lag_p50_ms: float | None
    delay_ms: float | None
    made_bad: int | None

    @classmethod
    def of(cls, c: Columns, judged: Rows, open_loop: bool, judgement: Judgement | None) -> "_Requests":
        program = program_stamped(c)
        timed = judged[(program | c.kernel_stamps)[judged]]
        first = judged[c.streamed[judged] & (c.events[judged] > 0)]
        return cls(
            n=len(judged),
            open_loop=open_loop,
            kernel=1 - float(program[timed].mean()) if len(timed) else None,
            program_lag_ms=_ms(np.where(program, c.client_lag_s, 0.0)[timed], 99.0),
            first_tokens=len(first),
            wide=int(first_token_wide(c)[first].sum()),
            waits=_end_lags(c, judged),
            end_lag_p50_ms=_ms(end_lag(c)[judged], 50.0),
            delay_ms=_ms(schedule_delay(c)[judged], 99.0) if open_loop else None,
            made_bad=None if judgement is None or not open_loop else int(judgement.by_delay[judged].sum()),
        )

    @property
    def own_times(self) -> bool:
        """Whether enough timestamps are the program's to move a p99."""
        return self.kernel is not None and 1 - self.kernel > PROGRAM_SHARE

    def late(
        self, scale: Scale, of_nodes: WorstNodes, still_ms: float | None, paused_ms: float | None
    ) -> list[Finding]:
        """What shows that the client was late; the last two are as for :func:`standstill_findings`."""
        gap = usual(ITL=scale.itl_ms, E2EL=scale.e2el_ms)
        first = usual(TTFT=scale.ttft_ms, E2EL=scale.e2el_ms)
        return [
            *wide_findings(self.wide, self.first_tokens),
            *(_lag(self.program_lag_ms, *gap) if self.own_times else ()),
            *(() if self.open_loop else waiting_findings(self.waits, self.end_lag_p50_ms)),
            *standstill_findings(of_nodes.hub_lag_ms_max, scale.window.seconds, still_ms, paused_ms),
            *(hub_lag_findings(of_nodes.hub_lag_ms_p99, *gap) if self.own_times else ()),
            *delay_findings(self.delay_ms, *first, scale.window.seconds),
            *made_bad_findings(self.made_bad or 0, self.n),
        ]


def compute(run: Run) -> ClientFacts:
    m = run.m
    medians_ms = {metric: run.whole.latency_ms[metric].known.p50 for metric in ("itl", "ttft", "e2el")}
    scale = Scale.of(m.window, medians_ms)
    return client_validity(
        m.c, run.population.judged, run.manifest, scale, m.judgement, run.figure(littles_law)
    )


def client_validity(
    c: Columns,
    judged: Rows,
    manifest: Manifest,
    scale: Scale,
    judgement: Judgement | None = None,
    law: LittlesLaw | None = None,
) -> ClientFacts:
    """Verdict on the client, with its reasons (worst first) and the evidence.

    Lag, delay and stamps are those of the population ``judged``, including failures; what is of nodes is
    that of the worst worker. ``clock_steps`` counts requests, the other two steps of a node's clock. None is
    without evidence.
    """
    seen = _Requests.of(c, judged, manifest.open_loop, judgement)
    of_nodes = WorstNodes.of(manifest, scale.window)
    kernel = seen.kernel
    lag_p50_ms, lag_ms = (_ms(c.client_lag_s[judged], percent) for percent in (50.0, 99.0))
    stepped, misplaced = int(c.stepped[judged].sum()), misplaced_requests(c, manifest)
    paused_ms = largest(health_in(w.health, w.clock, scale.window).paused_ms_max for w in manifest.workers)
    late = seen.late(scale, of_nodes, mean_standstill_ms(manifest, scale.window), paused_ms)
    cause = explain(late, of_nodes, paused_ms)
    blind = lag_ms is of_nodes.hub_lag_ms_p99 is of_nodes.cpu_percent_max is None
    findings = [
        *late,
        *(cpu_findings(of_nodes.cpu_percent_max) if seen.own_times else ()),
        *(() if late else taken_findings(of_nodes)),
        *_calibrated(manifest.calibration),
        *_misplaced(misplaced, len(c)),
        *_stepped(stepped, len(judged)),
        *_clocks(manifest, scale.window.seconds),
        *_littles_law(law),
        *([_BLIND] if seen.own_times and blind else ()),
    ]
    findings.sort(key=lambda finding: finding[0])  # "invalid" before "suspect"
    return ClientFacts(
        verdict=findings[0][0] if findings else "ok",
        reasons=[text for _, text in findings],
        cause=cause,
        timestamps=None if kernel is None else {1.0: "kernel", 0.0: "program"}.get(kernel, "mixed"),
        kernel_share=kernel,
        reader=max((w.stamps.reader for w in manifest.workers if w.stamps is not None), default=None),
        first_tokens_wide=seen.wide / seen.first_tokens if seen.first_tokens else None,
        lag_ms_p50=lag_p50_ms,
        lag_ms_p99=lag_ms,
        end_lag_ms_p50=seen.end_lag_p50_ms,
        end_lag_ms_p99=_ms(end_lag(c)[judged], 99.0),
        end_lag_share=seen.waits.share,
        schedule_delay_ms_p99=seen.delay_ms,
        bad_by_delay=seen.made_bad,
        clock_steps=stepped,
        misplaced=misplaced,
        **asdict(of_nodes),
        calibration=None
        if manifest.calibration is None
        else ClientCalibration(**asdict(manifest.calibration)),
    )


def _ms(values_s: Floats, percent: float) -> float | None:
    ascending = ordered(values_s)
    return percentile(ascending, percent) * 1e3 if len(ascending) else None


def _lag(lag_ms: float | None, of: str, of_ms: float | None) -> Iterator[Finding]:
    if found := LAG_PROGRAM.severity(lag_ms, of_ms):
        yield (
            found,
            f"the client read {quantity(lag_ms)} ms late (p99), the median {of} is {quantity(of_ms)} ms, "
            "and not all timestamps are the kernel's, so lag is part of the latencies",
        )


def _end_lags(c: Columns, judged: Rows) -> EndLags:
    lags_s = end_lag(c)
    known = judged[~np.isnan(lags_s[judged])]
    response_s = c.ended_s[known] - c.started_s[known]
    return EndLags(len(known), float(np.sort(lags_s[known]).sum()), float(np.sort(response_s).sum()))


def _unmeasured(manifest: Manifest) -> Iterator[Finding]:
    names = worker_names(manifest.workers)
    unknown = [names[w.id] for w in manifest.workers if w.clock is None and w.received]
    if unknown and len(manifest.workers) > 1:
        named = ", ".join(unknown[:_MOST_NAMED])
        yield (
            "suspect",
            f"the clock of {named} was never measured against the master's: "
            "it is uncertain which of its requests are in the window",
        )


def _littles_law(law: LittlesLaw | None) -> Iterator[Finding]:
    if law is not None and law.holds is False:
        yield (
            "suspect",
            f"Little's law does not hold: {law_text(law)}; records are missing, or their times are wrong",
        )


def _calibrated(found: CalibrationFacts | None) -> Iterator[Finding]:
    if found is None or not found.answers:
        return
    if found.astray:
        yield (
            "suspect",
            f"before the load the client had {found.astray} of {found.answers} answers not as a server of "
            "known times wrote them",
        )
    worst_ms = max(found.ttft_ms or 0.0, found.itl_ms or 0.0)
    is_known = found.open_ms is not None and found.open_ms < LAG_FLOOR_MS
    if is_known and (severity := CALIBRATION.severity(worst_ms)):
        yield (
            severity,
            f"before the load the client's times were within {quantity(worst_ms)} ms only (p99) of those of "
            "a server that logs its own",
        )


def _stepped(stepped: int, n: int) -> Iterator[Finding]:
    if severity := CLOCK_STEPS.severity(stepped):
        yield (
            severity,
            f"the wall clock was set during {stepped} of {n} requests: their durations are from the "
            "monotonic clock, read by the program, and their times in the run may be off by the step",
        )


def misplaced_requests(c: Columns, manifest: Manifest) -> int:
    """Requests that begin before the load was requested or end after the last record was in: their clock was
    set, and when they were is not known. Records of workers that were lost may end later."""
    errors_s = [w.clock.error_ns * 1e-9 for w in manifest.workers if w.clock]
    allowed_s = MISPLACED_S + max(errors_s, default=0.0)
    early = c.started_s < c.after_origin_s(manifest.started_ns) - allowed_s
    if manifest.ended_ns is None or manifest.workers_lost:
        return int(early.sum())
    return int((early | (c.ended_s > c.after_origin_s(manifest.ended_ns) + allowed_s)).sum())


def _misplaced(misplaced: int, n: int) -> Iterator[Finding]:
    if misplaced:
        yield (
            "invalid",
            f"{misplaced} of {n} requests begin before the load or end after it: a clock was set, and it is "
            "not known when they were; the window and all rates are wrong",
        )


def _clocks(manifest: Manifest, window_s: float) -> Iterator[Finding]:
    yield from _clocks_set(manifest)
    yield from _clock_error(manifest, window_s)
    yield from _unmeasured(manifest)


def _clocks_set(manifest: Manifest) -> Iterator[Finding]:
    names = worker_names(manifest.workers)
    stepped = [w for w in manifest.workers if w.clock and w.clock.steps]
    steps = sum(w.clock.steps for w in stepped if w.clock)
    if severity := CLOCK_STEPS.severity(steps):
        yield (
            severity,
            f"{_clocks_of(stepped, names)} set {_times(steps)} during the run: the records are placed by the "
            "corrected clock, and no latency changed",
        )
    if severity := CLOCK_STEPS.severity(manifest.clock_steps):
        yield (
            severity,
            f"the master's clock was set {_times(manifest.clock_steps)} during the run: the run's time did "
            "not follow, so later times differ from the wall clock's; no latency changed",
        )


def _clocks_of(workers: list[WorkerFacts], names: Mapping[str, str]) -> str:
    if len(workers) == 1:
        return f"the clock of {names[workers[0].id]} was"
    named = ", ".join(names[w.id] for w in workers[:_MOST_NAMED])
    more = f" and {len(workers) - _MOST_NAMED} more" if len(workers) > _MOST_NAMED else ""
    return f"the clocks of {len(workers)} workers ({named}{more}) were"


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _clock_error(manifest: Manifest, window_s: float) -> Iterator[Finding]:
    names = worker_names(manifest.workers)
    error_s, worker = max(
        ((w.clock.placing_error_ns * 1e-9, names[w.id]) for w in manifest.workers if w.clock),
        default=(0.0, ""),
    )
    share = CLOCK_ERROR.severity(error_s, window_s) if window_s > 0 else None
    if found := share or ("suspect" if error_s > CLOCK_ERROR_S else None):
        yield (
            found,
            f"the clock of {worker} is known only to {quantity(error_s)} s, the window is "
            f"{quantity(window_s)} s long: it is uncertain which of its requests are inside",
        )


_DOCTOR = "llm-locust doctor, run where the workers run, shows what limits them"


def show(summary: "Summary") -> Section:
    """The client's verdict, its reasons and what it was judged by."""
    part = summary.client
    reasons = [Line(clean(reason)) for reason in part.reasons]
    evidence = sentence(
        [
            f"{part.timestamps} stamps" if part.timestamps else "",
            f"lag p99 {number(part.lag_ms_p99)} ms" if part.lag_ms_p99 is not None else "",
            f"hub lag p99 {number(part.hub_lag_ms_p99)} ms" if _rests_on_the_hub(part) else "",
            f"CPU {number(part.cpu_percent_max)} %",
            "read by Python" if part.reader == "python" else "",
        ]
    )
    last = (*_starved(part), *remark(summary.littles_law))
    if part.verdict == "ok":
        return Section("Client", (Line(f"ok: {evidence}", Tone.GOOD), *reasons, *last))
    if part.verdict == "suspect":
        # It spoiled no figure as far as is known: a line among the last, no box.
        reasons[0] = Line(f"suspect: {reasons[0].text}", Tone.WARN)
        return Section("Client", (*reasons, Line(_DOCTOR, Tone.FAINT), Line(evidence, Tone.FAINT), *last))
    # What makes the kernel's times wrong comes before what makes the load late.
    is_of_load = part.timestamps == "kernel" and part.reasons[0].startswith(LOAD_LATE)
    headline = Line(f"INVALID: {_OTHER_LOAD if is_of_load else _OTHER_TIMES}", Tone.BAD)
    lines = (headline, *reasons, Line(_DOCTOR), Line(evidence, Tone.FAINT), *last)
    return Section("Client", lines, alarm=True)


_OTHER_TIMES = "these numbers show the client, not the server"
_OTHER_LOAD = "the latencies are the server's, under another load than was asked for"


def _starved(part: ClientFacts) -> Iterator[Line]:
    """That other programs had the cores, where it is no cause of anything."""
    waited = part.run_queue_percent_max
    if part.cause is None and RUN_QUEUE.severity(waited):
        text = f"starved: waited for a core {number(waited)} % of the time, which moved no figure"
        yield Line(text, Tone.FAINT)


def _rests_on_the_hub(part: ClientFacts) -> bool:
    """Whether the event loop's lag is in the latencies, and known."""
    return part.timestamps in ("program", "mixed") and part.hub_lag_ms_p99 is not None


# --- The client's error against a server of known times, in words


#: Fewest values of which a p99 is said; of fewer the largest is.
FEWEST = 100


def calibration_text(found: CalibrationFacts | ClientCalibration) -> str:
    """One line: how far the times may be off, at which load; or why that is not known."""
    if not found.answers and found.why:
        return f"not calibrated: {short(clean(found.why), 160)}"
    if found.astray or not found.answers:
        astray = f"{count(found.astray)} of {plural(found.answers, 'answer')} not as the server wrote them"
        return f"{astray}; the first: {short(clean(found.why), 160)}" if found.why else astray
    which = "p99" if found.ttft_n >= FEWEST else f"largest of {found.ttft_n}"
    fewer = f" of {count(found.asked)} asked for" if found.streams < found.asked else ""
    load = f"{plural(found.streams, 'stream')}{fewer}, {count(found.tokens_per_s)} tokens/s"
    of = "" if found.workers == 1 else f" (one of {count(found.workers)} workers, on the master's machine)"
    return f"{_within('TTFT', found.ttft_ms)} ({which}) at {load}; {_within('ITL', found.itl_ms)}{of}"


def _within(name: str, error_ms: float | None) -> str:
    return f"{name} not known" if error_ms is None else f"{name} within {max(error_ms, 0.001):.2g} ms"
