"""Which requests were good, and how many of all that were asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from llm_locust.batch import Labels
from llm_locust.metrics.columns import Columns, Floats, Mask, Rows
from llm_locust.metrics.latency import paced_from
from llm_locust.metrics.slo import SLO_METRICS, Slo

MeasuredFrom = Literal["scheduled", "sent"]

#: Key of ``first_failed`` for requests that did not end ok.
OUTCOME = "outcome"

#: Key of ``first_failed`` for requests of which there is no record.
LOST = "lost"

_FROM_EITHER = ("ttft", "ttfo", "e2el")

#: Times are whole nanoseconds: below that a difference is one of floats.
_HALF_A_NANOSECOND = 0.5e-9

_LAST = np.finfo(np.float64).max


@dataclass(frozen=True, slots=True)
class Limits:
    """The run's SLO, and those of classes that have their own instead."""

    slo: Slo
    of_class: Mapping[str, Slo] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.slo) or any(self.of_class.values())

    @property
    def metrics(self) -> tuple[str, ...]:
        """All that have a limit somewhere, in the order of :data:`SLO_METRICS`."""
        every = [self.slo, *self.of_class.values()]
        return tuple(metric for metric in SLO_METRICS if any(metric in slo.limits for slo in every))

    def of(self, label: str) -> Slo:
        """The SLO of a class."""
        return self.of_class.get(label, self.slo)

    def per_request(self, classes: Labels, metric: str) -> Floats:
        """The limit of each request in seconds; infinite where it has none."""
        of_code = [*map(self.of, classes.names), self.slo]  # -1: no class
        return np.array([slo.limits.get(metric, np.inf) for slo in of_code], dtype=np.float64)[classes.codes]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Each request against its SLO; arrays of shape (rows,).

    ``held[metric]`` marks the requests that ended ok and kept that limit, ``limited[metric]`` those that
    have it, ``unjudged[metric]`` those that have it and ended ok, but cannot be held against it. ``good``
    are those that kept all. ``first_failed`` is the index of what broke first among
    ``(*held, OUTCOME)``, -1 for good.
    """

    limits: Limits
    held: dict[str, Mask]
    limited: dict[str, Mask]
    unjudged: dict[str, Mask]
    good: Mask
    first_failed: NDArray[np.int8]


def judge(c: Columns, values: Mapping[str, Floats], limits: Limits, measured_from: MeasuredFrom) -> Judgement:
    """Hold every request against the SLO of its class.

    Args:
        values: what :func:`~llm_locust.metrics.latency.per_request` gave for ``c``.
        measured_from: where ttft, ttfo and e2el begin.

    A metric that is not defined breaks its limit, but for tpot. An answer of fewer than two tokens has no
    pace to break. Of more tokens that came at one time the pace is not known: such an answer is judged by
    its other limits, and breaks this one where it has no other.
    """
    held, unjudged, broken_at_s = {}, {}, []
    limits_s = {metric: limits.per_request(c.slo_class, metric) for metric in limits.metrics}
    limited = {metric: np.isfinite(limit_s) for metric, limit_s in limits_s.items()}
    several = np.sum([*limited.values(), np.zeros(len(c))], axis=0) > 1
    for metric, limit_s in limits_s.items():
        measured = _measured(values, metric, measured_from)
        kept = (measured <= limit_s + _HALF_A_NANOSECOND) | ~limited[metric]
        unjudged[metric] = np.zeros(len(c), np.bool_)
        if metric == "tpot":
            kept |= c.paced_tokens < 2
            unjudged[metric] = np.isnan(measured) & ~kept & c.ok
            kept |= unjudged[metric] & several
        held[metric] = kept & c.ok
        moment = _moment_s(c, values, metric, limit_s, measured_from)
        # Kept: never broken. Broken at an unknown moment: after every known one.
        broken_at_s.append(np.where(kept, np.inf, np.nan_to_num(moment, nan=_LAST)))
    good = np.logical_and.reduce([c.ok, *held.values()])
    first = np.argmin(broken_at_s, axis=0) if broken_at_s else np.zeros(len(c))
    first_failed = np.select([good, ~c.ok], [-1, len(held)], first).astype(np.int8)
    return Judgement(limits, held, limited, unjudged, good, first_failed)


def goodput(
    judgement: Judgement | None, c: Columns, judged: Rows, seconds: float, *, lost: int | None = 0
) -> dict[str, Any]:
    """Shares of a population and rates of its good requests.

    ``slo`` is in milliseconds: what all of the population is held against; where its classes differ, the
    run's, and ``slo_by_class`` has those of each. ``attainment`` is for each limit the share, of those in
    the population that have it and can be judged by it, that ended ok and held it: the adjusted
    distribution at the limit. ``not_judged`` counts those that cannot.
    ``first_failed`` counts, for the requests that were not good, which limit broke first in time,
    ``outcome`` standing for those that did not end ok and ``lost`` for those without a record; the counts
    and the good ones add up to the population and the lost ones. Rates are of the population's good
    requests and of their whole output.

    Args:
        judgement: None where no SLO was given: nothing is good or bad then, all values are None.
        judged: the population, ok and failed; shares are None without any and without a lost one.
        lost: requests without a record, which held no limit. None where it is not known how many
            belong here: shares are of the recorded ones then, and ``first_failed`` has no ``lost``.
    """
    if judgement is None:
        return {
            "slo": {},
            "slo_by_class": {},
            "ratio": None,
            "requests_per_s": None,
            "output_tokens_per_s": None,
            "attainment": {},
            "not_judged": {},
            "first_failed": {},
        }
    n, good = len(judged) + (lost or 0), judged[judgement.good[judged]]
    tokens = c.output_tokens[good]
    known = not np.isnan(tokens).all() or not len(good)
    return {
        **_limits(judgement.limits, c.slo_class, judged),
        "ratio": len(good) / n if n else None,
        "requests_per_s": len(good) / seconds if seconds > 0 else None,
        "output_tokens_per_s": float(np.nansum(tokens)) / seconds if seconds > 0 and known else None,
        "attainment": {metric: _attained(judgement, metric, judged, lost or 0) for metric in judgement.held},
        "not_judged": {metric: int(mask[judged].sum()) for metric, mask in judgement.unjudged.items()},
        "first_failed": _first_failed(judgement, judged) | ({} if lost is None else {LOST: lost}),
    }


def _limits(limits: Limits, classes: Labels, judged: Rows) -> dict[str, Any]:
    """The keys ``slo`` and ``slo_by_class``."""
    found = {classes.names[code] for code in np.unique(classes.codes[judged]).tolist() if code >= 0}
    slos = {label: limits.of(label).limits for label in sorted(found)}
    alike = len({tuple(slo.items()) for slo in slos.values()}) == 1
    shared = next(iter(slos.values())) if alike else limits.slo.limits
    return {
        "slo": _in_ms(shared),
        "slo_by_class": {} if alike or not slos else {label: _in_ms(slo) for label, slo in slos.items()},
    }


def _in_ms(limits: Mapping[str, float]) -> dict[str, float]:
    return {metric: limit_s * 1e3 for metric, limit_s in limits.items()}


def _attained(judgement: Judgement, metric: str, judged: Rows, lost: int) -> float | None:
    limited = judged[(judgement.limited[metric] & ~judgement.unjudged[metric])[judged]]
    n = len(limited) + lost
    return int(judgement.held[metric][limited].sum()) / n if n else None


def _first_failed(judgement: Judgement, judged: Rows) -> dict[str, int]:
    causes = [*judgement.held, OUTCOME]
    failed = np.bincount(judgement.first_failed[judged] + 1, minlength=len(causes) + 1)[1:]
    return {cause: int(count) for cause, count in zip(causes, failed, strict=True)}


def _measured(values: Mapping[str, Floats], metric: str, measured_from: MeasuredFrom) -> Floats:
    late = measured_from == "scheduled" and metric in _FROM_EITHER
    return values[metric] + values["schedule_delay"] if late else values[metric]


def _moment_s(
    c: Columns, values: Mapping[str, Floats], metric: str, limit_s: Floats, measured_from: MeasuredFrom
) -> Floats:
    """When a limit breaks, in seconds after sent.

    A bound on an end breaks as it passes; tpot when the answer takes longer than its n tokens may.
    """
    if metric == "tpot":
        with np.errstate(invalid="ignore"):  # ∞ × 0: a one-token answer that has no such limit
            return paced_from(c) + limit_s * (c.paced_tokens - 1)
    if metric == "ttft_started":
        return limit_s - (c.sent_s - c.started_s)
    if metric.endswith("_scheduled") or measured_from == "scheduled":
        return limit_s - values["schedule_delay"]
    return limit_s
