"""Good requests, their share of all that were asked for, and how sure that is."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.batch import Labels
from llm_locust.core.record import Doubt
from llm_locust.metrics.catalogue import LATENCY, e2el
from llm_locust.metrics.columns import DOUBTS, Columns, Floats, Mask, Rows
from llm_locust.metrics.limits import SLO_METRICS, Slo
from llm_locust.metrics.requests.latency import (
    MeasuredFrom as MeasuredFrom,
    at_least,
    begun_s,
    counted_from_s,
    most_gaps,
)
from llm_locust.metrics.requests.rates import Credits, amounts_over_time, rate_per_s
from llm_locust.metrics.stats.bootstrap import order_cells
from llm_locust.metrics.stats.intervals import (
    CONFIDENCE,
    FEWEST,
    EffectiveSize,
    Ends,
    Memory,
    Observed,
    as_json,
    effective_sizes,
    is_told,
    rate_ends,
    ratio_ends,
    rounded,
    share_size,
)

#: Key of ``first_failed`` for requests that failed.
OUTCOME = "outcome"

#: Key of ``first_failed`` for requests whose user left without a token, or after a limit had passed.
ABANDONED = "abandoned"

#: Keys of ``first_failed`` for answers that are not what was asked for, though they are ``ok``.
DOUBTFUL = (Doubt.CONTENT_FILTER, Doubt.NO_ANSWER, Doubt.NO_FINISH_REASON)

#: Key of ``first_failed`` for requests of which there is no record.
LOST = "lost"

#: Key of ``first_failed`` for requests that were due and were never sent.
UNSENT = "unsent"

#: Key of ``first_failed`` for requests from before the window that hung in it.
STUCK = "stuck"

#: Times are whole nanoseconds: below that a difference is one of floats.
_HALF_A_NANOSECOND = 0.5e-9

_LAST = np.finfo(np.float64).max


@dataclass(frozen=True, slots=True)
class Limits:
    """The run's SLO, and those of classes with their own."""

    slo: Slo
    of_class: Mapping[str, Slo] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.slo) or any(self.of_class.values())

    @property
    def metrics(self) -> tuple[str, ...]:
        """All metrics with a limit, in the order of :data:`SLO_METRICS`."""
        every = [self.slo, *self.of_class.values()]
        return tuple(metric for metric in SLO_METRICS if any(metric in slo.limits for slo in every))

    def of(self, label: str) -> Slo:
        """SLO of a class."""
        return self.of_class.get(label, self.slo)

    def per_request(self, classes: Labels, metric: str) -> Floats:
        """Limit of each request in seconds; infinite without one."""
        of_code = [*map(self.of, classes.names), self.slo]  # -1: no class
        return np.array([slo.limits.get(metric, np.inf) for slo in of_code], dtype=np.float64)[classes.codes]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Each request against its SLO; arrays of shape (rows,).

    ``judged`` marks the requests that are good or bad: those that ended ok, failed, were cancelled after they
    had broken a limit, or whose user left without a token. ``limited[metric]`` marks those that this limit
    applies to: they have it, and ended ok, failed, or were cancelled after they had broken it.
    ``held[metric]`` marks those of them that ended ok and met it (and the ok ones without such a limit),
    ``good`` those that met all and are none of :data:`DOUBTFUL`.
    ``unjudged[metric]`` marks those that have the limit and ended ok, but cannot be compared with it.
    ``first_failed`` is the index of what broke first in :attr:`causes`, -1 for good and not judged.
    ``by_delay`` marks those that ended ok, broke a limit counted from their schedule, and would have met all
    counted from when they were sent.
    """

    limits: Limits
    held: dict[str, Mask]
    limited: dict[str, Mask]
    unjudged: dict[str, Mask]
    good: Mask
    judged: Mask
    first_failed: NDArray[np.int8]
    by_delay: Mask

    @property
    def causes(self) -> tuple[str, ...]:
        """Causes that ``first_failed`` refers to by index."""
        return (*self.held, OUTCOME, ABANDONED, *(doubt.value for doubt in DOUBTFUL))


@dataclass(frozen=True, slots=True)
class Missing:
    """Requests that no record shows as scheduled in the window, and that were not good.

    ``lost`` and ``unsent`` ones have no record: the latter were due and never sent. ``stuck`` ones were
    scheduled before the window and hung in it, see :mod:`llm_locust.metrics.steady_window`. None if it is
    unknown how many of the run's belong here.
    """

    lost: int | None = 0
    unsent: int | None = 0
    stuck: int = 0

    @property
    def known(self) -> int:
        return (self.lost or 0) + (self.unsent or 0) + self.stuck

    @property
    def of_part(self) -> "Missing":
        """How many of those without a record belong to a part of the requests: unknown if there are any."""
        return Missing(0 if self.lost == 0 else None, 0 if self.unsent == 0 else None)


def judge(c: Columns, values: Mapping[str, Floats], limits: Limits, measured_from: MeasuredFrom) -> Judgement:
    """Judge every request by the SLO of its class.

    Args:
        values: result of :func:`~llm_locust.metrics.requests.latency.per_request` for ``c``.
        measured_from: start of ttft, ttfo and e2el.

    An undefined metric breaks its limit, except tpot. An answer with fewer than two tokens has no pace to
    break. The pace of several tokens that arrived at the same time is unknown: such an answer is judged by
    its other limits, and breaks this one if it has no other. A cancelled request has broken a limit if its
    metric is certainly above it: see :func:`~llm_locust.metrics.requests.latency.at_least`. A user who left
    without a token was not served, whatever the limits: their patience is a limit of their own. An ``ok``
    answer of :data:`DOUBTFUL` is not good; one with an unknown finish reason is.
    """
    ok, cancelled = c.ok, c.cancelled
    held, limited, unjudged, broken_at_s = {}, {}, {}, []
    if_sent_in_time = ok
    limits_s = {metric: limits.per_request(c.slo_class, metric) for metric in limits.metrics}
    several = np.sum([*map(np.isfinite, limits_s.values()), np.zeros(len(c))], axis=0) > 1
    for metric, limit_s in limits_s.items():
        measured, has_limit = _measured(values, metric, measured_from), np.isfinite(limit_s)
        kept = (measured <= limit_s + _HALF_A_NANOSECOND) | ~has_limit
        in_time = values[metric] <= limit_s + _HALF_A_NANOSECOND
        unjudged[metric] = np.zeros(len(c), np.bool_)
        if metric == "tpot":
            kept |= c.gap_tokens < 1
            unjudged[metric] = np.isnan(measured) & ~kept & ok
            kept |= unjudged[metric] & several
        if cancelled.any():
            broken = at_least(c, metric, measured_from) > limit_s + _HALF_A_NANOSECOND
            kept = np.where(cancelled, ~broken, kept)
        held[metric] = kept & ok
        if_sent_in_time = if_sent_in_time & (kept | in_time)
        limited[metric] = has_limit & ~(cancelled & kept)
        moment = _moment_s(c, metric, limit_s, measured_from)
        # Kept: never broken. Broken at an unknown moment: after every known one.
        broken_at_s.append(np.where(kept, np.inf, np.nan_to_num(moment, nan=_LAST)))
    within = np.logical_and.reduce([ok, *held.values()])
    doubts = [within & (c.doubt == DOUBTS.index(doubt)) for doubt in DOUBTFUL]
    good = within & ~np.logical_or.reduce(doubts)
    left = cancelled & c.abandoned & (c.events == 0)
    judged = np.logical_or.reduce([~cancelled, left, *(cancelled & mask for mask in limited.values())])
    first = np.argmin(broken_at_s, axis=0) if broken_at_s else np.zeros(len(c))
    causes = [good | ~judged, c.abandoned & cancelled, ~ok & ~cancelled, *doubts]
    indexes = [-1, len(held) + 1, len(held), *range(len(held) + 2, len(held) + 2 + len(doubts))]
    first_failed = np.select(causes, indexes, first).astype(np.int8)
    return Judgement(limits, held, limited, unjudged, good, judged, first_failed, if_sent_in_time & ~within)


_NOTHING_MISSING = Missing()


def goodput(
    judgement: Judgement | None,
    c: Columns,
    scheduled: Rows,
    missing: Missing = _NOTHING_MISSING,
) -> dict[str, Any]:
    """Shares of the requests that were scheduled in a window.

    ``slo`` is in milliseconds: the limits of the whole population; if its classes differ, the run's, and
    ``slo_by_class`` has those of each. ``attainment`` is for each limit the share of requests that ended ok
    and met it; the denominator are those in ``judged`` that have it and can be judged by it. ``not_judged``
    counts those that cannot. ``first_failed`` counts, for the requests that were not good, which limit
    broke first in time, ``outcome`` for those that failed, the doubt for those of :data:`DOUBTFUL`,
    ``abandoned`` for those whose user left, ``lost`` and ``unsent`` for those without a record, ``stuck``
    for those from before the window; the counts and the good ones add up to ``judged``.

    Args:
        judgement: None without an SLO: nothing is good or bad then, all values are None.
        scheduled: those of any outcome; see :class:`Judgement` for which of them are judged. Shares are None
            without any and without a missing one.
        missing: these met no limit. What is unknown of them is in no share, and has no key in
            ``first_failed``.
    """
    if judgement is None:
        return {
            "slo": {},
            "slo_by_class": {},
            "ratio": None,
            "judged": None,
            "attainment": {},
            "not_judged": {},
            "first_failed": {},
        }
    judged = scheduled[judgement.judged[scheduled]]
    n = len(judged) + missing.known
    absent = {LOST: missing.lost, UNSENT: missing.unsent, STUCK: missing.stuck}
    return {
        **_limits(judgement.limits, c.slo_class, judged),
        "ratio": int(judgement.good[judged].sum()) / n if n else None,
        "judged": n,
        "attainment": {
            metric: _attained(judgement, metric, judged, missing.known) for metric in judgement.held
        },
        "not_judged": {metric: int(mask[judged].sum()) for metric, mask in judgement.unjudged.items()},
        "first_failed": _first_failed(judgement, judged)
        | {key: count for key, count in absent.items() if count is not None},
    }


def good_rates(judgement: Judgement | None, credits: Credits, rows: Rows) -> dict[str, Any]:
    """Good requests that ended in the window, whenever they were scheduled, and tokens of good requests that
    arrived in it, per second.

    They are a part of the result of :func:`~llm_locust.metrics.requests.rates.throughput` for the same
    ``rows``, which are all requests and not those scheduled in the window.
    """
    seconds = credits.window.seconds
    if judgement is None or seconds <= 0:
        return {"requests_per_s": None, "output_tokens_per_s": None}
    good = rows[judgement.good[rows]]
    finished = credits.finished[good]
    return {
        "requests_per_s": int(finished.sum()) / seconds,
        "output_tokens_per_s": rate_per_s(credits.output_tokens[good], finished, seconds),
    }


def _limits(limits: Limits, classes: Labels, judged: Rows) -> dict[str, Any]:
    """Keys ``slo`` and ``slo_by_class``."""
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


def _attained(judgement: Judgement, metric: str, judged: Rows, missing: int) -> float | None:
    limited = judged[(judgement.limited[metric] & ~judgement.unjudged[metric])[judged]]
    n = len(limited) + missing
    return int(judgement.held[metric][limited].sum()) / n if n else None


def _first_failed(judgement: Judgement, judged: Rows) -> dict[str, int]:
    causes = judgement.causes
    failed = np.bincount(judgement.first_failed[judged] + 1, minlength=len(causes) + 1)[1:]
    found = {cause: int(count) for cause, count in zip(causes, failed, strict=True)}
    return {cause: count for cause, count in found.items() if count or cause not in DOUBTFUL}


def _measured(values: Mapping[str, Floats], metric: str, measured_from: MeasuredFrom) -> Floats:
    late = measured_from == "scheduled" and LATENCY[metric].begins_as_told
    return values[metric] + values["schedule_delay"] if late else values[metric]


def _moment_s(c: Columns, metric: str, limit_s: Floats, measured_from: MeasuredFrom) -> Floats:
    """Time at which a limit breaks, in seconds after sent, or after started if it never was.

    A limit on an end breaks as it passes; tpot when the answer takes longer than its n tokens may.
    """
    if metric == "tpot":
        gaps = np.where(c.cancelled, most_gaps(c), c.gap_tokens)
        with np.errstate(invalid="ignore"):  # ∞ × 0: a one-token answer that has no such limit
            return c.paced_from_s + limit_s * gaps
    return limit_s - (begun_s(c) - counted_from_s(c, LATENCY[metric], measured_from))


# --- Confidence intervals of goodput: of its ratio and its rates


RATES = ("requests_per_s", "output_tokens_per_s")


def goodput_intervals(
    judgement: Judgement | None, c: Columns, credits: Credits, scheduled: Rows, rows: Rows, missing: int = 0
) -> dict[str, Any]:
    """``ci95`` of ratio, requests_per_s and output_tokens_per_s, and ``n_effective`` of the ratio.

    None if the data are not sufficient; all None without an SLO.

    Args:
        scheduled: requests of the ratio, before they are judged.
        rows: requests of the rates.
        missing: requests without a record; they are spread over all cells, because their positions are
            unknown.
    """
    ends: dict[str, Ends | None] = dict.fromkeys(("ratio", *RATES))
    worth = None
    if judgement is not None:
        good = judgement.good
        judged = scheduled[judgement.judged[scheduled]]
        if len(judged):
            worth = ratio_size(c, judged, good[judged].astype(np.float64), missing)
        if worth is not None and is_told(worth, FEWEST):
            share = float(good[judged].sum()) / (len(judged) + missing)
            ends["ratio"] = ratio_ends(share, worth, CONFIDENCE)
        rates = good_rates(judgement, credits, rows)
        given = amounts_over_time(c, credits, rows[good[rows]])
        ends |= {key: rate_ends(rates[key], given[key], credits.window, c) for key in RATES}
    return {"ci95": as_json(ends), "n_effective": {"ratio": None if worth is None else rounded(worth.n_eff)}}


def ratio_size(c: Columns, judged: Rows, hits: Floats, missing: int = 0) -> EffectiveSize | None:
    """Effective sample size of a share of ``judged``, where ``hits`` is 1 for each that counts.

    If nearly all are hits, or nearly none, it is at most that of the mean E2EL of the ok ones: requests that
    are slow together fail together.
    """
    order = order_cells(c, judged)
    counts = np.diff(order.bounds).astype(np.float64)
    counts += missing / max(1, len(counts))
    latencies = np.where(c.ok[judged], e2el(c)[judged], np.nan)
    known = latencies[~np.isnan(latencies)]
    slow = None
    if len(known):
        moments = float(known.mean()), float(known.std())
        slow, _ = effective_sizes(Observed(order, latencies), *moments, float(np.median(known)))
    worth = share_size(order.sums(order.sorted(hits)), counts, slow)
    if worth is None or worth.memory is not None:
        return worth
    # No request was ok: the share itself is all that shows how long the run remembers.
    return replace(worth, memory=Memory(float(counts.sum()), worth.n_eff if worth.error.settled else 0.0))
