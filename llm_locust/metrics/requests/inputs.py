"""Inputs of requests that ask for a result of each: texts to embed, documents to rank."""

from typing import Any

import numpy as np

from llm_locust.metrics.columns import Columns, Rows, groups
from llm_locust.metrics.requests.throughput import Credits, inputs_per_s, rate_per_s
from llm_locust.metrics.stats.percentiles import ordered, summarise_ascending


def inputs(c: Columns, ok: Rows, credits: Credits) -> dict[str, Any] | None:
    """Key ``inputs`` of a summary; None of a run whose requests all ask for one answer.

    Rates are of all requests, whenever they were scheduled; inputs count when their answer has come, as their
    tokens do. All else is of the requests ``ok``.
    """
    if np.isnan(c.inputs).all():
        return None
    by_name = {
        name: figures
        for name, rows in groups(c.name)
        if (figures := _figures(c, rows, np.intersect1d(rows, ok, assume_unique=True), credits))
    }
    total = _figures(c, np.arange(len(c)), ok, credits)
    return {**(total or {}), "by_name": by_name if len(by_name) > 1 else {}}


def _figures(c: Columns, rows: Rows, ok: Rows, credits: Credits) -> dict[str, Any] | None:
    has = rows[~np.isnan(c.inputs[rows])]
    if not len(has):
        return None
    tokens, finished = credits.input_tokens[has], credits.finished[has]
    each = summarise_ascending(ordered(c.inputs[ok]))
    known = ok[~np.isnan(c.inputs[ok]) & ~np.isnan(c.input_tokens[ok])]
    amount = float(c.inputs[known].sum())
    return {
        "inputs_per_s": inputs_per_s(credits, has),
        "input_tokens_per_s": rate_per_s(tokens, finished, credits.window.seconds),
        "per_request": {key: each[key] for key in ("n", "mean", "p50", "p99", "max")},
        "tokens_per_input": float(c.input_tokens[known].sum()) / amount if amount else None,
    }
