"""Facts of a run in addition to its requests: the content of ``manifest.json``."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from string import hexdigits
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import urlsplit

from msgspec import Meta
from msgspec.json import Decoder

from llm_locust.core.record import MAX_TOKENS, MOST_OTHER_REQUESTS, LengthPair, OtherRequests, Tokens

# --- Plain values of ``llm_locust.store``, from workers and files: numbers beyond their bounds are refused


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


# --- Facts of a prefix-cache experiment: what a stage's prompts share, and the servers' caches before it


#: Tokens of a block of a prefix cache, as vLLM has it: only whole blocks are found.
BLOCK_TOKENS = 16

#: Tokens at the end of each prompt that it has for itself, at least.
LEAST_OWN = 2 * BLOCK_TOKENS

#: Most shared prefixes: each is sent to every replica before each stage.
MOST_PREFIXES = 10_000

#: Most replicas whose caches are prepared.
MOST_REPLICAS = 10_000

#: Most tokens that a replica's counters may have grown by during a stage.
MOST_COUNTED = 1e15

_Tokens = Annotated[float, Meta(ge=0, le=MOST_COUNTED)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixShare:
    """A share of each prompt's ``input_tokens`` that is one of ``prefixes`` shared texts.

    ``asked`` is the share, ``tokens`` the length of such a text: whole blocks.
    """

    asked: Annotated[float, Meta(ge=0, lt=1)]
    tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
    input_tokens: Tokens
    prefixes: Annotated[int, Meta(ge=1, le=MOST_PREFIXES)]

    @classmethod
    def of(cls, asked: float, input_tokens: int, prefixes: int) -> "PrefixShare":
        """The share in the nearest number of whole blocks that leaves :data:`LEAST_OWN` tokens.

        Raises:
            ValueError: that is no block.
        """
        most = max(0, input_tokens - LEAST_OWN) // BLOCK_TOKENS
        blocks = min(most, round(asked * input_tokens / BLOCK_TOKENS))
        if asked and not blocks:
            raise ValueError(
                f"{asked:.4g} of {input_tokens} tokens is not one block of {BLOCK_TOKENS}, with {LEAST_OWN} "
                "tokens of each prompt's own: ask for longer prompts, or a larger share"
            )
        tokens = blocks * BLOCK_TOKENS
        return cls(asked=asked, tokens=tokens, input_tokens=input_tokens, prefixes=prefixes)

    def __str__(self) -> str:
        """As it is written in ``--sweep``: ``50%``."""
        return f"{self.asked * 100:.6g}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCache:
    """What was done with the prefix cache of a replica before a stage.

    One prompt was sent ``before`` its flush, ``after`` it, and ``again``: how many of its tokens the answer
    says were cached; None: it does not say. Then ``primed`` shared prefixes were sent. ``hits`` of
    ``queries`` tokens were found from then to the end of the stage, by the replica's own counters; None: it
    has none, or ``uncounted`` is why they do not say it. ``engines`` answer at its URL, as far as is known,
    each with a cache of its own. ``fault`` is why the stage is not a result, or empty.
    """

    target: str
    before: Count | None = None
    after: Count | None = None
    again: Count | None = None
    primed: Count = 0
    hits: _Tokens | None = None
    queries: _Tokens | None = None
    engines: Count = 1
    uncounted: str = ""
    fault: str = ""

    @property
    def shows_flush(self) -> bool:
        """Whether answers show that the flush worked: a prompt that was sent twice after it had more hits.

        Without that a miss after the flush shows nothing: the server may never report hits.
        """
        return (self.again or 0) > (self.after or 0)


# --------------------
# Response headers that may name the replica: how many values each had in the answers to a worker.
#
# A balancer that puts its own name into one header and the replica's into another leaves it open which of
# them tells replicas apart. Their values say so.
# --------------------


#: Most headers, and most different values of one, that are kept apart.
MOST_REPLICA_HEADERS, MOST_HEADER_VALUES = 16, 64

_Digest = Annotated[int, Meta(ge=0, lt=2**32)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderFacts:
    """One header in ``answers`` answers.

    ``value`` is the first of its values, ``values`` the CRC-32 of each. With ``more`` there were more than
    those.
    """

    name: Annotated[str, Meta(max_length=200)]
    answers: Count
    value: Annotated[str, Meta(max_length=200)] = ""
    values: Annotated[list[_Digest], Meta(max_length=MOST_HEADER_VALUES)]
    more: bool = False


def together(found: Iterable[HeaderFacts]) -> list[HeaderFacts]:
    """The headers of several workers as those of one, by name; each as early as in the first that had it."""
    places: dict[str, list[HeaderFacts]] = {}
    for each in found:
        places.setdefault(each.name, []).append(each)
    return [_merged(each) for each in list(places.values())[:MOST_REPLICA_HEADERS]]


def _merged(found: list[HeaderFacts]) -> HeaderFacts:
    values = sorted({value for each in found for value in each.values})
    return HeaderFacts(
        name=found[0].name,
        answers=sum(each.answers for each in found),
        value=found[0].value,
        values=values[:MOST_HEADER_VALUES],
        more=len(values) > MOST_HEADER_VALUES or any(each.more for each in found),
    )


def better_header(found: Iterable[HeaderFacts]) -> HeaderFacts | None:
    """The header that tells replicas apart where the one in use has one value in all answers.

    In use is the first of ``found`` that answers had. A better one has several values in at least half as
    many answers, each in two of them on average: a value that is new in each answer names no replica. Of
    several the one with the most values; None if there is no such header.
    """
    seen = [each for each in found if each.answers]
    if not seen or len(seen[0].values) != 1 or seen[0].more:
        return None
    apart = [
        each
        for each in seen[1:]
        if 1 < len(each.values) <= each.answers / 2 and 2 * each.answers >= seen[0].answers and not each.more
    ]
    return max(apart, key=lambda each: len(each.values), default=None)


# --- Facts of a manifest that only some runs have


#: Most trajectories of a pool, sub-agents included, and most turns of all of them: a manifest has a number
#: for each.
MOST_TRAJECTORIES, MOST_TURNS = 100_000, 1_000_000

_Share = Annotated[float, Meta(ge=0, le=1)]
_Seconds = Annotated[float, Meta(ge=0, le=86_400)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StampFacts:
    """Source of a worker's receive timestamps in a run, and its reader of sockets.

    ``source`` is ``kernel`` or ``program``. ``reader`` is ``c``, a thread that no interpreter can hold up, or
    ``python``. Runs of before 0.2 have the sources ``packet`` and ``read``, which are the kernel's too.
    """

    source: Literal["kernel", "program", "packet", "read"]
    reader: Literal["c", "python"] = "python"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryFacts:
    """The pool: one entry per trajectory, sub-agents after the first ``roots``.

    ``possible`` is the share of each turn's prompt that a prefix cache can have at best, ``pauses_s`` the
    recorded pause after each turn.
    """

    ids: Annotated[list[str], Meta(max_length=MOST_TRAJECTORIES)]
    roots: Annotated[int, Meta(ge=0)]
    possible: Annotated[list[list[_Share]], Meta(max_length=MOST_TRAJECTORIES)]
    pauses_s: Annotated[list[list[_Seconds]], Meta(max_length=MOST_TRAJECTORIES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeFacts:
    """What ended the scraper of the servers' metrics before the run did, and when on the run's
    axis, if so."""

    failure: str = ""
    failed_ns: Nanoseconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedFacts:
    """Records that a run no longer has, because ``--keep`` dropped them after their upload: those of the
    oldest ``batches``. The last one ended at ``until_ns`` on the run's axis; ``to`` has their copy."""

    records: Count
    batches: Count
    until_ns: Nanoseconds
    to: str


