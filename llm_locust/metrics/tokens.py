"""How long prompts and answers were, and how the tokens came."""

from typing import Any

import numpy as np

from llm_locust.metrics.columns import SOURCES, Columns, Floats, Rows
from llm_locust.metrics.latency import chars_per_s, user_tps
from llm_locust.metrics.lengths import length_error
from llm_locust.metrics.percentiles import ordered, summarise_ascending

#: Gaps below this are two events of one write, not the pace of a model.
_NO_GAP_MS = 0.1
_MERGED, _BUFFERED = 1.05, 2.0


def tokens(c: Columns, ok: Rows) -> dict[str, Any]:
    """Token counts of the requests ``ok``.

    ``input.error`` is that of the prompts' asked lengths, see
    :func:`~llm_locust.metrics.lengths.length_error`. ``source`` has the share of each origin among the
    known output counts. ``user_tps`` is 1/tpot; its slow end is the low one, so it has p1 and p10.
    ``chars_per_s`` is the same pace in characters, which does not depend on who counts tokens;
    ``chars_per_token`` is Σ characters / Σ tokens.
    """
    output = c.output_tokens[ok]
    known = ok[~np.isnan(output)]
    shares = np.bincount(c.source[known], minlength=len(SOURCES)) / len(known) if len(known) else None
    return {
        "input": _lengths(c.input_tokens[ok])
        | {"error": length_error(c.asked_input_tokens[ok], c.input_tokens[ok])},
        "output": _lengths(output),
        "tokens_per_event": tokens_per_event(c, ok),
        "source": {s.value: None if shares is None else float(shares[i]) for i, s in enumerate(SOURCES)},
        "user_tps": _speeds(user_tps(c)[ok]),
        "chars_per_s": _speeds(chars_per_s(c)[ok]),
        "chars_per_token": chars_per_token(c, ok),
    }


def tokens_per_event(c: Columns, ok: Rows) -> float | None:
    """Output tokens that events brought / token events, over the streamed answers whose count is known."""
    rows = ok[c.streamed[ok] & (c.events[ok] > 0) & ~np.isnan(c.output_tokens[ok])]
    events = int(c.events[rows].sum())
    return float(c.event_tokens[rows].sum()) / events if events else None


def chars_per_token(c: Columns, ok: Rows) -> float | None:
    """Σ characters / Σ output tokens, over the answers of which both are known."""
    rows = ok[~np.isnan(c.output_chars[ok]) & ~np.isnan(c.output_tokens[ok])]
    total = float(c.output_tokens[rows].sum())
    return float(c.output_chars[rows].sum()) / total if total else None


def delivery(per_event: float | None, itl_p50_ms: float | None, tpot_p50_ms: float | None) -> str | None:
    """How the stream came: ``tokens`` one by one, ``merged`` or ``buffered``; None where unknown.

    ``merged``: an ITL is a gap between events, not tokens. ``buffered``: something on the way held
    events back, and ITL and TTFT are not the server's: more than 2 tokens an event, or most gaps
    under 0.1 ms while the pace is slower than that.
    """
    if per_event is None:
        return None
    crowded = itl_p50_ms is not None and tpot_p50_ms is not None and itl_p50_ms < _NO_GAP_MS <= tpot_p50_ms
    if per_event > _BUFFERED or crowded:
        return "buffered"
    return "merged" if per_event > _MERGED else "tokens"


def _lengths(values: Floats) -> dict[str, Any]:
    figures = summarise_ascending(ordered(values))
    return {key: figures[key] for key in ("n", "mean", "p50", "p99", "max")}


def _speeds(values: Floats) -> dict[str, Any]:
    figures = summarise_ascending(ordered(values), places={"p1": 1.0, "p10": 10.0, "p50": 50.0})
    return {key: figures[key] for key in ("n", "mean", "p1", "p10", "p50", "ci95")}
