"""Two searches for a load: the highest under which limits hold, and the one with the most good requests/s."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import stdev

import numpy as np

from llm_locust.figures.objective import UNITS, GoodRate, Objective, Probe
from llm_locust.metrics.columns import Floats, Mask, Rows
from llm_locust.metrics.stats.intervals import FEWEST_BEYOND

# --- A share that can only fall as the load grows, and the load at which it crosses what is required


def falling(values: Floats, weights: Floats) -> Floats:
    """The non-increasing sequence nearest to each row of ``values`` in weighted least squares.

    By the min-max formula of Ayer et al. (1955): over all starts, the least of the largest mean from there.

    Args:
        values: shape (..., n).
        weights: shape (n,), above 0.
    """
    n = len(weights)
    if not n:
        return values
    means, sums = values, weights
    of_spans = np.full((*values.shape, n), -np.inf)  # (..., first, last) of each span
    for further in range(n):
        if further:
            sums = sums[:-1] + weights[further:]
            means = means[..., :-1]
            means = means + (values[..., further:] - means) * (weights[further:] / sums)
        first = np.arange(n - further)
        of_spans[..., first, first + further] = means
    largest = np.maximum.accumulate(of_spans[..., ::-1], axis=-1)[..., ::-1]
    return np.where(np.tri(n, k=-1, dtype=bool), np.inf, largest).min(axis=-2)  # type: ignore[no-any-return]


def crossing(loads: Floats, shares: Floats, required: float, parts: Floats | None = None) -> Floats:
    """The load at which each row of non-increasing ``shares`` falls below ``required``.

    Between the last load that is not below and the first that is, it lies at this part of the logarithm
    of the load: all that is known of a share that only falls is that it lies there. By default it is where a
    straight line through the log-odds of both shares crosses.

    Args:
        loads: shape (n,), ascending, above 0.
        shares: shape (rows, n), in (0, 1), non-increasing.
        required: in (0, 1).
        parts: shape (rows,).

    Returns:
        0 where the lowest load is below already, infinity where no load is.
    """
    below = shares < required
    first = below.argmax(axis=-1)
    found = np.where(below.any(axis=-1), 0.0, np.inf)
    (rows,) = np.nonzero(first)
    after = first[rows]
    if parts is None:
        high, low = (_log_odds(shares[rows, last]) for last in (after - 1, after))
        part = (high - _log_odds(required)) / (high - low)
    else:
        part = parts[rows]
    start, end = np.log(loads[after - 1]), np.log(loads[after])
    found[rows] = np.exp(start + part * (end - start))
    return found


def _log_odds(share: Floats | float) -> Floats:
    return np.log(share / (1 - share))


# --------------------
# The highest load under which all limits hold, as stages at several loads show it.
#
# For each limit the share of requests within it is taken to fall as the load grows (isotonic regression),
# and the edge is where the first limit's share crosses what is required. The interval is a bootstrap: each
# stage's share is drawn from what its requests, as independent ones, leave possible (Jeffreys' beta
# distribution), the fit and its crossing are computed for each draw, and the interval has 95 % of the
# crossings.
#
# A certified limit asks for more than its share, the more, the fewer requests a stage has. Each stage's
# share is less by that, so that the edge is where stages like these no longer get their certificate.
# --------------------


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


# --- What a search may try, and what it does next: a stage, or its answer


#: A load is multiplied or divided by this until both sides of what is searched for have been tried.
GROWTH = 2.0

#: Successive stages without a result after which nothing more is tried.
_MOST_SILENT = 2


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a search begins, what it may try, and when it has enough.

    ``precision`` is half the interval over the edge. Concurrency is tried in whole users.
    """

    start: float
    most: float = math.inf
    precision: float = 0.05
    most_stages: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: one is out of its range; the message says which.
        """
        if not (math.isfinite(self.start) and 0 < self.start <= self.most):
            raise ValueError(
                f"the first load is {self.start:g}; it must be above 0 and at most {self.most:g}"
            )
        if not 0 < self.precision < 1:
            raise ValueError(f"the precision is {self.precision:g}; write a share between 0 and 1, as 5%")
        if self.most_stages < 1:
            raise ValueError(f"{self.most_stages} stages find nothing: allow at least 1")


@dataclass(frozen=True, slots=True)
class NextStage:
    """The load to try next, and why."""

    load: float
    why: str


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The answer of a search.

    ``load`` is the highest load under which the limits hold, with its 95 % interval from ``low`` to ``high``;
    None where it is not known. ``at_least`` is a lower bound, where stages show only that. ``at_most`` is an
    upper bound. ``is_resolved``: the interval is within the precision. ``why`` says why the search ended.

    Of ``max-goodput``, ``load`` is the load that was tried with the most good requests/s, ``good_per_s`` with
    the interval ``good_low`` to ``good_high``; the best load of all lies between ``low`` and ``high``.
    """

    why: str
    load: float | None = None
    low: float | None = None
    high: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    limit: str | None = None
    good_per_s: float | None = None
    good_low: float | None = None
    good_high: float | None = None
    is_resolved: bool = False


