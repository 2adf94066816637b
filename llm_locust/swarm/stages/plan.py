"""Which load a sweep applies next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from llm_locust.core.manifest import StageFacts
from llm_locust.core.prefix import PrefixShare
from llm_locust.core.record import LengthPair
from llm_locust.workload.arrivals import Sweep
from llm_locust.workload.arrivals.sweep import Kind


@dataclass(frozen=True, slots=True)
class Load:
    """A load to apply: a number of users, or a rate in requests/s; ``repeat`` counts how often before.

    ``lengths``: of its prompts and answers, ``prefix``: what the prompts share; None: as the run says.
    """

    kind: Kind
    value: float
    repeat: int = 0
    lengths: LengthPair | None = None
    prefix: PrefixShare | None = None


class Plan(Protocol):
    """Source of the loads of a sweep."""

    @property
    def most(self) -> int:
        """Most stages that it can have."""
        ...

    def next(self, done: Sequence[StageFacts]) -> Load | None:
        """The next load after the stages that are done; None: there is none."""
        ...


@dataclass(frozen=True, slots=True)
class ListedLoads:
    """The loads of ``--sweep``, one after the other, and all of them again for each repeat.

    Each pair of lengths has all loads before the next pair has any; ``prefixes`` are those of its shares.

    Repeats are not measured in a row: what changes during the run then differs between repeats of one load,
    and is in their interval, instead of between loads.
    """

    sweep: Sweep
    repeats: int = 1
    prefixes: Sequence[PrefixShare] = ()

    @property
    def most(self) -> int:
        return self.sweep.stages * self.repeats

    def next(self, done: Sequence[StageFacts]) -> Load | None:
        if len(done) >= self.most:
            return None
        values, lengths = self.sweep.values, self.sweep.lengths
        repeat, place = divmod(len(done), self.sweep.stages)
        pair, at = divmod(place, len(values))
        if self.prefixes:
            return Load(self.sweep.kind, values[0], repeat, prefix=self.prefixes[place])
        return Load(self.sweep.kind, values[at], repeat, lengths[pair] if lengths else None)
