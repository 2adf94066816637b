"""What the manifest keeps of the pool of an agents' run."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

#: Most trajectories of a pool, sub-agents included, and most turns of all of them: a manifest has a number
#: for each.
MOST_TRAJECTORIES, MOST_TURNS = 100_000, 1_000_000

_Share = Annotated[float, Meta(ge=0, le=1)]
_Seconds = Annotated[float, Meta(ge=0, le=86_400)]


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
