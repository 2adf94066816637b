"""Statistics and intervals by their definitions, as docs/statistics.md has them, by numpy and pandas."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from operator import is_
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
import pandas as pd

T = TypeVar("T")


def once(compute: Callable[..., T]) -> Callable[..., T]:
    """What is computed of a table is remembered for the latest tables, which nobody changes."""
    latest: deque[tuple[tuple[Any, ...], T]] = deque(maxlen=16)

    @wraps(compute)
    def computed(*of: Any) -> T:
        for known, value in latest:
            if len(known) == len(of) and all(map(is_, known, of)):
                return value
        value = compute(*of)
        latest.appendleft((of, value))
        return value

    return computed


PERCENTS = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}
Z = NormalDist().inv_cdf(0.975)


def percentile(ascending: np.ndarray[Any, Any], percent: float) -> float:
    """numpy's linear percentile, +∞ where it rests on an infinite value, NaN without any."""
    if not len(ascending):
        return math.nan
    place = percent / 100 * (len(ascending) - 1)
    below = math.floor(place)
    low, high = float(ascending[below]), float(ascending[math.ceil(place)])
    return low if low == high else low + (high - low) * (place - below)


def figures(values: Any, infinite: int = 0, percents: dict[str, float] = PERCENTS) -> dict[str, Any]:
    """n, mean, std, min, percentiles, max and beyond of the defined values and so many of +∞."""
    known = np.sort(pd.Series(values, dtype=float).dropna().to_numpy())
    samples = np.concatenate([known, np.full(infinite, np.inf)])
    places = {"min": 0.0, **percents, "max": 100.0}
    order = {key: percentile(samples, percent) for key, percent in places.items()}
    moments = not infinite and len(known) > 0
    return {
        "n": len(samples),
        "mean": known.mean() if moments else None,
        "std": known.std() if moments else None,
        **{key: _finite(value) for key, value in order.items()},
        "beyond": [key for key, value in order.items() if math.isinf(value)],
    }


def survival(lasted: Any, ended: Any, scheduled: Any, infinite: int, beside: list[float]) -> dict[str, Any]:
    """The same figures where some durations were not seen to end: by the product limit, step by step.

    Those ``beside`` lasted longer than this, whatever the others did: they leave open what they could move.
    """
    if beside:
        at_end = range(-len(beside), 0)
        lasted = pd.concat([lasted, pd.Series(beside, at_end)])
        ended = pd.concat([ended, pd.Series(False, at_end)])
        scheduled = pd.concat([scheduled, pd.Series(0.0, at_end)])
    order = pd.DataFrame({"t": lasted, "ended": ended, "at": scheduled}).sort_values(
        ["t", "ended"], ascending=[True, False]
    )
    seen = order.t[order.ended].to_numpy()
    open_ = order.t[~order.ended].to_numpy()
    if not len(open_):
        samples = np.concatenate([np.sort(seen), np.full(infinite, np.inf)])
        plain = {"censored": 0, "at_least": {}, "quantile": lambda share: percentile(samples, share * 100)}
        return figures(seen, infinite) | plain
    total, lasting, watched = len(order) + infinite, 1.0, len(order) + infinite
    places, weights = [], []
    for is_end in order.ended:
        if is_end:
            places.append((1 - lasting) * total / (total - 1))
            weights.append(lasting / watched)
            lasting *= 1 - 1 / watched
        watched -= 1
    as_if = np.concatenate([order.t.to_numpy(), np.full(infinite, np.inf)])
    never = np.concatenate([seen, np.full(infinite + len(open_), np.inf)])
    drifts = bool(beside) or later_is_longer(
        order.t.to_numpy(), order.ended.to_numpy(), order["at"].to_numpy()
    )

    def at(share: float) -> float:
        """NaN where it is open."""
        low = percentile(as_if, share * 100)
        if drifts and not percentile(never, share * 100) <= 1.05 * low:
            return low if math.isinf(low) else math.nan
        if places and share <= places[-1] + 1e-12:
            return float(np.interp(share, places, seen))
        if len(seen) and open_[-1] < seen[-1]:
            return math.inf if infinite else float(seen[-1])
        return low if math.isinf(low) else math.nan

    percents = {**PERCENTS, "max": 100.0}
    values = {key: at(percent / 100) for key, percent in percents.items()}
    bounds = {key: percentile(as_if, percents[key]) for key, value in values.items() if math.isnan(value)}
    mean = std = None
    if not infinite and not drifts and len(seen) and open_[-1] < seen[-1]:
        mean = float(np.average(seen, weights=weights))
        std = float(np.sqrt(np.average((seen - mean) ** 2, weights=weights)))
    elif not infinite:
        bounds["mean"] = as_if.mean()
    return {
        "n": len(seen) + infinite,
        "mean": mean,
        "std": std,
        "min": float(seen[0]) if len(seen) else None,
        **{key: _finite(value) for key, value in values.items()},
        "beyond": [key for key, value in values.items() if math.isinf(value)],
        "censored": len(open_),
        "at_least": bounds,
        "quantile": at,
    }


