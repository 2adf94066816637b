"""Facts of a run in addition to its requests: the content of ``manifest.json``.

Plain values of ``llm_locust.store``, from workers and files: reading refuses numbers beyond their bounds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from msgspec import Meta

from llm_locust.core.arms import ArmFacts
from llm_locust.core.other_requests import MOST_OTHER_REQUESTS, OtherRequests
from llm_locust.core.pipeline import PipelineFacts
from llm_locust.core.prefix import MOST_REPLICAS, PrefixShare, ReplicaCache
from llm_locust.core.record import LengthPair
from llm_locust.core.replica_headers import MOST_REPLICA_HEADERS, HeaderFacts
from llm_locust.core.run_facts import DroppedFacts, ScrapeFacts, StampFacts, TrajectoryFacts
from llm_locust.core.task_exceptions import MOST_TASK_EXCEPTIONS, TaskException

MANIFEST_SCHEMA = 1

#: Double-precision floats hold every integer up to this one.
Count = Annotated[int, Meta(ge=0, le=2**53)]

#: A time or a difference of two. The difference of two of these fits into 64 bits.
Nanoseconds = Annotated[int, Meta(ge=-(2**62), le=2**62)]

#: A duration, or a sum of some: up to 146 years.
Duration = Annotated[int, Meta(ge=0, le=2**62)]

#: Finite, and so are sums and products of two.
Measure = Annotated[float, Meta(ge=-1e15, le=1e15)]

#: A time and the value measured then.
Point = Annotated[list[Measure], Meta(min_length=2, max_length=2)]

#: Most stages of a run: each is measured in a pass of its own.
MOST_STAGES = 200

#: Most points of a series over a run that a process reports about itself.
MOST_POINTS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFacts:
    """A worker's clock against the run's time, in nanoseconds.

    ``offset_ns`` is what was added to the worker's clock, ``error_ns`` its error bound: half the shortest
    round trip. ``least_offset_ns`` and ``most_offset_ns`` are the range measured during the run in
    ``exchanges`` exchanges; ``steps`` is the number of clock steps, ``step_ns`` their sum.
    """

    offset_ns: Nanoseconds
    error_ns: Nanoseconds
    least_offset_ns: Nanoseconds
    most_offset_ns: Nanoseconds
    exchanges: Count
    steps: Count = 0
    step_ns: Nanoseconds = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCell:
    """State of a process during ``seconds``, which ended ``at_s`` after the epoch by its own clock.
    ``cpu_percent`` is the largest mean of an interval in it; the other figures cover all of it.
    ``steal_percent`` is a share of the CPU time that the machine wanted, ``throttled_percent`` of the periods
    of its CPU limit, ``run_queue_percent`` the time in which its threads waited for a core, of the time that
    went by.
    """

    at_s: Measure
    seconds: Measure
    cpu_percent: Measure
    hub_lag_ms_p99: Measure | None = None
    hub_lag_ms_max: Measure | None = None
    steal_percent: Measure | None = None
    throttled_percent: Measure | None = None
    run_queue_percent: Measure | None = None

    def joined(self, after: "HealthCell") -> "HealthCell":
        """This cell and the one that follows it, as one."""
        seconds = self.seconds + after.seconds

        def mean(a: float | None, b: float | None) -> float | None:
            if a is None or b is None or seconds <= 0:
                return b
            return (a * self.seconds + b * after.seconds) / seconds

        def most(a: float | None, b: float | None) -> float | None:
            return max((v for v in (a, b) if v is not None), default=None)

        return HealthCell(
            at_s=after.at_s,
            seconds=seconds,
            cpu_percent=max(self.cpu_percent, after.cpu_percent),
            hub_lag_ms_p99=most(self.hub_lag_ms_p99, after.hub_lag_ms_p99),
            hub_lag_ms_max=most(self.hub_lag_ms_max, after.hub_lag_ms_max),
            steal_percent=mean(self.steal_percent, after.steal_percent),
            throttled_percent=mean(self.throttled_percent, after.throttled_percent),
            run_queue_percent=mean(self.run_queue_percent, after.run_queue_percent),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """Load of a process during the run. The hub's lag is how much later than requested a timer of its event
    loop ran. ``None`` means not measured. ``rss_mib`` is its memory over time, as pairs of seconds since it
    joined the run and MiB; their number is bounded. ``cells`` are the same figures over the course of the
    run, also bounded."""

    hub_lag_ms_p99: Measure | None = None
    hub_lag_ms_max: Measure | None = None
    cpu_percent_max: Measure | None = None
    rss_mib_max: Measure | None = None
    rss_mib: Annotated[list[Point], Meta(max_length=MOST_POINTS)] = field(default_factory=list)
    steal_percent: Measure | None = None
    throttled_percent: Measure | None = None
    run_queue_percent: Measure | None = None
    cells: Annotated[list[HealthCell], Meta(max_length=MOST_POINTS)] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """One worker of a run. Times are nanoseconds on the run's axis.

    ``announced`` is the number of finished requests in the worker's newest report, ``None`` without a report;
    ``received`` is the number of records in the run. A worker is ``late`` if it joined a run that had
    started, ``lost`` if it ended without confirming that it had sent everything, and has ``left`` if it
    confirmed that before the run was stopped. ``faults`` are reasons to doubt its count of records: a batch
    that could not be accepted, counts that contradict each other.
    """

    id: str
    index: Annotated[int, Meta(ge=-1, le=2**53)]
    announced: Count | None
    received: Count
    batches: Count = 0
    resent: Count = 0  # batches received more than once
    dropped: Count = 0  # records that fitted neither on the worker's disk nor in its memory
    in_flight: Count = 0  # requests in flight at the worker's last report
    in_flight_ns: Duration | None = None  # sum of their times by its own counter, up to its final counts
    late: bool = False
    lost: bool = False
    left: bool = False
    joined_ns: Nanoseconds | None = None
    heard_ns: Nanoseconds | None = None  # time of the final counts or the last sign of life
    held_back: Count = 0  # requests that --max-in-flight delayed
    longest_held_ns: Duration = 0  # the longest wait among them
    backoff_waits: Count = 0  # waits of users after a failed request
    backoff_ns: Duration = 0  # sum of these waits
    unsent: Count = 0  # requests that were due when the load ended, and had not started
    unsent_warmup: Count = 0  # of these, due before the measured phase
    unsent_by_class: dict[str, Count] = field(default_factory=dict)  # the others, by class
    cut: Count = 0  # requests in flight when the drain ended
    received_seqs: str = ""  # of the batches, as ranges: 0-17 19 21-30
    faults: list[str] = field(default_factory=list)
    clock: ClockFacts | None = None
    health: NodeHealth = field(default_factory=NodeHealth)
    stamps: StampFacts | None = None
    others: Annotated[list[OtherRequests], Meta(max_length=MOST_OTHER_REQUESTS)] = field(default_factory=list)
    replica_headers: Annotated[list[HeaderFacts], Meta(max_length=MOST_REPLICA_HEADERS)] = field(
        default_factory=list
    )

    @property
    def missing(self) -> int:
        """Records that the worker announced and that were not received."""
        return max(0, (self.announced or 0) - self.received)

    @property
    def unrecorded(self) -> int:
        """Requests that were sent, as far as is known, and that have no record in the run."""
        return max(0, (self.announced or 0) + self.in_flight - self.received)


class Numbered(Protocol):
    """What has a worker's id and number."""

    @property
    def id(self) -> str: ...

    @property
    def index(self) -> int: ...