def round_load(objective: Objective, load: float) -> float:
    """The nearest load that can be asked for: whole users, or a rate of four digits."""
    return max(1.0, float(round(load))) if objective.axis == "concurrency" else float(f"{load:.4g}")


def format_load(objective: Objective, load: float) -> str:
    """The load with its unit."""
    return f"{load:g} {UNITS[objective.axis]}"


def _limited(probes: Sequence[Probe]) -> Probe | None:
    """A stage at the lowest load of which the client was the limit each time; None without one."""
    counted = {probe.load for probe in probes if probe.counts}
    limited = [probe for probe in probes if probe.client and probe.load not in counted]
    return min(limited, key=lambda probe: probe.load, default=None)


def next_load(
    objective: Objective,
    bounds: Bounds,
    probes: Sequence[Probe],
    wanted: Callable[[], NextStage | SearchResult],
    ended: Callable[[str], SearchResult],
) -> NextStage | SearchResult:
    """What to do after ``probes``, in the order in which they ran.

    ``wanted`` is what would be next if neither the client nor the number of stages were a limit; ``ended``
    what the stages show where the search ends for the reason given.
    """
    if not probes:
        return NextStage(round_load(objective, bounds.start), "the first load")
    left = len(probes) < bounds.most_stages
    results = [i for i, probe in enumerate(probes) if not probe.no_result]
    silent = len(probes) - (results[-1] + 1 if results else 0)
    if silent and silent < _MOST_SILENT and left:
        return NextStage(probes[-1].load, f"again: {probes[-1].no_result}")
    if silent:
        return ended(f"{silent} stages in succession gave no result: {probes[-1].no_result}")
    limited = _limited(probes)
    step = wanted()
    ends = isinstance(step, SearchResult) or not left
    last = [probe for probe in probes if probe.load == probes[-1].load and not probe.no_result]
    if last[0].client and len(last) == 1 and left:  # a busy second of the client is none of its limits
        return NextStage(last[0].load, f"again: the client was the limit: {last[0].client}")
    counted = any(probe.counts for probe in probes)
    beyond = limited is not None and isinstance(step, NextStage) and step.load >= limited.load
    if limited is not None and (beyond or (ends and not counted)):
        return ended(
            f"the client is the limit from {format_load(objective, limited.load)} on: {limited.client}"
        )
    return ended(f"{len(probes)} stages were allowed") if ends and isinstance(step, NextStage) else step


# --------------------
# The load with the most good requests/s: a search for the peak of a curve that rises, and then falls.
#
# The load is doubled until more of it is shown to give fewer good requests/s (halved where nothing is
# good). Then each stage goes into the middle of the part in which the peak most likely lies. What is known
# of that is a bootstrap: the good requests/s of each load are drawn by their error, the nearest sequence
# that rises to one peak and falls beyond it (least squares) is fitted to each draw, and the peak lies
# between the neighbours of its highest load. The interval has 95 % of these neighbours on both sides. A
# load that saturated the server has no steady goodput: it is beyond the peak if a lower load did not.
# --------------------


_MAXIMUM_DRAWS = 200
_Z = 1.959963984540054

#: A load is vague whose error is so many times the median of those near the peak.
_VAGUE = 3.0

#: A saturated load is below the best steady one by this share at least.
_BELOW = 1e-9


def unimodal(values: Floats, weights: Floats) -> Floats:
    """The sequence nearest to each row of ``values`` (least squares) that rises to a peak, then falls."""
    fits = np.array(
        [
            np.concatenate(
                [_rising(values[..., :k], weights[:k]), falling(values[..., k:], weights[k:])], axis=-1
            )
            for k in range(1, len(weights) + 1)
        ]
    )
    nearest = (weights * (fits - values) ** 2).sum(axis=-1).argmin(axis=0)
    best: Floats = np.take_along_axis(fits, nearest[None, ..., None], axis=0)[0]
    return best


