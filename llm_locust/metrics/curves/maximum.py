"""The load with the most good requests/s: a search for the peak of a curve that rises, and then falls.

The load is doubled until more of it is shown to give fewer good requests/s (halved where nothing is good).
Then each stage goes into the middle of the part in which the peak most likely lies. What is known of that is
a bootstrap: the good requests/s of each load are drawn by their error, the nearest sequence that rises to one
peak and falls beyond it (least squares) is fitted to each draw, and the peak lies between the neighbours of
its highest load. The interval has 95 % of these neighbours on both sides. A load that saturated the server
has no steady goodput: it is beyond the peak if a lower load did not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

import numpy as np

from llm_locust.metrics.columns import Floats, Mask, Rows
from llm_locust.metrics.curves.isotonic import falling
from llm_locust.metrics.curves.objective import Objective
from llm_locust.metrics.curves.probe import GoodRate, Probe
from llm_locust.metrics.curves.steps import GROWTH, Bounds, NextStage, SearchResult, next_of, possible, said

_DRAWS = 200
_ENDS = (0.025, 0.975)
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
class _Curve:
    """Good requests/s over the loads that were tried, ascending: of repeats their mean."""

    loads: Floats
    values: Floats
    errors: Floats
    saturated: Mask

    @classmethod
    def of(cls, probes: Sequence[Probe]) -> "_Curve":
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
        noise = np.random.default_rng([seed, len(self.loads)]).standard_normal((_DRAWS, len(self.loads)))
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
    def of(cls, curve: _Curve, seed: int) -> "_Peak":
        spans = curve.spans(seed)
        first, last = (int(place) for place in curve.peaks(curve.values))
        at = first + int(np.argmax(curve.capped(curve.values)[first : last + 1]))
        low = float(np.quantile(spans[:, 0], _ENDS[0], method="inverted_cdf"))
        high = float(np.quantile(spans[:, 1], _ENDS[1], method="inverted_cdf"))
        low, high = min(low, float(curve.loads[at])), max(high, float(curve.loads[at]))
        return cls(_smoothed(curve, low, high, at), low, high, spans)


def _smoothed(curve: _Curve, low: float, high: float, highest: int) -> int:
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
    return next_of(objective, bounds, probes, search.wanted, search.ended)


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
        curve = _Curve.of(self._counted)
        first, last = float(curve.loads[0]), float(curve.loads[-1])
        if curve.saturated.all() or not curve.values.max() > 0:
            return self._lower(first, "no steady goodput")
        peak = _Peak.of(curve, self.bounds.seed)
        if math.isinf(peak.high):
            if last >= self.bounds.most:
                return self.ended(f"{said(self.objective, last)} is the most that may be tried")
            load = possible(self.objective, min(GROWTH * last, self.bounds.most))
            return NextStage(load, f"good requests/s may still grow at {said(self.objective, last)}")
        if not peak.low and not (self.objective.axis == "concurrency" and first <= 1):
            return self._lower(first, "good requests/s may be higher below")
        if (peak.high - peak.low) / 2 <= self.bounds.precision * curve.loads[peak.at]:
            return self._answer(curve, peak, "the interval is as narrow as asked for", is_resolved=True)
        return self._inside(curve, peak)

    def _inside(self, curve: _Curve, peak: _Peak) -> NextStage:
        """The middle of the part of the load in which the peak most likely lies; else what is least known."""
        best, most = None, self.bounds.precision / 2
        for low, high in zip(curve.loads[:-1].tolist(), curve.loads[1:].tolist(), strict=True):
            inside = (peak.spans[:, 0] <= low) & (peak.spans[:, 1] >= high)
            load = possible(self.objective, math.sqrt(low * high))
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
        return NextStage(possible(self.objective, load / GROWTH), f"{what} at {said(self.objective, load)}")

    def ended(self, why: str) -> SearchResult:
        """What the stages show where the search cannot go on."""
        if not self._counted:
            return SearchResult(why)
        curve = _Curve.of(self._counted)
        if curve.saturated.all() or not curve.values.max() > 0:
            return SearchResult(why, at_most=float(curve.loads[0]))
        return self._answer(curve, _Peak.of(curve, self.bounds.seed), why)

    def _answer(self, curve: _Curve, peak: _Peak, why: str, *, is_resolved: bool = False) -> SearchResult:
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
