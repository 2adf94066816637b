"""Where a worker's receive timestamps came from, as the manifest has it."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

_Count = Annotated[int, Meta(ge=0, le=2**53)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StampFacts:
    """Source of a worker's receive timestamps in a run.

    ``source`` is ``packet``, ``read`` or ``program``. With ``packet``: ``packets`` brought bytes of its
    connections, ``dropped`` found the capture's ring full (those of other processes' connections to the same
    server included), and ``unseen_reads`` had bytes of a packet that was not captured: they have a stamp of
    their own.
    """

    source: Literal["packet", "read", "program"]
    packets: _Count = 0
    dropped: _Count = 0
    unseen_reads: _Count = 0