def later_is_longer(lasted: Any, ended: Any, at: Any) -> bool:
    """Cox's score test of the time in the schedule, by its definition: one sum over those at risk an end.

    ``lasted`` ascends: at risk are all from the first that lasted as long.
    """
    at = at - at.mean()
    first = np.searchsorted(lasted, lasted[ended])
    at_risk = np.arange(len(at), 0, -1)
    mean, square = (np.cumsum(power[::-1])[::-1] / at_risk for power in (at, at**2))
    score, variance = (at[ended] - mean[first]).sum(), (square - mean**2)[first].sum()
    return bool(variance > 0 and score < -3 * math.sqrt(variance))


def some(values: Any, *keys: str, percents: dict[str, float] = PERCENTS) -> dict[str, Any]:
    """Some of the figures."""
    found = figures(values, percents=percents)
    return {key: found[key] for key in keys}


def plain_wilson(hits: int, n: int) -> list[float] | None:
    if not n:
        return None
    p = hits / n
    middle, reach = p + Z**2 / (2 * n), Z * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    return [(middle - reach) / (1 + Z**2 / n), (middle + reach) / (1 + Z**2 / n)]


def share(correct: pd.Series) -> dict[str, Any]:
    """Right answers of those that were compared."""
    known = correct.dropna().astype(bool)
    hits, n = int(known.sum()), len(known)
    return {"n": n, "correct": hits, "ratio": hits / n if n else None, "ci95": plain_wilson(hits, n)}


def newcombe(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """a − b, by Newcombe's method 10."""
    d = a["ratio"] - b["ratio"]
    low = d - math.hypot(a["ratio"] - a["ci95"][0], b["ci95"][1] - b["ratio"])
    high = d + math.hypot(a["ci95"][1] - a["ratio"], b["ratio"] - b["ci95"][0])
    return {"difference": d, "ci95": [max(low, -1.0), min(high, 1.0)]}


def serial_correlation(residuals: np.ndarray[Any, Any], fitted: int) -> float:
    k = len(residuals)
    raw = (residuals[1:] * residuals[:-1]).sum() / (residuals**2).sum()
    return float(np.clip((raw * k + fitted) / (k - fitted - 2), 0, 0.95))


@cache
def student_t(degrees: float, confidence: float) -> float:
    """By numeric inversion of the distribution's integral."""
    x = np.linspace(0, 60, 600_001)
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    density = scale * (1 + x**2 / degrees) ** (-(degrees + 1) / 2)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2) * (x[1] - x[0])])
    return float(np.interp(confidence / 2, mass, x))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


CELLS = 256
Array = np.ndarray[Any, Any]


@dataclass
class Course:
    """The cell of each value, how many cells there are, and how many samples of +∞ each has."""

    cell: Array
    cells: int
    infinite: Array | None = None
    binned: bool = False  # shares are of the gaps up to the edge of a bin


@once
def in_order(df: pd.DataFrame, of: pd.DataFrame | None = None) -> Course:
    """The cells of ``df``'s rows, by their places among those of ``of``."""
    every = df if of is None else of
    cells = min(CELLS, len(every))
    return Course(_cells(df, every, cells), cells)


