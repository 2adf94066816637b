"""What workers and master say to each other, in messages of Locust's own channel."""

from typing import Generic, Protocol, TypedDict, TypeVar

BATCH = "llm_batch"  # worker to master: one closed batch
ACK = "llm_ack"  # master to worker: the batch is in the master's file
FLUSH = "llm_flush"  # master to worker: stop your users, send what you have
DONE = "llm_done"  # worker to master: nothing more will come of this run
REFUSED = "llm_refused"  # worker to master: this run cannot be done here


T = TypeVar("T", covariant=True)


class Received(Protocol, Generic[T]):
    """A message as Locust hands it to its listener: the data, and who sent it."""

    @property
    def data(self) -> T: ...

    @property
    def node_id(self) -> str: ...


class BatchMessage(TypedDict):
    run: str
    seq: int
    rows: int
    frame: bytes


class AckMessage(TypedDict):
    run: str
    seq: int


class FlushMessage(TypedDict):
    run: str


class CountsMessage(TypedDict):
    """Rides on every report to the master, and ends a run as :data:`DONE`."""

    run: str
    finished: int
    in_flight: int
    unsent: int  # batches without an acknowledgement
    cpu_percent_max: float | None


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
