"""Counts of requests as integers that can be added in any order."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from llm_locust.core.record import Outcome
from llm_locust.metrics.catalogue import LIVE
from llm_locust.metrics.columns import OUTCOMES, Floats
from llm_locust.metrics.limits import SLO_METRICS
from llm_locust.metrics.stats.sketch import BUCKETS, Integers, Sketch, Tally

#: Latencies with a sketch, each of the requests that ended ok, as in ``summary.json``. A live message
#: identifies their sums and sketches by position: the catalogue's order is part of its layout.
METRICS = tuple(metric.key for metric in LIVE)

#: Of requests that are turns of agents: ``turns`` of any outcome and ``turns_ok``, those of sub-agents too;
#: ``jobs`` are last turns that ended ok, ``jobs_failed`` failed ones, ``tools_ns`` the recorded pauses that
#: begin after them, all of agents themselves.
AGENTS = ("turns", "turns_ok", "jobs", "jobs_failed", "tools_ns")

_OF_OUTCOME = tuple(f"outcome_{outcome}" for outcome in OUTCOMES)
_LIMITED = tuple(f"limited_{metric}" for metric in SLO_METRICS)
_HELD = tuple(f"held_{metric}" for metric in SLO_METRICS)
_TOTAL_NS = tuple(f"total_ns_{metric}" for metric in METRICS)

#: Sums over requests. ``good_or_bad`` are the denominator of goodput, ``limited_<metric>`` those that this
#: limit applies to (see :class:`~llm_locust.metrics.requests.judgement.Judgement`), ``held_<metric>`` those
#: of them that met it. ``busy_ns`` is the time between sent and ended. ``kernel_stamps`` covers the ok and
#: failed ones, and has those without an answer, which have no read. ``first_tokens`` covers the same;
#: ``first_tokens_wide`` of them may have arrived earlier than stamped. ``bad_by_delay`` are bad because they
#: were sent late. Tokens are counted when their request ends.
SCALARS = (
    *_OF_OUTCOME,
    "good",
    "good_or_bad",
    *_LIMITED,
    *_HELD,
    "input_tokens",
    "output_tokens",
    "good_output_tokens",
    "inputs",
    *AGENTS,
    "images",
    "busy_ns",
    "kernel_stamps",
    "first_tokens",
    "first_tokens_wide",
    "bad_by_delay",
    *_TOTAL_NS,
)

#: Number of codes of a tally: those of metric m are its buckets, offset by m times :data:`BUCKETS`.
CODES = len(METRICS) * BUCKETS

#: Most of a sum in a report, 104 days in nanoseconds; what would be more stays there.
MOST_OF_REPORT = 2**53

#: Most of a sum. What would be more stays there: two of them still fit into 64 bits.
MOST_SUM = 2**62 - 1

_PLACE = {name: place for place, name in enumerate(SCALARS)}
_METRIC = {metric: place for place, metric in enumerate(METRICS)}


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests that ended: their sums (``scalars``, as :data:`SCALARS`) and the sketches of their latencies.

    The sketches of all metrics are one tally, so that merging them is one step.
    """

    scalars: Integers
    tally: Tally

    @classmethod
    def merge(cls, some: Iterable["Counts"]) -> "Counts":
        """Add up counts."""
        several = list(some)
        if len(several) <= 1:
            return several[0] if several else NOTHING
        scalars = several[0].scalars
        for counts in several[1:]:
            scalars = np.minimum(scalars + counts.scalars, MOST_SUM)
        return cls(scalars, Tally.merge(p.tally for p in several))

    def __getitem__(self, scalar: str) -> int:
        return int(self.scalars[_PLACE[scalar]])

    def outcome(self, outcome: Outcome) -> int:
        return self[f"outcome_{outcome}"]

    @property
    def ok(self) -> int:
        return self.outcome(Outcome.OK)

    @property
    def cancelled(self) -> int:
        return self.outcome(Outcome.CANCELLED)

    @property
    def records(self) -> int:
        """Records of any outcome, including first tries."""
        return int(self.scalars[: len(OUTCOMES)].sum())

    @property
    def ended(self) -> int:
        """Requests of any outcome; one that was sent again counts once."""
        return self.records - self.outcome(Outcome.RESENT)

    @property
    def failed(self) -> int:
        return self.ended - self.ok - self.cancelled

    @property
    def judged(self) -> int:
        """Ok and failed requests: the denominator of the error rate."""
        return self.ended - self.cancelled

    def full(self, most: int) -> tuple[str, ...]:
        """The scalars that are this large: what they stand for may be larger."""
        return tuple(SCALARS[place] for place in np.flatnonzero(self.scalars >= most))

    def sketch(self, metric: str) -> Sketch:
        """Sketch of one of the :data:`METRICS`."""
        first = _METRIC[metric] * BUCKETS
        return Sketch.counted(self.tally.between(first, first + BUCKETS), self[f"total_ns_{metric}"])


def magnitudes(some: Iterable[Counts]) -> Floats:
    """Sums that must fit into 64 bits when counts are merged: all records, and all latencies. As
    floating-point numbers, which do not wrap."""
    total = np.zeros(2)
    for counts in some:
        total += (
            counts.scalars[: len(OUTCOMES)].sum(dtype=np.float64),
            counts.tally.counts.sum(dtype=np.float64),
        )
    return total


#: Counts of no request.
NOTHING = Counts(np.zeros(len(SCALARS), np.int64), Tally.merge([]))


# --- Keys that requests are counted by, bounded in number


#: Replacement of names, classes or replicas beyond the limit.
OTHERS: Final = "others"

#: Most pairs of name and class, and most keys, with counts of their own. A deployment that restarts for days
#: has ever new replica names.
MOST_PAIRS = 32
MOST_KEYS = 128


class LiveKey(NamedTuple):
    """A request's name, SLO class and replica; ``""`` for none."""

    name: str
    slo_class: str
    replica: str


ByKey = dict[LiveKey, Counts]


def merged(a: ByKey, b: ByKey) -> ByKey:
    """Add up counts key by key."""
    return a | {key: Counts.merge([a[key], counts]) if key in a else counts for key, counts in b.items()}


class KeyLimit:
    """Folds keys beyond the limits; the first ones keep counts of their own.

    A new replica beyond the limit becomes :data:`OTHERS` of its name and class, so that sums by name stay
    correct; so does a new pair of name and class. There are at most ``most_keys + most_pairs + 1`` keys.
    """

    def __init__(self, most_pairs: int = MOST_PAIRS, most_keys: int = MOST_KEYS) -> None:
        self._most_pairs, self._most_keys = most_pairs, most_keys
        self._pairs: set[tuple[str, str]] = set()
        self._keys: set[LiveKey] = set()

    @classmethod
    def of(cls, keys: Iterable[LiveKey]) -> "KeyLimit":
        """The limit that has folded to these keys, in the order of their first requests."""
        limit = cls()
        for key in keys:
            if key == (OTHERS, OTHERS, OTHERS):
                continue
            limit._pairs.add(key[:2])
            if key.replica != OTHERS:
                limit._keys.add(key)
        return limit

    def fold(self, key: LiveKey) -> LiveKey:
        """Return the key to count by."""
        if key in self._keys:
            return key
        if key[:2] not in self._pairs:
            if len(self._pairs) >= self._most_pairs:
                return LiveKey(OTHERS, OTHERS, OTHERS)
            self._pairs.add(key[:2])
        if len(self._keys) >= self._most_keys:
            return key._replace(replica=OTHERS)
        self._keys.add(key)
        return key
