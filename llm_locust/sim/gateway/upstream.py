"""A replica as seen by its gateway and its operator: its true state, and the gateway's view."""

from dataclasses import dataclass
from enum import StrEnum

from llm_locust.sim.gateway.port import Port
from llm_locust.sim.gateway.replica import Replica


class ReplicaState(StrEnum):
    """True state of a replica."""

    UP = "up"
    DRAINING = "draining"  # accepts nothing new, finishes what it has
    DOWN = "down"


@dataclass(slots=True, eq=False)
class Upstream:
    """One replica. ``base_factor`` is the factor on its steps while no plan slows it.

    ``in_rotation`` is the gateway's view, which follows the true state with a delay; ``in_flight`` counts its
    unfinished requests; ``profiling`` is set by ``/start_profile``.
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
        """Make every later step last ``factor`` times as long as normal for this replica."""
        self.replica.slow_factor = self.base_factor * factor
