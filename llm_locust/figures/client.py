"""Client's validity: whether the numbers can be trusted, as far as the client is concerned.

``suspect``: the client may have affected the load or part of the numbers. ``invalid``: the numbers depend
largely on the client. The thresholds are those of :mod:`llm_locust.figures.client`. Delays under
1 ms never count against a client. With the kernel's timestamps, CPU that it used or lacked is the cause of
a finding, and none itself: what was late shows in first tokens, ends and sends."""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from msgspec import structs

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import (
    CalibrationFacts,
    ClockFacts,
    HealthCell,
    Manifest,
    NodeHealth,
    WorkerFacts,
    worker_names,
)
from llm_locust.core.texts import quantity
from llm_locust.figures.figure import Run
from llm_locust.figures.text import (
    Line,
    Section,
    Tone,
    clean,
    count,
    number,
    percent,
    plural,
    sentence,
    short,
)
from llm_locust.metrics.catalogue import schedule_delay
from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.requests.gaps import first_token_wide, program_stamped
from llm_locust.metrics.requests.judgement import Judgement
from llm_locust.metrics.requests.rates import Spans
from llm_locust.metrics.stats.censoring import ordered, percentile
from llm_locust.metrics.stats.proportions import Proportion
from llm_locust.metrics.structs import SummaryPart, finite, key, largest
from llm_locust.metrics.window import Window

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_POPULATION = "the population"
_WORKERS = "workers, in the window"
_END_LAG = "responses of the population that came whole"


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


class LittlesLaw(SummaryPart, frozen=True):
    """Little's law: requests in flight by their number, and by their rate and time."""

    holds: Annotated[
        bool | None,
        key(
            "`difference`, and what of `workers_difference` client lag and 1 ms a record do not explain, are "
            "within 2 %; null where neither is known"
        ),
    ]
    in_flight_mean: Annotated[
        float | None,
        key(
            "mean number of requests between sent and ended: the area under their number / seconds",
            "the window, every request that was sent",
        ),
    ]
    sent_per_s: Annotated[
        float | None, key("requests sent / seconds", "sent in the window, whatever became of them")
    ]
    time_s: Annotated[
        float | None, key("mean time from sent to ended, s", "sent in the window, whatever became of them")
    ]
    edges: Annotated[
        float | None,
        key(
            "(time in the window of requests sent before it − time after it of those sent in it) / seconds",
            "the window",
        ),
    ]
    difference: Annotated[
        float | None,
        key(
            "(`sent_per_s` × `time_s` + `edges` − `in_flight_mean`) / `in_flight_mean`; null for a window "
            "with gaps",
            "the window",
        ),
    ]
    workers_in_flight_s: Annotated[
        float | None,
        key(
            "the time that calls were under way, added up by the workers' own counters, s; null where none "
            "told it, and for a selection",
            "workers that were not lost, the whole run",
        ),
    ]
    records_in_flight_s: Annotated[
        float | None, key("Σ (ended − started), s", "all records of these workers")
    ]
    workers_difference: Annotated[
        float | None, key("`records_in_flight_s` / `workers_in_flight_s` − 1", "all records of these workers")
    ]

    @property
    def edges_share(self) -> float | None:
        """Share of the requests in flight that the window's edges make up; None where that is unknown."""
        if self.edges is None or not self.in_flight_mean:
            return None
        return abs(self.edges) / self.in_flight_mean


# --------------------
# Thresholds from which a figure of the client makes a run ``suspect`` or ``invalid``, each defined once.
#
# docs/definitions.md has them as a table.
# --------------------


Severity = Literal["suspect", "invalid"]

_ITL, _TTFT = "the median ITL (E2EL without one)", "the median TTFT (E2EL without one)"

#: Delays under this are never held against a client.
LAG_FLOOR_MS = 1.0


