"""The error of a figure by a few long blocks, for runs that are too short to show their own memory.

The bootstrap (:mod:`~llm_locust.metrics.stats.bootstrap`) measures how long a run remembers, which takes
a hundred requests or more. A shorter run is cut into at most :data:`MOST` consecutive blocks of equal size,
and how these differ is the error, with Student's t of one degree less: the method of batch means (Schmeiser
1982). Requests under way together are one **round** and share what befalls the server, and some of it lasts
to the next one, so a block is two rounds long, or one where there are few. Fewer than :data:`FEWEST` rounds
show no error at all.

Of few independent samples the memory is underestimated too. An error is therefore taken as 1 + 4 / n times
as large, n being the number of independent samples that the run is worth, at most its rounds: by a fifth at
20, by a twenty-fifth at 100. ``make bench-compare`` shows what that is for.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from llm_locust.metrics.columns import Floats
from llm_locust.metrics.stats.intervals import CellSums
from llm_locust.metrics.stats.worth import FEWEST_BEYOND, Ends, Worth, scaled_ends, score_ends

#: Blocks that a run is cut into at most, and at least.
MOST, FEWEST = 8, 3

#: By how much the error of n independent samples is larger than it seems: 1 + _UNSEEN / n.
_UNSEEN = 4.0


def merged(cells: Floats, blocks: int) -> Floats:
    """Sums of consecutive cells in so many blocks of as equal a number as can be."""
    found: Floats = np.add.reduceat(cells, np.arange(blocks) * len(cells) // blocks)
    return found


def blocks_of(cells: int, rounds: float) -> int | None:
    """The number of blocks for so many cells of so many rounds; None where there are too few."""
    rounds = math.floor(rounds + 1e-9)
    if min(cells, rounds) < FEWEST:
        return None
    return max(FEWEST, min(MOST, cells, rounds // 2))


def unseen(worth: float) -> float:
    """By how much the error of so many independent samples is larger than it seems."""
    return 1 + _UNSEEN / max(1.0, worth)


class Remembered:
    """A course that is asked for the same sums again."""

    def __init__(self, course: CellSums) -> None:
        self._course = course
        self._at_most: dict[bytes, Floats] = {}

    @cached_property
    def counts(self) -> Floats:
        return self._course.counts

    @cached_property
    def sums(self) -> Floats:
        return self._course.sums

    def at_most(self, limits: Floats) -> Floats:
        key = limits.tobytes()
        if key not in self._at_most:
            self._at_most[key] = self._course.at_most(limits)
        return self._at_most[key]


@dataclass(frozen=True, slots=True)
class InBlocks:
    """A course whose cells are so many blocks."""

    course: CellSums
    blocks: int

    @property
    def counts(self) -> Floats:
        return merged(self.course.counts, self.blocks)

    @property
    def sums(self) -> Floats:
        return merged(self.course.sums, self.blocks)

    def at_most(self, limits: Floats) -> Floats:
        return np.array([merged(cells, self.blocks) for cells in self.course.at_most(limits)])


@dataclass(frozen=True, slots=True)
class Noise:
    """The errors of one figure: by the bootstrap over ``cells``, and by few long ``blocks``.

    ``level``: how many independent samples the run is worth for its median, in so many ``rounds``.
    """

    cells: Worth
    blocks: Worth
    level: float
    rounds: float

    @property
    def factor(self) -> float:
        return unseen(min(self.level, self.rounds))

    def mean_ends(self, value: float, confidence: float) -> Ends:
        """The interval of a mean, by the larger error."""
        error = max((self.cells.error, self.blocks.error), key=lambda each: each.reach(confidence))
        return scaled_ends(value, error, confidence, self.factor)

    def effective(self, share: float) -> float:
        """How many independent samples show the share.

        How few come together is not known: they are worth no more than the run's level.
        """
        n_eff = min(self.cells.n_eff, self.blocks.n_eff)
        if n_eff * min(share, 1 - share) < FEWEST_BEYOND:
            n_eff = min(n_eff, self.level)
        return n_eff / self.factor**2

    def share_ends(self, share: float, confidence: float) -> Ends:
        """The interval of the share of samples at or below a value, by the larger error.

        An end is 0 or 1 where so few samples might all lie on one side of it (Wilks 1941).
        """
        beyond = (1 - confidence) / 2
        worth = max((self.cells, self.blocks), key=lambda each: each.t(confidence) / math.sqrt(each.n_eff))
        n_eff = self.effective(share)
        low, high = score_ends(share, n_eff, worth.t(confidence))
        return low if (1 - share) ** n_eff <= beyond else 0.0, high if share**n_eff <= beyond else 1.0


def of_none(n: float, confidence: float) -> float:
    """The upper bound of a share of which none of ``n`` independent samples was seen.

    1 − ((1 − confidence) / 2)^(1/n), Clopper and Pearson's (1934): about 3 / n for 90 %.
    """
    return 1 - math.pow((1 - confidence) / 2, 1 / max(n, 1e-9))


def normal_t(confidence: float) -> float:
    """The two-sided quantile of the normal distribution."""
    return NormalDist().inv_cdf((1 + confidence) / 2)
