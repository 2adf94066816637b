"""Goodput as a function of the limits: what another SLO would have said of the same run."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from llm_locust.metrics.catalogue import LATENCY, View, from_scheduled, shown_in
from llm_locust.metrics.columns import Columns, Floats, Mask, Rows
from llm_locust.metrics.requests.judgement import Judgement
from llm_locust.metrics.requests.latency import MeasuredFrom, at_least

#: Metrics that have a curve. The surface is of TTFT and TPOT.
CURVES = tuple(metric.key for metric in shown_in(View.CURVES))

_CURVE_POINTS, _SURFACE_POINTS = 100, 40

#: Times are whole nanoseconds: below that a difference is one of floats.
_HALF_A_NANOSECOND = 0.5e-9


@dataclass(frozen=True, slots=True)
class LimitCurve:
    """The share of a population that is good at each limit of one metric, all other limits as they are.

    ``alone`` is the share that holds this limit and ended ok, of those that can be judged by it; ``good``
    holds all other limits of its SLO too, which are of the metrics ``others``. ``limit_s`` is the SLO's own,
    which is among ``limits_s``; None where there is none, or not the same for all requests.
    """

    metric: str
    limits_s: Floats
    alone: Floats
    good: Floats
    limit_s: float | None
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LimitSurface:
    """``good[j, i]``: the share with TTFT ≤ ``ttft_s[i]`` and TPOT ≤ ``tpot_s[j]``, and every other
    limit held, which are of the metrics ``others``. The SLO's own two are as of a :class:`LimitCurve`."""

    ttft_s: Floats
    tpot_s: Floats
    good: Floats
    ttft_limit_s: float | None
    tpot_limit_s: float | None
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LimitedRun:
    """A population to be held against limits: ``n`` requests that ended ok, failed or have no record, of
    which ``ok`` ended ok, and ``cancelled`` ones, which count where they had broken a limit."""

    c: Columns
    values: Mapping[str, Floats]
    judgement: Judgement | None
    measured_from: MeasuredFrom
    ok: Rows
    n: int
    cancelled: Rows

    def measured(self, metric: str) -> Floats:
        """The metric of the ok requests as an SLO has it.

        It is +∞ where it breaks any limit by not being defined, and −∞ where it breaks none: an answer of one
        token has no pace, nor has one of unknown pace that is judged by its other limits.
        """
        late = from_scheduled(LATENCY[metric]) if self.measured_from == "scheduled" else None
        measured = self.values[late.key if late else metric][self.ok]
        measured = np.where(np.isnan(measured), np.inf, measured)
        if metric == "tpot":
            return np.where(self._paceless | (self.unpaced & self._has_others(metric)), -np.inf, measured)
        return measured

    @property
    def unpaced(self) -> Mask:
        """The ok requests whose pace is not known: more than one token, all at one time."""
        return np.isnan(self.values["tpot"][self.ok]) & ~self._paceless

    @property
    def _paceless(self) -> Mask:
        return np.less(self.c.gap_tokens[self.ok], 1)

    def _has_others(self, *metrics: str) -> Mask:
        """The ok requests that have a limit other than those of ``metrics``."""
        found = np.zeros(len(self.ok), np.bool_)
        if self.judgement is not None:
            for metric in self.others(*metrics):
                found |= self.judgement.limited[metric][self.ok]
        return found

    def held_beside(self, *metrics: str) -> Mask:
        """The ok requests that hold every limit that they have but those of ``metrics``."""
        held = np.ones(len(self.ok), np.bool_)
        for metric in self.others(*metrics):
            held &= self._held[metric][self.ok]
        return held

    def bounds(self, metric: str) -> Floats:
        """What the metric of the cancelled requests is at least; −∞ where nothing is known of it."""
        bounds = at_least(self.c, metric, self.measured_from)[self.cancelled]
        return np.where(np.isnan(bounds), -np.inf, bounds)

    def broken_beside(self, *metrics: str) -> Mask:
        """The cancelled requests that had broken a limit other than those of ``metrics``."""
        broken = np.zeros(len(self.cancelled), np.bool_)
        if self.judgement is not None:
            for metric in self.others(*metrics):
                broken |= self.judgement.limited[metric][self.cancelled]
        return broken

    def others(self, *metrics: str) -> tuple[str, ...]:
        """The metrics that have a limit, but for ``metrics``."""
        return tuple(metric for metric in self._held if metric not in metrics)

    @property
    def _held(self) -> Mapping[str, Mask]:
        return self.judgement.held if self.judgement else {}

    def limit_s(self, metric: str) -> float | None:
        """The limit of all ok requests; None where they have none, or not all the same."""
        if self.judgement is None:
            return None
        found = np.unique(self.judgement.limits.per_request(self.c.slo_class, metric)[self.ok])
        return float(found[0]) if len(found) == 1 and np.isfinite(found[0]) else None


