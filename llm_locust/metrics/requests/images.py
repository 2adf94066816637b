"""Images of requests: how many are read per second, and how long a first token takes behind them."""

from typing import Any

import numpy as np

from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.requests.throughput import Credits, rate_of_having
from llm_locust.metrics.stats.percentiles import ordered, summarise_ascending

#: Numbers of images that are one row of ``by_number``: up to these, and more.
_EDGES = (0, 1, 2, 4, 8, 16, 32, 64)
_LABELS = ("0", "1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65+")


def images(c: Columns, ok: Rows, credits: Credits, ttft_s: Floats) -> dict[str, Any] | None:
    """Key ``images`` of a summary; None of a run whose requests have none.

    Rates are of all requests, whenever they were scheduled: images count when their prompt has been read, as
    its tokens do. All else is of the requests ``ok``.
    """
    if np.isnan(c.images).all():
        return None
    each = summarise_ascending(ordered(c.images[ok]))
    having = ok[~np.isnan(c.images[ok])]
    amount = float(c.images[having].sum())
    per_s = rate_of_having(credits, credits.images, np.arange(len(c)))
    pixels = float(c.pixels[having].sum())  # NaN where the size of one is not known
    per_image = pixels / amount if amount and not np.isnan(pixels) else None
    return {
        "images_per_s": per_s,
        "pixels_per_s": None if per_s is None else _pixels_per_s(c, credits),
        "per_request": {key: each[key] for key in ("n", "mean", "p50", "p99", "max")},
        "pixels_per_image": per_image,
        "by_number": _by_number(c, ok, ttft_s),
    }


def _pixels_per_s(c: Columns, credits: Credits) -> float | None:
    """None where the size of an image that was read in the window is not known."""
    counted = np.flatnonzero(credits.images > 0)
    if np.isnan(c.pixels[counted]).any():
        return None
    total = float(np.sort(c.pixels[counted]).sum())
    return total / credits.window.seconds if credits.window.seconds > 0 else None


def _by_number(c: Columns, ok: Rows, ttft_s: Floats) -> list[dict[str, Any]]:
    ok = ok[np.isnan(c.inputs[ok])]  # embeddings have neither images nor a first token
    place = np.searchsorted(_EDGES, np.nan_to_num(c.images[ok], nan=0.0))
    found = []
    for number in np.unique(place).tolist():
        rows = ok[place == number]
        ttft = summarise_ascending(ordered(ttft_s[rows] * 1e3))
        tokens = summarise_ascending(ordered(c.input_tokens[rows]))
        found.append(
            {
                "images": _LABELS[number],
                "requests": len(rows),
                "ttft_ms": {key: ttft[key] for key in ("n", "mean", "p50", "p99", "max")},
                "input_tokens_mean": tokens["mean"],
            }
        )
    return found
