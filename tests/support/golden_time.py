"""What the golden run was in the course of time: reliability, steadiness and drift, by pandas."""

from itertools import pairwise
from typing import Any

import golden_run as run
import numpy as np
import pandas as pd
from golden_frame import Frame, population
from golden_stats import percentile, serial_correlation, student_t


def reliability(df: Frame, seconds: float) -> dict[str, Any]:
    start, judged = run.STOP_S - seconds, population(df)[2]
    return {
        "seconds": int(seconds),
        "ok_share": _served(df.ended[df.ok] - start, int(seconds)),
        "good_share": _served(df.ended[df.good] - start, int(seconds)),
        "longest_without_ok": _longest_wait(df.ended[df.ok] - start, seconds),
        "longest_without_good": _longest_wait(df.ended[df.good] - start, seconds),
        "standstill": _standstill(df, seconds),
        "retries": {
            "requests": int((judged.retries > 0).sum()),
            "total": int(judged.retries.sum()),
            "max": int(judged.retries.max()),
        },
    }


def _standstill(df: Frame, seconds: float) -> dict[str, Any]:
    """Moment by moment: the golden run is never silent for more than a second with requests under way."""
    start = run.STOP_S - seconds
    tokens = np.concatenate([sent + arrivals for sent, arrivals in zip(df.sent, df.arrivals, strict=True)])
    ends = df.ended[~df.outcome.isin(["timeout", "connect_error", "cancelled"])]
    events = np.sort(np.concatenate([[start], tokens, ends, [run.STOP_S]]))
    events = events[(events >= start) & (events <= run.STOP_S)]
    begun = df.sent.fillna(df.started)
    for since, until in pairwise(events):
        if until - since > 1:
            inside = df[(begun < until) & (df.ended > since)]
            from_, to = begun[inside.index].clip(since), df.ended[inside.index].clip(upper=until)
            edges = pairwise(sorted({since, until, *from_, *to}))
            busy = sum(b - a for a, b in edges if ((begun <= a) & (df.ended >= b) & (df.ended > begun)).any())
            assert busy <= 1
    return {
        "n": 0,
        "seconds": 0.0,
        "spans": [],
        "slow_n": 0,
        "slow_seconds": 0.0,
        "slow_longest_s": None,
    }


def _served(after: pd.Series, whole: int) -> float:
    return after[(after >= 0) & (after < whole)].floordiv(1).nunique() / whole


def _longest_wait(after: pd.Series, seconds: float) -> dict[str, float]:
    edges = np.array([0.0, *sorted(after[(after >= 0) & (after < seconds)]), seconds])
    waits = np.diff(edges)
    return {"seconds": float(waits.max()), "start_s": float(edges[waits.argmax()])}


def steadiness(df: Frame, seconds: float) -> dict[str, Any]:
    """The plateau of the rate; in 40 parts: whether each is like the last third."""
    start, ok = run.STOP_S - seconds, population(df)[0]
    # What was asked for in an open loop: requests that were due, in parts of 400 and more of all requests.
    parts = len(df) // 400
    due = np.histogram(df.scheduled, np.linspace(start, run.STOP_S, parts + 1))[0] / (seconds / parts)
    allowed = max(0.1, 4 / np.sqrt(np.median(due) * seconds / parts))
    near = [due[np.abs(due - level) <= allowed * level] for level in np.sort(due)]
    plateau = float(np.median(max(near, key=len)))
    assert (np.abs(due - plateau) <= allowed * plateau).all(), "the golden run has one rate"
    edges = np.linspace(start, run.STOP_S, 41)
    place = np.searchsorted(edges, ok.scheduled, side="right") - 1
    ttfts = ok.groupby(place).ttft.median().to_numpy() * 1e3
    for series in (_mean_concurrency(df, edges), ttfts):
        last = series[-13:]
        residuals = last - last.mean()
        correlation = serial_correlation(residuals, 1)
        worth = max(4.0, 13 * (1 - correlation) / (1 + correlation))
        variance = (residuals**2).mean() / (1 - 1 / worth)
        reach = student_t(worth - 1, 0.99) * np.sqrt(variance * (1 + 1 / worth))
        # The golden run is one that begins as it goes on.
        assert abs(series[0] - last.mean()) <= max(reach, 0.1 * last.mean())
    return {
        "settled": True,
        "warmup_like": False,
        "warmup_s_suggested": None,
        "unit": "requests/s",
        "plateau": plateau,
        "steady_share": 1.0,
        "reason": f"concurrency and median TTFT of the first {seconds / 40:.3g} s "
        "are like those of the last third",
        "slower": None,
        "overload": None,
    }


def _mean_concurrency(df: Frame, edges: Any) -> Any:
    spans = df[df.ended > df.sent]
    return np.array(
        [
            (np.minimum(spans.ended, b) - np.maximum(spans.sent, a)).clip(lower=0).sum() / (b - a)
            for a, b in pairwise(edges)
        ]
    )


def drift(df: Frame, seconds: float) -> dict[str, Any]:
    start, (ok, failed, judged) = run.STOP_S - seconds, population(df)
    bins = int(seconds // 60)  # of 60 s or more each, for there are 100 requests or more in every one
    edges = np.linspace(start, run.STOP_S, bins + 1)

    def binned(rows: Frame) -> Any:
        return rows.groupby(np.searchsorted(edges, rows.scheduled, side="right") - 1)

    size = binned(judged).size()
    came = df[df.n.notna() & ((df.events > 0) | df.ok)]
    begun = (came.sent + came.first_event).where(came.events > 0, came.ended)
    last = came.arrivals.map(lambda a: a[-1] if len(a) else np.nan)
    over = (came.sent + last).where(came.events > 0, came.ended)
    arrived = [(came.n * ((e - begun) / (over - begun).clip(lower=1e-3)).clip(0, 1)).sum() for e in edges]
    ascending = [np.sort(ttfts.dropna()) for _, ttfts in binned(ok).ttft]
    series = {
        "ttft_p50_ms": np.array([percentile(values, 50) for values in ascending]) * 1e3,
        "ttft_p99_ms": np.array([percentile(values, 99) for values in ascending]) * 1e3,
        "goodput_ratio": binned(df[df.inside & df.judged]).good.mean().to_numpy(),
        "error_rate": (binned(failed).size().reindex(size.index, fill_value=0) / size).to_numpy(),
        "output_tokens_per_s": np.diff(arrived) / np.diff(edges),
    }
    hours = ((edges[:-1] + edges[1:]) / 2 - edges[0]) / 3600
    found = {key: _trend(hours, values, seconds / 3600) for key, values in series.items()}
    return {
        "reason": None,
        "bins": bins,
        "bin_s": seconds / bins,
        "found": [key for key, trend in found.items() if trend.pop("beyond_noise")],
        "measures": found,
        "client_rss_mib": None,
    }


def _trend(hours: Any, values: Any, whole: float) -> dict[str, Any]:
    slope, level = np.polyfit(hours, values, 1)
    residuals = values - level - slope * hours
    correlation = serial_correlation(residuals, 2)
    degrees = max(4.0, len(values) * (1 - correlation) / (1 + correlation)) - 2
    error = np.sqrt((residuals**2).sum() / degrees / ((hours - hours.mean()) ** 2).sum())
    reach = student_t(degrees, 0.95) * error
    return {
        "at_start": level,
        "at_end": level + slope * whole,
        "per_hour": slope,
        "ci95": [slope - reach, slope + reach],
        "relative_per_hour": slope / level,
        "correlation": correlation,
        "bins": len(values),
        "beyond_noise": abs(slope) > student_t(degrees, 0.998) * error,
    }
