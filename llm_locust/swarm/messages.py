"""What workers and master say to each other, in messages of Locust's own channel."""

from typing import Generic, Protocol, TypedDict, TypeVar

BATCH = "llm_batch"  # worker to master: one closed batch
ACK = "llm_ack"  # master to worker: the batch is in the master's file
FLUSH = "llm_flush"  # master to worker: stop your users, send what you have
DONE = "llm_done"  # worker to master: nothing more will come of this run
REFUSED = "llm_refused"  # worker to master: this run cannot be done here
OVER = "llm_over"  # master to worker: the run has ended, its batches are taken no more
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


class CountsMessage(TypedDict):
    """Rides on every report to the master, and ends a run as :data:`DONE`."""

    run: str
    finished: int
    in_flight: int
    unsent: int  # batches without an acknowledgement
    dropped: int  # records that neither disk nor memory could hold
    clock: dict[str, int] | None  # fields of ClockFacts
    health: dict[str, float | None]  # fields of NodeHealth


class RefusedMessage(TypedDict):
    run: str
    reason: str


class RunInfo(TypedDict):
    """What every process needs to know of a run; travels with the options when users are spawned."""

    id: str
    seed: int
    host: str  # where the load goes
    base: str  # the API's path on the host
    model: str
    salt: str  # makes this run's prompts differ from any other's
    path: str  # the run directory at the master
    manifest: str  # as it is at the beginning, JSON: goes into the spools
    places: list[str]  # place_key of each worker, in order: its position is the worker's index