def worker_names(workers: Iterable[Numbered]) -> dict[str, str]:
    """Id of each worker -> what reports call it: ``worker-1`` is the first.

    By their numbers, or by their order where these are not all different, as of several runs put together.
    """
    ordered = sorted(workers, key=lambda w: (w.index, w.id))
    numbers = [w.index + 1 for w in ordered]
    if len(set(numbers)) < len(numbers) or min(numbers, default=1) < 1:
        numbers = list(range(1, len(ordered) + 1))
    return {w.id: f"worker-{number}" for w, number in zip(ordered, numbers, strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFacts:
    """One stage of a run: a span in which one load was asked for. Times are nanoseconds on the run's axis.

    ``asked`` is a number of users, or a rate in requests/s of all workers together, ``lengths`` those that
    the sweep sets, ``prefix`` what its prompts share and ``caches`` were prepared for. The load begins at
    ``begun_ns``; ``measured_ns`` is the end of ramp and warm-up, ``ended_ns`` of the load, ``drained_ns``
    when all workers had confirmed that no request of it was in flight or waiting. ``unsent`` requests were
    due and not started, ``cut`` ones in flight when the drain ended; ``made``: records of each worker by
    then. ``fault``: why it is not a result. ``is_early``: ``--until`` ended it. ``repeated_as``: the stage
    that a resumed run has instead.
    """

    number: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    kind: Literal["users", "rate"]
    asked: Measure
    repeat: Count = 0
    lengths: LengthPair | None = None
    prefix: PrefixShare | None = None
    caches: Annotated[list[ReplicaCache], Meta(max_length=MOST_REPLICAS)] = field(default_factory=list)
    begun_ns: Nanoseconds
    measured_ns: Nanoseconds | None = None
    ended_ns: Nanoseconds | None = None
    drained_ns: Nanoseconds | None = None
    unsent: Count = 0
    cut: Count = 0
    fault: str = ""
    is_early: bool = False
    made: dict[str, Count] = field(default_factory=dict)
    repeated_as: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCall:
    """A request to a replica besides the load, at a time on the run's axis, and the status of its answer;
    ``error`` says why there is none."""

    at_ns: Nanoseconds
    path: str
    target: str
    status: int | None = None
    error: str | None = None

    @property
    def done(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryFacts:
    """A request of the kind ``name`` before the load, which is not in its records. ``began_ns`` is wall-clock
    time, ``took_s`` the time to its first token."""

    target: str
    endpoint: str
    name: str
    began_ns: Nanoseconds
    took_s: Measure


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFacts:
    """The client's error against a server of known times on the machine of the master, before the load.

    Attributes:
        asked, streams: users at once, each with a stream: asked for, and as many as fit.
        workers: how many processes share the load; the streams are those of one.
        ttft_ms, itl_ms: p99 of the errors of ``ttft_n`` TTFTs and of the gaps, the largest of fewer than 100.
        open_ms: as much does the server not know of its own times.
        tokens_per_s: token events by the server's log.
        wide_ratio: share of the client's reads that had several token events.
        answers, astray: answers, and how many of them are not as the server wrote them.
        why: what was wrong with the first of those, or why nothing was measured.
    """

    asked: Count
    streams: Count = 0
    workers: Count = 1
    ttft_n: Count = 0
    ttft_ms: Measure | None = None
    itl_ms: Measure | None = None
    open_ms: Measure | None = None
    tokens_per_s: Measure | None = None
    wide_ratio: Measure | None = None
    answers: Count = 0
    astray: Count = 0
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Facts of one run.

    Times are nanoseconds on the run's axis: the master's wall clock at the start of its process, carried on
    without steps. ``started_ns`` is when the load was requested, ``load_ends_ns`` when it was to end by
    its run time, ``stopped_ns`` when it was told to stop, ``ended_ns`` when the last record was in (``None``
    until then). ``options`` are the run's settings as
    text, without secrets. ``stop_reason`` is the rule that ended the run, or an event that no user asked for;
    ``cut_short`` means that it was a fault, ``ended_in_order`` that a restartable run is over all the same.
    ``targets`` or ``arms`` replace ``host``; ``replicas_ready`` were waited for, for ``ready_s``. ``stages``
    are those that have begun, of ``stages_planned``. ``dropped`` are records received and not in the run.
    """

    schema: int = MANIFEST_SCHEMA
    id: str
    name: str
    started_ns: Nanoseconds
    stopped_ns: Nanoseconds | None = None
    load_ends_ns: Nanoseconds | None = None
    drain_s: Measure | None = None
    drained_ns: Nanoseconds | None = None
    ended_ns: Nanoseconds | None = None
    host: str | None = None
    targets: list[str] = field(default_factory=list)
    arms: list[ArmFacts] = field(default_factory=list)
    replicas_ready: list[str] = field(default_factory=list)
    ready_s: Measure | None = None
    canaries: list[CanaryFacts] = field(default_factory=list)
    server_calls: list[ServerCall] = field(default_factory=list)
    model: str | None = None
    scenario: str | None = None
    scenario_document: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    command: list[str] = field(default_factory=list)
    pipeline: PipelineFacts = field(default_factory=PipelineFacts)
    versions: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # that a sweep's load is made of -> SHA-256
    skipped_lines: dict[str, Count] = field(default_factory=dict)  # of files of the load -> how many
    slo: str = ""
    class_slos: dict[str, dict[str, Measure]] = field(default_factory=dict)
    gates: str = ""
    warmup_s: Measure = 0.0
    warmup_gives_way: bool = False  # where every request began in it
    open_loop: bool = False
    stop_reason: str = ""
    cut_short: bool = False
    ended_in_order: bool = False
    require_valid: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    workers_expected: Count = 1
    workers: list[WorkerFacts] = field(default_factory=list)
    master: NodeHealth = field(default_factory=NodeHealth)
    clock_steps: Count = 0  # steps of the master's own clock; the run's time does not follow them
    torn: list[str] = field(default_factory=list)  # files of frames with invalid bytes, and where
    # The most frequent first; the last entry stands for the rest, if they are many.
    task_exceptions: Annotated[list[TaskException], Meta(max_length=MOST_TASK_EXCEPTIONS)] = field(
        default_factory=list
    )
    messages_dropped: dict[str, dict[str, Count]] = field(default_factory=dict)  # sender -> kind -> how many
    server_metrics: ScrapeFacts | None = None
    live_check: dict[str, Any] = field(default_factory=dict)
    stages: Annotated[list[StageFacts], Meta(max_length=MOST_STAGES)] = field(default_factory=list)
    stages_planned: Count = 0
    trajectories: TrajectoryFacts | None = None
    dropped: DroppedFacts | None = None
    calibration: CalibrationFacts | None = None  # of --calibrate

    @property
    def is_sweep(self) -> bool:
        """Whether the run is reported by its loads, because it has stages with drains between them."""
        return bool(self.options.get("sweep") or self.options.get("find"))

    @property
    def kept_from_ns(self) -> int | None:
        """Time from which on the run has every request; None if none was dropped."""
        return None if self.dropped is None else self.dropped.until_ns + 1

    @property
    def workers_lost(self) -> int:
        return sum(w.lost for w in self.workers)

    @property
    def records_announced(self) -> int:
        return sum(w.received if w.announced is None else w.announced for w in self.workers)

    @property
    def records_received(self) -> int:
        return sum(w.received for w in self.workers)

    @property
    def complete(self) -> bool:
        """Whether every worker stayed to its end, and all its announced records are here, without doubt."""
        return (
            len(self.workers) >= self.workers_expected
            and self.workers_lost == 0
            and all(w.unrecorded == 0 and not w.faults for w in self.workers)
            and not self.torn
        )

    @property
    def records_lost(self) -> int:
        """Requests without a record: in flight at a worker that died, or records that were not received."""
        return sum(w.unrecorded for w in self.workers)
