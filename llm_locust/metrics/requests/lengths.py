"""Error of prompt lengths against the lengths that were asked for."""

from typing import Any

import numpy as np

from llm_locust.metrics.columns import Floats
from llm_locust.metrics.stats.percentiles import ordered, summarise_ascending


def length_error(asked: Floats, counted: Floats) -> dict[str, Any]:
    """Relative error of prompt lengths: (counted − asked) / asked.

    Args:
        asked: tokens that the workload asked for, NaN where it asked for none.
        counted: tokens that the server counted, NaN where it did not say; of the same shape.

    Returns:
        ``n`` requests of which both are known; ``mean_relative`` with its sign, > 0 where prompts were
        longer than asked; ``p50`` and ``p99`` of the error without its sign; and
        ``share_within_1_percent``. All but ``n`` are None where n is 0.
    """
    known = (asked > 0) & ~np.isnan(counted)
    error = (counted[known] - asked[known]) / asked[known]
    sizes = summarise_ascending(ordered(np.abs(error)), places={"p50": 50.0, "p99": 99.0})
    n = len(error)
    return {
        "n": n,
        "mean_relative": float(error.mean()) if n else None,
        "p50": sizes["p50"],
        "p99": sizes["p99"],
        "share_within_1_percent": float(np.mean(np.abs(error) <= 0.01)) if n else None,
    }
