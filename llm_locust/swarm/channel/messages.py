"""Messages between workers and master, on top of Locust's channel.

Every message is a struct with bounds. :func:`read` checks a message that was received, :func:`plain` is its
inverse. Unknown fields are ignored, and a field with a default may be missing, so that versions with small
differences work together. :data:`PROTOCOL` counts the incompatible changes.
"""

import logging
from hashlib import blake2b
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from llm_locust.core.manifest import (
    MOST_REPLICA_HEADERS,
    ClockFacts,
    Count,
    Duration,
    HeaderFacts,
    Nanoseconds,
    NodeHealth,
    PrefixShare,
    StampFacts,
    WorkerFacts,
)
from llm_locust.core.record import MOST_OTHER_REQUESTS, LengthPair, OtherRequests
from llm_locust.live.state import MOST_WAITING, Waiting
from llm_locust.swarm.process.event_loop import RateLimiter

logger = logging.getLogger(__name__)

#: Protocol version: raised by one with each change after which older versions would misread a message.
PROTOCOL = 1
PACKAGE = version("llm-locust")

HELLO = "llm_hello"  # worker to master: its version
BATCH = "llm_batch"  # worker to master: one closed batch
ACK = "llm_ack"  # master to worker: the batch is in the master's file
FLUSH = "llm_flush"  # master to worker: stop the load, drain, send all batches
CUT = "llm_cut"  # master to worker: stop waiting for requests in flight
DONE = "llm_done"  # worker to master: nothing more will come of this run
REFUSED = "llm_refused"  # worker to master: this worker cannot take part in the run
END = "llm_end"  # worker to master: a user has asked for the end of the run
OVER = "llm_over"  # master to worker: the run has ended, its batches are no longer accepted
SPENT = "llm_spent"  # worker to master: its share of the run's requests is sent, and all of them have ended
RATE = "llm_rate"  # master to worker: an open loop's rate changes
STAGE = "llm_stage"  # master to worker: a stage's load begins or ends
STAGED = "llm_staged"  # worker to master: the stage's load has begun here, or its drain has ended
STRANGER = "llm_stranger"  # master to worker: this master does not know it, because it has started anew
PING = "llm_ping"  # worker to master: request for the run's time
PONG = "llm_pong"  # master to worker: the run's time
LIVE = "llm_live"  # worker to master: its last live counts of a run; a key in Locust's report before that
RESET = "llm_live_reset"  # master to worker: reset the live counts

#: Size limit of a batch in bytes: a worker keeps no more than this in memory.
MOST_FRAME_BYTES = 128 << 20

#: Size limit of a live report in bytes: enough for all keys with a sketch of every metric.
MOST_REPORT_BYTES = 8 << 20

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Text = Annotated[str, Meta(max_length=4096)]

M = TypeVar("M", bound=msgspec.Struct)


class MessageError(ValueError):
    """A message that is invalid. The text says where and why, without its content."""


def place_key(worker: str) -> str:
    """A worker's name in twelve characters: every spawn message carries those of all workers."""
    return blake2b(worker.encode(), digest_size=6).hexdigest()


class HelloMessage(msgspec.Struct, frozen=True, kw_only=True):
    """First message of a worker."""

    protocol: Count
    version: Annotated[str, Meta(max_length=64)]


class BatchMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A frame with the facts of its header, so that the master need not read it."""

    run: Name
    seq: Count
    rows: Annotated[int, Meta(ge=1, le=2**31)]
    finished: Count | None = None
    in_flight: Count | None = None
    frame: Annotated[bytes, Meta(min_length=1, max_length=MOST_FRAME_BYTES)]


class AckMessage(msgspec.Struct, frozen=True, kw_only=True):
    run: Name
    seq: Count


class RunMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Body of FLUSH, CUT and OVER."""

    run: Name


class EndMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A user has asked for the end of the run; ``code`` is what it gave ``sys.exit``, else 0."""

    run: Name
    code: Annotated[int, Meta(ge=0, le=255)] = 0


class StrangerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a heartbeat of an unknown worker; batches of the runs in ``takes`` are accepted from it."""

    takes: Annotated[list[Name], Meta(max_length=1000)] = msgspec.field(default_factory=list)


class PingMessage(msgspec.Struct, frozen=True, kw_only=True):
    number: Count
    sent_ns: Nanoseconds  # the worker's clock


class PongMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to the ping of this number; times on the run's clock."""

    number: Count
    sent_ns: Nanoseconds  # as in the ping
    received_ns: Nanoseconds
    answered_ns: Nanoseconds


class LoadCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a worker's load. Cancelled requests are neither ok nor failed."""

    ok: Count = 0
    failed: Count = 0
    waiting: Count = 0  # held back by --max-in-flight now
    held_back: Count = 0  # held back since the run's start
    longest_held_ns: Duration = 0
    backoff_waits: Count = 0  # waits of users after a failed request
    backoff_ns: Duration = 0  # sum of these waits
    spent: bool = False  # as in SPENT
    unsent: Count = 0  # due and not started when the load ended, or by now
    unsent_warmup: Count = 0  # part of ``unsent``: due before the measured phase
    unsent_by_class: Annotated[dict[Annotated[str, Meta(max_length=256)], Count], Meta(max_length=1000)] = (
        msgspec.field(default_factory=dict)
    )
    cut: Count = 0  # in flight when the drain ended
    drained_ns: Duration | None = None  # from the end of the load to the end of the drain
    until_ns: Duration | None = None  # end of the load here, in the schedule's time
    share_left: Count = 0  # of --num-requests in a closed loop: not begun


#: Counts of a worker that takes no part in a run.
NO_LOAD = LoadCounts()


class CountsMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a worker, sent with every report to the master, as :data:`SPENT`, and last as :data:`DONE`.

    ``number`` grows with each message of a worker. Locust retries a message that it could not send, so an
    older one may arrive after a newer one.
    """

    run: Name
    number: Count = 0
    finished: Count
    in_flight: Count  # without a record yet
    under_way: Count = 0  # of them: without a whole response yet
    in_flight_ns: Duration | None = None  # sum of the times that calls have been in flight
    unsent: Count = 0  # batches without acknowledgement
    dropped: Count = 0  # records that fitted neither on disk nor in memory
    load: LoadCounts = NO_LOAD
    clock: ClockFacts | None = None
    health: NodeHealth = msgspec.field(default_factory=NodeHealth)
    stamps: StampFacts | None = None
    waiting: Annotated[list[Waiting], Meta(max_length=MOST_WAITING)] = msgspec.field(default_factory=list)
    others: Annotated[list[OtherRequests], Meta(max_length=MOST_OTHER_REQUESTS)] = msgspec.field(
        default_factory=list
    )
    replica_headers: Annotated[list[HeaderFacts], Meta(max_length=MOST_REPLICA_HEADERS)] = msgspec.field(
        default_factory=list
    )


class RefusedMessage(msgspec.Struct, frozen=True, kw_only=True):
    run: Name
    reason: Text


class RateMessage(msgspec.Struct, frozen=True, kw_only=True):
    run: Name
    at_ns: Nanoseconds  # on the run's clock
    rate: Annotated[float, Meta(ge=0, le=1e9)]  # requests per second, of all workers together


class StageMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a stage, which takes effect at ``at_ns`` on the run's clock.

    ``load`` begins it, at ``rate`` in an open loop, with prompts and answers of ``lengths`` where the sweep
    sets them, or with the share of a ``prefix``. Requests due before ``measured_ns`` belong to its warm-up;
    None: not known yet. ``drain`` ends its load: what is in flight ``drain_s`` later is cut.
    """

    run: Name
    stage: Count
    step: Literal["load", "drain"]
    at_ns: Nanoseconds
    measured_ns: Nanoseconds | None = None
    rate: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    lengths: LengthPair | None = None
    prefix: PrefixShare | None = None
    drain_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0


class StagedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a step of a stage, once it is done.

    After ``drain`` nothing of the stage is in flight: ``cut`` requests were cut, ``unsent`` were due and not
    started. ``loaded``: this worker had begun the stage's load. ``finished`` requests of the run have a
    record, all of which are on their way.
    """

    run: Name
    stage: Count
    step: Literal["load", "drain"]
    loaded: bool = True
    cut: Count = 0
    unsent: Count = 0
    finished: Count = 0


class LiveMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A :class:`~llm_locust.live.worker_report.LiveReport` as bytes."""

    report: Annotated[bytes, Meta(max_length=MOST_REPORT_BYTES)]


class ResetMessage(msgspec.Struct, frozen=True, kw_only=True):
    run: Name
    epoch: Count


