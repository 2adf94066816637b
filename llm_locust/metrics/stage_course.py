"""Steadiness of a stage's measured part: whether it was steady or saturated, or precise enough to end."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from llm_locust.core.texts import quantity
from llm_locust.metrics.catalogue import LATENCIES
from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.stats.bootstrap import order_cells
from llm_locust.metrics.stats.censoring import PERCENTILES, ordered, percentile
from llm_locust.metrics.stats.intervals import CONFIDENCE, CellSums, Observed, told
from llm_locust.metrics.stats.trend import change_point, mann_kendall
from llm_locust.metrics.window import Window

# --- Requests of a stage as times: what the looks at its course are taken of


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCourse:
    """Requests that reach into a stage's measured part, ``start_s`` to ``end_s`` on the axis of all times.

    A request begins when it was due in an open loop, when it was sent in a closed one. Those that never were
    sent are left out of a closed loop. Whatever its outcome, it is there until it ended.
    """

    start_s: float
    end_s: float
    begun_s: Floats
    ended_s: Floats
    open_loop: bool

    @classmethod
    def of(cls, c: Columns, window: Window, open_loop: bool) -> "StageCourse":
        begun_s = c.scheduled_s if open_loop else c.sent_s
        start_s, end_s = window.start_s(c), window.end_s(c)
        theirs = (begun_s < end_s) & (c.ended_s >= start_s)
        return cls(
            start_s=start_s,
            end_s=end_s,
            begun_s=begun_s[theirs],
            ended_s=c.ended_s[theirs],
            open_loop=open_loop,
        )

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    @property
    def lasted_s(self) -> Floats:
        return self.ended_s - self.begun_s

    def in_order(self) -> Rows:
        """Those that began inside, in that order; of equal times the shorter one first."""
        rows = np.flatnonzero(self.begun_s >= self.start_s)
        return rows[np.lexsort((self.ended_s[rows], self.begun_s[rows]))]

    @property
    def ended_inside(self) -> int:
        return int((self.ended_s < self.end_s).sum())

    def in_flight(self, at_s: Floats) -> Floats:
        """Number of requests in flight at each of these times."""
        begun = np.searchsorted(np.sort(self.begun_s), at_s, side="right")
        ended = np.searchsorted(np.sort(self.ended_s), at_s, side="right")
        return (begun - ended).astype(np.float64)


# --------------------
# ``--until "p99_ttft±5%"``: whether the interval of a figure is narrow enough to end a stage early.
#
# A stage is looked at a few times. Each look has an interval of its own confidence, 1 − 5 % / looks
# (Bonferroni), so that all of them hold the truth together in 95 % of stages, whichever look ended it.
# --------------------


#: Shares of the stage's time at which it is looked at before its end, which is the last look.
EARLY_LOOKS = (0.25, 0.5, 0.75)
LOOKS = len(EARLY_LOOKS) + 1

#: Confidence of the interval of one look.
LOOK_CONFIDENCE = 1 - (1 - CONFIDENCE) / LOOKS

STATISTICS = ("mean", *PERCENTILES)
#: One number a request: the gaps of ``itl`` are not.
_METRICS = tuple(metric.key for metric in LATENCIES if metric.is_gated and metric.key != "itl")

_ALLOWED = (
    "write FIGURE±SHARE, as p99_ttft±5% or p50_e2el+-2%; the figure is one of "
    f"{', '.join(STATISTICS)}, an underscore, and one of {', '.join(_METRICS)}"
)
_TEXT = re.compile(r"\s*(?P<figure>[a-z0-9_]+)\s*(?:±|\+-|\+/-)\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*%\s*")


@dataclass(frozen=True, slots=True)
class Until:
    """A figure and the greatest half of its interval, as a share of it."""

    text: str
    metric: str
    statistic: str
    precision: float


@dataclass(frozen=True, slots=True)
class FigureEstimate:
    """A figure in seconds with its interval; None where the requests are too few, or depend on each other."""

    value_s: float | None
    ends_s: tuple[float, float] | None

    @property
    def half(self) -> float | None:
        """Half the interval as a share of the figure."""
        if self.ends_s is None or not self.value_s:
            return None
        return (self.ends_s[1] - self.ends_s[0]) / 2 / self.value_s


def parse_until(text: str) -> Until:
    """Parse a figure and its precision (raises ValueError)."""
    match = _TEXT.fullmatch(text)
    statistic, _, metric = ("", "", "") if match is None else match["figure"].rpartition("_")
    if match is not None:
        for known in sorted(STATISTICS, key=len, reverse=True):
            if match["figure"].startswith(f"{known}_"):
                statistic, metric = known, match["figure"][len(known) + 1 :]
                break
    if match is None or statistic not in STATISTICS or metric not in _METRICS:
        raise ValueError(f"until {text!r}: {_ALLOWED}")
    precision = float(match["number"]) / 100
    if not 0.001 <= precision <= 1:
        raise ValueError(f"until {text!r}: {match['number']} % is not from 0.1 % to 100 %")
    return Until(f"{statistic}_{metric}±{match['number']}%", metric, statistic, precision)


def look_at(m: Measured, until: Until) -> FigureEstimate:
    """The figure of the ok requests that were scheduled in the window of ``m``, with its interval.

    There is no interval where failed requests, as the slowest ones, reach up to the figure: that of the ok
    ones is then not what users see.
    """
    population = m.population(np.arange(len(m.c)))
    values_s = m.values[until.metric][population.ok]
    found = look(values_s, Observed(order_cells(m.c, population.ok), values_s), until)
    percent = PERCENTILES.get(until.statistic, 100.0)  # a mean has no tail to be in
    reached = len(population.failed) * 100 > len(population.judged) * (100 - percent)
    return replace(found, ends_s=None) if reached else found


def is_enough(found: FigureEstimate, until: Until) -> bool:
    return found.half is not None and found.half <= until.precision


def look(values_s: Floats, course: CellSums, until: Until) -> FigureEstimate:
    """The figure of values, NaN being none, and its interval by their course in the order of the stage."""
    known_s = values_s[~np.isnan(values_s)]
    if not len(known_s):
        return FigureEstimate(None, None)
    ascending = ordered(known_s)
    mean_s = float(ascending.mean())

    def quantile(percent: float) -> float:
        return percentile(ascending, percent)

    ends, _ = told(course, PERCENTILES, quantile, mean_s, float(ascending.std()), LOOK_CONFIDENCE)
    value_s = mean_s if until.statistic == "mean" else quantile(PERCENTILES[until.statistic])
    return FigureEstimate(value_s, ends[until.statistic])


# --------------------
# Whether the measured part of a stage was steady, and whether it was saturated.
#
# Every look is taken at every stage, so each one errs rarely, and none counts a change that is small:
#
# ``level``       the median latency of successive requests has a trend (Mann–Kendall) or a change point
#                 (self-normalised CUSUM)
# ``tail``        the slow requests come together: excursions above a high latency, each ended by a return to
#                 the median, are not spread over the stage (Kuiper)
# ``answers``     in a closed loop: far fewer answers were made in a part of the stage than in the rest
# ``backlog``     in an open loop: requests in flight pile up, and may fall again
# ``standstill``  nothing ends for a long time, with several requests in flight
# ``N = X R``     in a closed loop: Little's law without the edges. The requests in flight at the end have
#   been
#                 there for longer than those at the start had
#
# A stage is saturated if requests are due faster than they end, so that those in flight grow until its end.
#
# With 95 % of steady stages none of them finds anything; the simulated ones of
# ``tests/figures/test_figures_steadiness.py`` are M/M/1 queues at loads of 0.1 to 0.9, and closed loops
# with lognormal times.
# --------------------


#: Requests that a look at single latencies needs, and one at all of them.
FEWEST_FOR_LATENCIES, FEWEST = 100, 20

#: Mann–Kendall's z, and the self-normalised CUSUM, of which 121.9 is exceeded by 0.1 % of long series.
_TREND_Z, _CHANGE = 3.7, 250.0

#: Smallest change of the median latency that counts, and of the answers made.
_LEAST_CHANGE, _MOST_LEFT = 0.10, 0.7

#: Values of a median over the stage, at most, and requests of each at least.
_VALUES, _REQUESTS = 20, 8

#: Kuiper's V*: exceeded by 0.5 % of even spreads. Excursions that it needs.
_KUIPER, _EXCURSIONS = 2.1, 6

#: A slow request is among the slowest of this share, and takes this many medians.
_SLOW_SHARE, _FEWEST_SLOW, _SLOW_MEDIANS = 0.02, 12, 1.5

#: Parts of a stage between which a lack of answers is looked for, and standard deviations that it takes.
_PARTS, _LACK_SIGMAS = 24, 5.0

#: A standstill lasts for so many mean latencies, and has this probability at most.
_STANDSTILL_MEANS, _STANDSTILL_CHANCE = 3.0, 1e-4

#: Share of the requests due that are in flight, and standard deviations of what chance piles up before a
#: server that is just fast enough: for a pile that may fall again, and for what is left at the end.
_PILE, _PILE_SIGMAS = 0.2, 4.0
_LEFT, _LEFT_SIGMAS = 0.1, 2.5

#: Share of all time in flight by which the edges differ, and standard deviations.
_EDGES, _EDGES_SIGMAS = 0.1, 4.0

#: The median of |a − b| of two normal values is so many of their standard deviations.
_MEDIAN_STEP = 0.954


def unsteady(course: StageCourse) -> list[str]:
    """What was not steady, as phrases; empty if no look found anything.

    A stage of fewer than :data:`FEWEST` requests has only the first look: whether anything was answered.
    """
    looks = [_silence]
    if len(course.begun_s) >= FEWEST:
        looks += [_standstill]
        looks += [_pile] if course.open_loop else [_lack_of_answers, _edges]
    found = [text for look in looks for text in look(course)]
    if len(rows := course.in_order()) >= FEWEST_FOR_LATENCIES:
        latencies_s = course.lasted_s[rows]
        begun_s = course.begun_s[rows] - course.start_s
        found += [*_level(latencies_s, begun_s), *_tail(latencies_s, begun_s)]
    return found


def saturation(course: StageCourse, unsent: int = 0) -> str:
    """By how much an open loop outran the server, as a phrase; empty if it did not, or in a closed loop.

    Args:
        unsent: requests that were due and have no record, because they had not started when the drain ended.
    """
    if not course.open_loop or len(course.begun_s) < FEWEST:
        return ""
    due = int((course.begun_s >= course.start_s).sum()) + unsent
    first, last = course.in_flight(np.array([course.start_s, course.end_s])) + np.array([0, unsent])
    if last - first <= max(_LEFT * due, _LEFT_SIGMAS * _chance(course)):
        return ""
    return f"{due:,} requests were due and {due - last + first:,.0f} ended; {last:,.0f} were left at its end"


def _silence(course: StageCourse) -> Iterator[str]:
    if not len(course.begun_s):
        yield "no request was in flight"
    elif not course.ended_inside:
        yield f"none of the {len(course.begun_s)} requests in flight ended"


def _standstill(course: StageCourse) -> Iterator[str]:
    """The longest time without an end, if the requests in flight cannot all have been slow by chance.

    That they were, independently of each other, has the probability qᵏ in each such time: k requests were in
    flight, and q is the share of all other time in flight that has as much of its request before it.
    """
    ends_s = np.sort(course.ended_s[(course.ended_s >= course.start_s) & (course.ended_s < course.end_s)])
    edges_s = np.concatenate([[course.start_s], ends_s, [course.end_s]])
    longest = int(np.argmax(np.diff(edges_s)))
    first_s, last_s = float(edges_s[longest]), float(edges_s[longest + 1])
    gap_s = last_s - first_s
    through = (course.begun_s <= first_s) & (course.ended_s >= last_s)
    others_s, k = course.lasted_s[~through], int(through.sum())
    if k < 2 or not len(others_s) or gap_s < _STANDSTILL_MEANS * float(others_s.mean()):
        return
    beyond_s = float(np.maximum(others_s - gap_s, 0.0).sum())
    share = (beyond_s + gap_s) / (float(others_s.sum()) + gap_s)
    if k * math.log(share) + math.log(course.seconds / gap_s) < math.log(_STANDSTILL_CHANCE):
        yield f"nothing ended for {quantity(gap_s)} s, with {k:,} requests in flight"


def _level(latencies_s: Floats, begun_s: Floats) -> Iterator[str]:
    values = min(_VALUES, len(latencies_s) // _REQUESTS)
    parts = np.array_split(latencies_s, values)
    medians = np.log([max(percentile(ordered(part), 50.0), 1e-9) for part in parts])
    trend = mann_kendall(medians)
    change = math.expm1(trend.slope * values)
    if abs(trend.z) > _TREND_Z and abs(change) > _LEAST_CHANGE:
        moved = "rose" if change > 0 else "fell"
        yield f"its median latency {moved} by {100 * abs(change):.0f} % over the stage"
        return
    point = change_point(medians)
    before, after = (float(np.median(part)) for part in np.split(medians, [point.at]))
    if point.statistic > _CHANGE and abs(math.expm1(after - before)) > _LEAST_CHANGE:
        at_s = begun_s[sum(map(len, parts[: point.at]))]
        values_s = f"from {quantity(math.exp(before))} s to {quantity(math.exp(after))} s"
        yield f"its median latency went {values_s} after {quantity(at_s)} s"


def _tail(latencies_s: Floats, begun_s: Floats) -> Iterator[str]:
    ascending = ordered(latencies_s)
    slow = max(_FEWEST_SLOW, round(_SLOW_SHARE * len(ascending)))
    middle_s = percentile(ascending, 50.0)
    high_s = max(float(ascending[-slow]), _SLOW_MEDIANS * middle_s)
    state = np.where(latencies_s >= high_s, 1, np.where(latencies_s <= middle_s, -1, 0))
    marked = np.flatnonzero(state)
    before = np.concatenate([[-1], state[marked][:-1]])
    begins = marked[(state[marked] == 1) & (before == -1)]
    n = len(begins)
    if n < _EXCURSIONS:
        return
    places = (begins + 0.5) / len(latencies_s)
    excess = np.arange(1, n + 1) / n - places  # of those up to here, over an even spread
    least, most = int(np.argmin(excess - 1 / n)), int(np.argmax(excess))
    kuiper = float(excess[most] - (excess[least] - 1 / n))
    if kuiper * (math.sqrt(n) + 0.155 + 0.24 / math.sqrt(n)) <= _KUIPER:
        return
    if least <= most:  # many from here to there, else few
        what, some = "came together", most - least + 1
        first_s, last_s = begun_s[begins[least]], begun_s[begins[most]]
    else:
        what, some = "stayed away", least - most - 1
        first_s, last_s = begun_s[begins[most]], begun_s[begins[least]]
    where = f"between {quantity(first_s)} s and {quantity(last_s)} s"
    yield f"its slow requests {what}: {some} of {n} times above {quantity(high_s)} s were {where}"


def _lack_of_answers(course: StageCourse) -> Iterator[str]:
    """A part of the stage in which far fewer answers were made than in the rest.

    An answer is spread evenly over the time that it took. The dispersion of their number is at least that of
    a Poisson process, that of the durations outside of the part, and that between neighbouring parts.
    """
    lasts = course.lasted_s > 0
    begun_s, ended_s = course.begun_s[lasts], course.ended_s[lasts]
    edges = np.linspace(course.start_s, course.end_s, _PARTS + 1)
    made = np.array([np.clip((edge - begun_s) / (ended_s - begun_s), 0.0, 1.0).sum() for edge in edges])
    made -= made[0]
    n = float(made[-1])
    i, j = np.triu_indices(_PARTS + 1, 2)
    allowed = j - i <= _PARTS * 2 // 3
    i, j = i[allowed], j[allowed]
    shares, counts = (j - i) / _PARTS, made[j] - made[i]
    most = int(np.argmax((n * shares - counts) / np.sqrt(shares * (1 - shares))))
    share, count, first_s, last_s = float(shares[most]), float(counts[most]), edges[i[most]], edges[j[most]]
    rest_s = (ended_s - begun_s)[(ended_s <= first_s) | (begun_s >= last_s)]
    if not len(rest_s) or count / share > _MOST_LEFT * (n - count) / (1 - share):
        return
    steps = float(np.median(np.abs(np.diff(made, 2)))) / _MEDIAN_STEP
    dispersion = max(1.0, float(rest_s.var() / rest_s.mean() ** 2), steps**2 / (n / _PARTS))
    if n * share - count > _LACK_SIGMAS * math.sqrt(n * share * (1 - share) * dispersion):
        left = count / share / ((n - count) / (1 - share))
        where = f"from {quantity(first_s - course.start_s)} s to {quantity(last_s - course.start_s)} s"
        yield f"{where} answers were made at {100 * left:.0f} % of the rate in the rest of the stage"


def _pile(course: StageCourse) -> Iterator[str]:
    due = int((course.begun_s >= course.start_s).sum())
    levels = course.in_flight(np.linspace(course.start_s, course.end_s, 2 * _PARTS + 1))
    rises, falls = levels - np.minimum.accumulate(levels), np.maximum.accumulate(levels) - levels
    most = max(float(rises.max()), float(falls.max()))
    if most > max(_PILE * due, _PILE_SIGMAS * _chance(course)):
        yield f"requests piled up: between {levels.min():,.0f} and {levels.max():,.0f} were in flight"


def _chance(course: StageCourse) -> float:
    """Standard deviation of requests due less requests answered, if the server is just fast enough.

    √(A (1 + C²)), C being the coefficient of variation between arrivals, at least 1.
    """
    due_s = np.sort(course.begun_s[course.begun_s >= course.start_s])
    between_s = np.diff(due_s)
    if not len(between_s) or not between_s.mean() > 0:
        return math.sqrt(2 * len(due_s))
    return math.sqrt(len(due_s) * (1 + max(1.0, float(between_s.var() / between_s.mean() ** 2))))


def _edges(course: StageCourse) -> Iterator[str]:
    """N T − X R T is the time in flight before the start of those in flight there, less that at the end.

    Both have the same expectation where the stage is steady. The variance of a time since a request began is
    at most the mean square, E[D³] / 3 E[D] over durations D.
    """
    start_s, end_s, lasted_s = course.start_s, course.end_s, course.lasted_s
    at_start = start_s - course.begun_s[course.begun_s < start_s]
    at_end = end_s - course.begun_s[course.ended_s >= end_s]
    inside = np.minimum(course.ended_s, end_s) - np.maximum(course.begun_s, start_s)
    area, total = float(inside.clip(0.0).sum()), float(lasted_s.sum())
    if area <= 0 or total <= 0 or not len(at_end):
        return
    square = float((lasted_s**3).sum()) / 3 / total
    difference = float(at_end.sum() - at_start.sum())
    deviation = math.sqrt((len(at_start) + len(at_end)) * square)
    if abs(difference) > max(_EDGES * area, _EDGES_SIGMAS * deviation):
        start = f"{quantity(at_start.mean())} s" if len(at_start) else "no time"
        yield (
            f"N = X R holds only with its edges: requests in flight at its end had been there for "
            f"{quantity(at_end.mean())} s on average, those at its start for {start}"
        )
