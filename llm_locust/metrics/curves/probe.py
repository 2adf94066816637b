"""One stage of a search: its load, and how many of its requests were within each limit."""

import math
from dataclasses import dataclass
from enum import StrEnum

from llm_locust.metrics.stats.worth import Ends, share_ends

#: 95 %, two-sided.
_Z = 1.959963984540054


class Shown(StrEnum):
    """What a stage shows about a limit, by the 95 % interval of its share."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True, slots=True)
class ProbeReading:
    """``hits`` of ``n`` requests were within a limit; they are worth ``n_eff`` independent ones.

    ``certified`` is the share of ``n`` that a certificate needs; None of a limit without one.
    """

    hits: int
    n: int
    n_eff: float
    certified: float | None = None

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: the counts contradict each other.
        """
        if not (0 <= self.hits <= self.n and self.n >= 1 and 0 < self.n_eff <= self.n):
            raise ValueError(f"{self.hits} of {self.n} requests, worth {self.n_eff}: that is not a share")

    @property
    def share(self) -> float:
        return self.hits / self.n

    @property
    def ends(self) -> Ends:
        """Wilson's 95 % interval of the share, with the correction for continuity."""
        return share_ends(self.share, self.n_eff, _Z)

    def is_within(self, required: float) -> bool:
        """Whether the share is as required, by what was counted alone; a certificate has its own."""
        return self.share >= (required if self.certified is None else self.certified)

    def beside(self, required: float) -> float:
        """The share, less what a certificate needs beyond ``required``."""
        return self.share if self.certified is None else max(0.0, self.share - (self.certified - required))

    def shows(self, required: float) -> Shown:
        low, high = self.ends
        if self.is_within(required) if self.certified is not None else low >= required:
            return Shown.HOLDS
        return Shown.BROKEN if high < required else Shown.UNRESOLVED


@dataclass(frozen=True, slots=True)
class GoodRate:
    """Good requests/s of a stage and their standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, found: ProbeReading, per_s: float, *, is_counted: bool) -> "GoodRate":
        """By the share of good requests.

        Args:
            per_s: requests/s that the share is of.
            is_counted: they are as many as the server let through, with the error of a count; not asked for.
        """
        low, high = found.ends
        of_count = found.share / math.sqrt(found.n) if is_counted else 0.0
        return cls(found.share * per_s, per_s * math.hypot((high - low) / 2 / _Z, of_count))


@dataclass(frozen=True, slots=True)
class Probe:
    """A stage at one ``load``, with a reading for each limit of the objective.

    ``saturated``: requests were due faster than they ended; ``good`` then falls the longer it lasts.

    ``no_result`` says why the stage shows nothing of the server (too few requests, not steady, not run); its
    readings are not used. ``client`` says in what the client was the limit: a server is not judged by what
    its client could not do.
    """

    load: float
    readings: tuple[ProbeReading, ...] = ()
    no_result: str = ""
    client: str = ""
    good: GoodRate | None = None
    saturated: bool = False

    @property
    def counts(self) -> bool:
        """Whether the search may use its readings."""
        return bool(self.readings) and not self.no_result and not self.client

    def breaks(self, required: tuple[float, ...]) -> bool:
        """Whether a share is below what is required, by what was counted alone."""
        return not all(r.is_within(share) for r, share in zip(self.readings, required, strict=True))

    def shows(self, required: tuple[float, ...]) -> Shown:
        """Broken if any limit is, holds if all do."""
        found = [reading.shows(share) for reading, share in zip(self.readings, required, strict=True)]
        if Shown.BROKEN in found:
            return Shown.BROKEN
        return Shown.UNRESOLVED if Shown.UNRESOLVED in found else Shown.HOLDS
