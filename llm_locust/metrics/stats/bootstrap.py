"""Sampling error of a run's figure: a block bootstrap over the course of the run.

Neighbours in a run are similar: what slows a server down slows many consecutive requests. Drawing single
requests would hide that, and noise would look like a difference. So a run is cut into at most :data:`CELLS`
consecutive cells of requests (or of time, for rates), and whole blocks of neighbouring cells are drawn with
replacement, as many as fill the run. Every figure is a ratio of two sums over cells (a sum of latencies over
their number, requests at or below a value over all, tokens over seconds), so that the cost of an error
depends on the number of cells, whether there were a thousand requests or a hundred million. Nothing is
actually drawn: the variance over all possible draws has a closed form.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from llm_locust.metrics.columns import Columns, Floats, Mask, Rows, Times
from llm_locust.metrics.stats.trend import student_t
from llm_locust.metrics.window import Window

#: Consecutive parts that a run is cut into.
CELLS = 256

#: Blocks that fit into a run at least: with fewer nothing would be known of how they differ.
_FEWEST_BLOCKS = 5

#: Correlations over which the automatic block length decides that none is left.
_QUIET_LAGS = 5


@dataclass(frozen=True, slots=True)
class StandardError:
    """Standard error of a ratio of sums; ``degrees`` of freedom are one less than the independent blocks.

    ``settled`` is False if the run's memory requires longer blocks than fit into it: the error is then
    probably too small, by an unknown amount.
    """

    value: float
    degrees: float
    settled: bool = True

    def t(self, confidence: float) -> float:
        """Student's two-sided quantile."""
        return student_t(self.degrees, confidence)

    def reach(self, confidence: float) -> float:
        """Half the width of the two-sided interval: t × the error."""
        return self.t(confidence) * self.value


def standard_error(amounts: Floats, weights: Floats) -> StandardError | None:
    """Standard error of Σ ``amounts`` / Σ ``weights``; both have one value per cell, in the run's order.

    The circular block bootstrap (Politis and Romano 1992) of the linearised ratio: with d = amounts − ratio ×
    weights of each of N cells, and B the sums of d over the N blocks of L neighbours (the last cells'
    neighbours are the first), the variance is N / L × mean(B²) / (Σ weights)². With b blocks it is (b − 1) /
    b too small on average, which is corrected.

    The figures of a run ask for the same error again and again, as a class that is the whole run does, or a
    percentile beside its adjusted one: three in four have been computed already.

    Returns:
        None if fewer than two cells have a weight: the variation between cells is unknown.
    """
    return _standard_error(*(each.astype(np.float64, copy=False).tobytes() for each in (amounts, weights)))


@lru_cache(maxsize=256)
def _standard_error(of_amounts: bytes, of_weights: bytes) -> StandardError | None:
    amounts, weights = np.frombuffer(of_amounts), np.frombuffer(of_weights)
    occupied = int(np.count_nonzero(weights))
    if occupied < 2:
        return None
    total = float(weights.sum())
    beside = amounts - amounts.sum() / total * weights
    n, length = len(beside), block_length(beside)
    ends = np.cumsum(np.concatenate([[0.0], beside, beside[: length - 1]]))
    sums = ends[length:] - ends[:-length]
    blocks = max(2.0, min(n / length, occupied))
    variance = n / length * float(sums @ sums) / n * blocks / (blocks - 1)
    return StandardError(math.sqrt(variance) / total, blocks - 1, settled=length < longest_block(n))


