"""A replica as its gateway and its operator see it: what it is, and what is thought of it."""

from dataclasses import dataclass
from enum import StrEnum

from llm_locust.sim.gateway.port import Port
from llm_locust.sim.gateway.replica import Replica


class ReplicaState(StrEnum):
    """What a replica truly does."""

    UP = "up"
    DRAINING = "draining"  # takes nothing new, finishes what it has
    DOWN = "down"


@dataclass(slots=True, eq=False)
class Upstream:
    """One replica. ``base_factor``: how much longer its steps last while no plan slows it.

    ``in_rotation`` is the gateway's opinion, which follows the truth with a delay; ``in_flight`` counts
    the requests that it has and that are not over; ``profiling``: by ``/start_profile``.
    """

    replica: Replica
    base_factor: float = 1.0
    port: Port | None = None
    state: ReplicaState = ReplicaState.UP
    in_rotation: bool = True
    in_flight: int = 0
    profiling: bool = False

    def __post_init__(self) -> None:
        self.slow(1.0)

    @property
    def name(self) -> str:
        return self.replica.name

    def slow(self, factor: float) -> None:
        """Every later step lasts ``factor`` times as long as this replica's own ones do."""
        self.replica.slow_factor = self.base_factor * factor