@dataclass(frozen=True, slots=True)
class Threshold:
    """A ``figure`` above so many times ``against`` makes a run suspect or invalid; None: never.

    ``against`` is empty where the figure is held against nothing; ``percent``: the two are told so. A figure
    under ``floor`` is harmless.
    """

    figure: str
    against: str
    suspect: float | None
    invalid: float | None
    why: str
    unit: str = ""
    percent: bool = True
    floor: float = 0.0

    def severity(self, value: float | None, of: float | None = 1.0) -> Severity | None:
        """What a value amounts to; None where it is harmless, or one of the two is not known."""
        if value is None or of is None or value < self.floor:
            return None
        if self.invalid is not None and value > self.invalid * of:
            return "invalid"
        return "suspect" if self.suspect is not None and value > self.suspect * of else None

    def told(self, limit: float | None) -> str:
        """A limit in words."""
        if limit is None:
            return "–"
        number = f"{limit * 100:g} %" if self.percent else f"{limit:g}{self.unit and ' ' + self.unit}"
        return f"{number} of {self.against}" if self.against else number


def usual(**medians_ms: float | None) -> tuple[str, float | None]:
    """The first of these medians that is known, and its name.

    Answers that are not streamed, embeddings among them, have neither ITL nor TTFT: E2EL is their scale.
    """
    known = ((name, value) for name, value in medians_ms.items() if value is not None)
    return next(known, (next(iter(medians_ms)), None))


FIRST_TOKENS_WIDE = Threshold(
    "`first_tokens_wide`, the lower end of its 95 % interval, of 3 wide ones at least: first tokens that a "
    "read of a late client brought with later ones, but not where the whole answer came, and was read, "
    "within 1 % of the wait for it",
    "",
    None,
    0.01,
    "the client knows only the time of the last of several packets",
)
LAG_PROGRAM = Threshold(
    "read delay (p99) of requests whose timestamps are not all the kernel's",
    _ITL,
    0.1,
    1.0,
    "lag is part of every latency",
    floor=LAG_FLOOR_MS,
)
HUB_LAG_PROGRAM = Threshold(
    "`hub_lag_ms_p99`, more than 1 % of the requests without the kernel's timestamps",
    _ITL,
    0.1,
    1.0,
    "an event loop that reads late also timestamps late",
    floor=LAG_FLOOR_MS,
)
WAITED = Threshold(
    "`end_lag_share`, closed loop, of a mean `end_lag` of 1 ms at least",
    "",
    0.05,
    0.5,
    "a user sends its next request only when the client has noticed the end of the last one: the load was "
    "lighter than the number of users implies",
)
STANDSTILL = Threshold(
    "`hub_lag_ms_max`, 1 s at least",
    "the window",
    0.02,
    None,
    "a worker sent nothing for so long; where its process or machine was paused, what came then may be timed "
    "late",
    floor=1000.0,
)
STANDSTILL_OF_LOAD = Threshold(
    "the mean over all workers of such `hub_lag_ms_max`",
    "the window",
    None,
    0.1,
    "this much of the load was sent by nobody",
)
DELAY = Threshold(
    "`schedule_delay_ms_p99`, open loop",
    _TTFT,
    0.1,
    None,
    "the load was not the requested one; the latencies from sent are right",
    floor=LAG_FLOOR_MS,
)
DELAY_OF_RATES = Threshold(
    "`schedule_delay_ms_p99`, open loop",
    "the window",
    None,
    0.1,
    "requests were sent in another part of the window than their schedule says: the rates are others",
    floor=LAG_FLOOR_MS,
)
BAD_BY_DELAY = Threshold(
    "`bad_by_delay`, open loop, the lower end of the 95 % interval of its share, of 3 at least: requests "
    "that broke a limit counted from their schedule, and none counted from when they were sent",
    "",
    None,
    0.01,
    "goodput counts the client's delay against the server",
)
CPU_PROGRAM = Threshold(
    "`cpu_percent_max`, more than 1 % of the requests without the kernel's timestamps",
    "",
    70.0,
    90.0,
    "a saturated core reads, sends and timestamps late",
    "%",
    False,
)
STEAL = Threshold(
    "`steal_percent_max`, where nothing above shows that the client was late",
    "",
    10.0,
    None,
    "the share of the CPU time that a worker's machine needed and its hypervisor gave to others: its kernel "
    "did not run either, and stamped what came meanwhile when it did",
    "%",
    False,
)
THROTTLED = Threshold(
    "`throttled_percent_max`, where nothing above shows that the client was late",
    "",
    10.0,
    None,
    "the share of periods in which a worker used up its CPU limit and stood still until the next one",
    "%",
    False,
)
STEAL_CAUSE = Threshold(
    "`steal_percent_max`, of a client that was late",
    "",
    2.0,
    None,
    "it was starved: others had its CPU time",
    "%",
    False,
)
THROTTLED_CAUSE = Threshold(
    "`throttled_percent_max`, of a client that was late",
    "",
    1.0,
    None,
    "it was starved by its own limit",
    "%",
    False,
)
RUN_QUEUE = Threshold(
    "`run_queue_percent_max`, of a client that was late",
    "",
    10.0,
    None,
    "its threads were ready and other programs had the cores: it was starved",
    "%",
    False,
)
BUSY = Threshold(
    "`cpu_percent_max`, of a client that was late and not starved",
    "",
    70.0,
    None,
    "it was busy: its own work took its core",
    "%",
    False,
)
CALIBRATION = Threshold(
    "`calibration.ttft_ms`, `calibration.itl_ms`, if the server knew its own times better",
    "",
    1.0,
    None,
    "so far were the client's times from the log of a server of known times, before the load",
    "ms",
    False,
)
CLOCK_STEPS = Threshold(
    "`clock_steps`, `worker_clock_steps`, `master_clock_steps`",
    "",
    0,
    None,
    "a clock was set: it is uncertain what is in the window; latencies are not affected",
    "",
    False,
)
CLOCK_ERROR = Threshold(
    "`clock_error_ms_max`",
    "the window, or 1 s",
    0.01,
    None,
    "this much of a worker's load may be on the wrong side of the window's edges",
)
LITTLES_LAW = Threshold(
    "`littles_law.difference`, and `littles_law.workers_difference` beyond what client lag explains",
    "",
    0.02,
    None,
    "records are missing, duplicated, or have wrong times",
)