def longest_block(cells: int) -> int:
    """Longest block: a fifth of the cells."""
    return max(1, cells // _FEWEST_BLOCKS)


def block_length(series: Floats) -> int:
    """Cells of a block: twice the automatic length of Politis and White (2004, corrected in 2009).

    Their length b = (2 G² / D)^⅓ N^⅓ minimises the error of the variance, with G = Σ λ(k/M) |k| R(k), D = 4/3
    (Σ λ(k/M) R(k))², the sums over |k| <= M, R the autocovariance and λ the flat-top window. M is twice the
    lag after which the autocorrelations stay below 2 √(log₁₀ N / N). Blocks of that length are best for the
    variance itself, but for a strongly correlated run it is a third too small. Twice that length gives fewer
    degrees of freedom and more accurate intervals: if neighbouring cells correlate by 0.9, so that 256 are
    worth 13, intervals of 95 % hold in 91 % of runs, and those of 99.8 %, as in a table of 25 figures, in
    99.7 %. At most a fifth of the cells.
    """
    n = len(series)
    most = longest_block(n)
    covariances = _autocovariances(series)
    if most == 1 or covariances[0] <= 0:
        return 1
    furthest = min(math.ceil(math.sqrt(n)) + _QUIET_LAGS, n - 1)
    lag = min(2 * _last_lag(covariances[: furthest + 1], n), furthest)
    k, flat_top = _flat_top(lag)
    window = flat_top * covariances[1 : lag + 1]
    spectrum = covariances[0] + 2 * float(window.sum())
    slope = 2 * float((k * window).sum())
    if spectrum <= 0:
        return min(2, most)
    length = math.cbrt(1.5 * (slope / spectrum) ** 2 * n)
    return min(2 * max(1, math.ceil(length)), most)


@lru_cache
def _flat_top(lag: int) -> tuple[Floats, Floats]:
    """Lags from 1 to the last, and the weight of each."""
    k = np.arange(1.0, lag + 1)
    return k, np.clip(2 * (1 - k / lag), 0, 1)


def _autocovariances(series: Floats) -> Floats:
    n = len(series)
    frequencies = np.fft.rfft(series - series.sum() / n, 2 * n)
    covariances: Floats = np.fft.irfft(np.abs(frequencies) ** 2, 2 * n)[:n] / n
    return covariances


def _last_lag(covariances: Floats, n: int) -> int:
    """Lag, at least 1, after which :data:`_QUIET_LAGS` consecutive correlations are insignificant."""
    loud = np.abs(covariances[1:]) > 2 * math.sqrt(math.log10(n) / n) * covariances[0]
    for lag in range(len(loud) - _QUIET_LAGS + 1):
        if not loud[lag : lag + _QUIET_LAGS].any():
            return max(1, lag)
    return max(1, int(np.flatnonzero(loud)[-1]) + 1)


# --------------------
# A run summed up in consecutive cells, which the bootstrap draws from: a few kilobytes per figure.
#
# Requests are put into cells in the order of their schedule, an equal number into each; what is counted per
# second goes into cells of the window of equal length.
# --------------------


T = TypeVar("T", bound=np.generic)

#: What comes all at once comes in so many seconds.
_MOMENT_S = 1e-6


@dataclass(frozen=True, slots=True)
class Cells:
    """``of[i]`` is the cell of item i, -1 for none; there are ``count`` cells."""

    of: NDArray[np.int64]
    count: int

    def sums(self, amounts: Floats | None = None) -> Floats:
        """Sum of the known ``amounts`` (by default, the number of items) in each cell."""
        weights = None if amounts is None else np.nan_to_num(amounts)
        return np.bincount(self.of + 1, weights, self.count + 1)[1:].astype(np.float64)


@dataclass(frozen=True, slots=True)
class Order:
    """Items in the order of their run: ``places[bounds[i]:bounds[i + 1]]`` are those of cell i.

    ``places`` is None if the items are in that order already.
    """

    places: Rows | None
    bounds: Rows

    @classmethod
    def even(cls, items: int, places: Rows | None = None) -> "Order":
        """Order with an equal number of items in each of at most :data:`CELLS` cells."""
        count = min(CELLS, items)
        return cls(places, -(-np.arange(count + 1) * items // max(1, count)))

    def sorted(self, values: NDArray[T]) -> NDArray[T]:
        """Values of items, in the order of the run."""
        return values if self.places is None else values[self.places]

    def sums(self, in_order: NDArray[np.float64] | Mask) -> Floats:
        """Sum in each cell of values in the order of the run."""
        found = np.zeros(len(self.bounds) - 1)
        occupied = self.bounds[1:] > self.bounds[:-1]
        if occupied.any():
            dtype = np.int64 if in_order.dtype == np.bool_ else np.float64
            found[occupied] = np.add.reduceat(in_order, self.bounds[:-1][occupied], dtype=dtype)
        return found

    def having(self, which: Mask) -> "Order":
        """Order of the items marked by ``which``; the cells stay the same."""
        marked = self.sorted(which)
        below = np.concatenate([[0], np.cumsum(marked)])
        if self.places is None:
            return Order(None, below[self.bounds])
        number = np.cumsum(which) - 1
        return Order(number[self.places[marked]], below[self.bounds])


def order_cells(c: Columns, rows: Rows) -> Order:
    """Cells of ``rows`` in the order of their schedule, with a defined order for a burst at one time.

    Requests scheduled at one time are ordered by their other times and their outcome, so that the order in
    which workers delivered has no effect.
    """
    times_s = c.scheduled_s[rows]
    if (times_s[1:] > times_s[:-1]).all():
        return Order.even(len(rows))
    places = np.argsort(times_s, kind="stable")
    if (np.diff(times_s[places]) == 0).any():
        places = np.lexsort(
            (
                c.outcome[rows],
                c.output_tokens[rows],
                c.last_event_s[rows],
                c.first_answer_s[rows],
                c.first_event_s[rows],
                c.ended_s[rows],
                c.sent_s[rows],
                times_s,
            )
        )
    return Order.even(len(rows), places)


def time_cells(window: Window, c: Times, times_s: Floats) -> Cells:
    """Cells of times on the axis of ``c``; -1 for unknown ones and those outside."""
    start_s, end_s = window.start_s(c), window.end_s(c)
    inside = (times_s >= start_s) & (times_s < end_s)
    of = np.full(len(times_s), -1, dtype=np.int64)
    of[inside] = (times_s[inside] - start_s) / (end_s - start_s) * CELLS
    return Cells(np.minimum(of, CELLS - 1), CELLS)


def seconds_of_cells(window: Window, c: Times) -> Floats:
    """Seconds of the window in each of its cells: 0 in a gap."""
    edges = _edges(window, c)
    inside = np.zeros(CELLS + 1)
    for span in window.spans:
        inside += np.clip(edges, span.start_s(c), span.end_s(c)) - span.start_s(c)
    return np.diff(inside)


def spread_evenly(
    window: Window, c: Times, begun_s: Floats, over_s: Floats, amounts: Sequence[Floats]
) -> list[Floats]:
    """Part of each amount in each cell of the window, if it is spread evenly from begun to over.

    For tokens that is as accurate as each at its own time, of which only one part of the run is in memory at
    a time. Unknown amounts and times are left out.
    """
    edges = _edges(window, c) - window.start_s(c)
    begun = begun_s - window.start_s(c)
    over = np.maximum(over_s - window.start_s(c), begun + _MOMENT_S)
    places = [_place(edges, times) for times in (begun, over)]
    found = []
    for amount in amounts:
        rate = np.nan_to_num(amount / (over - begun))
        # What has come by an edge: rate × (edge − begun) of all that began before, less rate × (edge − over).
        come = np.zeros(CELLS + 1)
        for times, place, sign in zip((begun, over), places, (1.0, -1.0), strict=True):
            rates = np.cumsum(np.bincount(place, rate, CELLS + 2))[: CELLS + 1]
            moments = np.cumsum(np.bincount(place, rate * np.nan_to_num(times), CELLS + 2))[: CELLS + 1]
            come += sign * (edges * rates - moments)
        found.append(np.diff(come))
    return found


def _place(edges: Floats, times: Floats) -> Rows:
    """First of the equidistant edges that is not before each time; the last one + 1 if there is none."""
    place = np.ceil(times / (edges[1] or 1.0))
    found: Rows = np.clip(np.nan_to_num(place, nan=CELLS + 1), 0, CELLS + 1).astype(np.int64)
    return found


def _edges(window: Window, c: Times) -> Floats:
    return np.linspace(window.start_s(c), window.end_s(c), CELLS + 1)
