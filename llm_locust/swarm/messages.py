"""What workers and master say to each other, in messages of Locust's own channel."""

from typing import Any, Generic, Protocol, TypedDict, TypeVar

BATCH = "llm_batch"  # worker to master: one closed batch
ACK = "llm_ack"  # master to worker: the batch is in the master's file
FLUSH = "llm_flush"  # master to worker: stop your users, send what you have
DONE = "llm_done"  # worker to master: nothing more will come of this run
REFUSED = "llm_refused"  # worker to master: this run cannot be done here
OVER = "llm_over"  # master to worker: the run has ended, its batches are taken no more
SPENT = "llm_spent"  # worker to master: its share of the run's requests is sent, and all of them are over
RATE = "llm_rate"  # master to worker: an open loop's rate changes
PING = "llm_ping"  # worker to master: what time is it on the run's axis?
PONG = "llm_pong"  # master to worker: it is this


T = TypeVar("T", covariant=True)


class Received(Protocol, Generic[T]):
    """A message as Locust hands it to its listener: the data, and who sent it."""

    @property
    def data(self) -> T: ...

    @property
    def node_id(self) -> str: ...


class BatchMessage(TypedDict):
    """A frame with what its header says, so that the master need not read it."""

    run: str
    seq: int
    rows: int
    finished: int | None
    in_flight: int | None
    frame: bytes


class AckMessage(TypedDict):
    run: str
    seq: int


class RunMessage(TypedDict):
    """FLUSH and OVER."""

    run: str


class PingMessage(TypedDict):
    number: int
    sent_ns: int  # the worker's clock


class PongMessage(TypedDict):
    """Answers the ping of this number; times of the run's axis."""

    number: int
    sent_ns: int  # as in the ping
    received_ns: int
    answered_ns: int


class LoadCounts(TypedDict):
    """How a worker's load goes. Those cancelled are neither ok nor failed."""

    ok: int
    failed: int
    waiting: int  # held back by --max-in-flight now,
    held_back: int  # and since the run's start
    longest_held_ns: int
    spent: bool  # as SPENT says


#: Of a worker that has no part in a run.
NO_LOAD = LoadCounts(ok=0, failed=0, waiting=0, held_back=0, longest_held_ns=0, spent=False)


class CountsMessage(TypedDict):
    """Rides on every report to the master, and ends a run as :data:`DONE`; sent as :data:`SPENT` too."""

    run: str
    finished: int
    in_flight: int
    unsent: int  # batches without an acknowledgement
    dropped: int  # records that neither disk nor memory could hold
    load: LoadCounts
    clock: dict[str, int] | None  # fields of ClockFacts
    health: dict[str, Any]  # the fields of NodeHealth


class RefusedMessage(TypedDict):
    run: str
    reason: str


class RateMessage(TypedDict):
    run: str
    at_ns: int  # of the run's axis
    rate: float  # requests per second of all workers together


class RunInfo(TypedDict):
    """What every process needs to know of a run; travels with the options when users are spawned."""

    id: str
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
    origin_ns: int  # of the run's axis: when an open loop's schedule begins
    rate: float  # of an open loop whose users are its rate, requests per second
    trace_scale: float | None