#: Up to so many requests with times of the program's own move no p99.
PROGRAM_SHARE = 0.01

#: In the order of the table.
THRESHOLDS = (
    FIRST_TOKENS_WIDE,
    LAG_PROGRAM,
    HUB_LAG_PROGRAM,
    WAITED,
    STANDSTILL,
    STANDSTILL_OF_LOAD,
    DELAY,
    DELAY_OF_RATES,
    BAD_BY_DELAY,
    CPU_PROGRAM,
    STEAL,
    THROTTLED,
    STEAL_CAUSE,
    THROTTLED_CAUSE,
    RUN_QUEUE,
    BUSY,
    CALIBRATION,
    CLOCK_STEPS,
    CLOCK_ERROR,
    LITTLES_LAW,
)


# --------------------
# Little's law on a run: L = λ W, requests in flight against the sending rate times the time each took.
#
# It is checked twice. Over the window, from the records alone: the area under the number in flight against
# the sum of the times, corrected for requests that cross the window's edges. Records with contradicting
# times break it. And over the whole run, from the workers: each integrates its number of calls in flight,
# by its own counter and clock, without using a record. Missing, duplicate or misplaced records break that
# one.
# --------------------


#: A call is over for its worker a little after its last byte: so long for each, beside its measured lags.
ENDING_S = 0.001

_COLUMNS = ("worker", "started_ns", "ended_ns", "end_lag_ns")


def law_of(run: Run) -> LittlesLaw:
    of_some = run.of_selection or run.manifest.dropped is not None
    return littles_law(run.m.c, run.m.window, run.requests, run.manifest, of_selection=of_some)


def littles_law(
    c: Columns, window: Window, requests: Requests, manifest: Manifest, *, of_selection: bool
) -> LittlesLaw:
    """Little's law of a window; None if a side is unknown.

    Args:
        of_selection: ``requests`` are some of the run's: the workers counted them all.
    """
    law = _over_window(c, window)
    beyond = [] if law.difference is None else [law.difference]
    if not of_selection and (found := _by_workers(requests, manifest)) is not None:
        by_workers_s, by_records_s, excess_s = found
        beyond.append(-excess_s / by_workers_s)
        law = structs.replace(
            law,
            workers_in_flight_s=by_workers_s,
            records_in_flight_s=by_records_s,
            workers_difference=-(by_workers_s - by_records_s) / by_workers_s,
        )
    holds = not any(LITTLES_LAW.severity(abs(each)) for each in beyond) if beyond else None
    return structs.replace(law, holds=holds)


_UNKNOWN_LAW = LittlesLaw(**dict.fromkeys(LittlesLaw.__struct_fields__))


