"""Confidence intervals of goodput: of its ratio and its rates."""

from dataclasses import replace
from typing import Any

import numpy as np

from llm_locust.metrics.catalogue import e2el
from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.requests.judgement import good_rates
from llm_locust.metrics.requests.rates import amounts_over_time
from llm_locust.metrics.stats.bootstrap import order_cells
from llm_locust.metrics.stats.intervals import (
    CONFIDENCE,
    FEWEST,
    EffectiveSize,
    Ends,
    Memory,
    Observed,
    as_json,
    effective_sizes,
    is_told,
    rate_ends,
    ratio_ends,
    rounded,
    share_size,
)

RATES = ("requests_per_s", "output_tokens_per_s")


def goodput_intervals(m: Measured, scheduled: Rows, rows: Rows, missing: int = 0) -> dict[str, Any]:
    """``ci95`` of ratio, requests_per_s and output_tokens_per_s, and ``n_effective`` of the ratio.

    None if the data are not sufficient; all None without an SLO.

    Args:
        scheduled: requests of the ratio, before they are judged.
        rows: requests of the rates.
        missing: requests without a record; they are spread over all cells, because their positions are
            unknown.
    """
    ends: dict[str, Ends | None] = dict.fromkeys(("ratio", *RATES))
    worth = None
    if m.judgement is not None:
        good = m.judgement.good
        judged = scheduled[m.judgement.judged[scheduled]]
        if len(judged):
            worth = ratio_size(m.c, judged, good[judged].astype(np.float64), missing)
        if worth is not None and is_told(worth, FEWEST):
            share = float(good[judged].sum()) / (len(judged) + missing)
            ends["ratio"] = ratio_ends(share, worth, CONFIDENCE)
        rates = good_rates(m.judgement, m.credits, rows)
        given = amounts_over_time(m.c, m.credits, rows[good[rows]])
        ends |= {key: rate_ends(rates[key], given[key], m.window, m.c) for key in RATES}
    return {"ci95": as_json(ends), "n_effective": {"ratio": None if worth is None else rounded(worth.n_eff)}}


def ratio_size(c: Columns, judged: Rows, hits: Floats, missing: int = 0) -> EffectiveSize | None:
    """Effective sample size of a share of ``judged``, where ``hits`` is 1 for each that counts.

    If nearly all are hits, or nearly none, it is at most that of the mean E2EL of the ok ones: requests that
    are slow together fail together.
    """
    order = order_cells(c, judged)
    counts = np.diff(order.bounds).astype(np.float64)
    counts += missing / max(1, len(counts))
    latencies = np.where(c.ok[judged], e2el(c)[judged], np.nan)
    known = latencies[~np.isnan(latencies)]
    slow = None
    if len(known):
        moments = float(known.mean()), float(known.std())
        slow, _ = effective_sizes(Observed(order, latencies), *moments, float(np.median(known)))
    worth = share_size(order.sums(order.sorted(hits)), counts, slow)
    if worth is None or worth.memory is not None:
        return worth
    # No request was ok: the share itself is all that shows how long the run remembers.
    return replace(worth, memory=Memory(float(counts.sum()), worth.n_eff if worth.error.settled else 0.0))
