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
    """Source of a worker's receive timestamps in a run, and its reader of sockets.

    ``source`` is ``kernel`` or ``program``. ``reader`` is ``c``, a thread that no interpreter can hold up, or
    ``python``. Runs of before 0.2 have the sources ``packet`` and ``read``, which are the kernel's too.
    """

    source: Literal["kernel", "program", "packet", "read"]
    reader: Literal["c", "python"] = "python"


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