def _over_window(c: Columns, window: Window) -> LittlesLaw:
    """L from the area, λ and W from the requests sent, and the contribution of the edges."""
    start_s, end_s = window.start_s(c), window.end_s(c)
    sent = ~np.isnan(c.sent_s)
    if window.gaps or window.seconds <= 0 or not sent.any():
        return _UNKNOWN_LAW
    sent_s, ended_s = c.sent_s[sent], c.ended_s[sent]
    inside = (sent_s >= start_s) & (sent_s < end_s)
    before = (sent_s < start_s) & (ended_s > start_s)
    times_s = np.sort(ended_s[inside] - sent_s[inside])  # the order of workers is no input to a sum
    came_in = float(np.sort(np.minimum(ended_s[before], end_s) - start_s).sum())
    went_out = float(np.sort(np.maximum(ended_s[inside] - end_s, 0.0)).sum())
    edges = (came_in - went_out) / window.seconds
    mean = float(Spans.of(c).means(np.array([start_s, end_s]))[0])
    rate, time_s = int(inside.sum()) / window.seconds, float(times_s.mean()) if inside.any() else 0.0
    return structs.replace(
        _UNKNOWN_LAW,
        in_flight_mean=mean,
        sent_per_s=rate,
        time_s=time_s,
        edges=edges,
        difference=(rate * time_s + edges - mean) / mean if mean else None,
    )


def _by_workers(requests: Requests, manifest: Manifest) -> tuple[float, float, float] | None:
    """Seconds in flight by the workers' counters and by the records of the same workers, and how many of the
    difference client lag does not explain.

    The last report of a lost worker is older than its last record; what it lost is counted already.
    """
    told_s = {
        w.id: w.in_flight_ns * 1e-9 for w in manifest.workers if w.in_flight_ns is not None and not w.lost
    }
    total_s = sum(told_s.values())
    if total_s <= 0:
        return None
    records_s = allowed_s = 0.0
    for durations_s, lags_s in _of_workers(requests, told_s.keys()):
        records_s += float(durations_s.sum())
        allowed_s += float(lags_s.sum()) + ENDING_S * len(lags_s)
    missing_s = total_s - records_s
    return total_s, records_s, missing_s - min(max(missing_s, 0.0), allowed_s)


def _of_workers(requests: Requests, ids: Container[str]) -> Iterator[tuple[Floats, Floats]]:
    """Duration of each record of these workers, and how late its client noticed its end."""
    for batch in requests.parts(_COLUMNS):
        labels = batch.labels("worker")
        theirs = np.array([*(name in ids for name in labels.names), False])[labels.codes]
        durations_s = (batch.ints("ended_ns") - batch.ints("started_ns"))[theirs] * 1e-9
        yield durations_s, np.nan_to_num(batch.floats("end_lag_ns")[theirs]) * 1e-9


def law_text(law: LittlesLaw) -> str:
    """Both sides as a phrase."""
    if law.workers_in_flight_s is None:
        rate, time_s = quantity(law.sent_per_s), quantity(law.time_s)
        return f"{quantity(law.in_flight_mean)} in flight, {rate}/s × {time_s} s"
    return (
        f"the workers counted {quantity(law.workers_in_flight_s)} s of requests in flight, "
        f"the records have {quantity(law.records_in_flight_s)} s"
    )


# --- Processes of the run: CPU, event loops and clocks during the window, and the source of timestamps


@dataclass(frozen=True, slots=True)
class WorstNodes:
    """Figures of the worst worker, and of the master, by keys of :class:`ClientFacts`; None is unknown."""

    cpu_percent_max: float | None = None
    steal_percent_max: float | None = None
    throttled_percent_max: float | None = None
    run_queue_percent_max: float | None = None
    hub_lag_ms_p99: float | None = None
    hub_lag_ms_max: float | None = None
    hub_lag_master_ms_max: float | None = None
    worker_clock_steps: int = 0
    master_clock_steps: int = 0
    clock_error_ms_max: float | None = None

    @classmethod
    def of(cls, manifest: Manifest, window: Window | None) -> "WorstNodes":
        """In a window; without one, of the whole run.

        A worker's figures are those of its :class:`~llm_locust.core.manifest.HealthCell` whose middle is in
        the window; if there is none, or the run's manifest has no such cells, those of its whole run.
        """
        workers = [_health(w.health, w.clock, window) for w in manifest.workers]
        clocks = [w.clock for w in manifest.workers if w.clock]
        return cls(
            cpu_percent_max=largest(w.cpu_percent_max for w in workers),
            steal_percent_max=largest(w.steal_percent for w in workers),
            throttled_percent_max=largest(w.throttled_percent for w in workers),
            run_queue_percent_max=largest(w.run_queue_percent for w in workers),
            hub_lag_ms_p99=largest(w.hub_lag_ms_p99 for w in workers),
            hub_lag_ms_max=largest(w.hub_lag_ms_max for w in workers),
            hub_lag_master_ms_max=finite(_health(manifest.master, None, window).hub_lag_ms_max),
            worker_clock_steps=sum(clock.steps for clock in clocks),
            master_clock_steps=manifest.clock_steps,
            clock_error_ms_max=largest(clock.placing_error_ns * 1e-6 for clock in clocks),
        )


