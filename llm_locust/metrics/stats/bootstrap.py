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
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from llm_locust.metrics.columns import Floats
from llm_locust.metrics.stats.trend import student_t

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
    frequencies = np.fft.rfft(series - series.mean(), 2 * n)
    covariances: Floats = np.fft.irfft(np.abs(frequencies) ** 2, 2 * n)[:n] / n
    return covariances


def _last_lag(covariances: Floats, n: int) -> int:
    """Lag, at least 1, after which :data:`_QUIET_LAGS` consecutive correlations are insignificant."""
    loud = np.abs(covariances[1:]) > 2 * math.sqrt(math.log10(n) / n) * covariances[0]
    for lag in range(len(loud) - _QUIET_LAGS + 1):
        if not loud[lag : lag + _QUIET_LAGS].any():
            return max(1, lag)
    return max(1, int(np.flatnonzero(loud)[-1]) + 1)
