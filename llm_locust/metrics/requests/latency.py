"""Latencies of requests, and their figures. The catalogue has the formulas."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from llm_locust.metrics.catalogue import FORMULAS, LATENCY, Begin, End, LatencyMetric, tpot, ttft
from llm_locust.metrics.columns import Columns, Floats, Mask, Part, Rows, offsets_of
from llm_locust.metrics.requests.gaps import gaps_of
from llm_locust.metrics.stats.bootstrap import Order, order_cells
from llm_locust.metrics.stats.censoring import (
    PERCENTILES,
    Censored,
    Durations,
    later_is_longer,
    summarise,
    with_infinite,
)
from llm_locust.metrics.stats.intervals import Observed
from llm_locust.metrics.window import Population

# --------------------
# Lower bounds for requests that were given up before their end: the time they had taken.
#
# The run's end cuts requests in flight, a user loses patience and leaves, or a timeout expires. In each
# case the request would have taken longer: its durations are right-censored, neither known nor absent.
# --------------------


MeasuredFrom = Literal["scheduled", "sent"]


def at_least(c: Columns, metric: str, measured_from: MeasuredFrom = "sent") -> Floats:
    """Lower bound of a latency for each request that was given up, in seconds; shape (rows,).

    It is ttft or ttfo itself if that token had arrived. Otherwise it is the time until the request was given
    up, which also bounds e2el: the last token of an incomplete answer is still to come. The tpot is at least
    (ended − sent − ttft) / (m − k), where m is the greatest number of tokens that the answer may have: those
    that were asked for, or one more than have arrived, if these are more or the former is unknown. A request
    that was given up before it was sent counts from started instead of sent: it waited for a server that
    accepted no connection.

    Args:
        metric: one that an SLO may have, or that has an end.
        measured_from: start of ttft, ttfo and e2el.

    Returns:
        NaN for requests that were not given up, and where nothing is known: for tpot, before the first token;
            for ttft and ttfo, without streaming.
    """
    row = LATENCY[metric]
    if row.end is None:
        bound = (c.ended_s - c.sent_s - c.paced_from_s) / most_gaps(c)
        return np.where(c.given_up, bound, np.nan)
    from_s = counted_from_s(c, row, measured_from)
    bound = c.ended_s - from_s
    if row.end is not End.LAST_TOKEN:
        came = _came(c, row.end) + (c.sent_s - from_s)
        bound = np.where(c.streamed, np.where(np.isnan(came), bound, came), np.nan)
    if row.per is not None:
        bound = bound * row.per(c)
    return np.where(c.given_up, bound, np.nan)


def begun_s(c: Columns) -> Floats:
    """Time at which each request was sent, or started if it never was, in seconds."""
    return np.where(np.isnan(c.sent_s), c.started_s, c.sent_s)


def counted_from_s(c: Columns, row: LatencyMetric, measured_from: MeasuredFrom) -> Floats:
    """Start of a latency for each request, in seconds."""
    begin = Begin(measured_from) if row.begins_as_told else row.begin
    return {Begin.SCHEDULED: c.scheduled_s, Begin.STARTED: c.started_s, Begin.SENT: begun_s(c)}[begin]


def _came(c: Columns, end: End) -> Floats:
    return c.first_event_s if end is End.FIRST_TOKEN else c.first_answer_s


def most_gaps(c: Columns) -> Floats:
    """Greatest number of gaps between tokens that an incomplete answer may finally have."""
    return np.fmax(c.asked_output_tokens - c.opening_tokens, np.maximum(c.gap_tokens + 1, 1))


def cut_pace_s(c: Columns) -> Floats:
    """The pace of answers that were cut after their second token event, in seconds a token; shape (rows,).

    It is that of the k tokens that came after the first event: (last − first) / k, or (ended − first) /
    (k + 1) if that is longer, for where they had stopped coming the next one would have come later than the
    cut. NaN for all others.
    """
    k, silent_s = c.gap_tokens, c.ended_s - c.sent_s - c.paced_from_s
    spent_s = c.last_token_s - c.paced_from_s
    known = c.cancelled & c.streamed & (c.events >= 2) & (k >= 1) & (spent_s > 0)
    more = np.where(known, k, 1.0)
    return np.where(known, np.maximum(spent_s / more, silent_s / (more + 1)), np.nan)


def is_open(c: Columns, end: End) -> Mask:
    """Requests that were given up before an event that latencies wait for."""
    return c.given_up if end is End.LAST_TOKEN else c.given_up & c.streamed & np.isnan(_came(c, end))


@dataclass(frozen=True, slots=True)
class Samples:
    """One latency of all requests: its value, or its lower bound for those that were given up.

    ``open`` marks the latter; ``bounds_s`` is None for a latency of ok requests only.
    """

    c: Columns
    values_s: Floats
    bounds_s: Floats | None
    open: Mask | None

    @classmethod
    def of(cls, c: Columns, values: Mapping[str, Floats], metric: str) -> "Samples":
        """Samples of a metric; ``values`` are the latencies from
        :func:`~llm_locust.metrics.requests.latency.per_request`."""
        end = LATENCY[metric].end
        if end is None or not c.given_up.any():
            return cls(c, values[metric], None, None)
        return cls(c, values[metric], at_least(c, metric), is_open(c, end))

    def durations(self, population: Population, order: Order) -> Durations:
        """Durations of a population: of its ok requests, and of those that were given up.

        Args:
            order: of all requests of the population, for the course of the durations.
        """
        return self._durations(population, population.given_up(self.c), order)

    def adjusted(self, population: Population, plain: Durations, order: Order) -> Durations:
        """The same with +∞ for each failed request, including timeouts.

        Args:
            plain: result of :meth:`durations` for the population.
        """
        if self.c.timed_out[population.failed].any():
            plain = self._durations(population, population.cancelled, order)
        of_all = population.all
        failed = np.zeros(len(of_all), dtype=np.bool_)
        failed[np.searchsorted(of_all, population.failed)] = True
        return with_infinite(plain, len(population.failed), order.sums(order.sorted(failed)))

    def _durations(self, population: Population, given_up: Rows, order: Order) -> Durations:
        ok, of_all = population.ok, population.all
        if self.bounds_s is None or self.open is None or not len(given_up):
            ended = self.values_s[of_all]
            ended[~self.c.ok[of_all]] = np.nan
            return replace(Durations.of(ended), course=Observed(order, ended))
        known = given_up[~np.isnan(self.bounds_s[given_up])]
        still_open = known[self.open[known]]
        observed = np.concatenate([ok, known[~self.open[known]]])
        observed_s = np.concatenate([self.values_s[ok], self.bounds_s[observed[len(ok) :]]])
        defined = ~np.isnan(observed_s)
        observed, observed_s = observed[defined], observed_s[defined]
        censored_s = self.bounds_s[still_open]
        trend = later_is_longer(
            observed_s, censored_s, self.c.scheduled_s[observed], self.c.scheduled_s[still_open]
        )
        found = Durations.of(observed_s, censored_s, trend=trend)
        lasted = np.full(len(self.c), np.nan)
        lasted[observed], lasted[still_open] = observed_s, censored_s
        cut = np.zeros(len(self.c), dtype=np.bool_)
        cut[still_open] = True
        return replace(found, course=Censored(order, lasted[of_all], cut[of_all], found))


def with_unsent(found: Durations, metric: str, unsent: int) -> Durations:
    """The same durations of a metric together with those of requests that were due and never sent.

    How long these would have waited is unknown: they leave open whatever they could change.
    """
    if not unsent or not LATENCY[metric].is_from_scheduled:
        return found
    return replace(found, censored=np.concatenate([np.zeros(unsent), found.censored]), trend=True)


def with_stuck(found: Durations, lasted_s: Floats) -> Durations:
    """The same durations together with those of requests that had taken this long when they were given up.

    They are included because they were long: they leave open whatever they could change.
    """
    if not len(lasted_s):
        return found
    return replace(found, censored=np.sort(np.concatenate([lasted_s, found.censored])), trend=True)


@dataclass(frozen=True, slots=True)
class Gaps:
    """Inter-token latencies of requests: request i has ``values_s[offsets[i]:offsets[i + 1]]``."""

    offsets: NDArray[np.int64]
    values_s: Floats


def user_tps(c: Columns) -> Floats:
    """1 / tpot: the tokens/s for one user."""
    return np.reciprocal(tpot(c))


def chars_per_s(c: Columns) -> Floats:
    """Characters of the answer × (1 − 1/events) / (e2el − ttft): the pace without a tokenizer.

    Each event counts as the same number of characters, and those of the first have no gap before them.
    Undefined for fewer than two events, and if all arrived at once.
    """
    spent = c.last_event_s - ttft(c)
    with np.errstate(divide="ignore"):
        carried = c.output_chars * (1 - 1 / c.events)
    return carried / np.where(spent > 0, spent, np.nan)


def itl(c: Part, rows: Rows | None = None) -> Gaps:
    """Gaps between successive token events of ``rows`` (all without it), a list for each.

    Returns:
        One list a row; ``values_s`` is the pooled population. Beside it some MiB are used.
    """
    rows = np.arange(len(c)) if rows is None else rows
    counts = np.where(c.streamed[rows], np.maximum(c.events[rows] - 1, 0), 0).astype(np.int64)
    values = np.empty(int(counts.sum()))
    filled = 0
    for _, gaps_ns, _ in gaps_of(c, rows[counts > 0]):
        np.multiply(gaps_ns, 1e-9, out=values[filled : filled + len(gaps_ns)])
        filled += len(gaps_ns)
    return Gaps(offsets_of(counts), values)


@dataclass(frozen=True, slots=True)
class PerRequest(Mapping[str, Floats]):
    """Every latency of the catalogue that is one number a request (all but ``itl``).

    Each is computed on every access: all of them would take more memory than the columns.
    """

    columns: Columns

    def __getitem__(self, metric: str) -> Floats:
        return FORMULAS[metric](self.columns)

    def __iter__(self) -> Iterator[str]:
        return iter(FORMULAS)

    def __len__(self) -> int:
        return len(FORMULAS)


def per_request(c: Columns) -> Mapping[str, Floats]:
    return PerRequest(c)


@dataclass(frozen=True, slots=True)
class Measurable:
    """A population of a table, and its gaps.

    ``order`` is that of all of the population. ``failed_over_time`` counts the failures in each cell of the
    gaps' course. ``unsent`` further requests were due and never sent. ``stuck_s`` returns the lower bounds of
    a metric for requests from before the window that hung in it.
    """

    population: Population
    gaps: Callable[[], Durations]  # called once, when it is their turn
    order: Order
    failed_over_time: Floats
    unsent: int = 0
    stuck_s: Callable[[str], Floats] = lambda _: np.empty(0)


Tables = tuple[dict[str, Any], dict[str, Any]]


def latency_tables(
    c: Columns, populations: Sequence[Measurable], places: Mapping[str, float] = PERCENTILES
) -> list[Tables]:
    """Plain and adjusted figures of every metric, for each population.

    The plain ones are of the requests that ended ok; of ttft, ttfo and e2el, from wherever, those that were
    cancelled or timed out are censored samples, and observed ones where that token had come. The adjusted
    ones have +∞ for each failed request in place of its times: once, and in ``itl`` as often as an ok request
    has gaps on average. In both, requests that were never sent leave open what is counted from scheduled, and
    requests from before the window that hung in it their latencies, as far as they could move them.
    ``places`` are the percentiles that a table has, key to percent.
    """
    tables: list[Tables] = [({}, {}) for _ in populations]
    for metric in LATENCY:
        # Metric by metric, so that the values of one at a time are there.
        samples = Samples.of(c, per_request(c), metric) if metric in FORMULAS else None
        for (plain, adjusted), each in zip(tables, populations, strict=True):
            found = each.gaps() if samples is None else samples.durations(each.population, each.order)
            stuck_s = each.stuck_s(metric)
            whole = with_unsent(with_stuck(found, stuck_s), metric, each.unsent)
            plain[metric] = adjusted[metric] = summarise(whole, 1e3, places)
            if not len(each.population.failed):
                continue  # what is to be adjusted for is not there
            if samples is None:
                beyond = adjusted_gaps(found, each.population, each.failed_over_time)
            else:
                beyond = samples.adjusted(each.population, found, each.order)
            whole = with_unsent(with_stuck(beyond, stuck_s), metric, each.unsent)
            adjusted[metric] = summarise(whole, 1e3, places)
    return tables


def adjusted_gaps(found: Durations, population: Population, failed_over_time: Floats) -> Durations:
    """The gaps of a population with +∞ for as many as each failed request would have had: those of the
    average ok one.

    Args:
        failed_over_time: number of failures in each cell of the gaps' course.
    """
    failed, gaps = len(population.failed), len(found.observed)
    infinite = round(failed * gaps / len(population.ok)) if gaps else failed
    return with_infinite(found, infinite, failed_over_time / max(1, failed) * infinite)


def latency_figures(
    c: Columns,
    populations: Sequence[Population],
    metrics: Sequence[str],
    places: Mapping[str, float],
    stuck_s: Sequence[Callable[[str], Floats]] | None = None,
) -> list[dict[str, dict[str, Any]]]:
    """Plain figures of some metrics other than itl, for each population.

    Args:
        stuck_s: of each population, as in :class:`Measurable`; default: none.
    """
    bounds_s = stuck_s or [lambda _: np.empty(0)] * len(populations)
    found: list[dict[str, dict[str, Any]]] = [{} for _ in populations]
    orders = [order_cells(c, population.all) for population in populations]
    for metric in metrics:
        samples = Samples.of(c, per_request(c), metric)
        for figures, population, order, bound_s in zip(found, populations, orders, bounds_s, strict=True):
            durations = with_stuck(samples.durations(population, order=order), bound_s(metric))
            figures[metric] = summarise(durations, 1e3, places)
    return found
