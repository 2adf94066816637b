"""Lower bounds for requests that were given up before their end: the time they had taken.

The run's end cuts requests in flight, a user loses patience and leaves, or a timeout expires. In each case
the request would have taken longer: its durations are right-censored, neither known nor absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from llm_locust.metrics.catalogue import LATENCY
from llm_locust.metrics.columns import Columns, Floats, Mask, Rows
from llm_locust.metrics.latency_metric import Begin, End, LatencyMetric
from llm_locust.metrics.stats.cells import Order
from llm_locust.metrics.stats.censoring import Censored, Durations, later_is_longer, with_infinite
from llm_locust.metrics.stats.intervals import Observed
from llm_locust.metrics.window import Population

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
