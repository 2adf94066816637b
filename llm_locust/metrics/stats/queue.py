"""Whether a queue grows without end: requests come faster than they can ever be answered."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Equal parts of a span, each of which has to have its share of the growth: a burst is in some of them only.
PARTS = 6

#: The least share of a part, of the mean growth of all.
PART_OF_MEAN = 0.4

#: The backlog has to grow by this share of what arrives in a span.
GROWN = 0.06

#: And by so many standard deviations of the number of arrivals in it, were they a Poisson process.
SIGMAS = 3.0

#: A server is known once it has answered what was under way so often: this by the length of the span.
TURNED_OVER_S = 300.0

#: Halves of a span in which a server that fills up would have caught up.
CAUGHT_UP = 4


@dataclass(frozen=True, slots=True)
class QueueCount:
    """Requests since the start of a run: those that ``arrived``, under way or held back, and those that
    ``ended``."""

    arrived: int
    ended: int

    @property
    def backlog(self) -> int:
        return self.arrived - self.ended


def grows(counts: Sequence[QueueCount], span_s: float) -> bool:
    """Whether the backlog has a trend in a span, by its counts at the edges of :data:`PARTS` equal parts.

    - It grew by more than :data:`SIGMAS`·√(arrivals in the span), beyond the noise of a Poisson process, and
      by more than :data:`GROWN` of them;
    - it grew in each part, by :data:`PART_OF_MEAN` of their mean growth or more: not in a burst that is over;
    - the server does not catch up: more requests may have ended in the second half than in the first, but so
      few more that the queue would still grow after :data:`CAUGHT_UP` halves. While a load fills up or ramps
      up, ever more of them end;
    - some had ended before the first part was over, and as many have ended as were under way before it,
      :data:`TURNED_OVER_S` / span times. Until then nothing is known of the server: answers of a minute fill
      it up for minutes.
    """
    first, middle, last = counts[0], counts[PARTS // 2], counts[-1]
    if not counts[1].ended or last.ended < TURNED_OVER_S / span_s * first.backlog:
        return False
    arrived, total = last.arrived - first.arrived, last.backlog - first.backlog
    if total <= max(SIGMAS * math.sqrt(arrived), GROWN * arrived):
        return False
    gained = (last.ended - middle.ended) - (middle.ended - first.ended)
    if CAUGHT_UP * gained > last.backlog - middle.backlog:
        return False
    least = min(after.backlog - before.backlog for before, after in pairwise(counts))
    return least >= PART_OF_MEAN * total / PARTS