def _cells(df: pd.DataFrame, every: pd.DataFrame, cells: int) -> Array:
    found: Array = (_places(every)[df.index] * cells // max(1, len(every))).to_numpy()
    return found


@once
def _places(every: pd.DataFrame) -> Any:
    """The place of each row in the order of time."""
    ordered = every.sort_values(["scheduled", "sent", "ended"], kind="stable").index
    return pd.Series(range(len(ordered)), ordered)


def over_time(times: Any, start: float, end: float) -> Course:
    cell = np.floor((np.asarray(times) - start) / (end - start) * CELLS)
    return Course(np.where((cell >= 0) & (cell < CELLS), cell, -1).astype(int), CELLS)


def sums(course: Course, amounts: Any) -> Array:
    amounts, known = np.asarray(amounts, dtype=float), course.cell >= 0
    known &= ~np.isnan(amounts)
    return np.bincount(course.cell[known], amounts[known], course.cells)[: course.cells]


def block(d: Array) -> int:
    """Twice the length of Politis and White, and a fifth of the cells at most."""
    n, most = len(d), max(1, len(d) // 5)
    around = d - d.mean()
    covariance = np.correlate(around, around, "full")[n - 1 :] / n
    if most == 1 or covariance[0] <= 1e-30 * float((d**2).sum() + 1e-300):
        return 1
    furthest = min(math.ceil(math.sqrt(n)) + 5, n - 1)
    loud = [abs(r) > 2 * math.sqrt(math.log10(n) / n) * covariance[0] for r in covariance[1 : furthest + 1]]
    quiet = [k for k in range(len(loud) - 4) if not any(loud[k : k + 5])]
    last = quiet[0] if quiet else max(k for k, is_loud in enumerate(loud) if is_loud) + 1
    m = min(2 * max(1, last), furthest)
    flat = [min(1.0, max(0.0, 2 * (1 - k / m))) * covariance[k] for k in range(1, m + 1)]
    spectrum = covariance[0] + 2 * sum(flat)
    if spectrum <= 0:
        return min(2, most)
    slope = 2 * sum(k * r for k, r in enumerate(flat, 1))
    return int(min(2 * max(1, math.ceil((1.5 * (slope / spectrum) ** 2 * n) ** (1 / 3))), most))


def error(amounts: Array, weights: Array) -> tuple[float, float, bool] | None:
    """Standard error of Σ amounts / Σ weights, degrees of freedom, and whether the blocks fit."""
    occupied = int((weights != 0).sum())
    if occupied < 2:
        return None
    n, whole = len(weights), weights.sum()
    d = amounts - amounts.sum() / whole * weights
    length = block(d)
    squares = sum(np.roll(d, -k) for k in range(length)) ** 2
    blocks = max(2.0, min(n / length, occupied))
    variance = n / length * float(np.mean(squares)) * blocks / (blocks - 1)
    return math.sqrt(variance) / whole, blocks - 1, length < max(1, n // 5)


Worth = tuple[float, float, bool]  # effective samples, degrees, settled


@dataclass
class Memory:
    """``n`` samples, their effective number at the median, 0 where it is not settled."""

    n: float
    worth: float
    upward: bool = True

    def margin(self, fewest: float) -> float:
        return self.worth / min(2, self.n / self.worth) / fewest if self.worth else 0.0

    def stretch(self, own: float, fewest: float) -> float:
        """At the least margin the dependent part of the error counts 3.5 times, at 3 times as much once."""
        factor = 1 + 2.5 * min(1.0, max(0.0, (3 - self.margin(fewest)) / 2))
        independent = min(1.0, own / self.n)
        return math.sqrt(independent + factor**2 * (1 - independent))

    def tells(self, worth: Worth, fewest: float) -> bool:
        return worth[2] and worth[0] >= 0.75 * fewest and self.margin(fewest) >= 1


def needed(percent: float) -> int:
    tail = min(percent, 100 - percent) / 100
    return math.ceil(round(max(10 / tail, 40 * math.sqrt(0.5 / tail)), 6))


def share_interval(
    p: float, worth: Worth, memory: Memory, fewest: float, upward: bool
) -> tuple[float, float]:
    t, stretch = student_t(worth[1], 0.95), memory.stretch(worth[0], fewest)
    near, far = wilson(p, worth[0], t), wilson(p, worth[0] / stretch**2, t)
    return (near[0], far[1]) if upward else (far[0], near[1])


def share_worth(hits: Array, counts: Array) -> Worth | None:
    found = error(hits, counts)
    if found is None:
        return None
    n = float(counts.sum())
    p = hits.sum() / n
    return (min(n, p * (1 - p) / found[0] ** 2) if found[0] else n), *found[1:]


def mean_worth(totals: Array, counts: Array, std: float) -> tuple[Worth, float] | None:
    found = error(totals, counts)
    if found is None:
        return None
    n = float(counts.sum())
    return ((min(n, std**2 / found[0] ** 2) if found[0] else n), *found[1:]), found[0]


def wilson(p: float, n: float, z: float) -> tuple[float, float]:
    """With the correction for continuity."""
    q = 1 - p
    low = (2 * n * p + z * z - 1 - z * math.sqrt(max(0, z * z - 2 - 1 / n + 4 * p * (n * q + 1)))) / (
        2 * (n + z * z)
    )
    high = (2 * n * p + z * z + 1 + z * math.sqrt(max(0, z * z + 2 - 1 / n + 4 * p * (n * q - 1)))) / (
        2 * (n + z * z)
    )
    return (max(0.0, low) if p else 0.0), (min(1.0, high) if q else 1.0)


def on_log_scale(value: float, error_: float, degrees: float) -> list[float]:
    factor = math.exp(student_t(degrees, 0.95) * error_ / value)
    return [value / factor, value * factor]


def uncertainty(
    values: Any,
    course: Course | None,
    percents: dict[str, float] = PERCENTS,
    ended: Any = None,
    table: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """ci95 and n_effective of the mean and of each percentile.

    Where some durations were not seen to end, ``ended`` marks the others, and ``table`` has their quantile
    function, mean and std by the product limit.
    """
    nothing: dict[str, Any] = dict.fromkeys(("mean", *percents))
    ends, worths = dict(nothing), dict(nothing)
    x = np.asarray(values, dtype=float)
    known = x[~np.isnan(x)]
    if course is None or not len(known):
        return {"ci95": ends, "n_effective": worths}
    infinite = np.zeros(course.cells) if course.infinite is None else course.infinite
    samples = np.concatenate([np.sort(known), np.full(round(infinite.sum()), np.inf)])
    quantile: Any = (lambda share: percentile(samples, 100 * share)) if table is None else table["quantile"]
    mean, std = (known.mean(), known.std()) if table is None else (table["mean"], table["std"])
    cut = None if ended is None or all(ended) else _Cut(x, np.asarray(ended), int(infinite.sum()))
    counts = sums(course, ~np.isnan(x)) + infinite
    fallback, of_mean = None, 0.0
    if not infinite.sum() and mean is not None:
        found = mean_worth(sums(course, x if cut is None else cut.means()), counts, std)
        if found is not None:
            fallback, of_mean = found
            worths["mean"] = fallback[0]
    n = float(counts.sum())

    def hits_at(value: float) -> Array:
        is_hit = _in_bins(x, value) if course.binned else x <= value
        return sums(course, is_hit if cut is None else cut.at_most(value))

    median = quantile(0.5)
    memory = Memory(n, 0.0)
    if fallback is not None and std <= 1e-9 * abs(mean):
        memory = Memory(n, n)
    elif math.isfinite(median):
        at_median = hits_at(median)
        of_median = fallback
        if 1e-9 < at_median.sum() / n < 1 - 1e-9:
            of_median = share_worth(at_median, counts)
            share = at_median.sum() / n
            if of_median is not None and fallback is not None and of_median[0] * min(share, 1 - share) < 10:
                of_median = min(of_median[0], fallback[0]), *fallback[1:]
        if of_median is not None and of_median[2]:
            memory = Memory(n, of_median[0])
    memory.upward = mean is None or infinite.sum() > 0 or not mean < median
    if fallback is not None and memory.tells(fallback, 100):
        near = on_log_scale(mean, of_mean, fallback[1])
        far = on_log_scale(mean, of_mean * memory.stretch(fallback[0], 100), fallback[1])
        ends["mean"] = [near[0], far[1]] if memory.upward else [far[0], near[1]]
    telling: dict[str, bool] = {}
    for key, percent in percents.items():
        value = quantile(percent / 100)
        telling[key] = False
        if not math.isfinite(value):
            continue
        hits = hits_at(value)
        worth = share_worth(hits, counts) if 1e-9 < hits.sum() / n < 1 - 1e-9 else fallback
        if worth is None:
            continue
        worths[key] = worth[0]
        telling[key] = memory.tells(worth, needed(percent))
        if telling[key]:
            pair = share_interval(percent / 100, worth, memory, needed(percent), memory.upward)
            at = [quantile(share) for share in pair]
            ends[key] = [value if math.isfinite(value) else None for value in at]
    for key, percent in percents.items():
        nearer = [k for k, p in percents.items() if min(50, percent) <= p <= max(50, percent)]
        if not all(telling[k] for k in nearer):
            ends[key] = None
    return {"ci95": ends, "n_effective": worths}


class _Cut:
    """Durations of which some were cut: each of these is shared out among all that lasted longer."""

    def __init__(self, x: Array, ended: Array, infinite: int) -> None:
        self.x, self.ended = x, ended
        lasting, watched, self.steps = 1.0, len(x) + infinite, [(-math.inf, 1.0, 0.0)]
        for i in np.lexsort((~ended, x)):
            if ended[i]:
                self.steps.append((x[i], lasting * (1 - 1 / watched), lasting / watched))
                lasting *= 1 - 1 / watched
            watched -= 1
        self.times = [t for t, _, _ in self.steps]

    def lasting(self, limit: float) -> float:
        return self.steps[bisect_right(self.times, limit) - 1][1]

    def at_most(self, limit: float) -> Array:
        found = (self.x <= limit).astype(float)
        for i in np.flatnonzero(~self.ended & (self.x <= limit)):
            beyond = self.lasting(self.x[i])
            found[i] = 1 - self.lasting(limit) / beyond if beyond > 0 else 0.0
        return found

    def means(self) -> Array:
        found = self.x.copy()
        for i in np.flatnonzero(~self.ended):
            later = [(t, weight) for t, _, weight in self.steps if t > self.x[i]]
            whole = self.lasting(self.x[i])
            found[i] = sum(t * weight for t, weight in later) / whole if later else 0.0
        return found


def _in_bins(gaps_ms: Array, limit_ms: float) -> Array:
    """The gaps up to the edge of the limit's bin that parts them more nearly as the limit does."""

    def bin_of(ns: float) -> int:
        octave = math.floor(math.log2(ns))
        return int(256 * octave + math.floor((ns / 2**octave - 1) * 256))

    def start(number: int) -> float:
        return float(2 ** (number // 256) * (1 + number % 256 / 256))

    gaps = np.rint(gaps_ms * 1e6).astype(np.float32)
    number = bin_of(limit_ms * 1e6)
    edges = [start(number), start(number + 1)]
    below = [gaps < edge for edge in edges]
    wanted = below[0].sum() + (below[1].sum() - below[0].sum()) * (limit_ms * 1e6 - edges[0]) / (
        edges[1] - edges[0]
    )
    parting = [hits for hits in below if 0 < hits.sum() < len(gaps)]
    return min(parting or [below[1]], key=lambda hits: abs(hits.sum() - wanted))


def rate_ends(value: float, amounts: Array, seconds: float) -> list[float] | None:
    found = error(amounts, np.full(CELLS, seconds / CELLS))
    if found is None or not found[2] or value <= 0 or amounts.sum() <= 0:
        return None
    relative = found[0] / (amounts.sum() / seconds)
    return on_log_scale(value, relative * value, found[1]) if relative**2 * 40 <= 1 else None


def spread(begun: Any, over: Any, amounts: Any, start: float, end: float) -> Array:
    """Amounts in the window's cells, each coming evenly from begun to over."""
    edges = np.linspace(start, end, CELLS + 1)
    known = ~(np.isnan(begun) | np.isnan(over) | np.isnan(amounts))
    b, o, a = (np.asarray(each, dtype=float)[known] for each in (begun, over, amounts))
    lasting = np.maximum(o - b, 1e-6)
    come = [float((a * np.clip((edge - b) / lasting, 0, 1)).sum()) for edge in edges]
    return np.diff(come)


def ratio(judged: pd.DataFrame, hits: Any, missing: int, e2el: Any) -> dict[str, Any]:
    """The interval of a share of ``judged``, and what it is worth."""
    course = in_order(judged)
    counts = sums(course, np.ones(len(judged))) + missing / max(1, course.cells)
    worth = share_worth(sums(course, hits), counts)
    share = np.asarray(hits).sum() / counts.sum()
    if worth is None:
        return {"ci95": None, "n_effective": None}
    memory = Memory(float(counts.sum()), worth[0] if worth[2] else 0.0)
    latencies = np.where(judged.ok, e2el, np.nan)
    known = ~np.isnan(latencies)
    if known.any():
        of_latencies = in_order(judged)
        slow = uncertain_memory(of_latencies, latencies, known)
        if slow is not None:
            mean, memory = slow
            if worth[0] * min(share, 1 - share) < 10:
                worth = min(worth[0], mean[0]), *mean[1:]
    ends = None
    if memory.tells(worth, 40):
        ends = list(share_interval(share, worth, memory, 80, share < 0.5))
    return {"ci95": ends, "n_effective": worth[0]}


def uncertain_memory(course: Course, values: Array, known: Array) -> tuple[Worth, Memory] | None:
    """What values that are ``known`` are worth for their mean, and their memory."""
    counts, n = sums(course, known), float(known.sum())
    found = mean_worth(sums(course, values), counts, float(np.nanstd(values)))
    if found is None:
        return None
    mean = found[0]
    if np.nanstd(values) <= 1e-9 * abs(np.nanmean(values)):
        return mean, Memory(n, n)
    at_median = sums(course, values <= np.nanmedian(values))
    share = at_median.sum() / n
    of_median: Worth | None = mean
    if 1e-9 < share < 1 - 1e-9:
        of_median = share_worth(at_median, counts)
        if of_median is not None and of_median[0] * min(share, 1 - share) < 10:
            of_median = min(of_median[0], mean[0]), *mean[1:]
    return mean, Memory(n, of_median[0] if of_median is not None and of_median[2] else 0.0)
