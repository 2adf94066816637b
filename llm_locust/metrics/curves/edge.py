"""The highest load under which all limits hold, as stages at several loads show it.

For each limit the share of requests within it is taken to fall as the load grows (isotonic regression), and
the edge is where the first limit's share crosses what is required. The interval is a bootstrap: each stage's
share is drawn from what its requests, as independent ones, leave possible (Jeffreys' beta distribution), the
fit and its crossing are computed for each draw, and the interval has 95 % of the crossings.

A certified limit asks for more than its share, the more, the fewer requests a stage has. Each stage's share
is less by that, so that the edge is where stages like these no longer get their certificate.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_locust.metrics.columns import Floats
from llm_locust.metrics.curves.isotonic import crossing, falling
from llm_locust.metrics.curves.probe import Probe
from llm_locust.metrics.stats.worth import FEWEST_BEYOND

_DRAWS = 1_000

#: Stages within this logarithm of the edge are near it.
_NEAR = 0.15

#: A drawn share is at most this: one that rounds to 1 has no log-odds.
_MOST_SHARE = 1 - 1e-12

#: Parts of the draws below the ends of the interval.
_ENDS = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class Edge:
    """The ``load`` at which the first limit breaks, and its 95 % interval.

    ``low`` is 0 and ``load`` 0 where the lowest stage may be beyond it, ``high`` and ``load`` infinite where
    the highest stage may be below it. ``limit`` is the index of the limit that breaks first. ``beyond`` are
    the independent requests that stages near the edge leave for its tail: n_eff × (1 − required share).
    """

    load: float
    low: float
    high: float
    limit: int
    beyond: float

    @property
    def is_told(self) -> bool:
        """Whether the stages near the edge are worth requests enough for an interval."""
        return self.beyond >= FEWEST_BEYOND

    @property
    def reach(self) -> float:
        """Half the interval over the edge; infinite where one end is open."""
        if not (self.low > 0 and math.isfinite(self.high)):
            return math.inf
        return (self.high - self.low) / 2 / self.load


@dataclass(frozen=True, slots=True)
class _Curve:
    """The shares of one limit over the loads of all stages, ascending, as counts of independent requests."""

    loads: Floats
    within: Floats
    beyond: Floats

    @classmethod
    def of(cls, probes: Sequence[Probe], limit: int, required: float) -> "_Curve":
        """Make it from the readings of one limit.

        Requests depend on each other the more, the higher the load. A stage that happens to be quiet shows
        less of that and would count too much. So requests per independent one are a rising fit over loads.
        """
        by_load = sorted(probes, key=lambda probe: probe.load)
        readings = [probe.readings[limit] for probe in by_load]
        n, n_eff = (np.array([getattr(r, name) for r in readings], np.float64) for name in ("n", "n_eff"))
        share = np.array([reading.beside(required) for reading in readings])
        dependence = np.exp(-falling(-np.log(n / n_eff), np.ones(len(n))))
        worth = np.maximum(1.0, n / dependence)
        # Jeffreys' half a request on each side: a share of few requests is never certain.
        return cls(
            np.array([probe.load for probe in by_load]), share * worth + 0.5, (1 - share) * worth + 0.5
        )

    def worth_near(self, load: float) -> float:
        """Independent requests of the stages within :data:`_NEAR` of a load."""
        near = np.abs(np.log(self.loads) - math.log(load)) <= _NEAR if 0 < load < math.inf else self.loads > 0
        return float((self.within + self.beyond)[near].sum())

    def crossings(self, draws: Floats, parts: Floats, required: float) -> tuple[Floats, Floats]:
        """The crossings of each draw of the shares: by the line, and at the drawn part of the open span."""
        fits = falling(draws, self.within + self.beyond)
        return crossing(self.loads, fits, required), crossing(self.loads, fits, required, parts)


def find_edge(probes: Sequence[Probe], required: Sequence[float], seed: int = 0) -> Edge:
    """The edge by the stages that count, one at least.

    Args:
        required: the share that each limit requires.
        seed: of the bootstrap: the same stages always give the same edge.
    """
    random = np.random.default_rng([seed, len(probes)])
    by_line, drawn = [], []
    for limit, share in enumerate(required):
        curve = _Curve.of(probes, limit, share)
        draws = np.minimum(random.beta(curve.within, curve.beyond, (_DRAWS, len(curve.loads))), _MOST_SHARE)
        crossings = curve.crossings(draws, random.random(_DRAWS), share)
        by_line.append(crossings[0])
        drawn.append(crossings[1])
    low, high = np.quantile(np.min(drawn, axis=0), _ENDS, method="inverted_cdf").tolist()
    load = float(np.quantile(np.min(by_line, axis=0), 0.5, method="inverted_cdf"))
    first = int(np.argmax(np.bincount(np.argmin(by_line, axis=0), minlength=len(required))))
    curve = _Curve.of(probes, first, required[first])
    beyond = curve.worth_near(load) * (1 - required[first])
    return Edge(load, min(low, load), max(high, load), first, beyond)