def limit_curve(run: LimitedRun, metric: str) -> LimitCurve | None:
    """None where no ok request has the metric."""
    measured, limit_s = run.measured(metric), run.limit_s(metric)
    limits_s = _grid(measured, limit_s, _CURVE_POINTS)
    if not len(limits_s) or not run.n:
        return None
    held, bounds = run.held_beside(metric), run.bounds(metric)
    may_hold = bounds[~run.broken_beside(metric)]
    most = run.n + len(bounds)
    known = ~run.unpaced if metric == "tpot" else np.ones(len(measured), np.bool_)
    known_most = most - np.count_nonzero(~known)
    return LimitCurve(
        metric=metric,
        limits_s=limits_s,
        alone=_within(measured[known], limits_s) / (known_most - _within(bounds, limits_s)),
        good=_within(measured[held], limits_s) / (most - _within(may_hold, limits_s)),
        limit_s=limit_s,
        others=run.others(metric),
    )


def limit_surface(run: LimitedRun) -> LimitSurface | None:
    """None where no ok request has both metrics."""
    ttft, tpot = run.measured("ttft"), np.where(run.unpaced, -np.inf, run.measured("tpot"))
    limits = run.limit_s("ttft"), run.limit_s("tpot")
    columns, rows = (_grid(m, own, _SURFACE_POINTS) for m, own in zip((ttft, tpot), limits, strict=True))
    if not len(columns) or not len(rows) or not run.n:
        return None
    held, broken = run.held_beside("ttft", "tpot"), run.broken_beside("ttft", "tpot")
    may_hold = [run.bounds(metric)[~broken] for metric in ("ttft", "tpot")]
    judged = run.n + len(run.cancelled) - _within_both((columns, rows), *may_hold)
    good = _within_both((columns, rows), ttft[held], tpot[held]) / judged
    return LimitSurface(columns, rows, good, *limits, run.others("ttft", "tpot"))


def _grid(measured: Floats, limit_s: float | None, points: int) -> Floats:
    """Limits of equal ratio from the least to the greatest measured, the SLO's own among them."""
    finite = measured[np.isfinite(measured) & (measured > 0)]
    if not len(finite):
        return np.empty(0)
    ends = [float(finite.min()), float(finite.max()), *([] if limit_s is None else [limit_s])]
    grid = np.geomspace(min(ends), max(ends), points)
    return np.unique([*grid, *([] if limit_s is None else [limit_s])])


def _within(measured: Floats, limits_s: Floats) -> Floats:
    """How many are at or below each limit."""
    return np.searchsorted(np.sort(measured), limits_s + _HALF_A_NANOSECOND, side="right").astype(np.float64)


def _within_both(limits_s: tuple[Floats, Floats], first: Floats, second: Floats) -> Floats:
    """How many are at or below both limits, shape (second limits, first limits)."""
    # The first limit of each axis that is held: from there on all are.
    i, j = (_first_held(each, measured) for each, measured in zip(limits_s, (first, second), strict=True))
    shape = len(limits_s[1]) + 1, len(limits_s[0]) + 1
    counts = np.bincount(j * shape[1] + i, minlength=shape[0] * shape[1]).reshape(shape)
    return counts.cumsum(axis=0).cumsum(axis=1)[:-1, :-1].astype(np.float64)


def _first_held(limits_s: Floats, measured: Floats) -> Rows:
    return np.searchsorted(limits_s + _HALF_A_NANOSECOND, measured, side="left")