def _rising(values: Floats, weights: Floats) -> Floats:
    return falling(values[..., ::-1], weights[::-1])[..., ::-1]


def _mean(rates: Sequence[GoodRate]) -> tuple[float, float]:
    """Mean of the repeats of one load, and its error: by their own errors, or by how far they are apart.

    It is not weighted by the errors: that of a share near 1 is small, so that the best repeat would decide.
    """
    n = len(rates)
    values = [rate.value for rate in rates]
    own = math.hypot(*(rate.error for rate in rates)) / n
    return math.fsum(values) / n, max(own, stdev(values) / math.sqrt(n)) if n > 1 else own


@dataclass(frozen=True, slots=True)
class _MaximumCurve:
    """Good requests/s over the loads that were tried, ascending: of repeats their mean."""

    loads: Floats
    values: Floats
    errors: Floats
    saturated: Mask

    @classmethod
    def of(cls, probes: Sequence[Probe]) -> "_MaximumCurve":
        loads = sorted({probe.load for probe in probes})
        rows = []
        for load in loads:
            there = [probe for probe in probes if probe.load == load]
            rates = [probe.good for probe in there if probe.good is not None]
            rows.append((*_mean(rates), any(probe.saturated for probe in there)))
        values, errors, saturated = np.array(rows, dtype=np.float64).T
        return cls(np.array(loads), values, errors, saturated > 0)

    def capped(self, values: Floats) -> Floats:
        """The values with those of saturated loads below the best steady one of a lower load."""
        found = values.copy()
        for i in np.flatnonzero(self.saturated):
            lower = values[..., :i][..., ~self.saturated[:i]]
            if lower.shape[-1]:
                found[..., i] = np.minimum(found[..., i], lower.max(axis=-1) * (1 - _BELOW))
        return found

    def peaks(self, values: Floats) -> tuple[Rows, Rows]:
        """Of each row of values the places of the first and the last load of the highest part of the fit."""
        fit = unimodal(self.capped(values), self.errors**-2)
        highest = fit >= fit.max(axis=-1, keepdims=True) * (1 - 1e-12)
        return highest.argmax(axis=-1), len(self.loads) - 1 - highest[..., ::-1].argmax(axis=-1)

    def spans(self, seed: int) -> Floats:
        """Of each draw the loads on both sides of the peak, shape (draws, 2); 0 and ∞ where there is none."""
        noise = np.random.default_rng([seed, len(self.loads)]).standard_normal(
            (_MAXIMUM_DRAWS, len(self.loads))
        )
        first, last = self.peaks(np.maximum(self.values + self.errors * noise, 0.0))
        edges = np.concatenate([[0.0], self.loads, [math.inf]])
        return np.stack([edges[first], edges[last + 2]], axis=-1)


@dataclass(frozen=True, slots=True)
class _Peak:
    """The place of the best load that was tried, and between which loads the best one of all lies."""

    at: int
    low: float
    high: float
    spans: Floats

    @classmethod
    def of(cls, curve: _MaximumCurve, seed: int) -> "_Peak":
        spans = curve.spans(seed)
        first, last = (int(place) for place in curve.peaks(curve.values))
        at = first + int(np.argmax(curve.capped(curve.values)[first : last + 1]))
        low = float(np.quantile(spans[:, 0], _ENDS[0], method="inverted_cdf"))
        high = float(np.quantile(spans[:, 1], _ENDS[1], method="inverted_cdf"))
        low, high = min(low, float(curve.loads[at])), max(high, float(curve.loads[at]))
        return cls(_smoothed(curve, low, high, at), low, high, spans)


def _smoothed(curve: _MaximumCurve, low: float, high: float, highest: int) -> int:
    """The load tried with the most by a parabola through those of the interval.

    The highest of several noisy values is often high by chance. With fewer than three it is that one. A load
    of which far less is known than of the others is left out: their parabola would choose it unseen.
    """
    near = np.flatnonzero((curve.loads >= low) & (curve.loads <= high) & ~curve.saturated)
    if len(near):
        near = near[curve.errors[near] <= _VAGUE * np.median(curve.errors[near])]
    if len(near) < 3:
        return highest
    x = np.log(curve.loads[near] / curve.loads[highest])
    smooth = np.polyval(np.polyfit(x, curve.values[near], 2, w=1 / curve.errors[near]), x)
    return int(near[np.argmax(smooth)])


