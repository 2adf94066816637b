"""What is known of a run beside its requests: the content of ``manifest.json``.

Plain values. ``store.py`` reads and writes them, ``metrics/`` computes with them. They come from workers and
files, so every number has bounds: one beyond them is refused where it is read. NaN and infinity are beyond
them too, as JSON has neither.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

MANIFEST_SCHEMA = 1

#: A double holds every integer up to here.
Count = Annotated[int, Meta(ge=0, le=2**53)]

#: A time or a difference of two. The difference of two of these fits into 64 bits.
Nanoseconds = Annotated[int, Meta(ge=-(2**62), le=2**62)]

#: A time that passed, or a sum of such: 146 years.
Duration = Annotated[int, Meta(ge=0, le=2**62)]

#: Finite, and so are sums and products of two.
Measure = Annotated[float, Meta(ge=-1e15, le=1e15)]

#: A time and what was measured then.
Point = Annotated[list[Measure], Meta(min_length=2, max_length=2)]

#: Points in the course of a run that a process tells of itself.
MOST_POINTS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFacts:
    """A worker's clock against the run's time, in nanoseconds.

    ``offset_ns`` is what was added to the worker's clock, ``error_ns`` how far it may be off: half the
    shortest round trip. ``least_offset_ns`` and ``most_offset_ns`` bound what was measured during
    the run in ``exchanges`` exchanges; ``steps`` counts the times that this clock was set anew,
    ``step_ns`` is their sum.
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
    """What a process was like for some ``seconds``, which ended ``at_s`` after the epoch by its own clock.

    ``cpu_percent`` is the largest mean of an interval of it; the others are of all of it. ``steal_percent``
    is of the CPU time that the machine wanted, ``throttled_percent`` of the periods of its CPU limit.
    """

    at_s: Measure
    seconds: Measure
    cpu_percent: Measure
    hub_lag_ms_p99: Measure | None = None
    hub_lag_ms_max: Measure | None = None
    steal_percent: Measure | None = None
    throttled_percent: Measure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """What the run cost a process, and whether it was late: the hub's lag is how much later than asked
    a timer of its event loop ran. ``None`` is what was not measured. ``rss_mib`` is its memory over time, as
    pairs of seconds after it took the run up and MiB: few, however long the run is. ``cells`` are the same
    figures in the course of the run, and few too."""

    hub_lag_ms_p99: Measure | None = None
    hub_lag_ms_max: Measure | None = None
    cpu_percent_max: Measure | None = None
    rss_mib_max: Measure | None = None
    rss_mib: Annotated[list[Point], Meta(max_length=MOST_POINTS)] = field(default_factory=list)
    steal_percent: Measure | None = None
    throttled_percent: Measure | None = None
    cells: Annotated[list[HealthCell], Meta(max_length=MOST_POINTS)] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """One worker of a run. Times are nanoseconds on the run's axis.

    ``announced`` is the number of requests that the worker last said it had finished,
    ``None`` where it never said; ``received`` is the number of records in the run. A worker
    is ``late`` when it joined a run that had begun, ``lost`` when it ended without the final word
    that all it had was sent, and has ``left`` when it gave that word before the run was stopped.
    ``faults`` say, in words, what makes its count of records doubtful: a batch that could not be taken,
    counts that contradict each other.
    """

    id: str
    index: Annotated[int, Meta(ge=-1, le=2**53)]
    announced: Count | None
    received: Count
    batches: Count = 0
    resent: Count = 0  # batches that came more than once
    dropped: Count = 0  # records that neither the worker's disk nor its memory could hold
    in_flight: Count = 0  # requests under way when the worker was last heard
    in_flight_ns: Duration | None = (
        None  # the sum of their times by the worker's own counter, to its last word
    )
    late: bool = False
    lost: bool = False
    left: bool = False
    joined_ns: Nanoseconds | None = None
    heard_ns: Nanoseconds | None = None  # the last word or sign of life
    held_back: Count = 0  # requests that --max-in-flight made wait
    longest_held_ns: Duration = 0  # the longest wait among them
    unsent: Count = 0  # requests that were due when the load ended, and had not begun
    unsent_warmup: Count = 0  # of these, due before the measured phase
    unsent_by_class: dict[str, Count] = field(default_factory=dict)  # of the others, by their class
    cut: Count = 0  # requests under way when the drain ended
    received_seqs: str = ""  # of the batches, as ranges: 0-17 19 21-30
    faults: list[str] = field(default_factory=list)
    clock: ClockFacts | None = None
    health: NodeHealth = field(default_factory=NodeHealth)

    @property
    def missing(self) -> int:
        """Records that the worker announced and that did not come."""
        return max(0, (self.announced or 0) - self.received)

    @property
    def unrecorded(self) -> int:
        """Requests that were sent, as far as is known, and of which the run has no record."""
        return max(0, (self.announced or 0) + self.in_flight - self.received)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCall:
    """What was asked of a replica beside the load, and its answer's status; ``error`` says why there is none.

    ``at_ns`` is a time of the run's axis.
    """

    at_ns: Nanoseconds
    path: str
    target: str
    status: int | None = None
    error: str | None = None

    @property
    def done(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeFacts:
    """The process that scraped the servers' metrics: what ended it before the run did, and when on the
    run's axis; nothing where nothing did."""

    failure: str = ""
    failed_ns: Nanoseconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The facts of one run.

    Times are nanoseconds on the run's axis, the wall clock of the master as it was when its process
    began, carried on without steps: ``started_ns`` when the load was
    asked for, ``stopped_ns`` when it was told to stop, ``ended_ns`` when the last record was in
    (``None`` while that has not come). ``options`` are the run's settings as text, without
    secrets. ``stop_reason`` says which rule ended the run, where one did, or what else did that nobody
    had asked for; ``cut_short`` that it was a fault. ``targets`` are where requests went instead of to
    ``host``; ``replicas_ready`` those that were waited for, ``ready_s`` for how long.
    """

    schema: int = MANIFEST_SCHEMA
    id: str
    name: str
    started_ns: Nanoseconds
    stopped_ns: Nanoseconds | None = None
    drain_s: Measure | None = None
    drained_ns: Nanoseconds | None = None
    ended_ns: Nanoseconds | None = None
    host: str | None = None
    targets: list[str] = field(default_factory=list)
    replicas_ready: list[str] = field(default_factory=list)
    ready_s: Measure | None = None
    server_calls: list[ServerCall] = field(default_factory=list)
    model: str | None = None
    scenario: str | None = None
    scenario_document: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    command: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    slo: str = ""
    class_slos: dict[str, dict[str, Measure]] = field(default_factory=dict)
    gates: str = ""
    warmup_s: Measure = 0.0
    open_loop: bool = False
    stop_reason: str = ""
    cut_short: bool = False
    require_valid: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    workers_expected: Count = 1
    workers: list[WorkerFacts] = field(default_factory=list)
    master: NodeHealth = field(default_factory=NodeHealth)
    clock_steps: Count = 0  # times that the master's own clock was set anew; the run's time does not follow
    torn: list[str] = field(default_factory=list)  # files of frames that hold bytes which are none, and where
    messages_dropped: dict[str, dict[str, Count]] = field(default_factory=dict)  # sender -> kind -> how many
    server_metrics: ScrapeFacts | None = None
    live_check: dict[str, Any] = field(default_factory=dict)

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
        """Every worker was there to its end, and everything it announced is here, beyond doubt."""
        return (
            len(self.workers) >= self.workers_expected
            and self.workers_lost == 0
            and all(w.unrecorded == 0 and not w.faults for w in self.workers)
            and not self.torn
        )

    @property
    def records_lost(self) -> int:
        """Requests without a record: under way at a worker that died, or records that did not come."""
        return sum(w.unrecorded for w in self.workers)
