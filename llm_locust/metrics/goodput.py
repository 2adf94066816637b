"""Which requests were good, and how many of all that were asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from llm_locust.metrics.columns import Columns, Floats, Mask, Rows
from llm_locust.metrics.slo import Slo

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
class Judgement:
    """Each request against one SLO; arrays of shape (rows,).

    ``held[metric]`` marks the requests that ended ok and kept that limit, ``good`` those that kept
    all. ``first_failed`` is the index of what broke first among ``(*held, OUTCOME)``, -1 for good.
    """

    slo: Slo
    held: dict[str, Mask]
    good: Mask
    first_failed: NDArray[np.int8]


def judge(c: Columns, values: Mapping[str, Floats], slo: Slo, measured_from: MeasuredFrom) -> Judgement:
    """Hold every request against ``slo``.

    Args:
        values: what :func:`~llm_locust.metrics.latency.per_request` gave for ``c``.
        measured_from: where ttft, ttfo and e2el begin.

    A metric that is not defined breaks its limit, but for the tpot of an answer of fewer than two
    tokens, which has no pace to break.
    """
    held, broken_at_s = {}, []
    for metric, limit_s in slo.limits.items():
        measured = _measured(values, metric, measured_from)
        kept = measured <= limit_s + _HALF_A_NANOSECOND
        if metric == "tpot":
            kept |= c.output_tokens < 2
        held[metric] = kept & c.ok
        moment = _moment_s(c, values, metric, limit_s, measured_from)
        # Kept: never broken. Broken at an unknown moment: after every known one.
        broken_at_s.append(np.where(kept, np.inf, np.nan_to_num(moment, nan=_LAST)))
    good = np.logical_and.reduce([c.ok, *held.values()])
    first = np.argmin(broken_at_s, axis=0) if broken_at_s else np.zeros(len(c))
    return Judgement(slo, held, good, np.select([good, ~c.ok], [-1, len(held)], first).astype(np.int8))


def goodput(
    judgement: Judgement | None, c: Columns, judged: Rows, seconds: float, *, lost: int | None = 0
) -> dict[str, Any]:
    """Shares of a population and rates of its good requests.

    ``attainment`` is for each limit the share of the population that ended ok and held it: the
    adjusted distribution at the limit. ``first_failed`` counts, for the requests that were not
    good, which limit broke first in time, ``outcome`` standing for those that did not end ok and
    ``lost`` for those without a record; the counts and the good ones add up to the population and the
    lost ones. Rates are of the population's good requests and of their whole output.

    Args:
        judgement: None where no SLO was given: nothing is good or bad then, all values are None.
        judged: the population, ok and failed; shares are None without any and without a lost one.
        lost: requests without a record, which held no limit. None where it is not known how many
            belong here: shares are of the recorded ones then, and ``first_failed`` has no ``lost``.
    """
    if judgement is None:
        return {
            "slo": {},
            "ratio": None,
            "requests_per_s": None,
            "output_tokens_per_s": None,
            "attainment": {},
            "first_failed": {},
        }
    n, good = len(judged) + (lost or 0), judged[judgement.good[judged]]
    tokens = c.output_tokens[good]
    known = not np.isnan(tokens).all() or not len(good)
    return {
        "slo": {metric: limit_s * 1e3 for metric, limit_s in judgement.slo.limits.items()},
        "ratio": len(good) / n if n else None,
        "requests_per_s": len(good) / seconds if seconds > 0 else None,
        "output_tokens_per_s": float(np.nansum(tokens)) / seconds if seconds > 0 and known else None,
        "attainment": {
            metric: int(held[judged].sum()) / n if n else None for metric, held in judgement.held.items()
        },
        "first_failed": _first_failed(judgement, judged) | ({} if lost is None else {LOST: lost}),
    }


def _first_failed(judgement: Judgement, judged: Rows) -> dict[str, int]:
    causes = [*judgement.held, OUTCOME]
    failed = np.bincount(judgement.first_failed[judged] + 1, minlength=len(causes) + 1)[1:]
    return {cause: int(count) for cause, count in zip(causes, failed, strict=True)}


def _measured(values: Mapping[str, Floats], metric: str, measured_from: MeasuredFrom) -> Floats:
    late = measured_from == "scheduled" and metric in _FROM_EITHER
    return values[metric] + values["schedule_delay"] if late else values[metric]


def _moment_s(
    c: Columns, values: Mapping[str, Floats], metric: str, limit_s: float, measured_from: MeasuredFrom
) -> Floats:
    """When a limit breaks, in seconds after sent.

    A bound on an end breaks as it passes; tpot when the answer takes longer than its n tokens may.
    """
    if metric == "tpot":
        return values["ttft"] + limit_s * (c.output_tokens - 1)
    if metric.endswith("_scheduled") or measured_from == "scheduled":
        return limit_s - values["schedule_delay"]
    return np.full(len(c), limit_s)
