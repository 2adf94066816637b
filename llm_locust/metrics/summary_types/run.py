"""The run, its window, the client, and whether all of it is in the records."""

from typing import Annotated, Literal

from msgspec import UNSET, UnsetType

from llm_locust.core.manifest import worker_names
from llm_locust.metrics.summary_types.base import SummaryPart, key

_RUN = "the run"
_POPULATION = "the population"
_WORKERS = "workers, in the window"
_END_LAG = "responses of the population that came whole"
_WHOLE_RUN = "workers, the whole run"


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


class ClientFacts(SummaryPart, frozen=True):
    """Whether the client made these numbers."""

    verdict: Annotated[Literal["ok", "suspect", "invalid"], key("`ok`, `suspect` or `invalid`")]
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
# What came of what the workers announced.
# --------------------


_WHOLE = "the whole run"
_WORKER = "a worker, the whole run"


class MasterHealth(SummaryPart, frozen=True):
    """How the master was."""

    clock_steps: Annotated[int | None, key("how often its clock was set", "the process, the whole run")]
    hub_lag_ms_p99: Annotated[
        float | None, key("p99 of its event loop's delay, ms", "the process, the whole run")
    ]
    hub_lag_ms_max: Annotated[
        float | None, key("largest delay of its event loop, ms", "the process, the whole run")
    ]
    cpu_percent_max: Annotated[
        float | None, key("its CPU, % of a core: the largest mean of 3 s", "the process, the whole run")
    ]
    rss_mib_max: Annotated[
        float | None, key("its largest resident memory, MiB", "the process, the whole run")
    ]
    steal_percent: Annotated[float | None, key("as `client.steal_percent_max`", "the process, the whole run")]
    throttled_percent: Annotated[
        float | None, key("as `client.throttled_percent_max`", "the process, the whole run")
    ]
    run_queue_percent: Annotated[
        float | None, key("as `client.run_queue_percent_max`", "the process, the whole run")
    ]


class WorkerCompleteness(SummaryPart, frozen=True):
    """What one worker had, what came of it, and how it was."""

    id: Annotated[str, key("its id", _WORKER)]
    index: Annotated[int, key("its number", _WORKER)]
    state: Annotated[str, key("what became of it: `running`, `done`, `left` or `lost`", _WORKER)]
    late: Annotated[bool, key("it joined after the start", _WORKER)]
    joined_s: Annotated[float | None, key("when it joined, s after the start", _WORKER)]
    heard_s: Annotated[float | None, key("when it was last heard, s after the start", _WORKER)]
    announced: Annotated[
        int | None, key("records that it said it had made; null where it never said", _WORKER)
    ]
    received: Annotated[int, key("records of it that the master has", _WORKER)]
    missing: Annotated[int, key("announced − received", _WORKER)]
    in_flight: Annotated[int, key("requests that it had under way when it was last heard", _WORKER)]
    unrecorded: Annotated[int, key("requests of it without a record", _WORKER)]
    batches: Annotated[int, key("batches that it announced", _WORKER)]
    batches_received: Annotated[str | None, key("numbers of the batches that came", _WORKER)]
    resent: Annotated[int, key("batches of it that came more than once", _WORKER)]
    dropped: Annotated[int, key("records that neither its disk nor its memory could hold", _WORKER)]
    held_back: Annotated[int, key("requests of it that waited for `--max-in-flight`", _WORKER)]
    unsent: Annotated[int, key("requests of it that were due and were never sent", _WORKER)]
    clock_offset_ms: Annotated[float | None, key("clock offset, ms", _WORKER)]
    clock_error_ms: Annotated[float | None, key("clock error, ms", _WORKER)]
    clock_steps: Annotated[int | None, key("how often its clock was set", _WORKER)]
    hub_lag_ms_p99: Annotated[float | None, key("p99 of its event loop's delay, ms", _WORKER)]
    hub_lag_ms_max: Annotated[float | None, key("largest delay of its event loop, ms", _WORKER)]
    cpu_percent_max: Annotated[float | None, key("its CPU, % of a core: the largest mean of 3 s", _WORKER)]
    rss_mib_max: Annotated[float | None, key("its largest resident memory, MiB", _WORKER)]
    steal_percent: Annotated[float | None, key("as `client.steal_percent_max`", _WORKER)]
    throttled_percent: Annotated[float | None, key("as `client.throttled_percent_max`", _WORKER)]
    run_queue_percent: Annotated[float | None, key("as `client.run_queue_percent_max`", _WORKER)]


class Completeness(SummaryPart, frozen=True):
    """Whether all of the run is in the records."""

    complete: Annotated[
        bool,
        key("nothing is missing: see [completeness](definitions.md#validity-of-the-measurement)", _WHOLE),
    ]
    cut_short: Annotated[
        bool, key("a fault ended the run before its time, or the end of its load was never recorded", _WHOLE)
    ]
    workers_expected: Annotated[int, key("number of workers that were asked for", _WHOLE)]
    workers_seen: Annotated[int, key("number of workers that joined", _WHOLE)]
    workers_late: Annotated[int, key("number of workers that joined after the start", _WHOLE)]
    workers_left: Annotated[int, key("number of workers that left before the stop", _WHOLE)]
    workers_lost: Annotated[int, key("number of workers that were lost", _WHOLE)]
    records_announced: Annotated[int, key("number of records that workers said they had made", _WHOLE)]
    records_received: Annotated[int, key("number of records that the master received", _WHOLE)]
    records_stored: Annotated[int, key("number of records that the run has", _WHOLE)]
    records_lost: Annotated[int, key("number of requests without a record, as `requests.lost`", _WHOLE)]
    records_dropped: Annotated[int, key("number of records that neither disk nor memory could hold", _WHOLE)]
    batches_resent: Annotated[int, key("batches that came more than once", _WHOLE)]
    held_back: Annotated[int, key("requests that waited for `--max-in-flight`", _WHOLE)]
    held_back_s_max: Annotated[float, key("the longest wait for `--max-in-flight`, s", _WHOLE)]
    backoff_waits: Annotated[int, key("waits of users after a failed request (`--backoff`)", _WHOLE)]
    backoff_s: Annotated[float, key("sum of these waits: user time without a request, s", _WHOLE)]
    backoff_users_mean: Annotated[
        float | None,
        key("users that waited so at a time: `backoff_s` / duration of the load; null if unknown", _WHOLE),
    ]
    unsent: Annotated[int, key("requests that were due and were never sent", _WHOLE)]
    in_flight_lost: Annotated[int, key("requests that lost workers had under way", _WHOLE)]
    missing: Annotated[dict[str, int], key("records missing, by worker", _WHOLE)]
    lost: Annotated[list[str], key("lost workers", _WHOLE)]
    torn: Annotated[list[str], key("damaged files", _WHOLE)]
    faults: Annotated[
        dict[str, list[str]],
        key("what makes a worker's count of records doubtful, in words, by worker", _WHOLE),
    ]
    messages_dropped: Annotated[
        int, key("messages that did not fit, or came from nobody that the master knows", _WHOLE)
    ]
    messages_dropped_by: Annotated[
        dict[str, dict[str, int]], key("the same by sender and kind of message", _WHOLE)
    ]
    workers: list[WorkerCompleteness]
    master: MasterHealth

    @property
    def names(self) -> dict[str, str]:
        """Id of each worker -> what reports call it."""
        return worker_names(self.workers)
