"""Facts of a manifest that only some runs have."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

#: Most trajectories of a pool, sub-agents included, and most turns of all of them: a manifest has a number
#: for each.
MOST_TRAJECTORIES, MOST_TURNS = 100_000, 1_000_000

_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Nanoseconds = Annotated[int, Meta(ge=-(2**62), le=2**62)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Seconds = Annotated[float, Meta(ge=0, le=86_400)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StampFacts:
    """Source of a worker's receive timestamps in a run.

    ``source`` is ``packet``, ``read`` or ``program``. With ``packet``: ``packets`` brought bytes of its
    connections, ``dropped`` found the capture's ring full (those of other processes' connections to the same
    server included), and ``unseen_reads`` had bytes of a packet that was not captured: they have a stamp of
    their own. ``rested`` responses were read in few pieces, because their packets were seen in the capture;
    ``rests_withdrawn`` connections that once did so showed signs that it may change what is measured.
    """

    source: Literal["packet", "read", "program"]
    packets: _Count = 0
    dropped: _Count = 0
    unseen_reads: _Count = 0
    rested: _Count = 0
    rests_withdrawn: _Count = 0


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
    failed_ns: _Nanoseconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedFacts:
    """Records that a run no longer has, because ``--keep`` dropped them after their upload: those of the
    oldest ``batches``. The last one ended at ``until_ns`` on the run's axis; ``to`` has their copy."""

    records: _Count
    batches: _Count
    until_ns: _Nanoseconds
    to: str
