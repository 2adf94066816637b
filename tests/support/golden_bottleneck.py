"""Where the time of the golden run goes, by pandas and plain loops over pairs of answers."""

from itertools import combinations
from typing import Any

import numpy as np
from golden_frame import Frame

_FAULTS = ("out", "slow", "sticky")
_PARTS = ("connection", "fixed", "prefill", "queue", "decode")


def bottleneck(df: Frame, seconds: float, client: str, causes: list[dict[str, Any]]) -> dict[str, Any]:
    """By the definitions; the golden run has a client that is valid, or one that is wrong in several ways."""
    sent = df[df.sent.notna()]
    assert sent.replica.isna().any()  # so that all replicas count as one
    at = sent.sent.to_numpy()
    first = (sent.sent + sent.first_event).fillna(sent.ended).to_numpy()
    df = df.assign(
        waiting=[max(0, int((at < t).sum() - (first <= t).sum())) for t in df.sent],
        rtt0=np.minimum(df.rtt.fillna(0), df.first_event.fillna(0)),
    )
    df = df.sort_values(["scheduled", "ended"], kind="stable")
    known = df[df.ok & df.streamed & (df.events > 0)]
    answers = known[known.inside]
    calm = answers[answers.waiting <= answers.waiting.median()]
    slope = _slope(calm.input_tokens, calm.first_event - calm.rtt0)
    per_token = max(0.0, slope[0]) if slope and not slope[1] <= 0 <= slope[2] else 0.0
    rest = known.first_event - known.rtt0 - per_token * known.input_tokens.fillna(0)
    alone = rest[known.waiting == 0]
    served = answers.first_event - answers.rtt0
    fixed = served.clip(upper=max(0.0, alone.median() if len(alone) >= 20 else rest.min()))
    prefill = np.minimum(per_token * answers.input_tokens.fillna(0), served - fixed)
    parts = {
        "connection": ((answers.sent - answers.started).clip(lower=0) + answers.rtt0).mean() * 1e3,
        "fixed": fixed.mean() * 1e3,
        "prefill": prefill.mean() * 1e3,
        "queue": (served - fixed - prefill).mean() * 1e3,
        "decode": (answers.last_token - answers.first_event).clip(lower=0).mean() * 1e3,
    }
    total = sum(parts.values())
    fault = next((cause["text"] for cause in causes if cause["kind"] in _FAULTS), None)
    busy = per_token * answers.input_tokens.sum() / seconds / answers.replica.nunique() if per_token else None
    largest = max(_PARTS, key=lambda part: parts[part])
    assert busy is None or busy < 0.5
    return {
        "verdict": "client" if client == "invalid" else "balancer" if fault else largest,
        "answers": len(answers),
        "left_out": int(df.inside.sum()) - len(answers),
        "mean_ms": total,
        "parts_ms": parts,
        "shares": {part: value / total for part, value in parts.items()},
        "always_queued": len(alone) < 20,
        "waiting_mean": answers.waiting.mean(),
        "new_connections": (~answers.reused).mean(),
        "prefill_us_per_token": _told(slope),
        "prefill_busy": busy,
        "tpot_us_per_request": _told(_slope(_load(df, answers), answers.tpot)),
        "tpot_us_per_context_token": _told(_slope(answers.input_tokens + answers.visible / 2, answers.tpot)),
        "cause": fault,
    }


def _load(df: Frame, answers: Frame) -> Any:
    """Mean number in flight between the first and the last event of each."""
    spans = df[df.ended > df.sent]
    ended, sent = spans.ended.to_numpy(), spans.sent.to_numpy()
    loads = []
    for begin, end in zip(answers.sent + answers.first_event, answers.sent + answers.last_event, strict=True):
        overlaps = ended.clip(begin, end) - sent.clip(begin, end)
        loads.append(overlaps.sum() / (end - begin) if end > begin else np.nan)
    return answers.tpot * 0 + np.round(loads, 6)


def _slope(x: Any, y: Any) -> tuple[float, float, float] | None:
    """Median of the slopes of all pairs of a sample of 400, and Sen's interval."""
    points = [(a, b) for a, b in zip(x, y, strict=True) if a == a and b == b]
    low, high = np.percentile([a for a, _ in points], [5, 95])
    if high - low <= 0.1 * high:
        return None
    chosen = [points[i] for i in np.random.default_rng(0).permutation(len(points))[:400]]
    slopes = sorted((d - b) / (c - a) for (a, b), (c, d) in combinations(chosen, 2) if a != c)
    n, ties = len(chosen), np.unique([a for a, _ in chosen], return_counts=True)[1]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties.tolist())) / 18
    reach = 1.959963984540054 * variance**0.5
    first = max(0, int(np.floor((len(slopes) - reach) / 2)))
    last = min(len(slopes) - 1, int(np.ceil((len(slopes) + reach) / 2)))
    return float(np.median(slopes)), slopes[first], slopes[last]


def _told(slope: tuple[float, float, float] | None) -> dict[str, Any] | None:
    if slope is None:
        return None
    return {"slope": slope[0] * 1e6, "ci95": [slope[1] * 1e6, slope[2] * 1e6]}