def _health(health: NodeHealth, clock: ClockFacts | None, window: Window | None) -> NodeHealth:
    """Figures of a window."""
    offset_ns = 0 if clock is None else clock.offset_ns
    cells = [cell for cell in health.cells if window is not None and _inside(cell, offset_ns, window)]
    if not cells:
        return health
    return NodeHealth(
        cpu_percent_max=largest(cell.cpu_percent for cell in cells),
        hub_lag_ms_p99=largest(cell.hub_lag_ms_p99 for cell in cells),
        hub_lag_ms_max=largest(cell.hub_lag_ms_max for cell in cells),
        paused_ms_max=largest(cell.paused_ms_max for cell in cells),
        steal_percent=_mean((cell.seconds, cell.steal_percent) for cell in cells),
        throttled_percent=_mean((cell.seconds, cell.throttled_percent) for cell in cells),
        run_queue_percent=_mean((cell.seconds, cell.run_queue_percent) for cell in cells),
    )


def _inside(cell: HealthCell, offset_ns: int, window: Window) -> bool:
    middle_ns = round((cell.at_s - cell.seconds / 2) * 1e9) + offset_ns
    return any(span.start_ns <= middle_ns < span.end_ns for span in window.spans)


def _mean(values: Iterable[tuple[float, float | None]]) -> float | None:
    """Mean of the known values, by their weights."""
    some = [(weight, value) for weight, value in values if value is not None]
    total = sum(weight for weight, _ in some)
    return sum(weight * value for weight, value in some) / total if total > 0 else None


Finding = tuple[Severity, str]

Cause = Literal["starved", "busy", "late"]

#: A clock that is known better than this is not held against a short window.
CLOCK_ERROR_S = 1.0

#: Workers that one reason names; the others it counts.
_MOST_NAMED = 3

_BLIND: Finding = (
    "suspect",
    "neither the client's lag nor its CPU is known: nothing shows that it read in time",
)

#: So begins what says that the load was not the one asked for, and nothing of the times.
LOAD_LATE = "the load was late: "

#: Fewer are no share.
_LEAST = 3


#: A request may begin so much before the load, and end so much after it.
MISPLACED_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Scale for a client's delays: the window and the medians of the ok requests."""

    window_s: float
    window: Window | None = None
    itl_ms: float | None
    ttft_ms: float | None
    e2el_ms: float | None

    @classmethod
    def of(cls, window: Window, medians_ms: dict[str, float | None]) -> "Scale":
        """Make it from the medians of ``itl``, ``ttft`` and ``e2el``."""
        of_metric = {f"{metric}_ms": medians_ms[metric] for metric in ("itl", "ttft", "e2el")}
        return cls(window=window, window_s=window.seconds, **of_metric)


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
    waits: "EndLags"
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
            end_lag_p50_ms=_ms(c.end_lag_s[judged], 50.0),
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
            *standstill_findings(of_nodes.hub_lag_ms_max, scale.window_s, still_ms, paused_ms),
            *(hub_lag_findings(of_nodes.hub_lag_ms_p99, *gap) if self.own_times else ()),
            *delay_findings(self.delay_ms, *first, scale.window_s),
            *made_bad_findings(self.made_bad or 0, self.n),
        ]