# --- Arms of an interleaved comparison, as the manifest of a run has them


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFacts:
    """A target of an interleaved comparison.

    Attributes:
        share: of all requests that it was to get.
        model: that it was asked for.
        differs_in: in what its requests differ from those of the run, in words without secrets.
    """

    name: str
    url: str
    share: Annotated[float, Meta(ge=0, le=1)]
    model: str = ""
    differs_in: tuple[str, ...] = ()


# --- Exceptions of a locustfile's tasks, as the manifest lists them


#: Most kinds that are kept apart, the entry for the rest included.
MOST_TASK_EXCEPTIONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskException:
    """An exception that a task of the locustfile raised ``count`` times.

    ``error`` is its type and text, ``where`` the innermost line of its traceback that is the locustfile's, as
    ``file:line in function``.
    """

    error: Annotated[str, Meta(max_length=500)]
    where: Annotated[str, Meta(max_length=300)] = ""
    count: Count = 1


def task_exceptions(kinds: Counter[tuple[str, str]]) -> list[TaskException]:
    """The counts of (error, where) as the manifest lists them: most frequent first, the rest as one entry."""
    ranked = sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))
    most = MOST_TASK_EXCEPTIONS if len(ranked) <= MOST_TASK_EXCEPTIONS else MOST_TASK_EXCEPTIONS - 1
    found = [TaskException(error=error, where=where, count=n) for (error, where), n in ranked[:most]]
    if rest := sum(n for _, n in ranked[most:]):
        found.append(TaskException(error="other exceptions", count=rest))
    return found


