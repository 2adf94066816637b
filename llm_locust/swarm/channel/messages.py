"""What workers and master say to each other, in messages of Locust's own channel.

Every message is a struct with bounds: :func:`read` checks what came, :func:`plain` is its inverse. A field
that this version does not know is ignored, and one with a default may be missing: versions that differ by
little understand each other. :data:`PROTOCOL` counts the changes that they could not.
"""

from importlib.metadata import version
from typing import Annotated, Any, Generic, Protocol, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from llm_locust.core.manifest import ClockFacts, Count, Duration, Nanoseconds, NodeHealth

#: Raised by one with each change after which older versions would misread a message.
PROTOCOL = 1
PACKAGE = version("llm-locust")

HELLO = "llm_hello"  # worker to master: which version it is
BATCH = "llm_batch"  # worker to master: one closed batch
ACK = "llm_ack"  # master to worker: the batch is in the master's file
FLUSH = "llm_flush"  # master to worker: end your load, drain, send what you have
CUT = "llm_cut"  # master to worker: wait no longer for the requests under way
DONE = "llm_done"  # worker to master: nothing more will come of this run
REFUSED = "llm_refused"  # worker to master: this run cannot be done here
OVER = "llm_over"  # master to worker: the run has ended, its batches are taken no more
SPENT = "llm_spent"  # worker to master: its share of the run's requests is sent, and all of them are over
RATE = "llm_rate"  # master to worker: an open loop's rate changes
PING = "llm_ping"  # worker to master: what time is it on the run's clock?
PONG = "llm_pong"  # master to worker: it is this
LIVE = "llm_live"  # worker to master: its last live counts of a run; a key in Locust's report before
RESET = "llm_live_reset"  # master to worker: count the live numbers anew

#: No batch is larger: a worker keeps no more than this in memory.
MOST_FRAME_BYTES = 128 << 20

#: A report of all live counts, each key with a sketch of every metric, takes less.
MOST_REPORT_BYTES = 8 << 20

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Text = Annotated[str, Meta(max_length=4096)]

T = TypeVar("T", covariant=True)
M = TypeVar("M", bound=msgspec.Struct)


class MessageError(ValueError):
    """A message that does not fit; the text says where and why, without its content."""


class Received(Protocol, Generic[T]):
    """A message as Locust hands it to its listener: the data, and who sent it."""

    @property
    def data(self) -> T: ...

    @property
    def node_id(self) -> str: ...


class HelloMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Sent when a worker is there."""

    protocol: Count
    version: Annotated[str, Meta(max_length=64)]


class BatchMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A frame with what its header says, so that the master need not read it."""

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
    """FLUSH, CUT and OVER."""

    run: Name


class PingMessage(msgspec.Struct, frozen=True, kw_only=True):
    number: Count
    sent_ns: Nanoseconds  # the worker's clock


class PongMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Answers the ping of this number; times of the run's clock."""

    number: Count
    sent_ns: Nanoseconds  # as in the ping
    received_ns: Nanoseconds
    answered_ns: Nanoseconds


class LoadCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker's load goes. Those cancelled are neither ok nor failed."""

    ok: Count = 0
    failed: Count = 0
    waiting: Count = 0  # held back by --max-in-flight now,
    held_back: Count = 0  # and since the run's start
    longest_held_ns: Duration = 0
    spent: bool = False  # as SPENT says
    unsent: Count = 0  # due and not begun when the load ended, or now,
    unsent_warmup: Count = 0  # of these before the measured phase,
    unsent_by_class: Annotated[dict[Annotated[str, Meta(max_length=256)], Count], Meta(max_length=1000)] = (
        msgspec.field(default_factory=dict)
    )
    cut: Count = 0  # under way when the drain ended
    drained_ns: Duration | None = None  # from the load's end to the drain's


#: Of a worker that has no part in a run.
NO_LOAD = LoadCounts()


class CountsMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Rides on every report to the master, and ends a run as :data:`DONE`; sent as :data:`SPENT` too.

    ``number`` grows with each one that a worker makes: Locust sends again what it could not send at once,
    so that an older one may come behind a newer.
    """

    run: Name
    number: Count = 0
    finished: Count
    in_flight: Count
    in_flight_ns: Duration | None = None  # the sum of the times that calls have been under way
    unsent: Count = 0  # batches without an acknowledgement
    dropped: Count = 0  # records that neither disk nor memory could hold
    load: LoadCounts = NO_LOAD
    clock: ClockFacts | None = None
    health: NodeHealth = msgspec.field(default_factory=NodeHealth)


class RefusedMessage(msgspec.Struct, frozen=True, kw_only=True):
    run: Name
    reason: Text


class RateMessage(msgspec.Struct, frozen=True, kw_only=True):
    run: Name
    at_ns: Nanoseconds  # of the run's clock
    rate: Annotated[float, Meta(ge=0, le=1e9)]  # requests per second of all workers together


class LiveMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A :class:`~llm_locust.live.messages.LiveReport` as bytes."""

    report: Annotated[bytes, Meta(max_length=MOST_REPORT_BYTES)]


class ResetMessage(msgspec.Struct, frozen=True, kw_only=True):
    run: Name
    epoch: Count


class RunInfo(TypedDict):
    """What every process needs to know of a run; travels with the options when users are spawned."""

    id: str
    protocol: int
    version: str  # of the master's package
    seed: int
    host: str  # where the load goes
    base: str  # the API's path on the host
    targets: list[str]  # base URLs that requests go to instead; empty without --targets
    model: str
    salt: str  # makes this run's prompts differ from any other's
    path: str  # the run directory at the master
    manifest: str  # as it is at the beginning, JSON: goes into the spools
    places: list[str]  # place_key of each worker, in order: its position is the worker's index
    starters: int  # workers at the run's start, who share its schedule; late joiners have no part
    origin_ns: int  # of the run's clock: when an open loop's schedule begins
    rate: float  # of an open loop whose users are its rate, requests per second
    trace_scale: float | None


def read(data: object, kind: type[M]) -> M:
    """The message that came, as the struct that it has to be.

    Raises:
        MessageError: it does not fit.
    """
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, RecursionError) as e:
        raise MessageError(str(e)[:200]) from e


def plain(message: msgspec.Struct) -> dict[str, Any]:
    """The message as Locust's channel takes it."""
    data: dict[str, Any] = msgspec.to_builtins(message, builtin_types=(bytes,))
    return data


def version_conflict(protocol: int, package: str, whose: str) -> str | None:
    """Why another process cannot be worked with; None where it can.

    Args:
        protocol: the :data:`PROTOCOL` of the other process.
        package: its version of this package.
        whose: what the other process is called.
    """
    if protocol == PROTOCOL:
        return None
    return (
        f"{whose} runs llm-locust {package} (protocol {protocol}), this process {PACKAGE} (protocol "
        f"{PROTOCOL}): they do not understand each other; install one version on all machines"
    )