class RunInfo(TypedDict):
    """Facts of a run that every process needs. They travel with the options when users are spawned."""

    id: str
    protocol: int
    version: str  # version of the master's package
    seed: int
    host: str  # target of the load
    base: str  # path of the API on the host
    targets: list[str]  # base URLs that replace the host; empty without --targets
    arms: list[str]  # base URLs of the arms of a comparison, in their order; empty without
    arm_models: list[str]  # model that each of them is asked for
    model: str
    replica_header: str  # the one that told replicas apart before the load; empty if none was looked for
    salt: str  # text that makes this run's prompts unique
    path: str  # run directory at the master
    manifest: str  # first manifest, as JSON: copied into the spools
    places: list[str]  # place_key of each worker; its position is the worker's index
    starters: int  # workers at the start, which share the schedule; later ones get no share
    origin_ns: int  # start of an open loop's schedule, on the run's clock
    rate: float  # requests per second of an open loop whose rate is its number of users
    trace_scale: float | None


def read(data: object, kind: type[M]) -> M:
    """Convert received data to a message struct.

    Raises:
        MessageError: the data is invalid.
    """
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, RecursionError) as e:
        raise MessageError(str(e)[:200]) from e


def plain(message: msgspec.Struct) -> dict[str, Any]:
    """Convert a message to plain data for Locust's channel."""
    data: dict[str, Any] = msgspec.to_builtins(message, builtin_types=(bytes,))
    return data


def version_conflict(protocol: int, package: str, whose: str) -> str | None:
    """Why this process cannot work with another one; None if it can.

    Args:
        protocol: the :data:`PROTOCOL` of the other process.
        package: its version of this package.
        whose: name of the other process, for the text.
    """
    if protocol == PROTOCOL:
        return None
    return (
        f"{whose} runs llm-locust {package} (protocol {protocol}), this process {PACKAGE} (protocol "
        f"{PROTOCOL}): they are incompatible; install one version on all machines"
    )


# --- Final counts of a worker as the facts stored in its spool


def worker_facts(worker: str, index: int, counts: CountsMessage) -> WorkerFacts:
    """Facts of a worker whose part in a run is over."""
    return WorkerFacts(
        id=worker,
        index=index,
        announced=counts.finished,
        received=counts.finished - counts.dropped,
        dropped=counts.dropped,
        in_flight=counts.in_flight,
        in_flight_ns=counts.in_flight_ns,
        held_back=counts.load.held_back,
        longest_held_ns=counts.load.longest_held_ns,
        backoff_waits=counts.load.backoff_waits,
        backoff_ns=counts.load.backoff_ns,
        unsent=counts.load.unsent,
        unsent_warmup=counts.load.unsent_warmup,
        unsent_by_class=counts.load.unsent_by_class,
        cut=counts.load.cut,
        clock=counts.clock,
        health=counts.health,
        stamps=counts.stamps,
        others=counts.others,
        replica_headers=counts.replica_headers,
    )


# --- Dropped messages: counted, and logged at a bounded rate


#: Most senders that are counted separately; the others are counted as :data:`OTHERS`.
MOST_SENDERS = 100
OTHERS = "others"

#: Most pairs of sender and kind whose first message is logged at once; later ones wait for the throttle.
MOST_NAMED = 20

_LONGEST_NAME = 100


class DroppedMessages:
    """Counts of messages that were dropped in a run.

    Attributes:
        by_sender: sender -> kind of message -> how many.
    """

    def __init__(self) -> None:
        self._log_limit = RateLimiter()
        self.by_sender: dict[str, dict[str, int]] = {}

    def begin(self) -> None:
        """Start a new run: reset all counts to 0."""
        self.by_sender = {}

    def note(self, sender: str, kind: str, why: str) -> None:
        """Count one message.

        Args:
            kind: a name from a fixed set, never text from the sender.
        """
        name = printable(sender)
        if name not in self.by_sender and len(self.by_sender) >= MOST_SENDERS:
            name = OTHERS
        kinds = self.by_sender.setdefault(name, {})
        kinds[kind] = kinds.get(kind, 0) + 1
        pairs = sum(map(len, self.by_sender.values()))
        if (kinds[kind] == 1 and pairs <= MOST_NAMED) or self._log_limit.ready():
            logger.warning("a message from %s was dropped (%s, %d so far): %s", name, kind, self.total, why)

    @property
    def total(self) -> int:
        return sum(count for kinds in self.by_sender.values() for count in kinds.values())


def printable(text: str, longest: int = _LONGEST_NAME) -> str:
    """Untrusted text as one bounded line."""
    line = "".join(c if c.isprintable() else "?" for c in text[: longest + 1])
    return line if len(line) <= longest else line[: longest - 1] + "…"