def compute(run: Run) -> ClientFacts:
    m = run.m
    medians_ms = {metric: run.whole.latency_ms[metric].known.p50 for metric in ("itl", "ttft", "e2el")}
    scale = Scale.of(m.window, medians_ms)
    return client_validity(m.c, run.population.judged, run.manifest, scale, m.judgement, run.figure(law_of))


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
    that of the worst worker.
    ``clock_steps`` counts requests, the other two steps of a node's clock. None is without evidence.
    """
    seen, of_nodes = (
        _Requests.of(c, judged, manifest.open_loop, judgement),
        WorstNodes.of(manifest, scale.window),
    )
    kernel = seen.kernel
    lag_p50_ms, lag_ms = (_ms(c.client_lag_s[judged], percent) for percent in (50.0, 99.0))
    stepped, misplaced = int(c.stepped[judged].sum()), misplaced_requests(c, manifest)
    paused_ms = largest(_health(w.health, w.clock, scale.window).paused_ms_max for w in manifest.workers)
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
        *_clocks(manifest, scale.window_s),
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
        end_lag_ms_p99=_ms(c.end_lag_s[judged], 99.0),
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


def wide_findings(wide: int, first_tokens: int) -> Iterator[Finding]:
    """The finding from the number of first tokens that a late read brought with later ones."""
    if found := _share(FIRST_TOKENS_WIDE, wide, first_tokens):
        yield (
            found,
            f"{_percent(wide / first_tokens)} of the first tokens were read late, together with later ones, "
            "and may have come earlier than their TTFT says",
        )


def _share(threshold: Threshold, hits: int, n: int) -> Severity | None:
    """What a share of requests amounts to: of few it may be chance."""
    interval = Proportion(hits, n).interval() if hits >= _LEAST else None
    return threshold.severity(interval[0]) if interval else None


def _lag(lag_ms: float | None, of: str, of_ms: float | None) -> Iterator[Finding]:
    if found := LAG_PROGRAM.severity(lag_ms, of_ms):
        yield (
            found,
            f"the client read {quantity(lag_ms)} ms late (p99), the median {of} is {quantity(of_ms)} ms, "
            "and not all timestamps are the kernel's, so lag is part of the latencies",
        )


@dataclass(frozen=True, slots=True)
class EndLags:
    """What users waited for the client after the ends of ``n`` responses, and for the responses, in all."""

    n: int
    lag_s: float
    response_s: float

    @property
    def share(self) -> float | None:
        """Share of the users' time that the client let pass: Σ end lag / (Σ end lag + Σ response time); None
        without a response."""
        whole_s = self.lag_s + self.response_s
        return self.lag_s / whole_s if whole_s > 0 else None


def _end_lags(c: Columns, judged: Rows) -> EndLags:
    known = judged[~np.isnan(c.end_lag_s[judged])]
    response_s = c.ended_s[known] - c.started_s[known]
    return EndLags(len(known), float(np.sort(c.end_lag_s[known]).sum()), float(np.sort(response_s).sum()))


def waiting_findings(waits: EndLags, end_lag_p50_ms: float | None) -> Iterator[Finding]:
    """The finding on a closed loop whose users waited for the client."""
    if not waits.n or waits.lag_s * 1e3 / waits.n < LAG_FLOOR_MS:
        return
    if found := WAITED.severity(waits.share):
        yield (
            found,
            f"{LOAD_LATE}users waited {_percent(waits.share)} of their time for the client to notice "
            f"the end of a response ({quantity(end_lag_p50_ms)} ms in the median), so the load was that much "
            "lighter than the number of users implies",
        )


def mean_standstill_ms(manifest: Manifest, window: Window | None) -> float | None:
    """The longest standstill of each worker's event loop, of a second or more; its mean over the workers."""
    lags_ms = [_health(w.health, w.clock, window).hub_lag_ms_max or 0.0 for w in manifest.workers]
    return sum(ms for ms in lags_ms if ms >= STANDSTILL.floor) / len(lags_ms) if lags_ms else None


