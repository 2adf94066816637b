"""What ends a run before its time: a number of requests, and rules on how it goes.

Rules are written as text, several of them with a comma between:

=============================== ===================================================================
``error_rate>20% over 30s``     of the requests that ended in the last 30 s, :data:`LEAST_ENDED` at
                                least, more than 20 % failed
``oversaturation``              the queue grows without end, see :class:`Oversaturation`
=============================== ===================================================================
"""

import math
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from llm_locust.core.durations import parse_time

ALLOWED_RULES = '"error_rate>20% over 30s" or "oversaturation", with a comma between several'

#: A share of fewer requests says nothing.
LEAST_ENDED = 10

#: Over-saturation is looked for in three parts of this length each.
PART_S = 10.0

#: The backlog has to grow by so many seconds' worth of arrivals in the three parts.
GROWN_S = 5.0

#: The rule's name, with which its reason begins.
OVERSATURATION = "oversaturation"

_ERROR_RATE = re.compile(
    r"error_rate\s*>\s*(?P<share>[0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%(?:\s*over\s+(?P<time>\S+))?"
)


class Totals(NamedTuple):
    """Counts since the run's start, over all workers.

    ``ok`` and ``failed`` have ended and are judged; ``ended`` counts the cancelled ones too. ``backlog``
    is what is under way or held back now.
    """

    ok: int = 0
    failed: int = 0
    ended: int = 0
    backlog: int = 0

    @property
    def arrived(self) -> int:
        return self.ended + self.backlog


class Sample(NamedTuple):
    at_s: float
    totals: Totals


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """More than ``share`` (0 .. 1) of the requests that ended within ``over_s`` failed."""

    share: float
    over_s: float

    @property
    def span_s(self) -> float:
        return self.over_s

    def broken(self, samples: Sequence[Sample]) -> str | None:
        """Why the run has to stop, given samples that reach back over ``over_s``; None: it has not."""
        first, last = _since(samples, self.over_s), samples[-1].totals
        failed, ok = last.failed - first.totals.failed, last.ok - first.totals.ok
        ended = failed + ok
        if ended < LEAST_ENDED or failed <= self.share * ended:
            return None
        return (
            f"error_rate>{self.share:.4g} over {self.over_s:g}s: of the {ended} requests that ended in the "
            f"last {self.over_s:g} s, {failed} failed ({100 * failed / ended:.1f} %)"
        )


@dataclass(frozen=True, slots=True)
class Oversaturation:
    """Requests come faster than the server can ever answer them, so that their queue has no end.

    The backlog is what is under way or held back. In three successive parts of :data:`PART_S` each

    - it grew in every one by more than 4·√(arrivals in the part), four times the noise of a Poisson
      process, and in all three by more than :data:`GROWN_S` seconds' worth of arrivals;
    - the server no longer catches up: in the last part no more requests ended than in the one before,
      but for 2·√ of it. While a load fills up or ramps up, ever more of them end;
    - some had ended before the first part was over. Until then nothing is known of the server.
    """

    @property
    def span_s(self) -> float:
        return 3 * PART_S

    def broken(self, samples: Sequence[Sample]) -> str | None:
        """As :meth:`ErrorRate.broken`."""
        points = [_since(samples, n * PART_S).totals for n in (3, 2, 1)] + [samples[-1].totals]
        parts = list(pairwise(points))
        grown = [after.backlog - before.backlog for before, after in parts]
        arrived = [after.arrived - before.arrived for before, after in parts]
        ended = [after.ended - before.ended for before, after in parts]
        rate = sum(arrived) / self.span_s
        grows = all(g > 4 * math.sqrt(max(a, 1)) for g, a in zip(grown, arrived, strict=True))
        catches_up = ended[2] > ended[1] + 2 * math.sqrt(ended[1])
        if not grows or sum(grown) <= GROWN_S * rate or catches_up or not points[1].ended:
            return None
        return (
            f"{OVERSATURATION}: in the last {self.span_s:g} s {rate:.4g} requests/s came and "
            f"{sum(ended) / self.span_s:.4g}/s ended; those under way or held back grew from "
            f"{points[0].backlog} to {points[3].backlog}"
        )


StopRule = ErrorRate | Oversaturation


def parse_stop_rules(text: str) -> tuple[StopRule, ...]:
    """The rules of a text, in the module's grammar (raises ValueError with the wrong one)."""
    return tuple(_rule(word.strip()) for word in text.split(",") if word.strip())


def _rule(word: str) -> StopRule:
    if word == OVERSATURATION:
        return Oversaturation()
    match = _ERROR_RATE.fullmatch(word)
    if match is None:
        raise ValueError(f"stop rule {word!r}: allowed are {ALLOWED_RULES}")
    try:
        over_s = parse_time(match["time"] or "30s")
    except ValueError as e:
        raise ValueError(f"stop rule {word!r}: {e}") from e
    share = float(match["share"]) / 100
    if not 0 <= share < 1 or over_s <= 0:
        raise ValueError(f"stop rule {word!r}: give a share below 100% over a time above 0 s")
    return ErrorRate(share, over_s)


class StopWatch:
    """Holds a run's counts against its rules."""

    def __init__(self, rules: Sequence[StopRule]) -> None:
        self._rules = rules
        self._samples: deque[Sample] = deque()
        self._span_s = max((rule.span_s for rule in rules), default=0.0)

    def look(self, now_s: float, totals: Totals) -> str | None:
        """Take the counts of now; gives why the run has to stop, once a rule is broken."""
        if not self._rules:
            return None
        samples = self._samples
        samples.append(Sample(now_s, totals))
        while len(samples) > 1 and samples[1].at_s <= now_s - self._span_s:
            samples.popleft()
        reach_s = now_s - samples[0].at_s
        reasons = (rule.broken(samples) for rule in self._rules if reach_s >= rule.span_s)
        return next((reason for reason in reasons if reason is not None), None)


def _since(samples: Sequence[Sample], span_s: float) -> Sample:
    """The newest sample that is at least so much older than the last."""
    until_s = samples[-1].at_s - span_s
    return next((s for s in reversed(samples) if s.at_s <= until_s), samples[0])


def share(total: int, index: int, count: int) -> int:
    """What worker ``index`` of ``count`` has of ``total``; they sum up to it, late joiners have none."""
    if index >= count:
        return 0
    return total // count + (index < total % count)


class Quota:
    """A number of requests that may still be begun."""

    __slots__ = ("_left",)

    def __init__(self, requests: int) -> None:
        self._left = requests

    @property
    def left(self) -> int:
        return self._left

    @property
    def spent(self) -> bool:
        return self._left <= 0

    def take(self) -> bool:
        """Begin one; False where none is left."""
        if self.spent:
            return False
        self._left -= 1
        return True
