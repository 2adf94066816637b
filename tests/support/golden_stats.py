"""Statistics by their definitions, with numpy and the standard library: what the golden test computes by."""

import math
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

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


def wilson(hits: int, n: int) -> list[float] | None:
    if not n:
        return None
    p = hits / n
    middle, reach = p + Z**2 / (2 * n), Z * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    return [(middle - reach) / (1 + Z**2 / n), (middle + reach) / (1 + Z**2 / n)]


def share(correct: pd.Series) -> dict[str, Any]:
    """Right answers of those that were compared."""
    known = correct.dropna().astype(bool)
    hits, n = int(known.sum()), len(known)
    return {"n": n, "correct": hits, "ratio": hits / n if n else None, "ci95": wilson(hits, n)}


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
