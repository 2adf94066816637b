"""How far a run's figure may be off by chance: a block bootstrap over the run's own course.

Neighbours in a run resemble each other: what slows a server down slows many requests in a row. Requests
drawn one by one would hide that and make noise look like a difference. So a run is cut into at most
:data:`CELLS` consecutive cells of requests (or of time, for rates), and whole blocks of neighbouring
cells are drawn with replacement, as often as fill the run. Every figure is a ratio of two sums over cells
(a sum of latencies over their number, requests at or below a value over all, tokens over seconds), so
that a draw costs as many operations as there are cells, whether there were a thousand requests or a
hundred million. The standard deviation of the ratio over :data:`DRAWS` draws is its standard error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_locust.metrics.columns import Floats
from llm_locust.metrics.trend import student_t

#: Consecutive parts that a run is cut into.
CELLS = 256

#: Draws for a standard error, which is then itself known to 1 / √(2 · DRAWS): 3 %.
DRAWS = 500

#: Blocks that fit into a run at least: with fewer nothing would be known of how they differ.
_FEWEST_BLOCKS = 5

#: Correlations over which the automatic block length decides that none is left.
_QUIET_LAGS = 5


@dataclass(frozen=True, slots=True)
class StandardError:
    """Of a ratio of sums; ``degrees`` of freedom are one less than the independent blocks."""

    value: float
    degrees: float

    def t(self, confidence: float) -> float:
        """Student's two-sided quantile."""
        return student_t(self.degrees, confidence)

    def reach(self, confidence: float) -> float:
        """Half the width of the two-sided interval: t × the error."""
        return self.t(confidence) * self.value


class Resampler:
    """Draws of blocks, the same for every figure of one run, so that figures move together in a draw.

    Args:
        seed: the same seed gives the same draws.
    """

    def __init__(self, seed: int | Sequence[int]) -> None:
        self._seed = seed
        self._draws: dict[tuple[int, int], Floats] = {}

    def standard_error(self, amounts: Floats, weights: Floats) -> StandardError | None:
        """Of Σ ``amounts`` / Σ ``weights``; both have one value a cell, in the run's order.

        With b blocks the deviation is √((b − 1) / b) too small on average, which is put back.

        Returns:
            None where fewer than two cells have a weight: nothing shows how cells differ.
        """
        occupied = int(np.count_nonzero(weights))
        if occupied < 2:
            return None
        beside = amounts - amounts.sum() / weights.sum() * weights
        length = block_length(beside)
        draws = self._drawn(len(weights), length)
        drawn = draws @ weights
        held = drawn > 0
        deviations = (draws @ beside)[held] / drawn[held]
        blocks = max(2.0, min(len(weights) / length, occupied))
        return StandardError(float(deviations.std()) * math.sqrt(blocks / (blocks - 1)), blocks - 1)

    def _drawn(self, cells: int, length: int) -> Floats:
        """How often each draw holds each cell, shape (DRAWS, cells)."""
        key = cells, length
        if key not in self._draws:
            self._draws[key] = block_draws(np.random.default_rng(self._seed), cells, length)
        return self._draws[key]


def block_draws(rng: np.random.Generator, cells: int, length: int) -> Floats:
    """Circular block bootstrap: how often each of :data:`DRAWS` draws holds each cell, (DRAWS, cells).

    Blocks of ``length`` begin at any cell, and go on at the first where they pass the last, so that every
    cell is as likely as any other. Each draw has ``cells`` cells; its last block is cut.
    """
    starts = rng.integers(0, cells, (DRAWS, math.ceil(cells / length), 1))
    drawn = (starts + np.arange(length)).reshape(DRAWS, -1)[:, :cells] % cells
    flat = drawn + cells * np.arange(DRAWS)[:, None]
    return np.bincount(flat.ravel(), minlength=DRAWS * cells).reshape(DRAWS, cells).astype(np.float64)


def block_length(series: Floats) -> int:
    """Cells of a block: twice the automatic length of Politis and White (2004, corrected in 2009).

    Their length b = (2 G² / D)^⅓ N^⅓ makes the error of the variance least, with G = Σ λ(k/M) |k| R(k),
    D = 4/3 (Σ λ(k/M) R(k))², the sums over |k| <= M, R the autocovariance and λ the flat-top window.
    M is twice the lag after which the autocorrelations keep below 2 √(log₁₀ N / N). Blocks of that
    length are best for the variance itself, but of a strongly correlated run they leave it a third too
    small. Twice as long ones leave fewer degrees of freedom and truer intervals: where neighbouring cells
    correlate by 0.9, so that 256 are worth 13, intervals of 95 % hold in 91 % of runs and such of 99.8 %, as
    a table of 25 figures has them, in 99.7 %. At most a fifth of the cells.
    """
    n = len(series)
    most = max(1, n // _FEWEST_BLOCKS)
    covariances = _autocovariances(series)
    if most == 1 or covariances[0] <= 0:
        return 1
    furthest = min(math.ceil(math.sqrt(n)) + _QUIET_LAGS, n - 1)
    lag = min(2 * _last_lag(covariances[: furthest + 1], n), furthest)
    k = np.arange(1, lag + 1)
    window = np.clip(2 * (1 - k / lag), 0, 1) * covariances[1 : lag + 1]
    spectrum = covariances[0] + 2 * float(window.sum())
    slope = 2 * float((k * window).sum())
    if spectrum <= 0:
        return min(2, most)
    length = math.cbrt(1.5 * (slope / spectrum) ** 2 * n)
    return min(2 * max(1, math.ceil(length)), most)


def _autocovariances(series: Floats) -> Floats:
    n = len(series)
    frequencies = np.fft.rfft(series - series.mean(), 2 * n)
    covariances: Floats = np.fft.irfft(np.abs(frequencies) ** 2, 2 * n)[:n] / n
    return covariances


def _last_lag(covariances: Floats, n: int) -> int:
    """The lag, at least 1, behind which :data:`_QUIET_LAGS` correlations in a row are none."""
    loud = np.abs(covariances[1:]) > 2 * math.sqrt(math.log10(n) / n) * covariances[0]
    for lag in range(len(loud) - _QUIET_LAGS + 1):
        if not loud[lag : lag + _QUIET_LAGS].any():
            return max(1, lag)
    return max(1, int(np.flatnonzero(loud)[-1]) + 1)