def standstill_findings(
    hub_max_ms: float | None,
    window_s: float,
    mean_ms: float | None = None,
    paused_ms: float | None = None,
) -> Iterator[Finding]:
    """The finding on an event loop that stood still: for how long at most, and in the mean of all workers.

    ``paused_ms`` is the longest time in which all threads of a worker did; None if that is not known.
    """
    window_ms = window_s * 1e3
    found = STANDSTILL_OF_LOAD.severity(mean_ms, window_ms) or STANDSTILL.severity(hub_max_ms, window_ms)
    if window_s > 0 and found:
        how = "; if its whole machine was paused, what came then is timed late"
        if paused_ms is not None:
            how = ", while other threads of it went on"
        if is_paused(paused_ms):
            how = (
                f". For {quantity((paused_ms or 0) * 1e-3)} s no thread of a worker ran: its process was "
                "stopped, or its container or machine was paused, which may time late what came then"
            )
        yield (
            found,
            f"{LOAD_LATE}a worker's event loop stood still for {quantity((hub_max_ms or 0) * 1e-3)} s of a "
            f"window of {quantity(window_s)} s and sent nothing{how}",
        )


def is_paused(paused_ms: float | None) -> bool:
    """Whether all threads of a worker stood still for a time that counts."""
    return paused_ms is not None and paused_ms >= STANDSTILL.floor


def hub_lag_findings(hub_ms: float | None, of: str, of_ms: float | None) -> Iterator[Finding]:
    """The finding on a late event loop that also took the timestamps."""
    if found := HUB_LAG_PROGRAM.severity(hub_ms, of_ms):
        yield (
            found,
            f"a worker's event loop was {quantity(hub_ms)} ms late (p99), "
            f"the median {of} is {quantity(of_ms)} ms, and not all timestamps are the kernel's, so its lag "
            "is part of the latencies",
        )


def delay_findings(
    delay_ms: float | None, of: str, of_ms: float | None, window_s: float
) -> Iterator[Finding]:
    """The finding on an open loop that sent late."""
    late = f"{LOAD_LATE}requests were sent {quantity(delay_ms)} ms after their schedule (p99), "
    if window_s > 0 and (found := DELAY_OF_RATES.severity(delay_ms, window_s * 1e3)):
        yield (
            found,
            f"{late}of a window of {quantity(window_s)} s: rates and concurrency are not the schedule's",
        )
    elif found := DELAY.severity(delay_ms, of_ms):
        yield found, f"{late}the median {of} is {quantity(of_ms)} ms. The latencies from sent are right"


def made_bad_findings(made_bad: int, n: int) -> Iterator[Finding]:
    """The finding on requests that only the client's delay made bad."""
    if found := _share(BAD_BY_DELAY, made_bad, n):
        yield (
            found,
            f"{LOAD_LATE}{_percent(made_bad / n)} of the requests broke a limit counted from their "
            "schedule, and none counted from when they were sent: goodput counts the client's delay",
        )


def explain(late: list[Finding], of_nodes: WorstNodes, paused_ms: float | None = None) -> Cause | None:
    """Why the client was late; the worst of the findings, now the first, is told it with what to do."""
    if not late:
        return None
    late.sort(key=lambda finding: finding[0])
    cause, remedy = _cause(of_nodes)
    if is_paused(paused_ms):
        cause, remedy = "late", "Look for what stopped the process, or paused its container or machine"
    late[0] = (late[0][0], f"{late[0][1]}. {remedy}")
    return cause


def _cause(of_nodes: WorstNodes) -> tuple[Cause, str]:
    """Why a client was late, and what to do. What others took comes first: more workers do not help there."""
    waited, cpu = of_nodes.run_queue_percent_max, of_nodes.cpu_percent_max
    throttled, steal = of_nodes.throttled_percent_max, of_nodes.steal_percent_max
    if THROTTLED_CAUSE.severity(throttled):
        return "starved", (
            f"It was starved by its CPU limit, in {quantity(throttled)} % of the limit's periods: "
            "raise the limit to a core for each worker at least"
        )
    if STEAL_CAUSE.severity(steal):
        return "starved", (
            f"It was starved: the hypervisor gave {quantity(steal)} % of its CPU time to others. "
            "Use a machine with dedicated CPUs"
        )
    if RUN_QUEUE.severity(waited):
        return "starved", (
            f"It was starved: a worker's threads waited for a core during {quantity(waited)} % of the time. "
            "Stop other programs on its machine, or start no more workers than it has cores"
        )
    if BUSY.severity(cpu):
        return "busy", f"It was busy: a worker used {quantity(cpu)} % of its core. Use more workers"
    return "late", "It had CPU time enough, as far as is known: look for what holds its event loop"