# --- The commit and the pipeline that a run belongs to, as the usual services say in the environment


_LONGEST_URL = 500

#: Variables of a commit, by service; of a page of the job, unless it is put together.
_COMMITS = (
    "GITHUB_SHA",
    "CI_COMMIT_SHA",  # GitLab
    "BUILDKITE_COMMIT",
    "CIRCLE_SHA1",
    "BUILD_SOURCEVERSION",  # Azure
    "GIT_COMMIT",  # Jenkins
)
_PAGES = ("CI_JOB_URL", "BUILDKITE_BUILD_URL", "CIRCLE_BUILD_URL", "BUILD_URL")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFacts:
    """``commit`` in hexadecimal digits, and the address of the job's page; empty if not known."""

    commit: Annotated[str, Meta(max_length=64, pattern="^[0-9a-fA-F]*$")] = ""
    url: Annotated[str, Meta(max_length=_LONGEST_URL)] = ""


def pipeline_of(environ: Mapping[str, str]) -> PipelineFacts:
    """The facts of a process's environment. What is no commit or no plain address is left out."""
    commit = next((environ[name] for name in _COMMITS if _is_commit(environ.get(name, ""))), "")
    page = next((environ[name] for name in _PAGES if is_page(environ.get(name, ""))), "")
    return PipelineFacts(commit=commit, url=_github(environ) or page)


def _github(environ: Mapping[str, str]) -> str:
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    server, repository, run = (environ.get(name, "") for name in names)
    url = f"{server}/{repository}/actions/runs/{run}"
    return url if repository and run and is_page(url) else ""


def _is_commit(text: str) -> bool:
    return 7 <= len(text) <= 64 and set(text) <= set(hexdigits)


def is_page(text: str) -> bool:
    """Whether a text is the address of a page: of HTTP, without credentials, blanks and brackets."""
    if not 0 < len(text) <= _LONGEST_URL or not text.isprintable() or set(text) & set(' <>"\\`'):
        return False
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc


MANIFEST_SCHEMA = 1

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

    @property
    def placing_error_ns(self) -> int:
        """How far a record may be from its place on the run's axis.

        An offset within its own error is not added to any time (see
        :func:`~llm_locust.store.frames.axis_offsets_ns`), so it is missing by itself and by its error.
        """
        missing_ns = abs(self.offset_ns)
        return self.error_ns + (missing_ns if missing_ns <= self.error_ns else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCell:
    """State of a process during ``seconds``, which ended ``at_s`` after the epoch by its own clock.
    ``cpu_percent`` is the largest mean of an interval in it; the other figures cover all of it.
    ``steal_percent`` is a share of the CPU time that the machine wanted, ``throttled_percent`` of the periods
    of its CPU limit, ``run_queue_percent`` the time in which its threads waited for a core, of the time that
    went by. ``paused_ms_max`` is the longest time in which no thread of it ran at all; short ones are 0.
    """

    at_s: Measure
    seconds: Measure
    cpu_percent: Measure
    hub_lag_ms_p99: Measure | None = None
    hub_lag_ms_max: Measure | None = None
    paused_ms_max: Measure | None = None
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
            paused_ms_max=most(self.paused_ms_max, after.paused_ms_max),
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
    paused_ms_max: Measure | None = None
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

    def had_records(self, rows: int) -> int:
        """Records that a run had of which ``rows`` are left: those that were dropped too."""
        return rows + (0 if self.dropped is None else self.dropped.records)

    def requests_lost(self, rows: int) -> int:
        """Requests of the whole run without a record: lost at the workers, or received but neither in
        ``rows`` nor dropped."""
        return self.records_lost + max(0, self.records_received - self.had_records(rows))

    def requests_unsent(self, warmup_s: float) -> int:
        """Requests of a schedule that were due after the warm-up, and were never sent.

        For those in the run's own warm-up the time is unknown: if less is left out, all of them count.
        """
        shorter = warmup_s < self.warmup_s
        return sum(w.unsent - (0 if shorter else w.unsent_warmup) for w in self.workers)

    def unsent_by_class(self, warmup_s: float) -> dict[str, int] | None:
        """The same by class; None if the class of some is unknown."""
        counts: Counter[str] = Counter()
        for worker in self.workers:
            counts.update(worker.unsent_by_class)
        return dict(counts) if counts.total() == self.requests_unsent(warmup_s) else None


# msgspec learns a type at its first use, and the process crashes if two threads do so at once. So what
# several threads read has a decoder that is made at import.

#: Of ``manifest.json``.
MANIFEST_DECODER = Decoder(Manifest)
#: Of a worker's last word.
WORKER_FACTS_DECODER = Decoder(WorkerFacts)