def next_of_maximum(
    objective: Objective, bounds: Bounds, probes: Sequence[Probe]
) -> NextStage | SearchResult:
    """What to do after ``probes``, in the order in which they ran."""
    search = _Maximum(objective, bounds, tuple(probes))
    return next_load(objective, bounds, probes, search.wanted, search.ended)


@dataclass(frozen=True, slots=True)
class _Maximum:
    objective: Objective
    bounds: Bounds
    probes: tuple[Probe, ...]

    @property
    def _counted(self) -> list[Probe]:
        return [probe for probe in self.probes if probe.counts and probe.good is not None]

    def wanted(self) -> NextStage | SearchResult:
        """What would be next if neither the client nor the number of stages were a limit."""
        if not self._counted:
            return self._lower(min(probe.load for probe in self.probes), "the client was the limit")
        curve = _MaximumCurve.of(self._counted)
        first, last = float(curve.loads[0]), float(curve.loads[-1])
        if curve.saturated.all() or not curve.values.max() > 0:
            return self._lower(first, "no steady goodput")
        peak = _Peak.of(curve, self.bounds.seed)
        if math.isinf(peak.high):
            if last >= self.bounds.most:
                return self.ended(f"{format_load(self.objective, last)} is the most that may be tried")
            load = round_load(self.objective, min(GROWTH * last, self.bounds.most))
            return NextStage(load, f"good requests/s may still grow at {format_load(self.objective, last)}")
        if not peak.low and not (self.objective.axis == "concurrency" and first <= 1):
            return self._lower(first, "good requests/s may be higher below")
        if (peak.high - peak.low) / 2 <= self.bounds.precision * curve.loads[peak.at]:
            return self._answer(curve, peak, "the interval is as narrow as asked for", is_resolved=True)
        return self._inside(curve, peak)

    def _inside(self, curve: _MaximumCurve, peak: _Peak) -> NextStage:
        """The middle of the part of the load in which the peak most likely lies; else what is least known."""
        best, most = None, self.bounds.precision / 2
        for low, high in zip(curve.loads[:-1].tolist(), curve.loads[1:].tolist(), strict=True):
            inside = (peak.spans[:, 0] <= low) & (peak.spans[:, 1] >= high)
            load = round_load(self.objective, math.sqrt(low * high))
            likely = float(inside.mean()) * math.log(high / low)
            if low < load < high and likely > most:
                best, most = load, likely
        if best is not None:
            return NextStage(best, "near the most good requests/s")
        near = (curve.loads >= peak.low) & (curve.loads <= peak.high)
        again = int(np.argmax(np.where(near, curve.errors, 0.0)))
        return NextStage(float(curve.loads[again]), "again: it is the least certain near the peak")

    def _lower(self, load: float, what: str) -> NextStage | SearchResult:
        if self.objective.axis == "concurrency" and load <= 1:
            return self.ended(f"{what} at a single user")
        return NextStage(
            round_load(self.objective, load / GROWTH), f"{what} at {format_load(self.objective, load)}"
        )

    def ended(self, why: str) -> SearchResult:
        """What the stages show where the search cannot go on."""
        if not self._counted:
            return SearchResult(why)
        curve = _MaximumCurve.of(self._counted)
        if curve.saturated.all() or not curve.values.max() > 0:
            return SearchResult(why, at_most=float(curve.loads[0]))
        return self._answer(curve, _Peak.of(curve, self.bounds.seed), why)

    def _answer(
        self, curve: _MaximumCurve, peak: _Peak, why: str, *, is_resolved: bool = False
    ) -> SearchResult:
        load, value, reach = (float(a[peak.at]) for a in (curve.loads, curve.values, curve.errors * _Z))
        is_bound = math.isinf(peak.high)
        most = load if self.objective.axis == "rate" else math.inf  # no more are good than were asked for
        return SearchResult(
            why,
            load=None if is_bound else load,
            low=peak.low or None if not is_bound else None,
            high=None if is_bound else peak.high,
            at_least=load if is_bound else None,
            is_resolved=is_resolved,
            good_per_s=value,
            good_low=max(0.0, value - reach),
            good_high=min(most, value + reach),
        )