def cpu_findings(cpu: float | None) -> Iterator[Finding]:
    """The finding on the core of a worker that takes timestamps itself."""
    if found := CPU_PROGRAM.severity(cpu):
        yield (
            found,
            f"the busiest worker used {quantity(cpu)} % of its core: use more workers; not all timestamps "
            "are the kernel's, so its delays are part of the latencies",
        )


def taken_findings(of_nodes: WorstNodes) -> Iterator[Finding]:
    """The finding on much CPU time that a worker did not get, though nothing shows that it was late.

    A program that waits is seen to be late. A machine that waits is not: what came meanwhile, its kernel
    stamps when it runs again. And a thread that was stopped may have merged tokens that were not the first.
    """
    steal, throttled = of_nodes.steal_percent_max, of_nodes.throttled_percent_max
    unseen = "No figure shows that the client was late, but tokens that came meanwhile may be"
    if found := STEAL.severity(steal):
        yield (
            found,
            f"a worker's machine got {quantity(steal)} % less CPU time than it needed: its hypervisor gave "
            f"it to others. {unseen} timed late. Use a machine with dedicated CPUs",
        )
    if found := THROTTLED.severity(throttled):
        yield (
            found,
            f"a worker was throttled in {quantity(throttled)} % of the periods of its CPU limit. {unseen} "
            "timed together. Raise the limit to a core for each worker at least",
        )


def _percent(ratio: float | None) -> str:
    return f"{100 * (ratio or 0):.1f} %"


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
    if stepped:
        yield (
            "suspect",
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
    if stepped:
        yield (
            "suspect",
            f"{_clocks_of(stepped, names)} set {_times(steps)} during the run: the records are placed by the "
            "corrected clock, and no latency changed",
        )
    if manifest.clock_steps:
        yield (
            "suspect",
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
            _starved(part),
        ]
    )
    law = tuple(_law_remark(summary.littles_law))
    if part.verdict == "ok":
        return Section("Client", (Line(f"ok: {evidence}", Tone.GOOD), *reasons, *law))
    if part.verdict == "suspect":
        # It spoiled no figure as far as is known: a line among the last, no box.
        reasons[0] = Line(f"suspect: {reasons[0].text}", Tone.WARN)
        return Section("Client", (*reasons, Line(_DOCTOR, Tone.FAINT), Line(evidence, Tone.FAINT), *law))
    # What makes the kernel's times wrong comes before what makes the load late.
    is_of_load = part.timestamps == "kernel" and part.reasons[0].startswith(LOAD_LATE)
    headline = Line(f"INVALID: {_OTHER_LOAD if is_of_load else _OTHER_TIMES}", Tone.BAD)
    lines = (headline, *reasons, Line(_DOCTOR), Line(evidence, Tone.FAINT), *law)
    return Section("Client", lines, alarm=True)


_OTHER_TIMES = "these numbers show the client, not the server"
_OTHER_LOAD = "the latencies are the server's, under another load than was asked for"


def _starved(part: ClientFacts) -> str:
    """That other programs had the cores, where it is no cause of anything."""
    waited = part.run_queue_percent_max
    if part.cause is not None or not RUN_QUEUE.severity(waited):
        return ""
    return f"starved: waited for a core {number(waited)} % of the time, which moved no figure"


#: Share of the requests in flight from which Little's law without the window's edges looks broken.
_EDGES_SHOWN = 0.02


def _law_remark(law: LittlesLaw) -> Iterator[Line]:
    """Requests in flight, by their number and by their rate and time; and how near the workers' count is."""
    rate, time_s = law.sent_per_s, law.time_s
    if rate is None or time_s is None:
        return
    crossing = law.edges or 0.0
    edges = f" {'+' if crossing > 0 else '−'} {number(abs(crossing))} at the window's edges"
    sides = (
        f"Little's law {'holds' if law.holds else 'FAILS'}: "
        f"{number(law.in_flight_mean)} in flight, "
        f"{number(rate)}/s × {number(time_s)} s = {number(rate * time_s)}"
        f"{edges if (law.edges_share or 0.0) > _EDGES_SHOWN else ''}"
    )
    off = law.workers_difference
    counted = "" if off is None else f"the records have {percent(1 + off)} of what the workers counted"
    if law.holds and off is not None and off < -_EDGES_SHOWN:
        counted += ", who count a request until they notice its end"
    yield Line(sentence([sides, counted]), Tone.FAINT if law.holds else Tone.WARN)


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
